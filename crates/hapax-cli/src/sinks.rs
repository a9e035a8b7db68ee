//! From an address to a sink. What isn't built in says so; and no text repeats an address, which may hold a password.

use crate::failure::Failure;
use hapax::{
    Coded,
    outbox::{Sink, SinkError},
};
#[cfg(not(all(feature = "nats", feature = "rabbitmq", feature = "redis", feature = "webhook")))]
use hapax_core::error::code;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

/// Where messages go.
#[derive(Debug, Clone)]
pub(crate) enum To {
    Stdout,
    File(PathBuf),
    Broker { kind: Broker, url: String },
}

/// Who takes messages over a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Broker {
    Nats,
    RabbitMq,
    Redis,
    Webhook,
}

/// What brokers may be told beside their address.
#[derive(Debug, Default)]
pub(crate) struct Details<'a> {
    pub(crate) prefix: Option<&'a str>,
    pub(crate) exchange: Option<&'a str>,
    /// Variables that hold secrets to sign with.
    pub(crate) secrets: &'a [String],
}

impl To {
    /// A path is whatever the system allows.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, Failure> {
        if text == "stdout" {
            return Ok(To::Stdout);
        }
        if let Some(path) = text.as_bytes().strip_prefix(b"file:").filter(|path| !path.is_empty()) {
            return Ok(To::File(OsStr::from_bytes(path).into()));
        }
        let (scheme, rest) = text.to_str().and_then(|url| url.split_once("://")).unwrap_or_default();
        // Schemes may be in capitals, and not all libraries know.
        let scheme = scheme.to_ascii_lowercase();
        let kind = match &*scheme {
            "nats" | "tls" => Broker::Nats,
            "amqp" | "amqps" => Broker::RabbitMq,
            "redis" | "rediss" => Broker::Redis,
            "http" | "https" => Broker::Webhook,
            _ => {
                let what =
                    "where messages go is neither `stdout` nor `file:PATH` nor the address of a broker";
                let cure = "--to stdout, file:PATH, nats://…, amqp://…, redis://… or https://…";
                return Err(Failure::usage(what).cured_by(cure));
            }
        };
        Ok(To::Broker { kind, url: format!("{scheme}://{rest}") })
    }

    /// The address of the flag, or that of the environment.
    pub(crate) fn told(flag: Option<&OsString>) -> Result<Self, Failure> {
        let set = || std::env::var_os("HAPAX_RELAY_TO").filter(|to| !to.is_empty());
        match flag.cloned().or_else(set) {
            Some(to) => Self::parse(&to),
            None => Err(Failure::usage("it isn't said where messages go")
                .cured_by("--to stdout, or in the environment: HAPAX_RELAY_TO=nats://user:password@host")),
        }
    }
}

/// The sink of an address.
pub(crate) async fn connect(
    kind: Broker,
    url: &str,
    details: &Details<'_>,
) -> Result<Box<dyn Sink>, Failure> {
    match kind {
        Broker::Webhook => {}
        _ if details.secrets.is_empty() => {}
        _ => return Err(Failure::usage("--secret-env is for webhooks alone")),
    }
    if details.exchange.is_some() && kind != Broker::RabbitMq {
        return Err(Failure::usage("--exchange is for RabbitMQ alone"));
    }
    if details.prefix.is_some() && kind == Broker::Webhook {
        return Err(Failure::usage("a webhook has no names that could have a prefix"));
    }
    match kind {
        Broker::Nats => nats(url, details).await,
        Broker::RabbitMq => rabbitmq(url, details),
        Broker::Redis => redis(url, details),
        Broker::Webhook => webhook(url, details),
    }
}

#[cfg(feature = "nats")]
async fn nats(url: &str, details: &Details<'_>) -> Result<Box<dyn Sink>, Failure> {
    let sink = hapax::outbox::NatsSink::connect(url).await.map_err(|error| failure(&error))?;
    Ok(Box::new(sink.prefix(details.prefix.unwrap_or_default())))
}

#[cfg(not(feature = "nats"))]
async fn nats(_: &str, _: &Details<'_>) -> Result<Box<dyn Sink>, Failure> {
    Err(lacks("nats"))
}

#[cfg(feature = "rabbitmq")]
fn rabbitmq(url: &str, details: &Details<'_>) -> Result<Box<dyn Sink>, Failure> {
    let sink = hapax::outbox::RabbitSink::new(url).map_err(|error| failure(&error))?;
    let sink = sink.exchange(details.exchange.unwrap_or_default());
    Ok(Box::new(sink.prefix(details.prefix.unwrap_or_default())))
}

#[cfg(not(feature = "rabbitmq"))]
fn rabbitmq(_: &str, _: &Details<'_>) -> Result<Box<dyn Sink>, Failure> {
    Err(lacks("rabbitmq"))
}

#[cfg(feature = "redis")]
fn redis(url: &str, details: &Details<'_>) -> Result<Box<dyn Sink>, Failure> {
    let sink = hapax::outbox::RedisSink::new(url).map_err(|error| failure(&error))?;
    Ok(Box::new(sink.prefix(details.prefix.unwrap_or_default())))
}

#[cfg(not(feature = "redis"))]
fn redis(_: &str, _: &Details<'_>) -> Result<Box<dyn Sink>, Failure> {
    Err(lacks("redis"))
}

#[cfg(feature = "webhook")]
fn webhook(url: &str, details: &Details<'_>) -> Result<Box<dyn Sink>, Failure> {
    let mut sink = hapax::outbox::WebhookSink::new(url).map_err(|error| failure(&error))?;
    for name in details.secrets {
        let unset = |_| Failure::usage(format!("the variable {name} holds no secret"));
        let secret = std::env::var(name).map_err(unset)?;
        sink = sink.secret(secret.trim()).map_err(|error| failure(&error))?;
    }
    Ok(Box::new(sink))
}

#[cfg(not(feature = "webhook"))]
fn webhook(_: &str, _: &Details<'_>) -> Result<Box<dyn Sink>, Failure> {
    Err(lacks("webhook"))
}

/// This program was built without it.
#[cfg(not(all(feature = "nats", feature = "rabbitmq", feature = "redis", feature = "webhook")))]
pub(crate) fn lacks(feature: &str) -> Failure {
    let failure = Failure::coded(code::SINK_INVALID, format!("this program was built without `{feature}`"));
    failure.cured_by(format!("cargo install hapax-cli --features {feature}, or `full` for all of them"))
}

pub(crate) fn failure(error: &SinkError) -> Failure {
    Failure::coded(error.code(), error.to_string())
}
