//! Whether a checkpoint that was read is the one that was committed.
//!
//! Invariant: of a large frontier only what the key needs is kept: place and node.

use hapax_core::{
    checkpoint::Checkpoint,
    frontier::{WorkItem, page_digest},
    id::{NodeId, RunId},
};
use std::collections::HashSet;

/// Takes the pages of a frontier one after the other.
#[derive(Default)]
pub(crate) struct Inspection {
    names: HashSet<NodeId>,
    light: Vec<WorkItem>,
}

impl Inspection {
    /// The next page; the error says what is wrong with it.
    pub(crate) fn page(
        &mut self,
        checkpoint: &Checkpoint,
        page: u32,
        items: &[WorkItem],
    ) -> Result<(), String> {
        if checkpoint.pages.get(page as usize) != Some(&page_digest(items)) {
            return Err(format!("page {page} of its frontier doesn't match its digest"));
        }
        for item in items {
            let node = self.names.get(&item.node).unwrap_or(&item.node).clone();
            if !self.names.contains(&node) {
                self.names.insert(node.clone());
            }
            let (order_key, path_hash) = (item.order_key, item.path_hash);
            self.light.push(WorkItem { order_key, path_hash, node, input: None });
        }
        Ok(())
    }

    /// All pages were seen.
    pub(crate) fn verdict(self, run: &RunId, checkpoint: &Checkpoint) -> Result<(), String> {
        let light = self.light;
        // The key's own check assumes the order in which a frontier is committed.
        let sorted = light.is_sorted_by_key(|item| item.order_key);
        if light.len() != checkpoint.frontier_len || !sorted || !checkpoint.is_intact(run, &light) {
            return Err("its content doesn't match its digest".into());
        }
        Ok(())
    }
}
