//! A message on its way: what every receiver is told of it.
//!
//! Invariant: all of it follows from the message's row and the relay's options, but for the mark whether its trace is sampled.
//! So it is the same on every delivery, by whichever relay.

use super::SinkError;
use hapax_core::{
    canary,
    id::RunKey,
    json::Json,
    trace::{SpanId, TraceId, traceparent},
};
use hapax_store::outbox::OutboxRecord;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Serialize, Serializer, ser::SerializeStruct};
use std::{borrow::Cow, sync::Arc};

/// A message on its way, as a [`Sink`](crate::outbox::Sink) gets it. As JSON it has `id`, `topic`, `key`, `payload`,
/// `namespace`, `run` and `step`, and is the same on every delivery.
///
/// ```
/// use hapax::{core::json::Json, outbox::Delivery};
/// # use hapax::core::id::{Namespace, RunId, RunKey};
/// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// # let (topic, key) = ("orders".into(), "order-42".into());
/// let first = Delivery { topic, key, ..Delivery::new("msg:3b0f", run, 1, Json::of("paid")?) };
/// let again = Delivery { refused: 1, ..first.clone() };
/// assert_eq!(serde_json::to_value(&again)?, serde_json::to_value(&first)?);
/// assert_eq!(serde_json::to_value(&again)?["payload"], "paid");
///
/// let event = serde_json::to_value(Delivery { event_source: Some("/shop".into()), ..first.clone() })?;
/// let told = |name: &str| event[name].as_str().map(str::to_owned);
/// assert_eq!((told("specversion"), told("source")), (Some("1.0".into()), Some("/shop".into())));
/// assert_eq!((told("id"), told("type")), (Some("msg:3b0f".into()), Some("orders".into())));
/// assert_eq!((told("subject"), told("partitionkey")), (Some("order-42".into()), Some("order-42".into())));
/// assert_eq!((told("data"), told("traceparent")), (Some("paid".into()), Some(first.traceparent())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The same on every delivery: receivers tell a repeated one by it.
    pub id: String,
    /// Where it goes.
    pub topic: String,
    /// The receiver's partition or routing key; may be empty.
    pub key: String,
    /// What it says.
    pub payload: Json,
    /// The run that sent it.
    pub run: RunKey,
    /// The step whose commit sent it.
    pub step: u64,
    /// Deliveries of it that were refused before this one.
    pub refused: u32,
    /// When it was written, in microseconds since 1970 by the store's clock; `None`: that isn't known.
    pub written_at_us: Option<i64>,
    /// Whether somebody records the run's trace, as far as this relay's engine knows.
    pub sampled: bool,
    /// It leaves as a CloudEvent of this source; without one, as it is.
    pub event_source: Option<Arc<str>>,
}

impl Delivery {
    /// A message by hand, say to try a sink: its first delivery, to no topic yet.
    pub fn new(id: &str, run: RunKey, step: u64, payload: Json) -> Self {
        Self {
            id: id.into(),
            topic: String::new(),
            key: String::new(),
            payload,
            run,
            step,
            refused: 0,
            written_at_us: None,
            sampled: false,
            event_source: None,
        }
    }

    /// A message of the outbox. Its trace is sampled if that is said of the run's.
    pub(super) fn of(
        record: &OutboxRecord,
        event_source: Option<&Arc<str>>,
        samples: impl FnOnce(TraceId) -> bool,
    ) -> Self {
        Self {
            topic: record.message.topic.clone(),
            key: record.message.key.clone(),
            refused: record.attempts,
            written_at_us: (record.written_at_us > 0).then_some(record.written_at_us),
            sampled: samples(TraceId::of(&record.run)) || canary::on("always_sampled"),
            event_source: event_source.map(|source| named(source, &record.run)),
            ..Self::new(&record.id(), record.run.clone(), record.place.step, record.message.payload.clone())
        }
    }

    /// The message as one line of JSON, ended.
    pub(super) fn line(&self) -> Result<Vec<u8>, SinkError> {
        let mut line = self.json()?;
        line.push(b'\n');
        Ok(line)
    }

    /// All of it as JSON.
    pub(super) fn json(&self) -> Result<Vec<u8>, SinkError> {
        serde_json::to_vec(self).map_err(SinkError::refused)
    }

    /// The header `traceparent`, under which receivers add to the run's trace: their parent is the step that sent it. It says
    /// whether the trace is [sampled](Self::sampled).
    ///
    /// ```
    /// # use hapax::{core::{id::{Namespace, RunId, RunKey}, json::Json}, outbox::Delivery};
    /// use hapax::core::trace::{SpanId, TraceId};
    /// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
    /// // The commit of step 8 holds what the items of step 7 sent.
    /// let message = Delivery::new("msg:3b0f", run.clone(), 8, Json::of("paid")?);
    /// let trace = TraceId::of(&run);
    /// let span = SpanId::of_step(trace, 7);
    /// assert_eq!(message.traceparent(), format!("00-{trace}-{span}-00"), "nobody records the trace");
    /// assert!(Delivery { sampled: true, ..message }.traceparent().ends_with("-01"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn traceparent(&self) -> String {
        // The first step's commit holds no messages: nothing ran before it.
        let trace = TraceId::of(&self.run);
        traceparent(trace, SpanId::of_step(trace, self.step.saturating_sub(1)), self.sampled)
    }

    /// What a broker carries: the payload, or the whole CloudEvent.
    ///
    /// ```
    /// # use hapax::{core::{id::{Namespace, RunId, RunKey}, json::Json}, outbox::Delivery};
    /// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
    /// # let message = Delivery::new("msg:3b0f", run, 8, Json::of("paid")?);
    /// assert_eq!((&*message.body()?, message.content_type()), (&b"\"paid\""[..], "application/json"));
    /// let event = Delivery { event_source: Some("/shop".into()), ..message };
    /// assert_eq!(event.content_type(), "application/cloudevents+json");
    /// assert!(event.body()?.starts_with(br#"{"specversion":"1.0","id":"msg:3b0f","source":"/shop""#));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn body(&self) -> Result<Cow<'_, [u8]>, SinkError> {
        match self.event_source {
            None => Ok(self.payload.as_bytes().into()),
            Some(_) => Ok(self.json()?.into()),
        }
    }

    /// The media type of the [body](Self::body).
    pub fn content_type(&self) -> &'static str {
        if self.event_source.is_some() { "application/cloudevents+json" } else { "application/json" }
    }

    /// What a broker is told beside the [body](Self::body), as names and values of headers: `traceparent`, `hapax-topic`,
    /// `hapax-key` unless it is empty, `hapax-namespace`, `hapax-run` and `hapax-step`. The id has a place of its own with
    /// every broker.
    ///
    /// ```
    /// # use hapax::{core::{id::{Namespace, RunId, RunKey}, json::Json}, outbox::Delivery};
    /// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
    /// # let message = Delivery::new("msg:3b0f", run, 8, Json::of("paid")?);
    /// assert!(message.headers().contains(&("hapax-run", "order-42".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            ("traceparent", self.traceparent()),
            ("hapax-topic", self.topic.clone()),
            ("hapax-namespace", self.run.namespace.to_string()),
            ("hapax-run", self.run.run.to_string()),
            ("hapax-step", self.step.to_string()),
        ];
        if !self.key.is_empty() {
            headers.push(("hapax-key", self.key.clone()));
        }
        headers
    }

    /// CloudEvents 1.0, in the structured mode of JSON.
    fn event<S: Serializer>(&self, source: &str, serializer: S) -> Result<S::Ok, S::Error> {
        let mut event = serializer.serialize_struct("CloudEvent", 10)?;
        event.serialize_field("specversion", "1.0")?;
        event.serialize_field("id", &self.id)?;
        event.serialize_field("source", source)?;
        event.serialize_field("type", &self.topic)?;
        match self.written_at_us.and_then(|at| Timestamp::from_microsecond(at).ok()) {
            Some(time) => event.serialize_field("time", &format!("{time:.6}"))?,
            None => event.skip_field("time")?,
        }
        event.serialize_field("subject", &self.run.run)?;
        if self.key.is_empty() {
            event.skip_field("partitionkey")?;
        } else {
            event.serialize_field("partitionkey", &self.key)?;
        }
        event.serialize_field("traceparent", &self.traceparent())?;
        event.serialize_field("datacontenttype", "application/json")?;
        event.serialize_field("data", &self.payload)?;
        event.end()
    }
}

/// Whether a text is a URI-reference by RFC 3986, as the source of an event must be.
pub(super) fn is_uri_reference(text: &str) -> bool {
    let may_be_anywhere =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?#[]%".contains(&byte);
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    };
    let escapes_well = text
        .split('%')
        .skip(1)
        .all(|rest| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)));
    let before_path = text.split(['/', '?', '#']).next().unwrap_or_default();
    let scheme_fits = before_path.split_once(':').is_none_or(|(scheme, _)| is_scheme(scheme));
    text.bytes().all(may_be_anywhere) && escapes_well && scheme_fits && text.matches('#').count() < 2
}

/// A source must be told; without a name of its own it is the namespace's.
fn named(source: &Arc<str>, run: &RunKey) -> Arc<str> {
    if source.is_empty() {
        format!("hapax:{}", utf8_percent_encode(run.namespace.as_str(), NON_ALPHANUMERIC)).into()
    } else {
        source.clone()
    }
}

impl Serialize for Delivery {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(source) = &self.event_source {
            return self.event(source, serializer);
        }
        let mut fields = serializer.serialize_struct("Delivery", 7)?;
        fields.serialize_field("id", &self.id)?;
        fields.serialize_field("topic", &self.topic)?;
        fields.serialize_field("key", &self.key)?;
        fields.serialize_field("payload", &self.payload)?;
        fields.serialize_field("namespace", &self.run.namespace)?;
        fields.serialize_field("run", &self.run.run)?;
        fields.serialize_field("step", &self.step)?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::is_uri_reference;

    #[test]
    fn a_source_is_a_uri_reference() {
        let good =
            ["", "/shop", "shop", "urn:shop", "https://a.example:80/b?c=d#e", "//[::1]/x", "a%20b", "a/b:c"];
        assert!(good.iter().all(|text| is_uri_reference(text)), "{good:?}");
        let bad =
            ["/a b", "://", ":a", "1a:b", "a%2", "a%2x", "é", "<a>", "a#b#c", "a\n", "a\"b", "{a}", "a\\b"];
        assert!(bad.iter().all(|text| !is_uri_reference(text)), "{bad:?}");
    }
}
