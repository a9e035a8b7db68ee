-- Requests that take effect once. All times are microseconds since 1970 by the server's clock.
CREATE TABLE IF NOT EXISTS hapax_requests (
    namespace TEXT COLLATE "C" NOT NULL,
    principal TEXT COLLATE "C" NOT NULL,
    method TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C" NOT NULL,
    -- SHA-256 of what is asked for.
    request_hash BYTEA NOT NULL,
    -- IN_PROGRESS, SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE.
    status TEXT COLLATE "C" NOT NULL,
    -- The token of the latest execution: all three of them.
    sequence BIGINT NOT NULL,
    nonce BYTEA NOT NULL,
    updated_at BIGINT NOT NULL,
    -- Executions so far, and when the latest may be taken over.
    attempt INTEGER NOT NULL,
    lease_until BIGINT NOT NULL,
    -- Drawn when the request was begun, or begun afresh.
    origin BYTEA NOT NULL,
    -- How far it came.
    point_name TEXT,
    point_data TEXT,
    -- The answer.
    response_code INTEGER,
    response_headers TEXT,
    response_payload BYTEA,
    error_message TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, principal, method, idempotency_key)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS hapax_requests_expiry ON hapax_requests (expires_at);
CREATE SEQUENCE IF NOT EXISTS hapax_requests_sequence;
