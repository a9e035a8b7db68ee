//! Spans as OpenTelemetry's SDK has them, for exporters of the user's own and for spans that user code makes.

use crate::{
    queue::{Export, Taken},
    spans::{Name, Said, attributes, is_client},
};
use futures::future::BoxFuture;
use hapax::{
    core::trace,
    watch::{Ended, Link, Span},
};
use opentelemetry::{
    Context, ContextGuard, InstrumentationScope, KeyValue, SpanId, TraceFlags, TraceId, Value,
    trace::{SpanContext, SpanKind, Status, TraceContextExt, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter, SpanLinks};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

impl<E: SpanExporter> Export for E {
    fn send<'a>(&'a self, batch: &'a [Span]) -> BoxFuture<'a, Taken> {
        let sent = self.export(batch.iter().map(data_of).collect());
        Box::pin(async move { if sent.await.is_ok() { Taken::All } else { Taken::Without(batch.len()) } })
    }
}

/// Makes a span the current one, until what is returned is dropped.
pub(crate) fn enter(trace: trace::TraceId, span: trace::SpanId) -> ContextGuard {
    Context::current().with_remote_span_context(context(trace, span)).attach()
}

fn context(trace: trace::TraceId, span: trace::SpanId) -> SpanContext {
    let (trace, span) = (TraceId::from_bytes(trace.0), SpanId::from_bytes(span.0));
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default())
}

fn data_of(span: &Span) -> SpanData {
    let mut links = SpanLinks::default();
    links.links = span.links.iter().map(link).collect();
    let status = match &span.ended {
        Ended::Failed(code) => Status::error(code.clone()),
        _ => Status::Unset,
    };
    let mut said = vec![];
    attributes(span, |key, value| said.push(KeyValue::new(key, owned(value))));
    SpanData {
        span_context: context(span.trace, span.id),
        parent_span_id: span.parent.map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.0)),
        parent_span_is_remote: false,
        span_kind: if is_client(span) { SpanKind::Client } else { SpanKind::Internal },
        name: Name(span).to_string().into(),
        start_time: time(span.began_us),
        end_time: time(span.ended_us),
        attributes: said,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links,
        status,
        instrumentation_scope: InstrumentationScope::builder("hapax")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn owned(said: Said<'_>) -> Value {
    match said {
        Said::Text(text) => text.to_owned().into(),
        Said::Number(number) => number.into(),
        Said::Shown(shown) => shown.to_string().into(),
    }
}

fn link(link: &Link) -> opentelemetry::trace::Link {
    let why = KeyValue::new("hapax.link", link.why.word());
    opentelemetry::trace::Link::new(context(link.trace, link.span), vec![why], 0)
}

fn time(us: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(us).unwrap_or(0))
}
