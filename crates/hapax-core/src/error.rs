//! Error codes: each is a page in `docs/errors` that says cause and cure.

use crate::{
    canonical::CanonicalError, graph::GraphError, id::InvalidId, merge::MergeError, route::RouteError,
    state::StateShape,
};

/// An error code, such as `HX0001`.
///
/// ```
/// use hapax_core::error::{Code, code};
/// let code: Code = code::RUN_NOT_FOUND;
/// assert_eq!(code, "HX0028"); // docs/errors/HX0028.md
/// assert!(code::ALL.contains(&code));
/// ```
pub type Code = &'static str;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// ```
            /// use hapax_core::error::code;
            #[doc = concat!("assert_eq!(code::", stringify!($name), ", \"", $code, "\"); // docs/errors/", $code, ".md")]
            /// ```
            pub const $name: Code = $code;
        )*
        /// Every code, in order.
        ///
        /// ```
        /// use hapax_core::error::code;
        /// assert!(code::ALL.is_sorted() && code::ALL.contains(&code::INVALID_ID));
        /// ```
        pub const ALL: &[Code] = &[$($code),*];
    };
}

/// The codes.
pub mod code {
    use super::Code;

    codes! {
        /// A run id, node id, namespace or tag is empty, too long, or holds a control character.
        INVALID_ID = "HX0001";
        /// A graph's start is not one of its nodes.
        NO_START = "HX0002";
        /// A graph mentions a node that it doesn't have.
        UNKNOWN_NODE = "HX0003";
        /// A graph declares something twice.
        DUPLICATE = "HX0004";
        /// Nothing leads to a node.
        UNREACHABLE = "HX0005";
        /// A join can never fire.
        JOIN_CANNOT_FILL = "HX0006";
        /// No conditional edge of a node holds.
        NO_ROUTE = "HX0007";
        /// Nothing can run, but a join waits.
        NO_PROGRESS = "HX0008";
        /// Two items of one step wrote one field.
        MERGE_CONFLICT = "HX0009";
        /// A node routed to a name that is not a node.
        UNKNOWN_TARGET = "HX0010";
        /// Something is larger than its limit.
        LIMIT = "HX0011";
        /// A stored state or input doesn't fit its type.
        STATE_SHAPE = "HX0012";
        /// A value has no JSON form.
        NOT_SERIALISABLE = "HX0013";
        /// A node is its own error handler.
        OWN_HANDLER = "HX0014";
        /// A reducer or a predicate gave two answers to one question.
        IMPURE = "HX0015";
        /// The code no longer has, or doesn't have yet, the version that a run needs.
        UNSUPPORTED_VERSION = "HX0016";
        /// A run can't be forked at this step.
        CANNOT_FORK = "HX0017";
        /// A run can't begin anew while other branches are under way.
        NOT_ALONE = "HX0018";
        /// A node returned an error.
        NODE_FAILED = "HX0020";
        /// A node took too long.
        NODE_TIMEOUT = "HX0021";
        /// A node panicked.
        NODE_PANICKED = "HX0022";
        /// A run used up its time.
        BUDGET_EXCEEDED = "HX0023";
        /// A run took more steps than it may.
        MAX_STEPS = "HX0024";
        /// A run was cancelled.
        CANCELLED = "HX0025";
        /// The run is over already.
        ALREADY_FINISHED = "HX0026";
        /// The run id is taken by other work.
        RUN_EXISTS = "HX0027";
        /// There is no such run.
        RUN_NOT_FOUND = "HX0028";
        /// The run belongs to another shape of the graph.
        GRAPH_MISMATCH = "HX0029";
        /// Another engine holds the run.
        RUN_HELD = "HX0030";
        /// A re-run asked for something else than its record holds.
        REPLAY_MISMATCH = "HX0031";
        /// The engine is shut down.
        SHUT_DOWN = "HX0032";
        /// A context was used after its attempt had ended.
        DEAD_HANDLE = "HX0033";
        /// No graph of that name is registered.
        NOT_REGISTERED = "HX0034";
        /// Only a failed run can be retried.
        NOT_FAILED = "HX0035";
        /// An effect failed.
        EFFECT_FAILED = "HX0036";
        /// A node made a call of a kind that its policy rules out.
        UNDECLARED_EFFECT = "HX0037";
        /// Nobody has to decide about that call.
        NOT_IN_DOUBT = "HX0038";
        /// A wait is longer than any clock can tell.
        BAD_DURATION = "HX0039";
        /// The store can't be reached or is busy; nothing was written.
        STORE_RETRY = "HX0040";
        /// It is not known whether a write took effect.
        STORE_UNKNOWN = "HX0041";
        /// Another worker owns the run now.
        FENCED = "HX0042";
        /// Two executions of one step diverged.
        CONFLICT = "HX0043";
        /// What is stored doesn't match its digest.
        CORRUPT = "HX0044";
        /// The disk is full.
        STORE_FULL = "HX0045";
        /// A newer program wrote this database.
        SCHEMA_TOO_NEW = "HX0046";
        /// The store can't be opened.
        CANNOT_OPEN = "HX0047";
        /// The file is on a network file system.
        NETWORK_FILE_SYSTEM = "HX0048";
        /// The store can't be written to.
        READ_ONLY = "HX0049";
        /// The store's address isn't understood.
        BAD_URL = "HX0050";
        /// An answer doesn't fit what was asked for.
        ANSWER_REJECTED = "HX0051";
        /// The run asks no such question.
        NO_QUESTION = "HX0052";
        /// The command line isn't understood.
        USAGE = "HX0060";
        /// The operating system refused what a command needs.
        SYSTEM = "HX0061";
        /// The program that was to replay runs can't be used for it.
        BAD_PROGRAM = "HX0062";
        /// The program takes up runs by itself, so it can't just look at them.
        FINDS_WORK = "HX0063";
        /// The user broke a command off.
        INTERRUPTED = "HX0064";
        /// A relay's claim on a run's messages is over.
        CLAIM_LOST = "HX0070";
        /// A message could not be handed over.
        SINK_FAILED = "HX0071";
        /// A sink's address, secret or setting can't be used.
        SINK_INVALID = "HX0072";
        /// A topic can't be a name of the broker's.
        TOPIC_UNFIT = "HX0073";
        /// The broker has nothing that takes a topic.
        NO_RECEIVER = "HX0074";
        /// The source of CloudEvents is not a URI-reference.
        EVENT_SOURCE = "HX0075";
        /// An HTTP request or client isn't valid; nothing was sent.
        HTTP_INVALID = "HX0080";
        /// The other side answered, but not with success.
        HTTP_STATUS = "HX0081";
        /// The other side didn't answer.
        HTTP_NO_ANSWER = "HX0082";
        /// An answer is larger than its limit.
        HTTP_TOO_LARGE = "HX0083";
        /// An answer's body isn't what the program expects.
        HTTP_BODY = "HX0084";
        /// A request came without the `Idempotency-Key` that it needs.
        REQUEST_KEY_MISSING = "HX0090";
        /// An `Idempotency-Key` can't be read as one key.
        REQUEST_KEY_INVALID = "HX0091";
        /// It isn't known who sent a request with a key.
        REQUEST_NO_PRINCIPAL = "HX0092";
        /// The principal or the route of a request is no name that could be kept.
        REQUEST_NAME_INVALID = "HX0093";
        /// The body of a request broke off.
        REQUEST_BODY_BROKEN = "HX0094";
        /// The body of a request is larger than its limit.
        REQUEST_BODY_TOO_LARGE = "HX0095";
        /// A key was used for another request.
        REQUEST_MISMATCH = "HX0096";
        /// A request with this key is under way.
        REQUEST_IN_FLIGHT = "HX0097";
        /// The store of requests can't be reached, so it isn't known how a request stands.
        REQUEST_STORE_DOWN = "HX0098";
        /// A request was executed, and its answer is too large to be kept.
        REQUEST_ANSWER_TOO_LARGE = "HX0099";
        /// The execution of a request broke off; it may be executed again.
        REQUEST_LOST = "HX0100";
        /// There is no such request.
        REQUEST_NOT_FOUND = "HX0110";
        /// A request that was to start a run can't be read.
        REQUEST_UNREADABLE = "HX0111";
        /// An agent, a command or a workspace isn't valid; nothing was sent.
        AGENT_INVALID = "HX0120";
        /// A command is larger than a line may be; nothing was sent.
        AGENT_TOO_LARGE = "HX0121";
        /// An agent answered that it failed.
        AGENT_FAILED = "HX0122";
        /// An agent died, and again, as often as it was started.
        AGENT_DEAD = "HX0123";
        /// An agent didn't answer in time.
        AGENT_TIMEOUT = "HX0124";
        /// An agent wrote something that isn't a message.
        AGENT_PROTOCOL = "HX0125";
        /// An agent worked on another version of the workspace.
        AGENT_VERSION = "HX0126";
        /// A file that an agent made can't be taken.
        AGENT_ARTIFACT = "HX0127";
        /// An agent didn't make what it must.
        AGENT_OUTPUT_MISSING = "HX0128";
        /// Another engine runs the agent.
        AGENT_LOCKED = "HX0129";
        /// A workspace can't be read or written.
        WORKSPACE = "HX0130";
        /// A ledger or a receipt can't be written or read.
        LEDGER = "HX0131";
        /// A review wasn't content after as many rounds as it may take.
        AGENT_ROUNDS = "HX0132";
        /// An engine has a watcher already.
        WATCHED = "HX0140";
        /// Telemetry can't be set up as it is asked for.
        TELEMETRY = "HX0141";
        /// A consumer's name or a message's id can't be one.
        INBOX_NAME = "HX0150";
        /// The transaction of a message's effect doesn't wait for the disk.
        INBOX_NOT_DURABLE = "HX0151";
        /// The database of a message's effect has no inbox.
        INBOX_NOT_THERE = "HX0152";
        /// A cron expression can't be read, or never comes true.
        BAD_CRON = "HX0160";
        /// There is no such time zone.
        BAD_ZONE = "HX0161";
        /// The name of a schedule is taken by another one.
        SCHEDULE_EXISTS = "HX0162";
        /// There is no such schedule.
        SCHEDULE_NOT_FOUND = "HX0163";
        /// A schedule has a setting that can't be.
        BAD_SCHEDULE = "HX0164";
        /// The input of a schedule doesn't fit its graph's state.
        SCHEDULE_INPUT = "HX0165";
        /// A value doesn't describe a graph.
        GRAPH_DESCRIPTION = "HX0166";
        /// A run can't start on such terms of flow control.
        BAD_TERMS = "HX0170";
        /// Another run lives under a singleton's name.
        SINGLETON_TAKEN = "HX0171";
        /// The run under a name of flow control is one of another graph.
        FLOW_NAME_ELSEWHERE = "HX0172";
        /// The run is on its way between two stores.
        RUN_MOVING = "HX0180";
        /// The run lives in another store now.
        RUN_MOVED = "HX0181";
        /// What has arrived isn't what left.
        COPY_DIFFERS = "HX0182";
        /// The store has another run of that name.
        ARRIVAL_TAKEN = "HX0183";
        /// A file isn't a whole export of runs.
        BAD_EXPORT = "HX0184";
        /// Databases aren't the shards that they are opened as.
        SHARD_MAP = "HX0185";
        /// A run would belong to another shard than those that it is bound to.
        SHARD_SPLIT = "HX0186";
        /// Stored bytes are encrypted under a key that wasn't given.
        KEY_MISSING = "HX0190";
        /// Stored bytes are encrypted under another key of the same name.
        KEY_WRONG = "HX0191";
        /// Stored bytes aren't encrypted, though they must be.
        NOT_ENCRYPTED = "HX0192";
        /// Keys can't be read.
        BAD_KEYRING = "HX0193";
        /// Large payloads rest in an object store that wasn't given.
        NO_DEPOT = "HX0194";
        /// The address of an object store can't be used.
        BAD_DEPOT = "HX0195";
        /// While a store was rotated, somebody wrote to it under other keys.
        KEYS_DIFFER = "HX0196";
    }
}

/// Errors that have a code.
///
/// ```
/// use hapax_core::{error::Coded, id::RunId};
/// assert_eq!(RunId::new("").unwrap_err().code(), "HX0001");
/// ```
pub trait Coded {
    /// The code; its page says cause and cure.
    fn code(&self) -> Code;
}

impl Coded for InvalidId {
    fn code(&self) -> Code {
        code::INVALID_ID
    }
}

impl Coded for CanonicalError {
    fn code(&self) -> Code {
        code::NOT_SERIALISABLE
    }
}

impl Coded for StateShape {
    fn code(&self) -> Code {
        code::STATE_SHAPE
    }
}

impl Coded for GraphError {
    fn code(&self) -> Code {
        match self {
            GraphError::Id(_) => code::INVALID_ID,
            GraphError::NoStart { .. } => code::NO_START,
            GraphError::UnknownNode { .. } => code::UNKNOWN_NODE,
            GraphError::Duplicate { .. } => code::DUPLICATE,
            GraphError::Unreachable { .. } => code::UNREACHABLE,
            GraphError::OwnHandler { .. } => code::OWN_HANDLER,
            GraphError::JoinCannotFill { .. } | GraphError::EmptyJoin { .. } => code::JOIN_CANNOT_FILL,
        }
    }
}

impl Coded for RouteError {
    fn code(&self) -> Code {
        match self {
            RouteError::Input { .. } | RouteError::State(_) => code::NOT_SERIALISABLE,
            RouteError::Name(_) => code::INVALID_ID,
        }
    }
}

impl Coded for MergeError {
    fn code(&self) -> Code {
        match self {
            MergeError::Conflict { .. } => code::MERGE_CONFLICT,
            MergeError::NoRoute { .. } => code::NO_ROUTE,
            MergeError::NoProgress { .. } => code::NO_PROGRESS,
            MergeError::UnknownTarget { .. } => code::UNKNOWN_TARGET,
            MergeError::Failed { .. } => code::NODE_FAILED,
            MergeError::FanOut { .. } | MergeError::PathCollision { .. } => code::LIMIT,
            MergeError::Impure { .. } => code::IMPURE,
            MergeError::NotAlone { .. } => code::NOT_ALONE,
            MergeError::Shape { .. } => code::STATE_SHAPE,
            MergeError::Unwritable { .. } => code::NOT_SERIALISABLE,
        }
    }
}
