//! Every limit and default in one place, each with its reason.

use std::time::Duration;

/// Ids are index keys on every database; 255 bytes fit the smallest of their limits.
///
/// ```
/// use hapax_core::{id::RunId, limits::MAX_ID_BYTES};
/// assert!(RunId::new("x".repeat(MAX_ID_BYTES)).is_ok());
/// assert!(RunId::new("x".repeat(MAX_ID_BYTES + 1)).is_err());
/// ```
pub const MAX_ID_BYTES: usize = 255;

/// A larger state belongs in a blob store; beyond this a single step would stall the writer for all runs.
///
/// ```
/// use hapax_core::{canonical, limits::MAX_STATE_BYTES};
/// let photo = vec![128u8; MAX_STATE_BYTES / 4];
/// assert!(canonical::to_vec(&photo)?.len() > MAX_STATE_BYTES, "what counts is the JSON");
/// # Ok::<(), canonical::CanonicalError>(())
/// ```
pub const MAX_STATE_BYTES: usize = 16 * 1024 * 1024;

/// Inputs, deltas and effect results are journaled whole, so they share the state's limit.
///
/// ```
/// use hapax_core::{json::Json, limits::MAX_PAYLOAD_BYTES};
/// let text = Json::of(&"x".repeat(MAX_PAYLOAD_BYTES))?;
/// assert!(text.as_bytes().len() > MAX_PAYLOAD_BYTES, "the quotes count, too");
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
pub const MAX_PAYLOAD_BYTES: usize = MAX_STATE_BYTES;

/// An item's messages are journaled whole with it, so all of them together share that limit.
///
/// ```
/// use hapax_core::{json::Json, limits::MAX_MESSAGE_BYTES, outbox::Message};
/// let mail = Message { topic: "mail".into(), key: String::new(), payload: Json::of("shipped")? };
/// let thousand = vec![mail; 1000];
/// assert!(thousand.iter().map(Message::weight).sum::<usize>() < MAX_MESSAGE_BYTES);
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
pub const MAX_MESSAGE_BYTES: usize = MAX_PAYLOAD_BYTES;

/// A chunk is a part of something, and a reader holds a page of them in memory; what is whole belongs in the state.
///
/// ```
/// use hapax_core::limits::{MAX_CHUNK_BYTES, MAX_PAYLOAD_BYTES, STREAM_PAGE};
/// assert_eq!(MAX_CHUNK_BYTES * STREAM_PAGE, MAX_PAYLOAD_BYTES, "a page of the largest is no more than one answer");
/// ```
pub const MAX_CHUNK_BYTES: usize = 256 * 1024;

/// Whoever looks at a store counts no further: a look costs the same however much has piled up, and beyond this the exact
/// number tells nobody more.
///
/// ```
/// use hapax_core::limits::MAX_COUNTED;
/// assert!(MAX_COUNTED < 1_000_000, "entries of an index, read in well under a second");
/// ```
pub const MAX_COUNTED: u64 = 100_000;

/// Journal rows that a reader of a stream takes at a time.
///
/// ```
/// use hapax_core::limits::STREAM_PAGE;
/// assert_eq!(1000usize.div_ceil(STREAM_PAGE), 16, "reads for a thousand chunks");
/// ```
pub const STREAM_PAGE: usize = 64;

/// How often a reader of a stream looks for chunks of another process at first; less and less often while none come.
///
/// ```
/// use hapax_core::limits::{STREAM_POLL, STREAM_POLL_MAX};
/// assert!(STREAM_POLL < STREAM_POLL_MAX && STREAM_POLL_MAX.as_secs() == 1);
/// ```
pub const STREAM_POLL: Duration = Duration::from_millis(50);

/// How often it looks at the least.
///
/// ```
/// use hapax_core::limits::{STREAM_POLL, STREAM_POLL_MAX};
/// assert_eq!(STREAM_POLL_MAX.as_millis() / STREAM_POLL.as_millis(), 20);
/// ```
pub const STREAM_POLL_MAX: Duration = Duration::from_secs(1);

/// The order key keeps 24 bits for the edge index.
///
/// ```
/// use hapax_core::{limits::MAX_FAN_OUT, order::{OrderKey, PathHash}};
/// let last = u32::try_from(MAX_FAN_OUT)? - 1;
/// assert_eq!(OrderKey::of(PathHash(u64::MAX), last).edge_index(), last);
/// # Ok::<(), std::num::TryFromIntError>(())
/// ```
pub const MAX_FAN_OUT: usize = (1 << 24) - 1;

/// Tags are indexed; more of them than this is data, not a tag.
///
/// ```
/// use hapax_core::{id::check_tag, limits::MAX_TAGS};
/// let tags = [("customer", "42"), ("country", "DE")];
/// assert!(tags.len() <= MAX_TAGS && tags.iter().all(|(key, value)| check_tag(key, value).is_ok()));
/// ```
pub const MAX_TAGS: usize = 64;

/// Error messages are stored with every failed attempt; nobody reads more.
///
/// ```
/// use hapax_core::{failure::clip, limits::MAX_ERROR_BYTES};
/// let page = "x".repeat(1_000_000);
/// assert_eq!(clip(page).len(), MAX_ERROR_BYTES + "…".len());
/// ```
pub const MAX_ERROR_BYTES: usize = 8 * 1024;

/// Frontier items are stored in pages of this many: what one read brings into memory.
///
/// ```
/// use hapax_core::{frontier::{WorkItem, page_digests}, limits::FRONTIER_PAGE};
/// # use hapax_core::{id::NodeId, order::PathHash};
/// # let item = |edge| WorkItem::child(PathHash::ROOT, edge, NodeId::new("add").unwrap(), None);
/// let items: Vec<WorkItem> = (0..).map(item).take(FRONTIER_PAGE + 1).collect();
/// assert_eq!(page_digests(&items).len(), 2);
/// ```
pub const FRONTIER_PAGE: usize = 1024;

/// Callees forget idempotency keys, many of them after a day: an unanswered call older than this is in doubt.
///
/// ```
/// use hapax_core::limits::KEY_TTL;
/// use std::time::Duration;
/// assert!(KEY_TTL < Duration::from_secs(86_400), "we stop before the callee has forgotten");
/// ```
pub const KEY_TTL: Duration = Duration::from_secs(23 * 3600);

/// A century: times that are added up stay far from the end of every clock.
///
/// ```
/// use hapax_core::limits::MAX_WAIT;
/// let now_us = 1_800_000_000_000_000_i64;
/// assert!(now_us.checked_add(i64::try_from(MAX_WAIT.as_micros())?).is_some());
/// # Ok::<(), std::num::TryFromIntError>(())
/// ```
pub const MAX_WAIT: Duration = Duration::from_secs(100 * 366 * 86_400);

/// A wait longer than this drops the node's future: a parked run costs no task and no memory.
///
/// ```
/// use hapax_core::limits::SHORT_WAIT;
/// use std::time::Duration;
/// let is_parked = |wait: Duration| wait > SHORT_WAIT;
/// assert!(is_parked(Duration::from_secs(3600)) && !is_parked(Duration::from_millis(200)));
/// ```
pub const SHORT_WAIT: Duration = Duration::from_secs(1);

/// Nodes of one run that execute at the same time.
///
/// ```
/// use hapax_core::limits::{MAX_CONCURRENT_NODES, QUEUE_DEPTH};
/// assert!(MAX_CONCURRENT_NODES < QUEUE_DEPTH, "the next items are at hand when one ends");
/// ```
pub const MAX_CONCURRENT_NODES: usize = 8;

/// Frontier items of one run that are held in memory.
///
/// ```
/// use hapax_core::limits::{FRONTIER_PAGE, QUEUE_DEPTH};
/// assert_eq!(QUEUE_DEPTH, FRONTIER_PAGE, "what one read brings");
/// ```
pub const QUEUE_DEPTH: usize = FRONTIER_PAGE;

/// Runs that one engine executes at the same time.
///
/// ```
/// use hapax_core::limits::{MAX_ACTIVE_RUNS, MAX_CONCURRENT_NODES};
/// assert_eq!(MAX_ACTIVE_RUNS * MAX_CONCURRENT_NODES, 2048, "bodies at the same time, at the most");
/// ```
pub const MAX_ACTIVE_RUNS: usize = 256;

/// One attempt of a node.
///
/// ```
/// use hapax_core::limits::{LEASE_RENEWAL, NODE_TIMEOUT};
/// assert!(LEASE_RENEWAL < NODE_TIMEOUT, "a slow node keeps its run: the lease is renewed meanwhile");
/// ```
pub const NODE_TIMEOUT: Duration = Duration::from_secs(30);

/// A run's time while it runs; parked time is free.
///
/// ```
/// use hapax_core::limits::{NODE_TIMEOUT, RUN_BUDGET};
/// assert_eq!(RUN_BUDGET, NODE_TIMEOUT * 20, "so many attempts may hang before the run is over");
/// ```
pub const RUN_BUDGET: Duration = Duration::from_secs(600);

/// How long a start waits for room before its run is parked.
///
/// ```
/// use hapax_core::limits::{BACKPRESSURE_TIMEOUT, NODE_TIMEOUT};
/// assert!(BACKPRESSURE_TIMEOUT >= NODE_TIMEOUT, "long enough for a node that is in the way");
/// ```
pub const BACKPRESSURE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a worker owns a run without renewing.
///
/// ```
/// use hapax_core::limits::{LEASE_RENEWAL, LEASE_TTL};
/// assert!(LEASE_TTL > LEASE_RENEWAL * 2, "one late renewal loses nothing");
/// ```
pub const LEASE_TTL: Duration = Duration::from_secs(15);

/// A third of the lease: two renewals may be lost.
///
/// ```
/// use hapax_core::limits::{LEASE_RENEWAL, LEASE_TTL};
/// assert_eq!(LEASE_RENEWAL * 3, LEASE_TTL);
/// ```
pub const LEASE_RENEWAL: Duration = Duration::from_secs(5);

/// How long one of several databases may take for what the others wait with it for: work, leases, what is due. A database
/// that has frozen must not cost the others' runs their leases.
///
/// ```
/// use hapax_core::limits::{LEASE_RENEWAL, LEASE_TTL, SHARD_PATIENCE};
/// assert!(LEASE_RENEWAL + SHARD_PATIENCE < LEASE_TTL, "the other leases are renewed in time");
/// ```
pub const SHARD_PATIENCE: Duration = Duration::from_secs(3);

/// How long a cancelled node may take to notice.
///
/// ```
/// use hapax_core::limits::{CANCEL_GRACE, LEASE_RENEWAL};
/// assert!(CANCEL_GRACE < LEASE_RENEWAL, "the run is still ours when its node has noticed");
/// ```
pub const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// How long a relay owns the messages of a run to a topic without a word to the store.
///
/// ```
/// use hapax_core::limits::{RELAY_POLL, RELAY_TTL};
/// assert!(RELAY_POLL < RELAY_TTL, "what a dead relay held is found soon after its claim has ended");
/// ```
pub const RELAY_TTL: Duration = Duration::from_secs(30);

/// How often a relay looks for messages that nobody told it of.
///
/// ```
/// use hapax_core::limits::RELAY_POLL;
/// // Of its own engine's messages it is told at once; those of others wait no longer than this.
/// assert_eq!(RELAY_POLL.as_secs(), 1);
/// ```
pub const RELAY_POLL: Duration = Duration::from_secs(1);

/// How often a scheduler looks for schedules that nobody told it of.
///
/// ```
/// use hapax_core::limits::SCHEDULE_POLL;
/// // What it knows of it fires at the second; a schedule that another process adds is found within this time.
/// assert_eq!(SCHEDULE_POLL.as_secs(), 1);
/// ```
pub const SCHEDULE_POLL: Duration = Duration::from_secs(1);

/// Overdue firings of a schedule that may be made up for: more than that is a queue, and wants one.
///
/// ```
/// use hapax_core::limits::MAX_CATCH_UP;
/// assert!(MAX_CATCH_UP >= 24 * 31, "a month of hours");
/// ```
pub const MAX_CATCH_UP: u32 = 1000;

/// Overdue firings that are passed over in one transaction. Each is worked out by itself, so this bounds the time that takes.
///
/// ```
/// use hapax_core::limits::{MAX_CATCH_UP, MAX_PASSED_OVER};
/// assert!(MAX_PASSED_OVER > u64::from(MAX_CATCH_UP));
/// ```
pub const MAX_PASSED_OVER: u64 = 10_000;

/// Times of a schedule that are counted when it is resumed after a pause. Each is worked out by itself, so this bounds the time
/// that takes; more count as so many.
///
/// ```
/// use hapax_core::limits::MAX_COUNTED_PAUSE;
/// assert!(MAX_COUNTED_PAUSE > 24 * 3600, "a day of seconds");
/// ```
pub const MAX_COUNTED_PAUSE: u64 = 100_000;

/// A schedule's name is the beginning of the names of its runs, behind which comes the time.
///
/// ```
/// use hapax_core::limits::{MAX_ID_BYTES, MAX_SCHEDULE_NAME_BYTES};
/// assert!(MAX_SCHEDULE_NAME_BYTES + "@2026-11-18T12:00:00Z".len() <= MAX_ID_BYTES);
/// ```
pub const MAX_SCHEDULE_NAME_BYTES: usize = 200;

/// A cron expression that is longer isn't one that somebody can read.
///
/// ```
/// use hapax_core::limits::MAX_CRON_BYTES;
/// assert!("0 9 * * MON-FRI".len() < MAX_CRON_BYTES);
/// ```
pub const MAX_CRON_BYTES: usize = 255;

/// Messages of one run to one topic that a relay takes at a time; a crash delivers at most these again.
///
/// ```
/// use hapax_core::limits::RELAY_BATCH;
/// assert_eq!(1000usize.div_ceil(RELAY_BATCH), 10, "claims for a thousand messages of one run");
/// ```
pub const RELAY_BATCH: usize = 100;

/// Deliveries of a message that may be refused before it is dead: with the usual pauses, more than an hour.
///
/// ```
/// use hapax_core::limits::RELAY_ATTEMPTS;
/// // Pauses of 100 ms, doubled up to ten minutes.
/// let pauses_ms = (0..RELAY_ATTEMPTS - 1).map(|failed| (100u64 << failed).min(600_000));
/// assert!(pauses_ms.sum::<u64>() > 3_600_000);
/// ```
pub const RELAY_ATTEMPTS: u32 = 20;

/// How long a sink waits for a broker's word: less than a third of a relay's claim, so that it is the sink that gives up.
///
/// ```
/// use hapax_core::limits::{RELAY_TTL, SINK_TIMEOUT};
/// assert!(SINK_TIMEOUT < RELAY_TTL / 3);
/// ```
pub const SINK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a broker should know the ids of what it took: when a relay dies between a delivery and its mark, another one
/// delivers again once the claim has ended, and the broker may be down for a while meanwhile.
///
/// ```
/// use hapax_core::limits::{DUPLICATE_WINDOW, RELAY_TTL};
/// assert!(DUPLICATE_WINDOW >= 2 * RELAY_TTL);
/// ```
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// An HTTP request and its answer: less than a node's time, so that the request fails and not the node.
///
/// ```
/// use hapax_core::limits::{HTTP_TIMEOUT, NODE_TIMEOUT};
/// assert!(HTTP_TIMEOUT < NODE_TIMEOUT, "the node is still there to see it");
/// ```
pub const HTTP_TIMEOUT: Duration = Duration::from_secs(20);

/// Less than a request's time: a connection that doesn't come about proves that nothing was sent, a late answer doesn't.
///
/// ```
/// use hapax_core::limits::{HTTP_CONNECT_TIMEOUT, HTTP_TIMEOUT};
/// assert!(HTTP_CONNECT_TIMEOUT < HTTP_TIMEOUT, "no connection is told from no answer");
/// ```
pub const HTTP_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A longer one is a mistake of the caller's: what takes that long is started by one request and fetched by another.
///
/// ```
/// use hapax_core::limits::{HTTP_TIMEOUT, MAX_HTTP_TIMEOUT};
/// assert_eq!(MAX_HTTP_TIMEOUT, HTTP_TIMEOUT * 180);
/// ```
pub const MAX_HTTP_TIMEOUT: Duration = Duration::from_secs(3600);

/// The body of an answer, which is journaled whole.
///
/// ```
/// use hapax_core::limits::{HTTP_BODY_BYTES, MAX_HTTP_BODY_BYTES};
/// assert!(HTTP_BODY_BYTES < MAX_HTTP_BODY_BYTES, "a request may ask for more");
/// ```
pub const HTTP_BODY_BYTES: usize = 1024 * 1024;

/// A body may double as JSON, and its headers come on top: this much always fits into a result.
///
/// ```
/// use hapax_core::limits::{MAX_HTTP_BODY_BYTES, MAX_PAYLOAD_BYTES};
/// assert!(MAX_HTTP_BODY_BYTES * 2 < MAX_PAYLOAD_BYTES);
/// ```
pub const MAX_HTTP_BODY_BYTES: usize = MAX_PAYLOAD_BYTES / 2 - HTTP_BODY_BYTES;

/// A read follows this many redirects; more of them are a loop.
///
/// ```
/// use hapax_core::limits::HTTP_REDIRECTS;
/// assert_eq!(HTTP_REDIRECTS, 10, "and none at all for a write");
/// ```
pub const HTTP_REDIRECTS: usize = 10;

/// What an error tells of the answer's body.
///
/// ```
/// use hapax_core::limits::{HTTP_BODY_BYTES, HTTP_EXCERPT_BYTES};
/// assert_eq!(HTTP_BODY_BYTES / HTTP_EXCERPT_BYTES, 1024, "an error is no place for a body");
/// ```
pub const HTTP_EXCERPT_BYTES: usize = 1024;

/// How long a busy service may keep us waiting at a time: an absurd wish costs an attempt, not the run.
///
/// ```
/// use hapax_core::limits::{MAX_RETRY_AFTER, SHORT_WAIT};
/// assert!(MAX_RETRY_AFTER > SHORT_WAIT, "such a wait parks the run");
/// ```
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// Steps that may run ahead of the disk; a crash repeats at most these.
///
/// ```
/// use hapax_core::limits::{WINDOW_BYTES, WINDOW_STEPS};
/// assert_eq!(WINDOW_BYTES / WINDOW_STEPS, 16_384, "with larger steps the bytes are the limit");
/// ```
pub const WINDOW_STEPS: usize = 256;

/// Bytes that may run ahead of the disk.
///
/// ```
/// use hapax_core::limits::{MAX_STATE_BYTES, WINDOW_BYTES};
/// assert!(MAX_STATE_BYTES > WINDOW_BYTES, "a step with the largest state waits for the disk alone");
/// ```
pub const WINDOW_BYTES: usize = 4 * 1024 * 1024;

/// A request's lease: a crash keeps its key busy for so long at the most, and a heartbeat comes a few times in it.
///
/// ```
/// use hapax_core::limits::{REQUEST_EXPIRY, REQUEST_LEASE};
/// assert!(REQUEST_LEASE * 100 < REQUEST_EXPIRY, "there is time for many executions");
/// ```
pub const REQUEST_LEASE: Duration = Duration::from_secs(30);

/// How long the answer to a request is kept: clients that try again later than that have forgotten their key.
///
/// ```
/// use hapax_core::limits::REQUEST_EXPIRY;
/// assert_eq!(REQUEST_EXPIRY.as_secs(), 24 * 3600);
/// ```
pub const REQUEST_EXPIRY: Duration = Duration::from_secs(24 * 3600);

/// The answer to a request, with its headers: what every server takes in one statement, with room for the rest of it.
///
/// ```
/// use hapax_core::limits::{HTTP_BODY_BYTES, MAX_RESPONSE_BYTES};
/// assert!(HTTP_BODY_BYTES < MAX_RESPONSE_BYTES);
/// ```
pub const MAX_RESPONSE_BYTES: usize = MAX_PAYLOAD_BYTES / 2;

/// A message to or from an agent, with its newline: whoever reads a line holds no more of it than this.
///
/// ```
/// use hapax_core::limits::{AGENT_LINE_BYTES, MAX_CHUNK_BYTES};
/// assert!(AGENT_LINE_BYTES <= MAX_CHUNK_BYTES, "what an agent tells fits into a run's stream");
/// ```
pub const AGENT_LINE_BYTES: usize = 262_144;

/// How often an agent says that it is alive.
///
/// ```
/// use hapax_core::limits::{AGENT_HEARTBEAT, AGENT_MISSED};
/// assert_eq!((AGENT_HEARTBEAT * AGENT_MISSED).as_secs(), 30, "then it is dead");
/// ```
pub const AGENT_HEARTBEAT: Duration = Duration::from_secs(10);

/// So many heartbeats in a row are missed by a dead agent, not by a busy machine.
///
/// ```
/// use hapax_core::limits::{AGENT_HEARTBEAT, AGENT_MISSED};
/// assert!(AGENT_HEARTBEAT * AGENT_MISSED > AGENT_HEARTBEAT * 2);
/// ```
pub const AGENT_MISSED: u32 = 3;

/// How often in a row an agent is started again that answers nothing: more would hide that it is broken.
///
/// ```
/// use hapax_core::limits::{AGENT_BACKOFF, AGENT_RESTARTS};
/// assert_eq!((AGENT_BACKOFF * 2u32.pow(AGENT_RESTARTS - 1)).as_secs(), 16, "the longest of its pauses");
/// ```
pub const AGENT_RESTARTS: u32 = 5;

/// The pause before an agent is started again, doubled with each start, and less by chance.
///
/// ```
/// use hapax_core::limits::{AGENT_BACKOFF, AGENT_BACKOFF_MAX};
/// assert!(AGENT_BACKOFF < AGENT_BACKOFF_MAX);
/// ```
pub const AGENT_BACKOFF: Duration = Duration::from_secs(1);

/// The longest pause before an agent is started again.
///
/// ```
/// use hapax_core::limits::{AGENT_BACKOFF, AGENT_BACKOFF_MAX};
/// assert_eq!(AGENT_BACKOFF_MAX, AGENT_BACKOFF * 60);
/// ```
pub const AGENT_BACKOFF_MAX: Duration = Duration::from_secs(60);

/// How long an agent that was asked to end may take before it is killed.
///
/// ```
/// use hapax_core::limits::{AGENT_GRACE, AGENT_HEARTBEAT};
/// assert!(AGENT_GRACE < AGENT_HEARTBEAT);
/// ```
pub const AGENT_GRACE: Duration = Duration::from_secs(5);

/// How long an agent may take from its start to its first heartbeat: interpreters are slow to load.
///
/// ```
/// use hapax_core::limits::{AGENT_HEARTBEAT, AGENT_MISSED, AGENT_START};
/// assert!(AGENT_START >= AGENT_HEARTBEAT * AGENT_MISSED);
/// ```
pub const AGENT_START: Duration = Duration::from_secs(30);

/// How long a command may take unless it says otherwise. The node's own timeout counts as well.
///
/// ```
/// use hapax_core::limits::{AGENT_COMMAND_TIMEOUT, NODE_TIMEOUT};
/// assert!(AGENT_COMMAND_TIMEOUT > NODE_TIMEOUT, "a node that waits for an agent raises its own timeout");
/// ```
pub const AGENT_COMMAND_TIMEOUT: Duration = Duration::from_secs(600);

/// What is kept of what an agent wrote to its standard error: enough for the end of a trace.
///
/// ```
/// use hapax_core::limits::{AGENT_STDERR_BYTES, MAX_ERROR_BYTES};
/// assert!(AGENT_STDERR_BYTES < MAX_ERROR_BYTES, "it is part of an error's message");
/// ```
pub const AGENT_STDERR_BYTES: usize = 4 * 1024;

/// Lines of an agent's log that are passed on in a second; the rest is counted.
///
/// ```
/// use hapax_core::limits::AGENT_LOG_LINES;
/// assert_eq!(1_000_000 / AGENT_LOG_LINES, 5_000, "a flood isn't what anyone reads");
/// ```
pub const AGENT_LOG_LINES: u32 = 200;

/// Answers that an agent remembers. One that the engine hasn't acknowledged is never forgotten.
///
/// ```
/// use hapax_core::limits::{AGENT_CACHE_ENTRIES, AGENT_LINE_BYTES};
/// assert!(AGENT_CACHE_ENTRIES * AGENT_LINE_BYTES < 1 << 30, "the largest cache stays below a gigabyte");
/// ```
pub const AGENT_CACHE_ENTRIES: usize = 1000;

/// Rounds of review and change that a task may take in a flow of agents, unless its run says otherwise: who isn't content then
/// won't be.
///
/// ```
/// use hapax_core::limits::{AGENT_RESTARTS, AGENT_REVIEW_ROUNDS};
/// assert_eq!(AGENT_REVIEW_ROUNDS, AGENT_RESTARTS, "as patient as with an agent that dies");
/// ```
pub const AGENT_REVIEW_ROUNDS: u32 = 5;

/// Graphs that have metrics of their own; further ones are counted together. Each has some thirty numbers and one for each of
/// its nodes, and whoever collects them keeps all of them for weeks.
///
/// ```
/// use hapax_core::limits::METRIC_GRAPHS;
/// assert!(METRIC_GRAPHS * 30 < 10_000, "a process stays below what a collector minds");
/// ```
pub const METRIC_GRAPHS: usize = 256;

/// Concurrency keys of one run: it takes them one after the other, and holds those that it has while it waits for the next.
///
/// ```
/// use hapax_core::limits::MAX_FLOW_KEYS;
/// assert!(MAX_FLOW_KEYS >= 3, "a tenant, a customer and a machine");
/// ```
pub const MAX_FLOW_KEYS: usize = 4;

/// Runs that one concurrency key lets go at a time. A grant reads the slots that are taken, so this bounds what it costs.
///
/// ```
/// use hapax_core::limits::MAX_FLOW_SLOTS;
/// assert!(MAX_FLOW_SLOTS >= 256, "as many as one engine executes unless it is told otherwise");
/// ```
pub const MAX_FLOW_SLOTS: u32 = 1000;

/// The highest priority. A run waits behind later ones of it for this many head starts at the most.
///
/// ```
/// use hapax_core::{flow::HEAD_START, limits::MAX_PRIORITY};
/// assert_eq!(HEAD_START * u32::from(MAX_PRIORITY), std::time::Duration::from_secs(1000));
/// ```
pub const MAX_PRIORITY: u8 = 100;

/// How often an engine that looks for work, and has seen a run with a key or a name, also looks for slots and names of runs that
/// are over: what a crash between a run's last commit and their release costs.
///
/// ```
/// use hapax_core::limits::FLOW_SWEEP;
/// assert!(FLOW_SWEEP.as_secs() < 15, "less than a lease");
/// ```
pub const FLOW_SWEEP: Duration = Duration::from_secs(5);

/// How often an engine does so that has seen no such run: it asks the store for nothing else more than once a second.
///
/// ```
/// use hapax_core::limits::{FLOW_SWEEP, FLOW_SWEEP_IDLE};
/// assert!(FLOW_SWEEP_IDLE > FLOW_SWEEP);
/// ```
pub const FLOW_SWEEP_IDLE: Duration = Duration::from_secs(60);

/// How often an engine that looks for work also looks for large payloads that may rest in an object store.
///
/// ```
/// use hapax_core::limits::REST_EVERY;
/// assert!(REST_EVERY.as_secs() < 60, "sooner than a run counts as quiet");
/// ```
pub const REST_EVERY: Duration = Duration::from_secs(10);

/// How long whoever reads a payload that rests waits for its object store.
///
/// ```
/// use hapax_core::limits::{LEASE_TTL, OBJECT_PATIENCE};
/// assert!(OBJECT_PATIENCE < LEASE_TTL, "whoever waits keeps the run that it waits for");
/// ```
pub const OBJECT_PATIENCE: Duration = Duration::from_secs(10);

/// Runs of which one sweep frees what they left, and waiting runs that are shown of one key.
///
/// ```
/// use hapax_core::limits::{FLOW_PAGE, MAX_FLOW_SLOTS};
/// assert!(FLOW_PAGE >= MAX_FLOW_SLOTS as usize, "all holders of one key");
/// ```
pub const FLOW_PAGE: usize = 1000;
