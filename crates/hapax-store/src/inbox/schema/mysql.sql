-- Messages that took effect, by consumer. Times are microseconds since 1970 by the server's clock.
-- Names are bytes, so that no collation takes two for one.
CREATE TABLE IF NOT EXISTS hapax_inbox (
    consumer VARBINARY(255) NOT NULL,
    id VARBINARY(255) NOT NULL,
    received_at BIGINT NOT NULL,
    PRIMARY KEY (consumer, id),
    KEY hapax_inbox_received (received_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
