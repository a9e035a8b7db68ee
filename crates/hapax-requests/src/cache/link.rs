//! The way to Redis: bounded in time, and left alone for a while once it has failed.
//!
//! Invariant: no question takes longer than its limit, whatever Redis and the network do, and while one of them stands
//! still one question in each while goes there. Nothing here is an error for whoever asks.

use super::clock::Rest;
use redis::{
    Client, Cmd, FromRedisValue, RedisError,
    aio::{ConnectionManager, ConnectionManagerConfig},
    cmd,
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::timeout;
use tracing::warn;

/// A connection may take longer than an answer: nobody waits for all of it.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Why Redis didn't say anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It failed a moment ago, and wasn't asked.
    Resting,
    /// It was asked, and didn't answer in time or refused.
    Failed,
}

pub(crate) struct Link {
    client: Client,
    answer_limit: Duration,
    rest: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    line: Option<Line>,
    /// Until then it isn't asked; whoever comes first after it asks alone.
    rest: Option<Rest>,
}

/// A connection, which is made in a task of its own.
#[derive(Clone)]
struct Line {
    manager: ConnectionManager,
    /// It is still being made.
    is_opening: Arc<AtomicBool>,
}

impl Link {
    pub(crate) fn new(client: Client, answer_limit: Duration, rest: Duration) -> Self {
        Self { client, answer_limit, rest, state: Mutex::default() }
    }

    /// Asks something, if it may be asked now.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Silence> {
        let mut line = self.line()?;
        let answer = timeout(self.answer_limit, command.query_async::<T>(&mut line.manager)).await;
        match answer {
            Ok(Ok(answer)) => {
                self.state().rest = None;
                Ok(answer)
            }
            // It is there, and knows what it doesn't want.
            Ok(Err(refusal)) if !is_of_the_line(&refusal) => {
                self.state().rest = None;
                warn!(%refusal, "the cache of requests refused");
                Err(Silence::Failed)
            }
            Ok(Err(error)) => Err(self.failed(false, &error.to_string())),
            Err(_) => Err(self.failed(line.is_opening.load(SeqCst), "it didn't answer in time")),
        }
    }

    /// The connection, unless Redis rests.
    fn line(&self) -> Result<Line, Silence> {
        let mut state = self.state();
        if let Some(rest) = state.rest {
            if !rest.is_over() {
                return Err(Silence::Resting);
            }
            // The others go on resting until we know.
            state.rest = Some(Rest::of(self.rest));
        }
        if let Some(line) = &state.line {
            return Ok(line.clone());
        }
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(CONNECT_LIMIT.max(self.answer_limit)))
            .set_response_timeout(Some(self.answer_limit))
            .set_number_of_retries(0);
        let manager = ConnectionManager::new_lazy_with_config(self.client.clone(), config);
        let line = Line::open(manager.map_err(|_| Silence::Failed)?);
        state.line = Some(line.clone());
        Ok(line)
    }

    /// What stands still may be a connection that leads nowhere: the next question has another, unless this one is only
    /// being made.
    fn failed(&self, is_opening: bool, why: &str) -> Silence {
        let mut state = self.state();
        if !is_opening {
            state.line = None;
        }
        state.rest = Some(Rest::of(self.rest));
        drop(state);
        warn!(why, "the cache of requests is out of reach");
        Silence::Failed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// The manager connects when it is first asked something, and that is done here.
    fn open(manager: ConnectionManager) -> Self {
        let line = Self { manager, is_opening: Arc::new(AtomicBool::new(true)) };
        let mut opened = line.clone();
        tokio::spawn(async move {
            // Whoever asks next hears what is wrong.
            let _ = cmd("PING").query_async::<()>(&mut opened.manager).await;
            opened.is_opening.store(false, SeqCst);
        });
        line
    }
}

/// Whether it came from the connection, and not from the server.
fn is_of_the_line(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}
