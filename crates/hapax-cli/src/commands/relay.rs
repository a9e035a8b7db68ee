//! `hapax relay`: delivers messages of any run, without the code of its graph.

mod troubles;

use crate::{
    failure::Failure,
    output::json_line,
    session::Session,
    sinks::{Details, To, connect, failure},
    view::{counted, parse_age, parse_count},
};
use clap::{Args, ValueEnum};
use futures::future::BoxFuture;
use hapax::outbox::{Delivered, Delivery, FileSink, OnPoison, RelayOptions, Sink, SinkError, StdoutSink};
use hapax_core::error::code;
use hapax_store::outbox::{MessageState, OutboxFilter};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, stat};
use serde::Serialize;
use std::{ffi::OsString, io, sync::Arc, time::Duration};
use tokio::sync::Notify;
use troubles::Troubles;

const AFTER_HELP: &str = "\
Each message is one line of JSON with its id, topic, key, payload, namespace, run and step. It is delivered at least once, \
always with the same id, and in order for each run and topic. Several relays may share the work. With --json the lines on \
standard output have a `v` too, and the last one of --drain says how many were sent, refused and given up, and how many \
of its topics the outbox still holds. The first failure of each kind, its end, and each \
message that dies are told on standard error.

To a broker goes the payload, with the rest as headers; to a webhook goes the whole. Brokers that are down are tried again \
and again. An address with a password is better told by the environment, as $HAPAX_RELAY_TO: others can see flags.

Examples:
  hapax relay --to stdout --drain
  hapax relay --to file:/var/spool/orders.ndjson --topic orders
  hapax relay --to stdout --on-poison block | my-receiver
  hapax relay --to nats://127.0.0.1:4222 --prefix shop. --cloudevents
  hapax relay --to redis://127.0.0.1:6379/0 --prefix shop:
  hapax relay --to https://shop.example/hooks --secret-env SECRET
  HAPAX_RELAY_TO=amqp://me:pw@mq/%2f hapax relay --exchange shop";

/// How many messages are looked through for what is left of some topics.
const MOST_LISTED: usize = 10_000;

/// Deliver messages to a broker, a webhook, a file or standard output
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Relay {
    /// Where to: `stdout`, `file:PATH` or, where they are built in, `nats://…`, `amqp://…`, `redis://…` and `https://…`.
    /// Default: $HAPAX_RELAY_TO
    #[arg(long, value_name = "SINK")]
    to: Option<OsString>,
    /// What subjects, routing keys and streams begin with, before the topic
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// The exchange of RabbitMQ; without it the nameless one, which leads to the queue of the topic's name
    #[arg(long, value_name = "NAME")]
    exchange: Option<String>,
    /// The variable that holds a webhook's secret, `whsec_…`; each signs when given more than once
    #[arg(long = "secret-env", value_name = "NAME")]
    secrets: Vec<String>,
    /// Wrap messages as CloudEvents 1.0, of this source; without one, of `hapax:` and the namespace
    #[arg(long, value_name = "SOURCE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    cloudevents: Option<String>,
    /// End when nothing is due any more, instead of waiting for more
    #[arg(long)]
    drain: bool,
    /// Only messages to this topic; any of them when given more than once
    #[arg(long = "topic", value_name = "TOPIC")]
    topics: Vec<String>,
    /// Messages of one run to one topic that are taken at a time
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = parse_count)]
    batch: usize,
    /// How often to look for messages: a number with s, m, h, d or w
    #[arg(long, value_name = "AGE", default_value = "1s", value_parser = parse_pause)]
    poll: Duration,
    /// Refusals of a message before it is poison
    #[arg(long, value_name = "N", default_value_t = 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    max_attempts: u32,
    /// What becomes of poison
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Poison::Dead)]
    on_poison: Poison,
    #[cfg(feature = "telemetry")]
    #[command(flatten)]
    telemetry: crate::telemetry::Flags,
}

/// What becomes of poison.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Poison {
    /// It is dead, and the rest goes on
    Dead,
    /// It is tried for ever, and the rest of its run and topic waits
    Block,
}

fn parse_pause(text: &str) -> Result<Duration, String> {
    let pause = parse_age(text)?;
    if pause.is_zero() { Err(format!("`{text}` is no pause: 1s is the shortest")) } else { Ok(pause) }
}

/// What became of the messages.
#[derive(Serialize)]
struct Answer {
    sent: usize,
    refused: usize,
    dead: usize,
    outbox: Left,
}

/// What the outbox still holds of the topics that were delivered.
#[derive(Serialize)]
struct Left {
    pending: u64,
    dead: u64,
}

/// A sink that calls when it can't be reached: a reader that has seen enough ends the program. Any other trouble is told.
struct Watched {
    inner: Box<dyn Sink>,
    down: Arc<Notify>,
    troubles: Troubles,
}

impl Sink for Watched {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let published = self.inner.publish(message).await;
            match &published {
                Err(error) if is_closed(error) => self.down.notify_one(),
                Err(error) => self.troubles.begin(&message.topic, error),
                Ok(()) => self.troubles.end(&message.topic),
            }
            published
        })
    }

    fn died(&self, message: &Delivery, error: &SinkError) {
        self.troubles.dead(message, error);
    }
}

/// The other end of our pipe is closed.
fn is_closed(error: &SinkError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether this process was started without a standard output. Rust then puts the null device in its place, open for
/// reading too, as no redirection of a shell is; what is printed there would count as delivered.
fn stdout_is_missing() -> bool {
    let opened = || {
        let (here, null) = (fstat(io::stdout())?, stat("/dev/null")?);
        let is_null = FileType::from_raw_mode(here.st_mode) == FileType::CharacterDevice
            && here.st_rdev == null.st_rdev;
        Ok::<_, rustix::io::Errno>(is_null && fcntl_getfl(io::stdout())? & OFlags::RWMODE == OFlags::RDWR)
    };
    opened().unwrap_or(true)
}

impl Relay {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let down = Arc::new(Notify::new());
        let to = To::told(self.to.as_ref())?;
        let troubles = Troubles::new(session.out.is_json());
        let sink = Watched { inner: self.sink(&to, session).await?, down: down.clone(), troubles };
        #[cfg(feature = "telemetry")]
        let (_telemetry, _logs) = self.telemetry.start(session).await?;
        if self.drain {
            return self.drain(&to, &sink, session).await;
        }
        // It ends with the engine, which lets it finish the delivery that is under way.
        let _relay = session.engine.relay(self.options(), sink)?;
        down.notified().await;
        Err(Failure::Closed)
    }

    async fn drain(&self, to: &To, sink: &Watched, session: &Session<'_>) -> Result<(), Failure> {
        let Delivered { sent, refused, dead, unavailable } =
            session.engine.deliver(self.options(), sink).await?;
        match unavailable {
            Some(error) if is_closed(&error) => return Err(Failure::Closed),
            Some(error) => return Err(failure(&error)),
            None => {}
        }
        let answer = Answer { sent, refused, dead, outbox: self.left(session).await? };
        session.out.answer(&answer, || human(to, &answer))?;
        // Where messages are printed, nothing else is.
        if let (To::Stdout, Some(left)) = (to, answer.outbox.human()) {
            session.out.remark(&left);
        }
        Ok(())
    }

    async fn left(&self, session: &Session<'_>) -> Result<Left, Failure> {
        if self.topics.is_empty() {
            let backlog = session.engine.backlog().await?;
            return Ok(Left { pending: backlog.pending.count, dead: backlog.dead.count });
        }
        // The store counts no topics.
        let states = vec![MessageState::Pending, MessageState::Dead];
        let filter = OutboxFilter { states, limit: MOST_LISTED, ..OutboxFilter::default() };
        let mut listed = session.engine.outbox(filter).await?;
        listed.retain(|record| self.topics.contains(&record.message.topic));
        let dead = listed.iter().filter(|record| record.state == MessageState::Dead).count() as u64;
        Ok(Left { pending: listed.len() as u64 - dead, dead })
    }

    async fn sink(&self, to: &To, session: &Session<'_>) -> Result<Box<dyn Sink>, Failure> {
        let (prefix, exchange) = (self.prefix.as_deref(), self.exchange.as_deref());
        let is_detailed = prefix.is_some() || exchange.is_some() || !self.secrets.is_empty();
        match to {
            To::Broker { kind, url } => {
                connect(*kind, url, &Details { prefix, exchange, secrets: &self.secrets }).await
            }
            _ if is_detailed => {
                Err(Failure::usage("--prefix, --exchange and --secret-env are for brokers and webhooks"))
            }
            To::Stdout if stdout_is_missing() => {
                let failure =
                    Failure::coded(code::SINK_FAILED, "standard output is closed: nothing was sent");
                Err(failure.cured_by("let somebody read it, or name a file: --to file:PATH"))
            }
            To::Stdout if session.out.is_json() => {
                let line = |message: &Delivery| json_line(message).map_err(SinkError::refused);
                Ok(Box::new(StdoutSink::lines(move |message| Ok(line(message)?.trim_end().to_owned()))))
            }
            To::Stdout => Ok(Box::new(StdoutSink)),
            To::File(path) => Ok(Box::new(FileSink::open(path).map_err(|error| failure(&error))?)),
        }
    }

    fn options(&self) -> RelayOptions {
        let on_poison = match self.on_poison {
            Poison::Dead => OnPoison::DeadLetter,
            Poison::Block => OnPoison::Block,
        };
        let options = RelayOptions::default();
        let options = match &self.cloudevents {
            Some(source) => options.cloud_events(source),
            None => options,
        };
        options
            .topics(&self.topics)
            .batch(self.batch)
            .poll_interval(self.poll)
            .max_attempts(self.max_attempts)
            .on_poison(on_poison)
    }
}

impl Left {
    /// Nothing, if nothing is left.
    fn human(&self) -> Option<String> {
        let Self { pending, dead } = self;
        (pending + dead > 0).then(|| format!("left in the outbox: {pending} pending, {dead} dead"))
    }
}

fn human(to: &To, answer: &Answer) -> String {
    match to {
        To::Stdout => String::new(),
        To::File(_) | To::Broker { .. } => {
            let left = answer.outbox.human().map(|left| format!("; {left}")).unwrap_or_default();
            format!("delivered {}{left}\n", counted(answer.sent as u64, "message"))
        }
    }
}
