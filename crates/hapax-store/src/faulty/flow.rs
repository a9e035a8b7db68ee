//! The flow control of a store that fails: what changes it counts as a call, all others pass while it lives.

use super::Faulty;
use crate::{
    clock::Clock,
    flow::{Flow, KeyRecord, KeyView, NameKind, NameRecord, Replaced, Seen, Spread, SpreadPage, Stands},
    store::{Answer, NewRun},
};
use hapax_core::{
    flow::{Rate, Reservation, Terms},
    id::{Namespace, RunId, RunKey},
};

impl Flow for Faulty {
    fn enrol(&self, run: RunKey, terms: Terms) -> Answer<'_, Vec<RunKey>> {
        Box::pin(self.counted(async move { self.inner.flow().enrol(run, terms).await }))
    }

    fn release(&self, run: RunKey, token: String) -> Answer<'_, Vec<RunKey>> {
        Box::pin(self.counted(async move { self.inner.flow().release(run, token).await }))
    }

    fn reserve(&self, namespace: Namespace, rate: Rate) -> Answer<'_, Reservation> {
        Box::pin(self.counted(async move { self.inner.flow().reserve(namespace, rate).await }))
    }

    fn clock(&self, bucket: &str) -> Clock {
        self.inner.flow().clock(bucket)
    }

    fn replace(&self, run: NewRun) -> Answer<'_, Replaced> {
        Box::pin(self.counted(async move { self.inner.flow().replace(run).await }))
    }

    fn sweep(&self, namespace: Namespace) -> Answer<'_, u64> {
        Box::pin(self.uncounted(async move { self.inner.flow().sweep(namespace).await }))
    }

    fn keys(&self, namespace: Namespace) -> Answer<'_, Vec<KeyRecord>> {
        Box::pin(self.uncounted(async move { self.inner.flow().keys(namespace).await }))
    }

    fn key(&self, namespace: Namespace, name: String) -> Answer<'_, KeyView> {
        Box::pin(self.uncounted(async move { self.inner.flow().key(namespace, name).await }))
    }

    fn names(&self, namespace: Namespace) -> Answer<'_, Vec<NameRecord>> {
        Box::pin(self.uncounted(async move { self.inner.flow().names(namespace).await }))
    }

    fn holder(&self, namespace: Namespace, kind: NameKind, name: String) -> Answer<'_, Option<RunId>> {
        Box::pin(self.uncounted(async move { self.inner.flow().holder(namespace, kind, name).await }))
    }

    fn let_go(&self, run: RunKey, token: String) -> Answer<'_, bool> {
        Box::pin(self.counted(async move { self.inner.flow().let_go(run, token).await }))
    }

    fn spread(&self, namespace: Namespace, seen: Seen, behind: Option<RunId>) -> Answer<'_, SpreadPage> {
        Box::pin(self.uncounted(async move { self.inner.flow().spread(namespace, seen, behind).await }))
    }

    fn standing(&self, namespace: Namespace, runs: Vec<RunId>) -> Answer<'_, Vec<(Spread, Stands)>> {
        Box::pin(self.uncounted(async move { self.inner.flow().standing(namespace, runs).await }))
    }
}
