//! Which spans are told of, and what is said of them, in whatever form they leave.

use crate::{queue::Queue, sdk};
use hapax::{
    EffectKind,
    core::trace,
    watch::{Ended, Span, Watch, What},
};
use std::{any::Any, fmt, sync::Arc};

/// Puts the spans of sampled traces into the queue.
pub(crate) struct Spans {
    queue: Arc<Queue>,
    /// Traces whose number is below this are sampled.
    below: u64,
}

/// Sampling looks at so many bits of a trace's id, as the SDKs of OpenTelemetry do.
const SAMPLED_BITS: u32 = 63;

impl Spans {
    pub(crate) fn new(queue: Arc<Queue>, ratio: f64) -> Self {
        Self { queue, below: (ratio * (1u64 << SAMPLED_BITS) as f64) as u64 }
    }
}

impl Watch for Spans {
    fn over(&self, span: Span) {
        self.queue.push(span);
    }

    fn samples(&self, trace: trace::TraceId) -> bool {
        let number = u128::from_be_bytes(trace.0) as u64;
        number >> (u64::BITS - SAMPLED_BITS) < self.below
    }

    fn enter(&self, trace: trace::TraceId, span: trace::SpanId) -> Option<Box<dyn Any>> {
        Some(Box::new(sdk::enter(trace, span)))
    }
}

/// What is said of a span under a name, without a copy of it.
#[derive(Clone, Copy)]
pub(crate) enum Said<'a> {
    Text(&'a str),
    Number(i64),
    Shown(fmt::Arguments<'a>),
}

/// What a span is called. Few names: those of code, never of a run.
pub(crate) struct Name<'a>(pub(crate) &'a Span);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.what {
            What::Run { .. } => write!(f, "run {}", self.0.graph),
            What::Step { .. } => f.write_str("step"),
            What::Attempt { node, .. } => write!(f, "node {node}"),
            What::Call { child: Some(_), .. } => f.write_str("child"),
            What::Call { name, kind, command, .. } => write!(f, "{} {name}", word(*kind, *command)),
            _ => f.write_str("hapax"),
        }
    }
}

fn word(kind: EffectKind, command: bool) -> &'static str {
    match kind {
        _ if command => "command",
        EffectKind::Transaction => "transaction",
        EffectKind::Child => "child",
        _ => "effect",
    }
}

/// Whether somebody else did it.
pub(crate) fn is_client(span: &Span) -> bool {
    matches!(span.what, What::Call { child: None, .. })
}

/// Everything that is said of a span.
pub(crate) fn attributes(span: &Span, mut add: impl FnMut(&'static str, Said<'_>)) {
    add("hapax.namespace", Said::Text(span.run.namespace.as_str()));
    add("hapax.run_id", Said::Text(span.run.run.as_str()));
    add("hapax.graph", Said::Text(&span.graph));
    let ended = match &span.ended {
        Ended::Well => "well",
        Ended::Failed(_) => "failed",
        Ended::Parked => "parked",
        _ => "dropped",
    };
    add("hapax.ended", Said::Text(ended));
    if let Ended::Failed(code) = &span.ended {
        add("hapax.code", Said::Text(code));
    }
    own(&span.what, add);
}

/// What belongs to one kind of span alone.
fn own(what: &What, mut add: impl FnMut(&'static str, Said<'_>)) {
    match what {
        What::Run { status, .. } => add("hapax.status", Said::Text(status)),
        What::Step { step, items, .. } => {
            add("hapax.step_id", number(*step));
            add("hapax.items", number(*items as u64));
        }
        What::Attempt { step, node, order_key, path_hash, attempt, claim, .. } => {
            add("hapax.step_id", number(*step));
            add("hapax.node_id", Said::Text(node.as_str()));
            add("hapax.order_key", Said::Shown(format_args!("{order_key}")));
            add("hapax.path_hash", Said::Shown(format_args!("{}", path_hash.0)));
            add("hapax.attempt", Said::Number((*attempt).into()));
            add("hapax.claim", number(*claim));
        }
        What::Call { step, node, attempt, name, kind, scope, index, child, .. } => {
            add("hapax.step_id", number(*step));
            add("hapax.node_id", Said::Text(node.as_str()));
            add("hapax.attempt", Said::Number((*attempt).into()));
            add("hapax.call", Said::Text(name));
            add("hapax.kind", Said::Shown(format_args!("{kind:?}")));
            add("hapax.scope", Said::Text(scope));
            add("hapax.index", Said::Number((*index).into()));
            if let Some(child) = child {
                add("hapax.child.run_id", Said::Text(child.run.as_str()));
                add("hapax.child.trace_id", Said::Shown(format_args!("{}", trace::TraceId::of(child))));
            }
        }
        _ => {}
    }
}

fn number(number: u64) -> Said<'static> {
    Said::Number(i64::try_from(number).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax::core::id::{Namespace, RunId, RunKey};

    #[test]
    fn a_tenth_of_the_runs_is_sampled_and_always_the_same() {
        let spans = |ratio| Spans::new(Arc::new(Queue::new(1)), ratio);
        let (all, tenth, again, none) = (spans(1.0), spans(0.1), spans(0.1), spans(0.0));
        let trace = |number: u32| {
            let run = RunId::new(format!("run-{number}")).unwrap();
            trace::TraceId::of(&RunKey { namespace: Namespace::default(), run })
        };
        let sampled = (0..1000).map(trace).filter(|trace| {
            assert!(all.samples(*trace) && !none.samples(*trace));
            assert_eq!(tenth.samples(*trace), again.samples(*trace));
            tenth.samples(*trace)
        });
        let sampled = sampled.count();
        assert!((60..140).contains(&sampled), "{sampled} of 1000");
    }
}
