//! What a run did and how long it took, told to whoever traces it: runs, steps, attempts, calls.
//!
//! Invariant: a step and a run are told of once they are durable, by whoever made them so; attempts and calls as they end.
//! Every span's id follows from what it is ([`SpanId`]), so that spans of several processes are one trace, also after a crash,
//! and nothing of it is stored. An engine that nobody watches only looks whether somebody does.
//!
//! [`Engine::watch`](crate::Engine::watch) sets a watcher; the crate `hapax-telemetry` has one that speaks OpenTelemetry.

use hapax_core::{
    id::{NodeId, RunKey},
    journal::EffectKind,
    order::{OrderKey, PathHash},
    trace::{SpanId, TraceId},
};
use std::{any::Any, sync::Arc};

/// Is told what an engine's runs do. It is called where runs are executed, so it must not block.
///
/// ```
/// use hapax::{watch::{Span, Watch, What}, prelude::*};
/// use std::sync::{Arc, Mutex};
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Draft>) -> DraftDelta { Draft::delta().text("once") }
/// #[derive(Default)]
/// struct Kept(Mutex<Vec<Span>>);
///
/// impl Watch for Kept {
///     fn over(&self, span: Span) {
///         self.0.lock().unwrap().push(span);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = Engine::open("memory:").await?;
/// # let drafts = engine.register(Graph::new("drafts", 1, WRITE).node(WRITE, write), ()).await?;
/// let kept = Arc::new(Kept::default());
/// engine.watch(kept.clone())?;
/// drafts.start("draft-1", Draft::default()).await?.wait().await?;
/// engine.shutdown(std::time::Duration::from_secs(1)).await;
/// let spans = kept.0.lock().unwrap();
/// assert!(matches!(spans[0].what, What::Attempt { attempt: 1, .. }));
/// assert_eq!(spans[0].parent, Some(spans[1].id), "it is part of its step");
/// assert!(matches!(&spans[2].what, What::Run { status: "succeeded", .. }));
/// # Ok(())
/// # }
/// ```
pub trait Watch: Send + Sync + 'static {
    /// Something is over.
    fn over(&self, span: Span);

    /// Whether a trace is of interest; nothing is told of the others. The same trace must get the same answer in every process.
    fn samples(&self, trace: TraceId) -> bool {
        let _ = trace;
        true
    }

    /// Code of the user's is about to be polled that belongs to this span; when it was, what is returned is dropped. For
    /// watchers that know a current span.
    fn enter(&self, trace: TraceId, span: SpanId) -> Option<Box<dyn Any>> {
        let _ = (trace, span);
        None
    }
}

/// Something that took its time.
///
/// ```
/// use hapax::watch::Span;
/// fn took_ms(span: &Span) -> i64 {
///     (span.ended_us - span.began_us) / 1000
/// }
/// # let _ = took_ms;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The run's trace.
    pub trace: TraceId,
    /// Its own id.
    pub id: SpanId,
    /// What it is part of; `None`: it is the run.
    pub parent: Option<SpanId>,
    /// The run.
    pub run: RunKey,
    /// The run's graph.
    pub graph: Arc<str>,
    /// What it was.
    pub what: What,
    /// How it ended.
    pub ended: Ended,
    /// When it began, in microseconds since 1970 by the store's clock.
    pub began_us: i64,
    /// When it ended.
    pub ended_us: i64,
    /// What it has to do with.
    pub links: Vec<Link>,
}

/// What took its time.
///
/// ```
/// use hapax::watch::What;
/// fn title(what: &What) -> String {
///     match what {
///         What::Attempt { node, attempt, .. } => format!("{node}, attempt {attempt}"),
///         What::Call { name, .. } => name.clone(),
///         _ => "something else".into(),
///     }
/// }
/// # let _ = title;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// A run, from its creation to its end.
    #[non_exhaustive]
    Run {
        /// `succeeded`, `failed` or `cancelled`.
        status: &'static str,
    },
    /// A step, from when this engine began it until it was durable.
    #[non_exhaustive]
    Step {
        /// The step whose frontier was consumed.
        step: u64,
        /// How many items it had.
        items: usize,
    },
    /// An attempt at an item.
    #[non_exhaustive]
    Attempt {
        /// The step.
        step: u64,
        /// The node.
        node: NodeId,
        /// Where the item stands among those of its step.
        order_key: OrderKey,
        /// The item.
        path_hash: PathHash,
        /// The attempt, counted from 1.
        attempt: u32,
        /// Which claim of the run it was made under.
        claim: u64,
    },
    /// A call to the outside, as long as that took. What is answered from the record is no call.
    #[non_exhaustive]
    Call {
        /// The step.
        step: u64,
        /// The node.
        node: NodeId,
        /// The attempt.
        attempt: u32,
        /// The call's name.
        name: String,
        /// What it promises.
        kind: EffectKind,
        /// Whether it is a command to an agent.
        command: bool,
        /// Its lane; empty: the node's own.
        scope: Arc<str>,
        /// Its number there.
        index: u32,
        /// The run that it started and waited for.
        child: Option<RunKey>,
    },
}

/// How something ended.
///
/// ```
/// use hapax::watch::Ended;
/// assert_ne!(Ended::Well, Ended::Failed("HX0020".into()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// As it should.
    Well,
    /// With an error of this code. Its text is the user's, and isn't told.
    Failed(String),
    /// It waits for something, and is made again when that has come.
    Parked,
    /// It was dropped: its run was stopped, or taken over.
    Dropped,
}

/// A span that another one has to do with, in its own trace or another. It needn't ever have been told of: whoever was at it
/// may have been killed.
///
/// ```
/// use hapax::watch::{Span, Why};
/// fn is_retry(span: &Span) -> bool {
///     span.links.iter().any(|link| link.why == Why::Retry)
/// }
/// # let _ = is_retry;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The other's trace.
    pub trace: TraceId,
    /// The other.
    pub span: SpanId,
    /// What it has to do with it.
    pub why: Why,
}

/// What a span has to do with another.
///
/// ```
/// assert_eq!(hapax::watch::Why::Resume.word(), "resume");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The attempt before, which failed.
    Retry,
    /// The attempt under the claim before, which nobody may have heard the end of.
    Resume,
    /// The call of another run that started this one.
    Parent,
    /// The run that a call started.
    Child,
}

impl Why {
    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            Why::Retry => "retry",
            Why::Resume => "resume",
            Why::Parent => "parent",
            Why::Child => "child",
        }
    }
}
