//! A store that is watched and troubled.

use hapax_core::request::{Completion, Lease, Record, RecoveryPoint, RequestId};
use hapax_store::{
    StoreError,
    requests::{Begun, Claim, Finished, Listed, RequestFilter, RequestStore},
    store::Answer,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::watch;

/// Which calls fail, and how many of them.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    pub(crate) claims: usize,
    pub(crate) finishes: usize,
    pub(crate) heartbeats: usize,
}

/// How many calls there were.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Calls {
    pub(crate) claims: usize,
    pub(crate) granted: usize,
    pub(crate) heartbeats: usize,
    pub(crate) gets: usize,
}

pub(crate) struct Probe {
    inner: Arc<dyn RequestStore>,
    pub(crate) trouble: Mutex<Trouble>,
    calls: watch::Sender<Calls>,
    /// Claims hang for as long as it is true.
    hangs: watch::Sender<bool>,
}

impl Probe {
    pub(crate) fn over(inner: Arc<dyn RequestStore>) -> Arc<Self> {
        let (calls, hangs) = (watch::channel(Calls::default()).0, watch::channel(false).0);
        Arc::new(Self { inner, trouble: Mutex::default(), calls, hangs })
    }

    /// From now on claims hang, or those that hang go on.
    pub(crate) fn hang(&self, hangs: bool) {
        self.hangs.send_replace(hangs);
    }

    pub(crate) fn trouble(&self, change: impl FnOnce(&mut Trouble)) {
        change(&mut self.trouble.lock().expect("nobody panics with it"));
    }

    pub(crate) fn calls(&self) -> Calls {
        *self.calls.borrow()
    }

    /// Waits until there were enough calls.
    pub(crate) async fn saw(&self, enough: impl FnMut(&Calls) -> bool) {
        let mut calls = self.calls.subscribe();
        let seen = tokio::time::timeout(super::server::PATIENCE, calls.wait_for(enough)).await;
        seen.expect("the calls come").expect("the probe is there");
    }

    fn fails(&self, of: impl FnOnce(&mut Trouble) -> &mut usize) -> Result<(), StoreError> {
        let mut trouble = self.trouble.lock().expect("nobody panics with it");
        let left = of(&mut trouble);
        if *left == 0 {
            return Ok(());
        }
        *left = left.saturating_sub(1);
        Err(StoreError::Retry("the probe's trouble".into()))
    }

    async fn claim(&self, claimed: Answer<'_, Begun>) -> Result<Begun, StoreError> {
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await.expect("the probe is there");
        let begun = match self.fails(|trouble| &mut trouble.claims) {
            Ok(()) => claimed.await,
            Err(error) => Err(error),
        };
        self.calls.send_modify(|calls| {
            calls.claims += 1;
            calls.granted += usize::from(matches!(begun, Ok(Begun::Execute(_))));
        });
        begun
    }
}

impl RequestStore for Probe {
    fn begin<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        Box::pin(async { self.claim(Box::pin(async { self.inner.begin(claim).await })).await })
    }

    fn reacquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        Box::pin(async { self.claim(Box::pin(async { self.inner.reacquire(claim).await })).await })
    }

    fn finish<'a>(&'a self, lease: &'a Lease, completion: &'a Completion) -> Answer<'a, Finished> {
        Box::pin(async {
            self.fails(|trouble| &mut trouble.finishes)?;
            self.inner.finish(lease, completion).await
        })
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Finished> {
        Box::pin(async move {
            let beaten = match self.fails(|trouble| &mut trouble.heartbeats) {
                Ok(()) => self.inner.heartbeat(lease, ttl).await,
                Err(error) => Err(error),
            };
            self.calls.send_modify(|calls| calls.heartbeats += 1);
            beaten
        })
    }

    fn set_point<'a>(&'a self, lease: &'a Lease, point: &'a RecoveryPoint) -> Answer<'a, Finished> {
        self.inner.set_point(lease, point)
    }

    fn get<'a>(&'a self, id: &'a RequestId) -> Answer<'a, Option<Record>> {
        self.calls.send_modify(|calls| calls.gets += 1);
        self.inner.get(id)
    }

    fn list<'a>(&'a self, filter: &'a RequestFilter) -> Answer<'a, Vec<Listed>> {
        self.inner.list(filter)
    }

    fn release<'a>(&'a self, id: &'a RequestId) -> Answer<'a, bool> {
        self.inner.release(id)
    }

    fn sweep(&self, limit: usize) -> Answer<'_, u64> {
        self.inner.sweep(limit)
    }

    fn expired(&self) -> Answer<'_, u64> {
        self.inner.expired()
    }

    fn now_us(&self) -> Answer<'_, i64> {
        self.inner.now_us()
    }
}
