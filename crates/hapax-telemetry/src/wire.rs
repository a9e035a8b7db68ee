//! Spans as OTLP has them, written in protobuf straight into the bytes that are sent.
//!
//! An exporter of OpenTelemetry's SDK copies each span twice before it writes it, and two spans a step made that the dearest
//! part of a trace. The numbers of fields are those of `opentelemetry/proto/trace/v1/trace.proto`.

use crate::spans::{Name, Said, attributes, is_client};
use hapax::watch::{Ended, Link, Span};
use opentelemetry::Value;
use opentelemetry_sdk::Resource;
use std::{fmt, io::Write};

/// Sampled, and it is known that the parent isn't remote.
const FLAGS: u32 = 0x101;
const INTERNAL: u64 = 1;
const CLIENT: u64 = 3;
const FAILED: u64 = 2;

/// What is the same in every request: a `Resource` and an `InstrumentationScope`.
pub(crate) struct Sender {
    resource: Vec<u8>,
    scope: Vec<u8>,
}

impl Sender {
    pub(crate) fn new(resource: &Resource) -> Self {
        let (mut about, mut scope) = (Message::default(), Message::default());
        for (key, value) in resource {
            match value {
                Value::I64(number) => about.attribute(1, key.as_str(), Said::Number(*number)),
                other => about.attribute(1, key.as_str(), Said::Shown(format_args!("{other}"))),
            }
        }
        scope.bytes(1, b"hapax");
        scope.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
        Self { resource: about.0, scope: scope.0 }
    }

    /// An `ExportTraceServiceRequest` of these spans.
    pub(crate) fn request(&self, spans: &[Span]) -> Vec<u8> {
        let mut request = Message::default();
        request.message(1, |of_resource| {
            of_resource.bytes(1, &self.resource);
            of_resource.message(2, |of_scope| {
                of_scope.bytes(1, &self.scope);
                spans.iter().for_each(|each| of_scope.message(2, |message| span(message, each)));
            });
        });
        request.0
    }
}

fn span(message: &mut Message, span: &Span) {
    message.bytes(1, &span.trace.0);
    message.bytes(2, &span.id.0);
    if let Some(parent) = span.parent {
        message.bytes(4, &parent.0);
    }
    message.shown(5, format_args!("{}", Name(span)));
    message.number(6, if is_client(span) { CLIENT } else { INTERNAL });
    message.fixed64(7, nanos(span.began_us));
    message.fixed64(8, nanos(span.ended_us));
    attributes(span, |key, said| message.attribute(9, key, said));
    span.links.iter().for_each(|each| message.message(13, |message| link(message, each)));
    if let Ended::Failed(code) = &span.ended {
        message.message(15, |status| {
            status.bytes(2, code.as_bytes());
            status.number(3, FAILED);
        });
    }
    message.fixed32(16, FLAGS);
}

fn link(message: &mut Message, link: &Link) {
    message.bytes(1, &link.trace.0);
    message.bytes(2, &link.span.0);
    message.attribute(4, "hapax.link", Said::Text(link.why.word()));
    message.fixed32(6, FLAGS);
}

fn nanos(us: i64) -> u64 {
    u64::try_from(us).unwrap_or(0).saturating_mul(1000)
}

/// How a field's value is written.
#[derive(Clone, Copy)]
enum Form {
    Varint = 0,
    Fixed64 = 1,
    Delimited = 2,
    Fixed32 = 5,
}

/// A message of protobuf that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn field(&mut self, field: u64, form: Form) {
        self.varint(field << 3 | form as u64);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.field(field, Form::Varint);
        self.varint(number);
    }

    fn fixed64(&mut self, field: u64, number: u64) {
        self.field(field, Form::Fixed64);
        self.0.extend(number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u64, number: u32) {
        self.field(field, Form::Fixed32);
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.field(field, Form::Delimited);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn shown(&mut self, field: u64, text: fmt::Arguments<'_>) {
        self.message(field, |message| {
            // Memory takes everything.
            let _ = message.0.write_fmt(text);
        });
    }

    /// A message inside of this one. Its length stands before it and is known after it; most are so short that one byte holds
    /// it, and the others make room.
    fn message(&mut self, field: u64, write: impl FnOnce(&mut Self)) {
        self.field(field, Form::Delimited);
        let at = self.0.len();
        self.0.push(0);
        write(self);
        let length = self.0.len() - at - 1;
        if length < 0x80 {
            self.0[at] = length as u8;
        } else {
            let mut prefix = Message::default();
            prefix.varint(length as u64);
            self.0.splice(at..=at, prefix.0);
        }
    }

    /// A `KeyValue`.
    fn attribute(&mut self, field: u64, key: &str, said: Said<'_>) {
        self.message(field, |pair| {
            pair.bytes(1, key.as_bytes());
            pair.message(2, |value| match said {
                Said::Text(text) => value.bytes(1, text.as_bytes()),
                Said::Number(number) => value.number(3, number.cast_unsigned()),
                Said::Shown(shown) => value.shown(1, shown),
            });
        });
    }
}
