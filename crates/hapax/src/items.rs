//! The frontier in memory: a window of it, the rest stays in the store until its turn comes.

use crate::gate::{Gate, Halt};
use hapax_core::{
    frontier::WorkItem,
    id::{NodeId, RunKey},
    limits::FRONTIER_PAGE,
    order::PathHash,
};
use hapax_store::Store;
use std::{collections::VecDeque, sync::Arc};

/// What a step has to run, in order.
#[derive(Debug)]
pub(crate) struct Frontier {
    step: u64,
    len: usize,
    taken: usize,
    depth: usize,
    window: VecDeque<WorkItem>,
}

impl Frontier {
    /// The frontier of a step whose first page is at hand; `depth` items are held at the most.
    pub(crate) fn new(step: u64, len: usize, depth: usize, first_page: VecDeque<WorkItem>) -> Self {
        let (mut window, depth) = (first_page, depth.max(1));
        if window.len() > depth {
            window.truncate(depth);
            window.shrink_to_fit();
        }
        Self { step, len, taken: 0, depth, window }
    }

    /// How many items the step has.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The node of an item; `None`: it isn't at hand.
    pub(crate) fn node(&self, path_hash: PathHash) -> Option<&NodeId> {
        self.window.iter().find(|item| item.path_hash == path_hash).map(|item| &item.node)
    }

    /// The next item. A page is read once the window is used up, and not before it is durable; what is beyond the
    /// window is read again when its turn comes.
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
            let items = items.map_err(|e| gate.shut(Halt::Store(Arc::new(e))))?;
            self.window = items.into_iter().skip(self.taken % FRONTIER_PAGE).take(self.depth).collect();
        }
        self.taken += 1;
        Ok(self.window.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trail::Trail;
    use hapax_core::{
        checkpoint::{Draft, IoDigest, outbox_digest},
        frontier::Barriers,
        id::{Namespace, RunId},
        key::sha256,
    };
    use hapax_store::{Claimant, Created, MemoryStore, NewRun};
    use std::{collections::BTreeMap, time::Duration};

    /// A run whose step 0 has this many items.
    fn run(items: u32) -> NewRun {
        let key = RunKey { namespace: Namespace::default(), run: RunId::new("run").unwrap() };
        let node = NodeId::new("node").unwrap();
        let child = |index| WorkItem::child(PathHash::ROOT, index, node.clone(), None);
        let draft = Draft {
            step: 0,
            state: b"{}".to_vec().into(),
            state_version: 1,
            frontier: (0..items).map(child).collect(),
            barriers: Barriers::default(),
            seed: 0,
            io: IoDigest::default().finish(),
            outbox: outbox_digest(&[]),
            label: None,
        };
        NewRun {
            graph: "graph".into(),
            fingerprint: sha256(b"graph"),
            input: sha256(b"input"),
            checkpoint: draft.seal(&key.run),
            tags: BTreeMap::new(),
            claim: Some(Claimant { owner: "test".into(), ttl: Duration::from_secs(600) }),
            parent: None,
            journal: vec![],
            terms: hapax_core::flow::Terms::default(),
            key,
        }
    }

    #[tokio::test]
    async fn no_more_items_are_held_than_the_queue_is_deep() {
        let (store, new) = (MemoryStore::shared() as Arc<dyn Store>, run(2500));
        let Created::New(Some(lease)) = store.create(new.clone()).await.unwrap() else { panic!("it is new") };
        let (key, all) = (new.key, new.checkpoint.frontier);
        let gate = Gate::new(
            store.clone(),
            key.clone(),
            lease.epoch,
            Duration::from_secs(1),
            Trail::of(key.clone()),
            Arc::default(),
            Arc::default(),
        );
        for depth in [100, FRONTIER_PAGE, usize::MAX] {
            let first = all[..FRONTIER_PAGE].to_vec();
            let mut frontier = Frontier::new(0, all.len(), depth, first.into());
            let mut taken = vec![];
            loop {
                let held = frontier.window.len();
                assert!(held <= depth, "{held} items are held");
                match frontier.next(&store, &key, &gate).await {
                    Ok(Some(item)) => taken.push(item.path_hash),
                    Ok(None) => break,
                    Err(_) => panic!("the store is well"),
                }
            }
            assert!(taken.iter().eq(all.iter().map(|item| &item.path_hash)), "all of them, in order");
        }
    }
}
