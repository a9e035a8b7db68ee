-- Requests that take effect once. All times are microseconds since 1970.
CREATE TABLE IF NOT EXISTS hapax_requests (
    namespace TEXT NOT NULL,
    principal TEXT NOT NULL,
    method TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    -- SHA-256 of what is asked for.
    request_hash BLOB NOT NULL,
    -- IN_PROGRESS, SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE.
    status TEXT NOT NULL,
    -- The token of the latest execution: all three of them.
    sequence INTEGER NOT NULL,
    nonce BLOB NOT NULL,
    updated_at INTEGER NOT NULL,
    -- Executions so far, and when the latest may be taken over.
    attempt INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    -- Drawn when the request was begun, or begun afresh.
    origin BLOB NOT NULL,
    -- How far it came.
    point_name TEXT,
    point_data TEXT,
    -- The answer.
    response_code INTEGER,
    response_headers TEXT,
    response_payload BLOB,
    error_message TEXT,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, principal, method, idempotency_key)
);
CREATE INDEX IF NOT EXISTS hapax_requests_expiry ON hapax_requests (expires_at);
