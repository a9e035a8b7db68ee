//! `hapax relay`: delivers messages of any run, without the code of its graph.

use crate::{failure::Failure, session::Session, view::parse_age};
use clap::{Args, ValueEnum};
use futures::future::BoxFuture;
use hapax::{
    Coded,
    outbox::{Delivered, Delivery, FileSink, OnPoison, RelayOptions, Sink, SinkError, StdoutSink},
};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::Notify;

const AFTER_HELP: &str = "\
Each message is one line of JSON with its id, topic, key, payload, namespace, run and step. It is delivered at least once, \
always with the same id, and in order for each run and topic. Several relays may share the work.

Examples:
  hapax relay --to stdout --drain
  hapax relay --to file:/var/spool/orders.ndjson --topic orders
  hapax relay --to stdout --on-poison block | my-receiver";

/// Deliver messages to standard output or a file, until interrupted
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Relay {
    /// Where to: `stdout` or `file:PATH`
    #[arg(long, value_name = "SINK", value_parser = parse_sink)]
    to: To,
    /// End when nothing is due any more, instead of waiting for more
    #[arg(long)]
    drain: bool,
    /// Only messages to this topic; any of them when given more than once
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// Messages of one run to one topic that are taken at a time
    #[arg(long, value_name = "N", default_value_t = 100)]
    batch: usize,
    /// How often to look for messages: a number with s, m, h, d or w
    #[arg(long, value_name = "AGE", default_value = "1s", value_parser = parse_age)]
    poll: Duration,
    /// Refusals of a message before it is poison
    #[arg(long, value_name = "N", default_value_t = 20)]
    max_attempts: u32,
    /// What becomes of poison
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Poison::Dead)]
    on_poison: Poison,
}

/// Where messages go.
#[derive(Debug, Clone)]
enum To {
    Stdout,
    File(PathBuf),
}

/// What becomes of poison.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Poison {
    /// It is dead, and the rest goes on
    Dead,
    /// It is tried for ever, and the rest of its run and topic waits
    Block,
}

fn parse_sink(text: &str) -> Result<To, String> {
    match text.split_once(':') {
        None if text == "stdout" => Ok(To::Stdout),
        Some(("file", path)) if !path.is_empty() => Ok(To::File(path.into())),
        _ => Err(format!("`{text}` is neither `stdout` nor `file:PATH`")),
    }
}

/// A sink that calls when it can't be reached: a reader that has seen enough ends the program.
struct Watched {
    inner: Box<dyn Sink>,
    down: Arc<Notify>,
}

impl Sink for Watched {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let published = self.inner.publish(message).await;
            if published.as_ref().is_err_and(is_closed) {
                self.down.notify_one();
            }
            published
        })
    }
}

/// The other end of our pipe is closed.
fn is_closed(error: &SinkError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

impl Relay {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let inner: Box<dyn Sink> = match &self.to {
            To::Stdout => Box::new(StdoutSink),
            To::File(path) => Box::new(FileSink::open(path).map_err(|error| failure(&error))?),
        };
        let down = Arc::new(Notify::new());
        let sink = Watched { inner, down: down.clone() };
        if self.drain {
            return told(session.engine.deliver(self.options(), &sink).await?);
        }
        // It ends with the engine, which lets it finish the delivery that is under way.
        let _relay = session.engine.relay(self.options(), sink)?;
        down.notified().await;
        Err(Failure::Closed)
    }

    fn options(&self) -> RelayOptions {
        let on_poison = match self.on_poison {
            Poison::Dead => OnPoison::DeadLetter,
            Poison::Block => OnPoison::Block,
        };
        RelayOptions::default()
            .topics(&self.topics)
            .batch(self.batch)
            .poll_interval(self.poll)
            .max_attempts(self.max_attempts)
            .on_poison(on_poison)
    }
}

fn told(delivered: Delivered) -> Result<(), Failure> {
    match delivered.unavailable {
        Some(error) if is_closed(&error) => Err(Failure::Closed),
        Some(error) => Err(failure(&error)),
        None => Ok(()),
    }
}

fn failure(error: &SinkError) -> Failure {
    Failure::coded(error.code(), error.to_string())
}
