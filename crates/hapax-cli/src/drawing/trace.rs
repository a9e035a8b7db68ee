//! The path of a run, from the frontiers of its checkpoints.
//!
//! An item's path hash is made of its parent's, its node and its edge index, and its order key holds the index and
//! most of the parent's hash. So its parent is found by trying those that fit.

use super::joins::{Joins, Ran, Reached};
use hapax_core::{
    checkpoint::Checkpoint,
    frontier::WorkItem,
    id::NodeId,
    journal::{Done, Entry, JournalRow},
    key::Digest,
    order::{MAX_EDGE_INDEX, OrderKey, PathHash},
    route::SettledRoute,
};
use std::collections::{BTreeSet, HashMap, HashSet};

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
    seen: HashMap<u64, Vec<Ran>>,
    /// Nodes in the order in which they were first seen, and how many items each had.
    visits: Vec<(NodeId, u64)>,
    hops: BTreeSet<Hop>,
    start: Option<NodeId>,
    before: BTreeSet<NodeId>,
    last: BTreeSet<NodeId>,
    neighbours: BTreeSet<(NodeId, NodeId)>,
    /// Where items went that said so themselves, by the checkpoint that they ran after; `None`: nowhere.
    told: HashMap<(Digest, PathHash), Option<NodeId>>,
    base: Option<Digest>,
    /// The items of the frontier before, and of the current one.
    ran: Vec<Ran>,
    runs: Vec<Ran>,
    /// Those of them that have a child, and the children that a join may have made.
    parents: HashSet<PathHash>,
    reached: Vec<Reached>,
    joins: Joins,
}

impl Trace {
    /// What the journal says about an item's end, for a graph whose code isn't at hand. To be told before the steps.
    pub(crate) fn tell(&mut self, row: JournalRow) {
        let Entry::ItemDone { done: Done::Ok { route, .. } } = row.entry else { return };
        let to = match route {
            SettledRoute::Stop | SettledRoute::ContinueAs { .. } => None,
            SettledRoute::Goto(to) => Some(to),
            _ => return,
        };
        self.told.insert((row.base, row.path_hash), to);
    }

    /// The next frontier begins.
    pub(crate) fn begin_step(&mut self) {
        self.before = std::mem::take(&mut self.last);
        self.ran = std::mem::take(&mut self.runs);
        self.parents.clear();
        self.reached.clear();
    }

    /// All items of the checkpoint's frontier are added.
    pub(crate) fn end_step(&mut self, checkpoint: &Checkpoint) {
        let mut quiet = vec![];
        for ran in std::mem::take(&mut self.ran) {
            if self.parents.contains(&ran.at.1) {
                continue;
            }
            match self.base.and_then(|base| self.told.get(&(base, ran.at.1))) {
                None => quiet.push(ran),
                // The item that it led to names another producer, which came before it.
                Some(Some(to)) if self.last.contains(to) => {
                    self.hops.insert(Hop { from: ran.node, to: to.clone(), edge_index: 0 });
                }
                Some(_) => {}
            }
        }
        let seen = &self.seen;
        let name = |hash: PathHash| {
            let known = seen.get(&parent_part(hash.0))?;
            known.iter().find(|ran| ran.at.1 == hash).map(|ran| ran.node.clone())
        };
        self.joins.step(&quiet, &self.reached, &checkpoint.barriers, name);
        self.base = Some(checkpoint.digest);
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
            let ran = Ran { at: (item.order_key, item.path_hash), node: item.node.clone() };
            self.runs.push(ran.clone());
            self.seen.entry(parent_part(item.path_hash.0)).or_default().push(ran);
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
        let parent = candidates.into_iter().flatten().find(|ran| is_child(ran.at.1));
        if let Some(parent) = parent {
            self.parents.insert(parent.at.1);
            self.hops.insert(Hop { from: parent.node.clone(), to: item.node.clone(), edge_index });
            if item.input.is_none() {
                self.reached.push(Reached { node: item.node.clone(), parent: parent.clone(), edge_index });
            }
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

    /// Sources of joins with what they led to, as far as the store knows them; then what is only presumed.
    pub(super) fn joined(&self) -> [BTreeSet<(NodeId, NodeId)>; 2] {
        let hops = self.hops.iter().map(|hop| (hop.from.clone(), hop.to.clone()));
        self.joins.lines(&hops.collect())
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
    use hapax_core::{
        checkpoint::Draft,
        frontier::{Arrival, Barriers},
        id::RunId,
        json::Json,
    };
    use std::collections::{BTreeMap, VecDeque};

    fn node(name: &str) -> NodeId {
        NodeId::new(name).unwrap()
    }

    fn item(parent: &WorkItem, edge_index: u32, name: &str) -> WorkItem {
        WorkItem::child(parent.path_hash, edge_index, node(name), None)
    }

    fn start() -> WorkItem {
        WorkItem::child(PathHash::ROOT, 0, node("plan"), None)
    }

    /// Follows steps: what ran next, and who waited at which source of join 0.
    fn follow(trace: &mut Trace, steps: &[(Vec<WorkItem>, Vec<Vec<&WorkItem>>)]) {
        for (step, (frontier, waiting)) in (0..).zip(steps) {
            let arrival = |item: &&WorkItem| Arrival {
                order_key: item.order_key,
                path_hash: item.path_hash,
                edge_index: 0,
            };
            let queues: Vec<VecDeque<_>> = waiting.iter().map(|q| q.iter().map(arrival).collect()).collect();
            let barriers = if queues.is_empty() { BTreeMap::new() } else { BTreeMap::from([(0, queues)]) };
            let draft = Draft {
                step,
                state: b"{}".to_vec().into(),
                state_version: 1,
                frontier: frontier.clone(),
                barriers: Barriers(barriers),
                seed: 0,
                io: Digest([0; 32]),
                outbox: Digest([0; 32]),
                label: None,
            };
            trace.begin_step();
            trace.add(frontier);
            trace.end_step(&draft.seal(&RunId::new("r").unwrap()));
        }
    }

    fn joined(trace: &Trace) -> [Vec<String>; 2] {
        trace.joined().map(|lines| lines.iter().map(|(from, to)| format!("{from}-{to}")).collect())
    }

    /// The item of a join descends from its first source.
    fn fired(sources: [&WorkItem; 2]) -> WorkItem {
        let first = sources.into_iter().min_by_key(|item| (item.order_key, item.path_hash)).unwrap();
        item(first, 0, "end")
    }

    #[test]
    fn sources_that_waited_are_known() {
        let start = start();
        let (left, right) = (item(&start, 0, "left"), item(&start, 1, "right"));
        let later = item(&left, 0, "later");
        let end = fired([&later, &right]);
        let mut trace = Trace::default();
        let steps = [
            (vec![start], vec![]),
            (vec![left, right.clone()], vec![]),
            (vec![later], vec![vec![], vec![&right]]),
            (vec![end], vec![]),
        ];
        follow(&mut trace, &steps);
        assert_eq!(joined(&trace), [vec!["later-end".to_owned(), "right-end".to_owned()], vec![]]);
    }

    #[test]
    fn a_source_that_left_nothing_is_presumed() {
        let start = start();
        let (left, right) = (item(&start, 0, "left"), item(&start, 1, "right"));
        let end = fired([&left, &right]);
        let mut trace = Trace::default();
        follow(&mut trace, &[(vec![start], vec![]), (vec![left, right], vec![]), (vec![end], vec![])]);
        let [sure, presumed] = joined(&trace);
        assert_eq!((sure.len(), presumed), (0, vec!["right-end".to_owned()]));
    }

    #[test]
    fn what_stopped_is_no_source() {
        let start = start();
        let (left, right) = (item(&start, 0, "left"), item(&start, 1, "right"));
        let (end, mut trace) = (fired([&left, &right]), Trace::default());
        let stopped = right.path_hash;
        let steps = [(vec![start], vec![]), (vec![left, right], vec![]), (vec![end], vec![])];
        follow(&mut trace, &steps[..2]);
        let (delta, route) = (Json::of(&()).unwrap(), SettledRoute::Stop);
        let entry = Entry::ItemDone { done: Done::Ok { delta, route, messages: vec![] } };
        let base = trace.base.unwrap();
        trace.tell(JournalRow { seq: 0, base, step: 1, path_hash: stopped, entry });
        follow(&mut trace, &steps[2..]);
        assert_eq!(joined(&trace), [vec![""; 0], vec![]]);
    }

    #[test]
    fn an_item_is_traced_to_the_one_that_led_to_it() {
        let start = start();
        let (left, right) = (item(&start, 0, "left"), item(&start, 1, "right"));
        let end = item(&right, 0, "end");
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
