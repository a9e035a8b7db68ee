//! A message on its way: what every receiver is told of it.
//!
//! Invariant: all of it follows from the message's row and the relay's options. So it is the same on every delivery, by
//! whichever relay.

use super::SinkError;
use hapax_core::{
    id::RunKey,
    json::Json,
    trace::{SpanId, TraceId, traceparent},
};
use hapax_store::outbox::OutboxRecord;
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
/// # let (id, topic, key) = ("msg:3b0f".into(), "orders".into(), "order-42".into());
/// let first = Delivery { id, topic, key, payload: Json::of("paid")?, run, step: 1, refused: 0, event_source: None };
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
    /// It leaves as a CloudEvent of this source; without one, as it is.
    pub event_source: Option<Arc<str>>,
}

impl Delivery {
    pub(super) fn of(record: &OutboxRecord, event_source: Option<&Arc<str>>) -> Self {
        Self {
            id: record.id(),
            topic: record.message.topic.clone(),
            key: record.message.key.clone(),
            payload: record.message.payload.clone(),
            run: record.run.clone(),
            step: record.place.step,
            refused: record.attempts,
            event_source: event_source.map(|source| named(source, &record.run)),
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

    /// The header `traceparent`, under which receivers add to the run's trace: their parent is the step that sent it.
    ///
    /// ```
    /// # use hapax::{core::{id::{Namespace, RunId, RunKey}, json::Json}, outbox::Delivery};
    /// use hapax::core::trace::{SpanId, TraceId};
    /// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
    /// # let (id, topic, key) = ("msg:3b0f".into(), "orders".into(), "order-42".into());
    /// # let payload = Json::of("paid")?;
    /// // The commit of step 8 holds what the items of step 7 sent.
    /// let message = Delivery { id, topic, key, payload, run: run.clone(), step: 8, refused: 0, event_source: None };
    /// let trace = TraceId::of(&run);
    /// let span = SpanId::of_step(trace, 7);
    /// assert_eq!(message.traceparent(), format!("00-{trace}-{span}-01"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn traceparent(&self) -> String {
        // The first step's commit holds no messages: nothing ran before it.
        let trace = TraceId::of(&self.run);
        traceparent(trace, SpanId::of_step(trace, self.step.saturating_sub(1)), true)
    }

    /// What a broker carries: the payload, or the whole CloudEvent.
    ///
    /// ```
    /// # use hapax::{core::{id::{Namespace, RunId, RunKey}, json::Json}, outbox::Delivery};
    /// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
    /// # let (id, topic, key, payload) = ("msg:3b0f".into(), "orders".into(), "".into(), Json::of("paid")?);
    /// # let message = Delivery { id, topic, key, payload, run, step: 8, refused: 0, event_source: None };
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
    /// # let (id, topic, key, payload) = ("msg:3b0f".into(), "orders".into(), "".into(), Json::of("paid")?);
    /// # let message = Delivery { id, topic, key, payload, run, step: 8, refused: 0, event_source: None };
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
        let mut event = serializer.serialize_struct("CloudEvent", 9)?;
        event.serialize_field("specversion", "1.0")?;
        event.serialize_field("id", &self.id)?;
        event.serialize_field("source", source)?;
        event.serialize_field("type", &self.topic)?;
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
