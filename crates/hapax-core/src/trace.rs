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
/// use hapax_core::{id::{Namespace, RunId, RunKey}, trace::{SpanId, TraceId}};
/// let trace = TraceId::of(&RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? });
/// assert_ne!(SpanId::of_step(trace, 1), SpanId::of_step(trace, 2));
/// assert_eq!(SpanId::of_run(trace).to_string().len(), 16);
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
    pub fn of_run(trace: TraceId) -> Self {
        Self(stirred(trace, [0; 5]))
    }

    /// Of the step that consumes a frontier.
    #[must_use]
    pub fn of_step(trace: TraceId, step: u64) -> Self {
        Self(stirred(trace, [1, step, 0, 0, 0]))
    }

    /// Of an attempt at an item by whoever made the run's n-th claim: after a crash it is another one.
    #[must_use]
    pub fn of_attempt(trace: TraceId, step: u64, path_hash: PathHash, claim: u64, attempt: u32) -> Self {
        Self(stirred(trace, [2, step, path_hash.0, claim, attempt.into()]))
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
/// let trace = TraceId::of(&RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? });
/// let header = traceparent(trace, SpanId::of_step(trace, 0), true);
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

/// The first bytes.
fn first<const N: usize>(digest: Digest) -> [u8; N] {
    let mut id = [0; N];
    id.copy_from_slice(&digest.0[..N]);
    valid(id)
}

/// An id that follows from numbers in a trace. They are stirred and not hashed, since a step has several: two lists that differ in
/// one number never meet, others as seldom as numbers drawn at random.
fn stirred(trace: TraceId, numbers: [u64; 5]) -> [u8; 8] {
    let whole = u128::from_be_bytes(trace.0);
    let trace = stir((whole >> 64) as u64) ^ whole as u64;
    valid(numbers.into_iter().fold(trace, |id, number| stir(id ^ number)).to_be_bytes())
}

/// A step of the generator SplitMix64: one to one, and each bit moves all others.
fn stir(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// An id of zeros alone is none.
fn valid<const N: usize>(mut id: [u8; N]) -> [u8; N] {
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
        let (run_a, run_b) = (run("a"), run("b"));
        let (a, b) = (TraceId::of(&run_a), TraceId::of(&run_b));
        let path = PathHash(7);
        let attempt = SpanId::of_attempt(a, 1, path, 1, 1);
        let spans = [
            SpanId::of_run(a),
            SpanId::of_run(b),
            SpanId::of_step(a, 0),
            SpanId::of_step(a, 1),
            SpanId::of_step(b, 1),
            attempt,
            SpanId::of_attempt(a, 2, path, 1, 1),
            SpanId::of_attempt(a, 1, PathHash(8), 1, 1),
            SpanId::of_attempt(a, 1, path, 2, 1),
            SpanId::of_attempt(a, 1, path, 1, 2),
            attempt.of_call("", 0),
            attempt.of_call("", 1),
            attempt.of_call("lane", 0),
            SpanId::of_child(&run_a, &run_b.run),
            SpanId::of_child(&run_b, &run_a.run),
        ];
        assert_eq!(BTreeSet::from(spans).len(), spans.len());
        assert_ne!(a, b);
    }

    #[test]
    fn an_id_is_never_of_zeros_alone() {
        assert_eq!(first::<8>(Digest([0; 32])), [0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[test]
    fn the_spans_of_a_long_run_all_differ() {
        let trace = TraceId::of(&run("long"));
        let attempts = |step| (1..4).map(move |n| SpanId::of_attempt(trace, step, PathHash(step), 1, n));
        let spans = (0..100_000).flat_map(|step| attempts(step).chain([SpanId::of_step(trace, step)]));
        assert_eq!(spans.collect::<BTreeSet<_>>().len(), 400_000);
    }
}
