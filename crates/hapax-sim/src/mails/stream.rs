//! The stream between them, of a real broker: all that was ever delivered to it, duplicates among it.

use super::Mail;
use async_nats::{
    Client, ConnectOptions, Message,
    jetstream::{
        self,
        consumer::{AckPolicy, PullConsumer, pull},
        stream::Config,
    },
};
use futures::TryStreamExt;
use std::{error::Error, time::Duration};

/// The stream's name.
pub const STREAM: &str = "mail";
/// The name under which its messages are applied.
pub const READER: &str = "books";
/// As short as a stream allows: duplicates of relays are to arrive.
const FORGETFUL: Duration = Duration::from_millis(100);
/// A reader that has acknowledged nothing for so long is taken for dead.
const ACK_WAIT: Duration = Duration::from_secs(2);
/// How many messages are read at once.
const PAGE: usize = 1000;

/// Connects, now or as soon as there is a server.
pub async fn connect(url: &str) -> Result<Client, Box<dyn Error + Send + Sync>> {
    Ok(ConnectOptions::new().retry_on_initial_connect().connect(url).await?)
}

/// A message as it was delivered.
#[derive(Debug, Clone)]
pub struct Raw {
    /// Its id.
    pub id: String,
    /// Where it went.
    pub topic: String,
    /// What it says.
    pub mail: Mail,
}

impl Raw {
    /// Reads a message; `None`: no relay has sent it.
    pub fn of(message: &Message) -> Option<Self> {
        let id = message.headers.as_ref()?.get("Nats-Msg-Id")?.to_string();
        let mail = serde_json::from_slice(&message.payload).ok()?;
        Some(Self { id, topic: message.subject.to_string(), mail })
    }
}

/// A stream of a server.
#[derive(Debug)]
pub struct Stream(jetstream::stream::Stream);

impl Stream {
    /// Opens it, and makes it with its reader where there is none.
    pub async fn open(client: Client) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let config = Config {
            name: STREAM.into(),
            subjects: vec![format!("{STREAM}.>")],
            duplicate_window: FORGETFUL,
            ..Config::default()
        };
        let stream = jetstream::new(client).get_or_create_stream(config).await?;
        let reader = pull::Config {
            durable_name: Some(READER.into()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            ..pull::Config::default()
        };
        stream.get_or_create_consumer(READER, reader).await?;
        Ok(Self(stream))
    }

    /// Its reader.
    pub async fn reader(&self) -> Result<PullConsumer, Box<dyn Error + Send + Sync>> {
        self.0.get_consumer(READER).await
    }

    /// All that was delivered to it, in its order.
    pub async fn all(&self) -> Result<Vec<Raw>, Box<dyn Error + Send + Sync>> {
        let held = self.0.get_info().await?.state.messages;
        let looks = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
        let reader = self.0.create_consumer(looks).await?;
        let mut all = vec![];
        while (all.len() as u64) < held {
            let page: Vec<_> = reader.fetch().max_messages(PAGE).messages().await?.try_collect().await?;
            all.extend(page.iter().map(|message| Raw::of(message).expect("a relay has sent it")));
        }
        Ok(all)
    }
}
