//! The sessions of a store, lent out one by one.
//!
//! Invariant: a session that was in a transaction when it came back is closed, never lent again.

use super::sql::{Fault, Session};
use crate::{
    clock::{micros, now_us},
    error::StoreError,
    store::BoxFuture,
};
use deadpool::managed::{self, Metrics, QueueMode, RecycleError, RecycleResult};
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// A session that rested for longer is asked whether its server still takes writes. Idle workers come more often than that,
/// and ask for it themselves.
const RESTED: Duration = Duration::from_secs(2);

/// How sessions come to be and are looked at.
pub(crate) trait Connect: Send + Sync + 'static {
    /// Opens a session and sets it up.
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Pooled>, StoreError>>;
}

/// A session as the pool sees it.
pub(crate) trait Pooled: Session {
    /// Whether it may be lent again: it is connected and in no transaction.
    fn is_sound(&self) -> bool;

    /// Whether its server still takes writes: a primary may have become a standby.
    fn takes_writes(&mut self) -> BoxFuture<'_, Result<bool, Fault>>;
}

/// The sessions of a store.
#[derive(Clone)]
pub(crate) struct Sessions(managed::Pool<Manager>);

/// A session that goes back when it is dropped.
pub(crate) type Lent = managed::Object<Manager>;

pub(crate) struct Manager {
    connect: Arc<dyn Connect>,
    /// When a session was last found broken, in microseconds since 1970.
    broken_us: AtomicI64,
}

impl managed::Manager for Manager {
    type Type = Box<dyn Pooled>;
    type Error = StoreError;

    async fn create(&self) -> Result<Self::Type, StoreError> {
        self.connect.connect().await
    }

    async fn recycle(&self, session: &mut Self::Type, metrics: &Metrics) -> RecycleResult<StoreError> {
        if !session.is_sound() {
            self.broken_us.store(now_us(), Ordering::Relaxed);
            return Err(RecycleError::message("it is closed or in a transaction"));
        }
        // What broke one may have broken all that were there: a server that was restarted, a network that was gone.
        let rested = metrics.last_used();
        let is_suspect = now_us() - micros(rested) <= self.broken_us.load(Ordering::Relaxed);
        if (rested > RESTED || is_suspect) && !matches!(session.takes_writes().await, Ok(true)) {
            return Err(RecycleError::message("its server takes no writes"));
        }
        Ok(())
    }
}

impl Sessions {
    pub(crate) fn new(connect: Arc<dyn Connect>, most: usize) -> Self {
        // The one that was used last is lent first, so that few of them have rested.
        let manager = Manager { connect, broken_us: AtomicI64::new(0) };
        let pool = managed::Pool::builder(manager).max_size(most).queue_mode(QueueMode::Lifo).build();
        Self(pool.expect("a pool without timeouts needs no runtime"))
    }

    /// A session; waits for one when all are lent.
    pub(crate) async fn lend(&self) -> Result<Lent, StoreError> {
        match self.0.get().await {
            Ok(session) => Ok(session),
            // The store is open, so whatever keeps a session from opening now may pass.
            Err(managed::PoolError::Backend(error)) => Err(StoreError::Retry(error.into())),
            Err(managed::PoolError::Closed) => Err(StoreError::Retry("the store is closed".into())),
            Err(error) => Err(StoreError::Retry(error.to_string().into())),
        }
    }

    pub(crate) fn close(&self) {
        self.0.close();
    }
}
