//! A sink that publishes to streams of NATS JetStream.
//!
//! Invariant: a message is acknowledged when a stream has said that it holds it, or held one with its id already.

use super::{Delivery, Sink, SinkError};
use async_nats::{
    Client, ConnectOptions, Event, HeaderMap, RequestErrorKind, ServerAddr,
    connection::State,
    header::NATS_MESSAGE_ID,
    jetstream::{
        self, Context,
        context::{GetStreamByNameErrorKind, PublishError, PublishErrorKind},
    },
};
use futures::future::BoxFuture;
use hapax_core::{canary, error::code, limits};
use percent_encoding::percent_decode_str;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Which part of its patience a sink has left to see whether anybody answers.
const PROBE_SHARE: u32 = 4;

/// Publishes each message to JetStream, with its id as `Nats-Msg-Id`, and waits until the stream has it. Behind the feature
/// `nats`.
///
/// The subject is the topic, after the [prefix](Self::prefix) if there is one. A topic that can't be a subject is refused:
/// one with white space, with `*` or `>`, with an empty part between dots, or with `$` first, where NATS keeps its own. The
/// body is the payload, or the CloudEvent; `traceparent`, run, step and the rest are headers.
///
/// A stream must take the subject. Until there is one, or while it is full, the topic waits and others go on. The stream
/// drops what it already has by the id, within its duplicate window: [`stream`](Self::stream) tells how long that is.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// use hapax::outbox::{NatsSink, RelayOptions};
/// # let engine = hapax::Engine::open("memory:").await?;
/// let sink = NatsSink::connect("nats://127.0.0.1:4222").await?.prefix("shop.");
/// let relay = engine.relay(RelayOptions::default().topics(["orders"]), sink)?; // to the subject `shop.orders`
/// # relay.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct NatsSink {
    client: Client,
    jetstream: Context,
    prefix: String,
    timeout: Duration,
    /// Why there is no connection, as far as it was said.
    trouble: Trouble,
}

type Trouble = Arc<Mutex<Option<String>>>;

impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSink").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// A stream, as far as relays care.
///
/// ```
/// use hapax::outbox::NatsStream;
/// # use std::time::Duration;
/// let stream = NatsStream { name: "SHOP".into(), duplicate_window: Duration::from_secs(20) };
/// assert!(!stream.remembers_enough(), "a relay that takes over from a dead one may come later than that");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsStream {
    /// Its name.
    pub name: String,
    /// How long it knows the ids of what it took.
    pub duplicate_window: Duration,
}

impl NatsStream {
    /// Whether it still knows a message when a relay with the usual settings takes over from a dead one and delivers it
    /// again: for two minutes.
    pub fn remembers_enough(&self) -> bool {
        self.duplicate_window >= limits::DUPLICATE_WINDOW
    }
}

impl NatsSink {
    /// Connects to a server, or to one of several with commas between them: `nats://user:password@host:port`, or
    /// `nats://token@host:port`; `tls://` demands TLS. A server that is down is no error, and is tried again and again.
    pub async fn connect(urls: &str) -> Result<Self, SinkError> {
        let parsed: Option<Vec<ServerAddr>> =
            urls.split(',').map(|url| url.parse().ok().filter(is_of_nats)).collect();
        // The library's own words may repeat the address, and with it the password.
        let unfit = || SinkError::unavailable("its address is not one of NATS, nats://host:port");
        let addresses = parsed.ok_or_else(|| unfit().under(code::SINK_INVALID))?;
        let trouble = Trouble::default();
        let heard = trouble.clone();
        let options = ConnectOptions::new().retry_on_initial_connect().name("hapax relay").event_callback(
            move |event| {
                hear(&heard, &event);
                std::future::ready(())
            },
        );
        let options =
            addresses.iter().find_map(login).into_iter().fold(options, |options, login| match login {
                (user, Some(password)) => options.user_and_password(user, password),
                (token, None) => options.token(token),
            });
        let addresses: Vec<ServerAddr> = addresses.into_iter().map(without_login).collect();
        let client = options.connect(addresses).await;
        let client = client.map_err(|error| SinkError::unavailable(error.kind().to_string()))?;
        Ok(Self { trouble, ..Self::new(client) })
    }

    /// Uses a connection of the program's own, say with credentials of another kind.
    ///
    /// ```no_run
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = async_nats::ConnectOptions::with_user_and_password("me".into(), "secret".into());
    /// let sink = hapax::outbox::NatsSink::new(options.connect("nats://127.0.0.1:4222").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(client: Client) -> Self {
        let jetstream = jetstream::new(client.clone());
        let (prefix, timeout, trouble) = (String::new(), Duration::ZERO, Trouble::default());
        Self { client, jetstream, prefix, timeout, trouble }.timeout(limits::SINK_TIMEOUT)
    }

    /// What subjects begin with, before the topic. Default: nothing.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the stream's word is waited for. Default: 5 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self.jetstream.set_timeout(limit);
        self
    }

    /// The stream that takes a topic. One whose duplicate window is shorter than relays need stores a message twice when it
    /// is delivered late again; `hapax doctor --nats nats://…` looks, too.
    ///
    /// ```no_run
    /// # #[tokio::main]
    /// # async fn main() -> hapax::Result<()> {
    /// let sink = hapax::outbox::NatsSink::connect("nats://127.0.0.1:4222").await?;
    /// assert!(sink.stream("orders").await?.remembers_enough());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn stream(&self, topic: &str) -> Result<NatsStream, SinkError> {
        let subject = self.subject(topic)?;
        let name = self.jetstream.stream_by_subject(&subject).await.map_err(|error| match error.kind() {
            GetStreamByNameErrorKind::NotFound => no_stream(&subject),
            _ => SinkError::unavailable(error),
        })?;
        let stream = self.jetstream.get_stream(&name).await.map_err(SinkError::unavailable)?;
        Ok(NatsStream { name, duplicate_window: stream.cached_info().config.duplicate_window })
    }

    fn subject(&self, topic: &str) -> Result<String, SinkError> {
        let subject = format!("{}{topic}", self.prefix);
        let is_token = |token: &str| !token.is_empty() && !token.contains(['*', '>']);
        let fits = subject.split('.').all(is_token)
            && !subject.starts_with('$')
            && !subject.chars().any(|c| c.is_whitespace() || c.is_control());
        if fits {
            return Ok(subject);
        }
        Err(SinkError::refused(format!("{subject:?} cannot be a subject of NATS")).under(code::TOPIC_UNFIT))
    }

    async fn hand_over(&self, message: &Delivery) -> Result<(), SinkError> {
        let (subject, body) = (self.subject(&message.topic)?, message.body()?.into_owned());
        self.connected().await?;
        let sent = self.jetstream.publish_with_headers(subject.clone(), headers(message), body.into()).await;
        let acknowledgement = sent.map_err(|error| failed(&subject, error))?;
        if canary::on("nats_unacknowledged") {
            return Ok(());
        }
        match acknowledgement.await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == PublishErrorKind::TimedOut => Err(self.unanswered(&subject).await),
            Err(error) => Err(failed(&subject, error)),
        }
    }

    /// Nobody has said that he has it: no stream has the subject and somebody else listens there, or the connection
    /// swallows what it is given. Then it may swallow more, and pings would tell only after minutes.
    async fn unanswered(&self, subject: &str) -> SinkError {
        let text = format!("nobody acknowledged what went to `{subject}` within {:?}", self.timeout);
        if !canary::on("nats_blames_all") && self.answers().await {
            return SinkError::busy(text).under(code::NO_RECEIVER);
        }
        self.renew();
        SinkError::unavailable(text)
    }

    /// Whether the server answers at all: here, that nobody listens.
    async fn answers(&self) -> bool {
        let asked = self.client.request(self.client.new_inbox(), "".into());
        let answer = tokio::time::timeout(self.timeout / PROBE_SHARE, asked).await;
        answer.is_ok_and(|answer| !answer.is_err_and(|error| error.kind() == RequestErrorKind::TimedOut))
    }

    /// Waits for a connection before anything is sent: what is published without one would leave much later, when the
    /// message may long have been delivered in another way.
    async fn connected(&self) -> Result<(), SinkError> {
        if self.client.connection_state() == State::Connected {
            return Ok(());
        }
        let flushed = tokio::time::timeout(self.timeout, self.client.flush()).await;
        let down = || {
            let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            let why = trouble.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            SinkError::unavailable(format!("there is no connection to NATS{why}"))
        };
        flushed.map_err(|_| down())?.map_err(|_| down())
    }

    fn renew(&self) {
        let client = self.client.clone();
        tokio::spawn(async move {
            // It fails when the connection is closed for good, and then the next message says so.
            let _ = client.force_reconnect().await;
        });
    }
}

/// Remembers why there is no connection. What is told of holds no login: the addresses have none.
fn hear(trouble: &Trouble, event: &Event) {
    let why = match event {
        Event::Connected => None,
        Event::ServerError(error) => Some(error.to_string()),
        Event::ClientError(error) => Some(error.to_string()),
        _ => return,
    };
    *trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
}

fn failed(subject: &str, error: PublishError) -> SinkError {
    match error.kind() {
        // No stream takes it, its leader is away, or JetStream is off: it looks the same from here, and passes.
        PublishErrorKind::StreamNotFound => no_stream(subject),
        PublishErrorKind::MaxPayloadExceeded => SinkError::refused(error),
        PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe | PublishErrorKind::MaxAckPending => {
            SinkError::unavailable(error)
        }
        _ => judged(error),
    }
}

fn is_of_nats(address: &ServerAddr) -> bool {
    matches!(address.scheme(), "nats" | "tls") && !address.host().is_empty()
}

/// The user and password of an address, or the token. The library leaves them where they are.
fn login(address: &ServerAddr) -> Option<(String, Option<String>)> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    address.username().map(|user| (decoded(user), address.password().map(decoded)))
}

fn without_login(address: ServerAddr) -> ServerAddr {
    let (scheme, host, port) = (address.scheme(), address.host(), address.port());
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    format!("{scheme}://{host}:{port}").parse().unwrap_or(address)
}

fn headers(message: &Delivery) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in message.headers() {
        headers.insert(name, value.as_str());
    }
    headers.insert("content-type", message.content_type());
    headers.insert(NATS_MESSAGE_ID, message.id.as_str());
    headers
}

fn no_stream(subject: &str) -> SinkError {
    SinkError::busy(format!("no stream takes the subject `{subject}`")).under(code::NO_RECEIVER)
}

/// A stream's own word: 5xx is its state (it is full, or short of something), the rest is the message's fault.
fn judged(error: PublishError) -> SinkError {
    let source = std::error::Error::source(&error);
    let status =
        source.and_then(|source| source.downcast_ref::<jetstream::Error>()).map(jetstream::Error::code);
    match status {
        Some(..500) => SinkError::refused(error),
        // Without a status somebody else listens on the subject, and has answered first.
        Some(_) | None => SinkError::busy(error),
    }
}

impl Sink for NatsSink {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(self.hand_over(message))
    }
}
