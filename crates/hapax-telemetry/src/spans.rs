//! From what the engine tells to what OpenTelemetry knows.

use crate::queue::Queue;
use hapax::{
    EffectKind,
    core::trace,
    watch::{Ended, Link, Span, Watch, What},
};
use opentelemetry::{
    Context, InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId, Value,
    trace::{SpanContext, SpanKind, Status, TraceContextExt, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use std::{
    any::Any,
    borrow::Cow,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

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
        let context = Context::current().with_remote_span_context(context(trace, span));
        Some(Box::new(context.attach()))
    }
}

fn context(trace: trace::TraceId, span: trace::SpanId) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(trace.0), SpanId::from_bytes(span.0));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default())
}

/// A span as OpenTelemetry has it.
pub(crate) fn data_of(span: &Span) -> SpanData {
    let mut links = SpanLinks::default();
    links.links = span.links.iter().map(link).collect();
    let status = match &span.ended {
        Ended::Failed(code) => Status::error(code.clone()),
        _ => Status::Unset,
    };
    SpanData {
        span_context: context(span.trace, span.id),
        parent_span_id: span.parent.map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.0)),
        parent_span_is_remote: false,
        span_kind: kind(&span.what),
        name: name(span),
        start_time: time(span.began_us),
        end_time: time(span.ended_us),
        attributes: attributes(span),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links,
        status,
        instrumentation_scope: InstrumentationScope::builder("hapax")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn link(link: &Link) -> opentelemetry::trace::Link {
    let why = KeyValue::new("hapax.link", link.why.word());
    opentelemetry::trace::Link::new(context(link.trace, link.span), vec![why], 0)
}

fn time(us: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(us).unwrap_or(0))
}

fn kind(what: &What) -> SpanKind {
    match what {
        What::Call { child: None, .. } => SpanKind::Client,
        _ => SpanKind::Internal,
    }
}

/// Few names: those of code, never of a run.
fn name(span: &Span) -> Cow<'static, str> {
    match &span.what {
        What::Run { .. } => format!("run {}", span.graph).into(),
        What::Step { .. } => "step".into(),
        What::Attempt { node, .. } => format!("node {node}").into(),
        What::Call { name, kind, command, .. } => format!("{} {name}", word(*kind, *command)).into(),
        _ => "hapax".into(),
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

fn attributes(span: &Span) -> Vec<KeyValue> {
    let (ended, code) = match &span.ended {
        Ended::Well => ("well", None),
        Ended::Failed(code) => ("failed", Some(code.clone())),
        Ended::Parked => ("parked", None),
        _ => ("dropped", None),
    };
    let mut attributes = vec![
        KeyValue::new("hapax.namespace", span.run.namespace.as_str().to_owned()),
        KeyValue::new("hapax.run_id", span.run.run.as_str().to_owned()),
        KeyValue::new("hapax.graph", span.graph.clone()),
        KeyValue::new("hapax.ended", ended),
    ];
    attributes.extend(code.map(|code| KeyValue::new("hapax.code", code)));
    own(&span.what, |key, value| attributes.push(KeyValue::new(key, value)));
    attributes
}

/// What belongs to one kind of span alone.
fn own(what: &What, mut add: impl FnMut(&'static str, Value)) {
    match what {
        What::Run { status, .. } => add("hapax.status", (*status).into()),
        What::Step { step, items, .. } => {
            add("hapax.step_id", number(*step));
            add("hapax.items", number(*items as u64));
        }
        What::Attempt { step, node, order_key, path_hash, attempt, claim, .. } => {
            add("hapax.step_id", number(*step));
            add("hapax.node_id", node.as_str().to_owned().into());
            add("hapax.order_key", order_key.to_string().into());
            add("hapax.path_hash", path_hash.0.to_string().into());
            add("hapax.attempt", i64::from(*attempt).into());
            add("hapax.claim", number(*claim));
        }
        What::Call { step, node, attempt, name, kind, scope, index, child, .. } => {
            add("hapax.step_id", number(*step));
            add("hapax.node_id", node.as_str().to_owned().into());
            add("hapax.attempt", i64::from(*attempt).into());
            add("hapax.call", name.clone().into());
            add("hapax.kind", format!("{kind:?}").into());
            add("hapax.scope", scope.clone().into());
            add("hapax.index", i64::from(*index).into());
            if let Some(child) = child {
                add("hapax.child.run_id", child.run.as_str().to_owned().into());
                add("hapax.child.trace_id", trace::TraceId::of(child).to_string().into());
            }
        }
        _ => {}
    }
}

fn number(number: u64) -> Value {
    i64::try_from(number).unwrap_or(i64::MAX).into()
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
