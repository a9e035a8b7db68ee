-- Requests that take effect once. All times are microseconds since 1970 by the server's clock.
-- Names are bytes, so that no collation takes two for one.
CREATE TABLE IF NOT EXISTS hapax_requests (
    namespace VARBINARY(255) NOT NULL,
    principal VARBINARY(255) NOT NULL,
    method VARBINARY(255) NOT NULL,
    idempotency_key VARBINARY(255) NOT NULL,
    -- SHA-256 of what is asked for.
    request_hash VARBINARY(32) NOT NULL,
    -- IN_PROGRESS, SUCCEEDED, FAILED_FINAL or FAILED_RETRYABLE.
    status VARBINARY(32) NOT NULL,
    -- The token of the latest execution: all three of them.
    sequence BIGINT NOT NULL,
    nonce VARBINARY(16) NOT NULL,
    updated_at BIGINT NOT NULL,
    -- Executions so far, and when the latest may be taken over.
    attempt INT NOT NULL,
    lease_until BIGINT NOT NULL,
    -- Drawn when the request was begun, or begun afresh.
    origin VARBINARY(16) NOT NULL,
    -- How far it came.
    point_name VARBINARY(255),
    point_data LONGTEXT,
    -- The answer.
    response_code INT,
    response_headers LONGTEXT,
    response_payload LONGBLOB,
    error_message LONGTEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (namespace, principal, method, idempotency_key),
    KEY hapax_requests_expiry (expires_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
