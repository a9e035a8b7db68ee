//! Every limit and default in one place, each with its reason.

use std::time::Duration;

/// Ids are index keys on every database; 255 bytes fit the smallest of their limits.
pub const MAX_ID_BYTES: usize = 255;
/// A larger state belongs in a blob store; beyond this a single step would stall the writer for all runs.
pub const MAX_STATE_BYTES: usize = 16 * 1024 * 1024;
/// Inputs, deltas and effect results are journaled whole, so they share the state's limit.
pub const MAX_PAYLOAD_BYTES: usize = MAX_STATE_BYTES;
/// An item's messages are journaled whole with it, so all of them together share that limit.
pub const MAX_MESSAGE_BYTES: usize = MAX_PAYLOAD_BYTES;
/// The order key keeps 24 bits for the edge index.
pub const MAX_FAN_OUT: usize = (1 << 24) - 1;
/// Tags are indexed; more of them than this is data, not a tag.
pub const MAX_TAGS: usize = 64;
/// Error messages are stored with every failed attempt; nobody reads more.
pub const MAX_ERROR_BYTES: usize = 8 * 1024;
/// Frontier items are stored in pages of this many: what one read brings into memory.
pub const FRONTIER_PAGE: usize = 1024;

/// Callees forget idempotency keys, many of them after a day: an unanswered call older than this is in doubt.
pub const KEY_TTL: Duration = Duration::from_secs(23 * 3600);
/// A century: times that are added up stay far from the end of every clock.
pub const MAX_WAIT: Duration = Duration::from_secs(100 * 366 * 86_400);
/// A wait longer than this drops the node's future: a parked run costs no task and no memory.
pub const SHORT_WAIT: Duration = Duration::from_secs(1);

/// Nodes of one run that execute at the same time.
pub const MAX_CONCURRENT_NODES: usize = 8;
/// Frontier items of one run that are held in memory.
pub const QUEUE_DEPTH: usize = FRONTIER_PAGE;
/// Runs that one engine executes at the same time.
pub const MAX_ACTIVE_RUNS: usize = 256;
/// One attempt of a node.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(30);
/// A run's time while it runs; parked time is free.
pub const RUN_BUDGET: Duration = Duration::from_secs(600);
/// How long a start waits for room before its run is parked.
pub const BACKPRESSURE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a worker owns a run without renewing.
pub const LEASE_TTL: Duration = Duration::from_secs(15);
/// A third of the lease: two renewals may be lost.
pub const LEASE_RENEWAL: Duration = Duration::from_secs(5);
/// How long a cancelled node may take to notice.
pub const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// How long a relay owns the messages of a run to a topic without a word to the store.
pub const RELAY_TTL: Duration = Duration::from_secs(30);
/// How often a relay looks for messages that nobody told it of.
pub const RELAY_POLL: Duration = Duration::from_secs(1);
/// Messages of one run to one topic that a relay takes at a time; a crash delivers at most these again.
pub const RELAY_BATCH: usize = 100;
/// Deliveries of a message that may be refused before it is dead: with the usual pauses, more than an hour.
pub const RELAY_ATTEMPTS: u32 = 20;
/// An HTTP request and its answer: less than a node's time, so that the request fails and not the node.
pub const HTTP_TIMEOUT: Duration = Duration::from_secs(20);
/// Less than a request's time: a connection that doesn't come about proves that nothing was sent, a late answer doesn't.
pub const HTTP_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A longer one is a mistake of the caller's: what takes that long is started by one request and fetched by another.
pub const MAX_HTTP_TIMEOUT: Duration = Duration::from_secs(3600);
/// The body of an answer, which is journaled whole.
pub const HTTP_BODY_BYTES: usize = 1024 * 1024;
/// A body may double as JSON, and its headers come on top: this much always fits into a result.
pub const MAX_HTTP_BODY_BYTES: usize = MAX_PAYLOAD_BYTES / 2 - HTTP_BODY_BYTES;
/// A read follows this many redirects; more of them are a loop.
pub const HTTP_REDIRECTS: usize = 10;
/// What an error tells of the answer's body.
pub const HTTP_EXCERPT_BYTES: usize = 1024;
/// How long a busy service may keep us waiting at a time: an absurd wish costs an attempt, not the run.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Steps that may run ahead of the disk; a crash repeats at most these.
pub const WINDOW_STEPS: usize = 256;
/// Bytes that may run ahead of the disk.
pub const WINDOW_BYTES: usize = 4 * 1024 * 1024;
