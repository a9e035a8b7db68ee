-- Messages that took effect, by consumer. Times are microseconds since 1970 by the server's clock.
CREATE TABLE IF NOT EXISTS hapax_inbox (
    consumer TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (consumer, id)
);
CREATE INDEX IF NOT EXISTS hapax_inbox_received ON hapax_inbox (received_at);
