//! The ids under which a run is traced.
//!
//! Invariant: they follow from what is traced, and from nothing else. So whoever goes on with a run after a crash, and
//! whoever delivers its messages, names the same trace without having been told, and nothing of it is stored.
//!
//! ```text
//! trace = the run;   run > step > attempt of an item > call;   a child's trace is its own, linked to its parent's call
//! ```

use crate::{
    id::{RunId, RunKey},
    key::{Digest, DigestBuilder},
    order::PathHash,
};
use std::fmt;

/// The id of a run's trace, as W3C Trace Context has it.
///
/// ```
/// use hapax_core::{id::{Namespace, RunId, RunKey}, trace::TraceId};
/// let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// assert_eq!(TraceId::of(&run), TraceId::of(&run.clone()));
/// assert_eq!(TraceId::of(&run).to_string().len(), 32);
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(pub [u8; 16]);

/// The id of something in a trace that took its time.
///
/// ```
/// use hapax_core::{id::{Namespace, RunId, RunKey}, trace::SpanId};
/// let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// assert_ne!(SpanId::of_step(&run, 1), SpanId::of_step(&run, 2));
/// assert_eq!(SpanId::of_run(&run).to_string().len(), 16);
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub [u8; 8]);

impl TraceId {
    /// Of a run, in whatever process and however often it is taken up.
    #[must_use]
    pub fn of(run: &RunKey) -> Self {
        Self(first(named("trace", run).finish()))
    }
}

impl SpanId {
    /// Of a run, from its creation to its end.
    #[must_use]
    pub fn of_run(run: &RunKey) -> Self {
        Self(first(named("run", run).finish()))
    }

    /// Of the step that consumes a frontier.
    #[must_use]
    pub fn of_step(run: &RunKey, step: u64) -> Self {
        Self(first(named("step", run).u64(step).finish()))
    }

    /// Of an attempt at an item by whoever made the run's n-th claim: after a crash it is another one.
    #[must_use]
    pub fn of_attempt(run: &RunKey, step: u64, path_hash: PathHash, claim: u64, attempt: u32) -> Self {
        let mut digest = named("attempt", run);
        Self(first(digest.u64(step).u64(path_hash.0).u64(claim).u64(attempt.into()).finish()))
    }

    /// Of the call by which a run has a child do its work, from its beginning to the child's end. Whoever executes the child
    /// knows it too.
    #[must_use]
    pub fn of_child(parent: &RunKey, child: &RunId) -> Self {
        Self(first(named("child", parent).text(child.as_str()).finish()))
    }

    /// Of a call that an attempt made: by its scope and its number there.
    #[must_use]
    pub fn of_call(self, scope: &str, index: u32) -> Self {
        let mut digest = DigestBuilder::new("hapax.trace.call.v1");
        Self(first(digest.bytes(&self.0).text(scope).u64(index.into()).finish()))
    }
}

/// What to hand on, so that others can add to a run's trace: the header `traceparent` of W3C Trace Context.
///
/// ```
/// use hapax_core::{id::{Namespace, RunId, RunKey}, trace::{SpanId, TraceId, traceparent}};
/// let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// let header = traceparent(TraceId::of(&run), SpanId::of_step(&run, 0), true);
/// assert!(header.starts_with("00-") && header.ends_with("-01") && header.len() == 55);
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[must_use]
pub fn traceparent(trace: TraceId, span: SpanId, sampled: bool) -> String {
    format!("00-{trace}-{span}-0{}", u8::from(sampled))
}

fn named(what: &str, run: &RunKey) -> DigestBuilder {
    let mut digest = DigestBuilder::new("hapax.trace.v1");
    digest.text(what).text(run.namespace.as_str()).text(run.run.as_str());
    digest
}

/// The first bytes; an id of zeros alone is none.
fn first<const N: usize>(digest: Digest) -> [u8; N] {
    let mut id = [0; N];
    id.copy_from_slice(&digest.0[..N]);
    if id == [0; N] {
        id[N - 1] = 1;
    }
    id
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Namespace, RunId};
    use std::collections::BTreeSet;

    fn run(name: &str) -> RunKey {
        RunKey { namespace: Namespace::default(), run: RunId::new(name).unwrap() }
    }

    #[test]
    fn what_differs_has_another_id() {
        let (a, b) = (run("a"), run("b"));
        let path = PathHash(7);
        let attempt = SpanId::of_attempt(&a, 1, path, 1, 1);
        let spans = [
            SpanId::of_run(&a),
            SpanId::of_run(&b),
            SpanId::of_step(&a, 0),
            SpanId::of_step(&a, 1),
            attempt,
            SpanId::of_attempt(&a, 2, path, 1, 1),
            SpanId::of_attempt(&a, 1, PathHash(8), 1, 1),
            SpanId::of_attempt(&a, 1, path, 2, 1),
            SpanId::of_attempt(&a, 1, path, 1, 2),
            attempt.of_call("", 0),
            attempt.of_call("", 1),
            attempt.of_call("lane", 0),
            SpanId::of_child(&a, &b.run),
            SpanId::of_child(&b, &a.run),
        ];
        assert_eq!(BTreeSet::from(spans).len(), spans.len());
        assert_ne!(TraceId::of(&a), TraceId::of(&b));
    }

    #[test]
    fn an_id_is_never_of_zeros_alone() {
        assert_eq!(first::<8>(Digest([0; 32])), [0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
