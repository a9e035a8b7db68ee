//! Which nodes met at a join, of a graph whose code isn't at hand: what the checkpoints say, and what they hint at.
//!
//! The item of a join descends from one of its sources. Another source is known when it had to wait over a commit, since
//! barriers are stored. One that arrived in the very step in which the join fired left nothing of its own, and neither
//! did a node that ended, or that shares its successor with another: what it led to is presumed, and drawn as such.

use hapax_core::{
    frontier::{Arrival, Barriers},
    id::NodeId,
    order::{OrderKey, PathHash},
};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// An item that ran.
#[derive(Debug, Clone)]
pub(super) struct Ran {
    pub(super) at: (OrderKey, PathHash),
    pub(super) node: NodeId,
}

/// An item without input, and what it descends from.
#[derive(Debug, Clone)]
pub(super) struct Reached {
    pub(super) node: NodeId,
    pub(super) parent: Ran,
    pub(super) edge_index: u32,
}

/// The joins of a run. Fed with its steps, oldest first.
#[derive(Debug, Default)]
pub(super) struct Joins {
    waiting: Barriers,
    known: BTreeMap<u32, Join>,
    presumed: BTreeSet<(NodeId, NodeId)>,
}

/// What is known of one join.
#[derive(Debug, Default)]
struct Join {
    /// The sources, as far as each of them ever waited.
    sources: Vec<Option<NodeId>>,
    /// What it may have led to: the nodes that were reached whenever it fired.
    to: Option<BTreeSet<NodeId>>,
}

impl Join {
    /// It fired, and led to one of these.
    fn narrow(&mut self, to: BTreeSet<NodeId>) {
        self.to = Some(match self.to.take() {
            None => to,
            Some(before) => before.intersection(&to).cloned().collect(),
        });
    }

    fn target(&self) -> Option<&NodeId> {
        self.to.as_ref().filter(|to| to.len() == 1)?.first()
    }
}

impl Joins {
    /// One step: which items left nothing behind, what was reached, which joins wait now, and who an arrival is.
    pub(super) fn step(
        &mut self,
        quiet: &[Ran],
        reached: &[Reached],
        barriers: &Barriers,
        name: impl Fn(PathHash) -> Option<NodeId>,
    ) {
        let before = std::mem::replace(&mut self.waiting, barriers.clone());
        for (join, queues) in &barriers.0 {
            let sources = &mut self.known.entry(*join).or_default().sources;
            sources.resize(queues.len(), None);
            for (source, queue) in sources.iter_mut().zip(queues) {
                *source = source.take().or_else(|| name(queue.front()?.path_hash));
            }
        }
        for (join, queues) in &before.0 {
            self.fire(*join, queues.iter().flatten(), reached);
        }
        self.presume(quiet, reached);
    }

    /// A join whose waiting arrivals are fewer than before has fired.
    fn fire<'a>(&mut self, join: u32, before: impl Iterator<Item = &'a Arrival>, reached: &[Reached]) {
        let still: BTreeSet<&Arrival> = self.waiting.0.get(&join).into_iter().flatten().flatten().collect();
        let taken: HashSet<(PathHash, u32)> =
            before.filter(|a| !still.contains(a)).map(|a| (a.path_hash, a.edge_index)).collect();
        let Some(known) = self.known.get_mut(&join).filter(|_| !taken.is_empty()) else { return };
        let descends = |item: &&Reached| taken.contains(&(item.parent.at.1, item.edge_index));
        let sure: BTreeSet<NodeId> = reached.iter().filter(descends).map(|item| item.node.clone()).collect();
        let all = || reached.iter().map(|item| item.node.clone()).collect();
        known.narrow(if sure.len() == 1 { sure } else { all() });
    }

    /// An item that left nothing may have led to what a producer before it leads to: that one's name is in its stead.
    fn presume(&mut self, quiet: &[Ran], reached: &[Reached]) {
        let waits: HashSet<PathHash> =
            self.waiting.0.values().flatten().flatten().map(|arrival| arrival.path_hash).collect();
        let (mut last, mut first) = (BTreeMap::new(), BTreeMap::new());
        for ran in quiet.iter().filter(|ran| !waits.contains(&ran.at.1)) {
            let at = last.entry(&ran.node).or_insert(ran.at);
            *at = ran.at.max(*at);
        }
        for item in reached {
            let at = first.entry(&item.node).or_insert(item.parent.at);
            *at = item.parent.at.min(*at);
        }
        for (from, last) in last {
            let fits = first.iter().filter(|(_, first)| **first < last);
            self.presumed.extend(fits.map(|(to, _)| (from.clone(), (*to).clone())));
        }
    }

    /// The sources of joins that fired, with what they led to; then what is only presumed. `hops`: who else is known to
    /// have led there.
    pub(super) fn lines(&self, hops: &BTreeSet<(NodeId, NodeId)>) -> [BTreeSet<(NodeId, NodeId)>; 2] {
        let mut sure = BTreeSet::new();
        for join in self.known.values() {
            let Some(to) = join.target() else { continue };
            let named: BTreeSet<&NodeId> = join.sources.iter().flatten().collect();
            let into = |line: &&(NodeId, NodeId)| line.1 == *to && !named.contains(&&line.0);
            let others: BTreeSet<&NodeId> =
                self.presumed.iter().chain(hops).filter(into).map(|(from, _)| from).collect();
            // As many as are missing: they can only be these.
            let missing = join.sources.iter().filter(|source| source.is_none()).count();
            let others = others.iter().copied().filter(|_| others.len() == missing);
            sure.extend(named.iter().copied().chain(others).map(|from| (from.clone(), to.clone())));
        }
        let presumed = self.presumed.iter().filter(|line| !sure.contains(line) && !hops.contains(line));
        let presumed = presumed.cloned().collect();
        [sure, presumed]
    }
}
