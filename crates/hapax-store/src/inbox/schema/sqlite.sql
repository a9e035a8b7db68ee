-- Messages that took effect, by consumer. Times are microseconds since 1970.
CREATE TABLE IF NOT EXISTS hapax_inbox (
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    PRIMARY KEY (consumer, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS hapax_inbox_received ON hapax_inbox (received_at);
