//! The house of a store that fails: every call that changes something counts, so that a move can be cut at each of them.

use super::Faulty;
use crate::{
    house::{Head, House, Image, Left, Piece, Sign},
    store::Answer,
};
use hapax_core::{commit::Epoch, id::RunKey};
use std::sync::Arc;

impl House for Faulty {
    fn plate(&self, write: Option<String>, over: Option<String>) -> Answer<'_, Sign> {
        let writes = write.is_some();
        let asked = async move { self.inner.house().plate(write, over).await };
        if writes { Box::pin(self.counted(asked)) } else { Box::pin(self.uncounted(asked)) }
    }

    fn image(&self, run: RunKey) -> Answer<'_, Image> {
        Box::pin(self.uncounted(async move { self.inner.house().image(run).await }))
    }

    fn family(&self, run: RunKey) -> Answer<'_, Vec<RunKey>> {
        Box::pin(self.uncounted(async move { self.inner.house().family(run).await }))
    }

    fn leave(&self, run: RunKey, to: Arc<str>) -> Answer<'_, Vec<Left>> {
        Box::pin(self.counted(async move { self.inner.house().leave(run, to).await }))
    }

    fn stay(&self, run: RunKey) -> Answer<'_, Vec<Left>> {
        Box::pin(self.counted(async move { self.inner.house().stay(run).await }))
    }

    fn close(&self, family: Vec<Left>, to: Arc<str>) -> Answer<'_, ()> {
        Box::pin(self.counted(async move { self.inner.house().close(family, to).await }))
    }

    fn take_back(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(self.counted(async move { self.inner.house().take_back(family).await }))
    }

    fn clear(&self, run: RunKey, epoch: Epoch, forget: bool) -> Answer<'_, ()> {
        Box::pin(self.counted(async move { self.inner.house().clear(run, epoch, forget).await }))
    }

    fn arrive(&self, head: Head, epoch: Epoch) -> Answer<'_, ()> {
        Box::pin(self.counted(async move { self.inner.house().arrive(head, epoch).await }))
    }

    fn unpack(&self, run: RunKey, epoch: Epoch, pieces: Vec<Piece>) -> Answer<'_, ()> {
        Box::pin(self.counted(async move { self.inner.house().unpack(run, epoch, pieces).await }))
    }

    fn give_up(&self, run: RunKey, epoch: Epoch) -> Answer<'_, ()> {
        Box::pin(self.counted(async move { self.inner.house().give_up(run, epoch).await }))
    }

    fn open(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(self.counted(async move { self.inner.house().open(family).await }))
    }
}
