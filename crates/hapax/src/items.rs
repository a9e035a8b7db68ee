//! The frontier in memory: a window of it, the rest stays in the store until its turn comes.

use crate::gate::{Gate, Halt};
use hapax_core::{frontier::WorkItem, id::RunKey, limits::FRONTIER_PAGE};
use hapax_store::Store;
use std::{collections::VecDeque, sync::Arc};

/// What a step has to run, in order.
#[derive(Debug)]
pub(crate) struct Frontier {
    step: u64,
    len: usize,
    taken: usize,
    window: VecDeque<WorkItem>,
}

impl Frontier {
    pub(crate) fn new(step: u64, len: usize, first_page: VecDeque<WorkItem>) -> Self {
        Self { step, len, taken: 0, window: first_page }
    }

    /// How many items the step has.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The next item. A page is read once the one before is used up, and not before it is durable.
    pub(crate) async fn next(
        &mut self,
        store: &Arc<dyn Store>,
        run: &RunKey,
        gate: &Gate,
    ) -> Result<Option<WorkItem>, Halt> {
        if self.taken == self.len {
            return Ok(None);
        }
        if self.window.is_empty() {
            gate.flush().await?;
            let page = (self.taken / FRONTIER_PAGE) as u32;
            let items = store.frontier_page(run.clone(), self.step, page).await;
            self.window = items.map_err(|e| gate.shut(Halt::Store(Arc::new(e))))?.into();
        }
        self.taken += 1;
        Ok(self.window.pop_front())
    }
}
