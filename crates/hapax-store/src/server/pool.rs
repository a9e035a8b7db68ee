//! The sessions of a store, lent out one by one.
//!
//! Invariant: a session that was in a transaction when it came back is closed, never lent again.

use super::{
    limit::Limited,
    sql::{Fault, Session},
};
use crate::{
    clock::{micros, now_us},
    error::StoreError,
    store::BoxFuture,
};
use deadpool::managed::{self, Metrics, QueueMode, RecycleError, RecycleResult};
use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc, Once,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

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
pub(crate) struct Sessions {
    pool: managed::Pool<Manager>,
    /// Told when a session comes back.
    back: Arc<Notify>,
    /// That there are too few is said once.
    said: Arc<Once>,
}

/// A session that goes back when it is dropped.
pub(crate) struct Lent {
    session: managed::Object<Manager>,
    // Dropped after the session.
    _back: TellBack,
}

/// Tells one who waits that a session came back.
struct TellBack(Arc<Notify>);

impl Drop for TellBack {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Lent {
    /// Closes it instead of giving it back.
    pub(crate) fn retire(self) {
        drop(managed::Object::take(self.session));
    }
}

impl Deref for Lent {
    type Target = Box<dyn Pooled>;

    fn deref(&self) -> &Self::Target {
        &self.session
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.session
    }
}

pub(crate) struct Manager {
    connect: Arc<dyn Connect>,
    /// How long an answer may take.
    limit: Duration,
    /// Commits on any of its sessions.
    syncs: Arc<AtomicU64>,
    /// When a session was last found broken, in microseconds since 1970.
    broken_us: AtomicI64,
}

impl managed::Manager for Manager {
    type Type = Box<dyn Pooled>;
    type Error = StoreError;

    async fn create(&self) -> Result<Self::Type, StoreError> {
        Ok(Box::new(Limited::new(self.connect.connect().await?, self.limit, self.syncs.clone())))
    }

    async fn recycle(&self, session: &mut Self::Type, metrics: &Metrics) -> RecycleResult<StoreError> {
        if !session.is_sound() {
            self.broken_us.store(now_us(), Ordering::Relaxed);
            return Err(RecycleError::message("it is closed or in a transaction"));
        }
        // What broke one may have broken all that were there: a server that was restarted, a network that was gone.
        let rested = metrics.last_used();
        let is_suspect = now_us() - micros(rested) <= self.broken_us.load(Ordering::Relaxed);
        let is_suspect = is_suspect && !hapax_core::canary::on("unsuspecting");
        if (rested > RESTED || is_suspect) && !matches!(session.takes_writes().await, Ok(true)) {
            return Err(RecycleError::message("its server takes no writes"));
        }
        Ok(())
    }
}

impl Sessions {
    pub(crate) fn new(connect: Arc<dyn Connect>, most: usize, limit: Duration) -> Self {
        // The one that was used last is lent first, so that few of them have rested.
        let manager = Manager { connect, limit, syncs: Arc::default(), broken_us: AtomicI64::new(0) };
        let pool = managed::Pool::builder(manager).max_size(most).queue_mode(QueueMode::Lifo).build();
        let pool = pool.expect("a pool without timeouts needs no runtime");
        Self { pool, back: Arc::default(), said: Arc::new(Once::new()) }
    }

    /// A session; waits for one when all are lent, or when the server allows no more than there are.
    pub(crate) async fn lend(&self) -> Result<Lent, StoreError> {
        let opened = loop {
            // Asked for beforehand, so that a pool that is closed meanwhile wakes it too.
            let back = self.back.notified();
            match self.pool.get().await {
                Err(managed::PoolError::Backend(StoreError::Retry(source))) if self.has_others() => {
                    self.said.call_once(|| {
                        tracing::warn!(error = %source, "no further session can be opened: those that are open are shared");
                    });
                    back.await;
                }
                opened => break opened,
            }
        };
        match opened {
            Ok(session) => Ok(Lent { session, _back: TellBack(self.back.clone()) }),
            Err(managed::PoolError::Backend(error @ StoreError::Retry(_))) => Err(error),
            // The store is open, so whatever keeps a session from opening now may pass.
            Err(managed::PoolError::Backend(error)) => Err(StoreError::Retry(error.into())),
            Err(managed::PoolError::Closed) => Err(StoreError::Retry("the store is closed".into())),
            Err(error) => Err(StoreError::Retry(error.to_string().into())),
        }
    }

    /// Commits that waited for the server's disk.
    pub(crate) fn syncs(&self) -> u64 {
        self.pool.manager().syncs.load(Ordering::Relaxed)
    }

    fn has_others(&self) -> bool {
        self.pool.status().size > 0 && !hapax_core::canary::on("unshared")
    }

    pub(crate) fn close(&self) {
        self.pool.close();
        self.back.notify_waiters();
    }
}
