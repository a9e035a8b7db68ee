//! The path of a run, from the frontiers of its checkpoints.
//!
//! An item's path hash is made of its parent's, its node and its edge index, and its order key holds the index and
//! most of the parent's hash. So its parent is found by trying those that fit.

use hapax_core::{
    frontier::WorkItem,
    id::NodeId,
    order::{MAX_EDGE_INDEX, OrderKey, PathHash},
};
use std::collections::{BTreeSet, HashMap};

/// One way that was taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hop {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) edge_index: u32,
}

/// Where a run went. Fed with its frontiers, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    /// Items by the part of their path hash that their children's order keys keep.
    seen: HashMap<u64, Vec<(PathHash, NodeId)>>,
    /// Nodes in the order in which they were first seen, and how many items each had.
    visits: Vec<(NodeId, u64)>,
    hops: BTreeSet<Hop>,
    start: Option<NodeId>,
    before: BTreeSet<NodeId>,
    last: BTreeSet<NodeId>,
    neighbours: BTreeSet<(NodeId, NodeId)>,
}

impl Trace {
    /// The next frontier begins.
    pub(crate) fn begin_step(&mut self) {
        self.before = std::mem::take(&mut self.last);
    }

    /// Items of the current frontier.
    pub(crate) fn add(&mut self, items: &[WorkItem]) {
        for item in items {
            self.find_parent(item);
            if item.input.is_none() {
                let before = self.before.iter().map(|from| (from.clone(), item.node.clone()));
                self.neighbours.extend(before);
            }
            self.visit(&item.node);
            self.last.insert(item.node.clone());
        }
        for item in items {
            let known = self.seen.entry(parent_part(item.path_hash.0)).or_default();
            known.push((item.path_hash, item.node.clone()));
        }
    }

    fn visit(&mut self, node: &NodeId) {
        match self.visits.iter_mut().find(|(known, _)| known == node) {
            Some((_, visits)) => *visits += 1,
            None => self.visits.push((node.clone(), 1)),
        }
    }

    fn find_parent(&mut self, item: &WorkItem) {
        let (OrderKey(order_key), edge_index) = (item.order_key, item.order_key.edge_index());
        let is_child = |parent: PathHash| parent.child(item.node.as_str(), edge_index) == item.path_hash;
        if is_child(PathHash::ROOT) {
            self.start = Some(item.node.clone());
            return;
        }
        let candidates = self.seen.get(&parent_part(order_key));
        let parent = candidates.into_iter().flatten().find(|(hash, _)| is_child(*hash));
        if let Some((_, from)) = parent {
            self.hops.insert(Hop { from: from.clone(), to: item.node.clone(), edge_index });
        }
    }

    /// Nodes and how many items each had, the first one first.
    pub(super) fn visits(&self) -> impl Iterator<Item = (&str, u64)> {
        self.visits.iter().map(|(node, visits)| (node.as_str(), *visits))
    }

    /// All ways that were taken, each once.
    pub(super) fn hops(&self) -> impl Iterator<Item = &Hop> {
        self.hops.iter()
    }

    /// The nodes of the latest frontier.
    pub(super) fn last(&self) -> impl Iterator<Item = &str> {
        self.last.iter().map(NodeId::as_str)
    }

    /// Where the run began.
    pub(super) fn start(&self) -> Option<&str> {
        self.start.as_ref().map(NodeId::as_str)
    }

    /// Nodes of one step, each with every node without input of the next.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = (&str, &str)> {
        self.neighbours.iter().map(|(from, to)| (from.as_str(), to.as_str()))
    }
}

fn parent_part(hash: u64) -> u64 {
    hash & !u64::from(MAX_EDGE_INDEX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_traced_to_the_one_that_led_to_it() {
        let node = |name: &str| NodeId::new(name).unwrap();
        let start = WorkItem::child(PathHash::ROOT, 0, node("plan"), None);
        let left = WorkItem::child(start.path_hash, 0, node("left"), None);
        let right = WorkItem::child(start.path_hash, 1, node("right"), None);
        let end = WorkItem::child(right.path_hash, 0, node("end"), None);
        let mut trace = Trace::default();
        for frontier in [vec![start], vec![left, right], vec![end]] {
            trace.begin_step();
            trace.add(&frontier);
        }
        let hops: Vec<_> =
            trace.hops().map(|hop| format!("{}-{}-{}", hop.from, hop.edge_index, hop.to)).collect();
        assert_eq!(hops, ["plan-0-left", "plan-1-right", "right-0-end"]);
        assert_eq!(trace.start(), Some("plan"));
        assert_eq!(trace.last().collect::<Vec<_>>(), ["end"]);
    }
}
