//! Logs as JSON, one object a line, with what is known of the run around them.
//!
//! Invariant: of spans only the ids are written, never another field; what an event says is written as it is.

use crate::{
    aside::{self, Logs},
    telemetry::Error,
};
use hapax::store::Clock;
use serde_json::{Map, Value, json};
use std::{
    fmt::{self, Write as _},
    io::Write,
    sync::{Mutex, PoisonError},
};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};
use tracing_subscriber::{
    Layer, layer::Context, layer::SubscriberExt, registry::LookupSpan, registry::Scope,
};

/// What is taken from the spans around an event, and from the event itself, to the top of its line.
const IDS: [&str; 7] = ["run_id", "step_id", "node_id", "order_key", "attempt", "trace_id", "span_id"];

/// Writes each event as a line of JSON: a layer of `tracing-subscriber`. Whoever logs waits for the writer.
///
/// ```
/// use tracing_subscriber::layer::SubscriberExt;
/// let subscriber = tracing_subscriber::registry().with(hapax_telemetry::json_logs(std::io::stderr()));
/// tracing::subscriber::with_default(subscriber, || tracing::info!(orders = 3, "open"));
/// // {"timestamp":"…","level":"INFO","target":"…","message":"open","fields":{"orders":3}}
/// ```
pub fn json_logs<W: Write + Send + 'static>(writer: W) -> JsonLogs<W> {
    JsonLogs { writer: Mutex::new(writer), clock: Clock::system() }
}

/// Has the whole program write its events of this level and more serious ones to the standard error, as lines of JSON.
///
/// Nobody waits for whoever reads them: 8,192 lines may be on their way, and more are dropped and counted. What is returned
/// waits, when it is dropped, for a second at the most until they are written: keep it to the program's end.
///
/// ```
/// let _logs = hapax_telemetry::log_json(tracing::Level::INFO)?;
/// assert!(hapax_telemetry::log_json(tracing::Level::INFO).is_err(), "there is one logger");
/// # Ok::<(), hapax_telemetry::Error>(())
/// ```
pub fn log_json(level: Level) -> Result<Logs, Error> {
    let (aside, logs) = aside::to(std::io::stderr());
    let layer = json_logs(aside).with_filter(LevelFilter::from_level(level));
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|_| Error::Invalid("the program has a logger already".into()))?;
    Ok(logs)
}

/// See [`json_logs`].
///
/// ```
/// let logs: hapax_telemetry::JsonLogs<Vec<u8>> = hapax_telemetry::json_logs(vec![]);
/// # drop(logs);
/// ```
pub struct JsonLogs<W> {
    writer: Mutex<W>,
    clock: Clock,
}

impl<W> fmt::Debug for JsonLogs<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JsonLogs")
    }
}

/// The ids that a span has of its own.
#[derive(Default)]
struct Ids(Map<String, Value>);

/// The fields of an event.
#[derive(Default)]
struct Said {
    message: String,
    ids: Ids,
    fields: Map<String, Value>,
}

impl<S, W> Layer<S> for JsonLogs<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Write + Send + 'static,
{
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut ids = Ids::default();
        attributes.record(&mut ids);
        span.extensions_mut().insert(ids);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(ids) = span.extensions_mut().get_mut::<Ids>() {
            values.record(ids);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut ids = Map::new();
        for span in context.event_scope(event).into_iter().flat_map(Scope::from_root) {
            if let Some(own) = span.extensions().get::<Ids>() {
                ids.extend(own.0.clone());
            }
        }
        let mut said = Said::default();
        event.record(&mut said);
        ids.extend(std::mem::take(&mut said.ids.0));
        let mut line = self.line(event.metadata(), ids, said).to_string();
        line.push('\n');
        // In one piece, so that the lines of several processes don't mix. Nobody can be told that it can't be written.
        let _ = self.writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    }
}

impl<W> JsonLogs<W> {
    fn line(&self, metadata: &Metadata<'_>, ids: Map<String, Value>, said: Said) -> Value {
        let time = jiff::Timestamp::from_microsecond(self.clock.now_us()).unwrap_or_default();
        let mut line = Map::new();
        line.insert("timestamp".into(), json!(format!("{time:.6}")));
        line.insert("level".into(), json!(metadata.level().as_str()));
        line.insert("target".into(), json!(metadata.target()));
        line.insert("message".into(), json!(said.message));
        line.extend(ids);
        if !said.fields.is_empty() {
            line.insert("fields".into(), Value::Object(said.fields));
        }
        Value::Object(line)
    }
}

impl Ids {
    fn take(&mut self, field: &Field, value: Value) {
        if IDS.contains(&field.name()) {
            self.0.insert(field.name().into(), value);
        }
    }
}

impl Said {
    fn take(&mut self, field: &Field, value: Value) {
        if IDS.contains(&field.name()) {
            self.ids.take(field, value);
        } else {
            self.fields.insert(field.name().into(), value);
        }
    }
}

/// Whatever isn't a number, a word or a text is written as it shows itself.
fn shown(value: &dyn fmt::Debug) -> String {
    let mut text = String::new();
    // A string takes all that is written to it.
    let _ = write!(text, "{value:?}");
    text
}

macro_rules! takes_values {
    () => {
        fn record_i64(&mut self, field: &Field, value: i64) {
            self.take(field, value.into());
        }

        fn record_u64(&mut self, field: &Field, value: u64) {
            self.take(field, value.into());
        }

        fn record_f64(&mut self, field: &Field, value: f64) {
            self.take(field, value.into());
        }

        fn record_bool(&mut self, field: &Field, value: bool) {
            self.take(field, value.into());
        }
    };
}

impl Visit for Ids {
    takes_values!();

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if IDS.contains(&field.name()) {
            self.take(field, shown(value).into());
        }
    }
}

impl Visit for Said {
    takes_values!();

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.into(),
            _ => self.take(field, value.into()),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = shown(value),
            _ => self.take(field, shown(value).into()),
        }
    }
}
