//! What runs next: work items, waiting barriers, and the pages in which a large frontier is stored.
//!
//! Invariant: a frontier is sorted by (order key, path hash, node), and its path hashes are distinct.

use crate::{
    graph::Graph,
    id::NodeId,
    json::Json,
    key::{Digest, DigestBuilder},
    limits::FRONTIER_PAGE,
    order::{OrderKey, PathHash},
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// One node to run in one step.
///
/// ```
/// use hapax_core::{frontier::WorkItem, id::NodeId, order::PathHash};
/// let plan = WorkItem::child(PathHash::ROOT, 0, NodeId::new("plan")?, None);
/// let [left, right] = [0, 1].map(|edge| WorkItem::child(plan.path_hash, edge, plan.node.clone(), None));
/// assert!(left.sort_key() < right.sort_key());
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkItem {
    /// Sorts the items of a step.
    pub order_key: OrderKey,
    /// Identifies the item in its step.
    pub path_hash: PathHash,
    /// What runs.
    pub node: NodeId,
    /// What a fork or a failed node handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Json>,
}

impl WorkItem {
    /// The item that a producer leads to by its `edge_index`.
    pub fn child(parent: PathHash, edge_index: u32, node: NodeId, input: Option<Json>) -> Self {
        let path_hash = parent.child(node.as_str(), edge_index);
        Self { order_key: OrderKey::of(parent, edge_index), path_hash, node, input }
    }

    /// The frontier of step 0.
    pub fn start<S>(graph: &Graph<S>) -> Self {
        Self::child(PathHash::ROOT, 0, graph.start().clone(), None)
    }

    /// How items of one step sort. Ties of the 40-bit order key break by the full path hash, then by name.
    pub fn sort_key(&self) -> (OrderKey, PathHash, &str) {
        (self.order_key, self.path_hash, self.node.as_str())
    }
}

/// A producer that reached a join.
///
/// ```
/// use hapax_core::{frontier::Arrival, order::{OrderKey, PathHash}};
/// let plan = PathHash::ROOT.child("plan", 0);
/// let arrival = |edge| {
///     let (order_key, path_hash) = (OrderKey::of(plan, edge), plan.child("check", edge));
///     Arrival { order_key, path_hash, edge_index: 0 }
/// };
/// // The earliest of a firing is the parent of what fires, whichever came first.
/// assert_eq!([arrival(1), arrival(0)].into_iter().min(), Some(arrival(0)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Arrival {
    /// The producer's order key.
    pub order_key: OrderKey,
    /// The producer's path hash: the parent of what fires.
    pub path_hash: PathHash,
    /// The join's edge index at that producer.
    pub edge_index: u32,
}

/// Joins that wait: by join number, one queue for each source.
///
/// ```
/// use hapax_core::{frontier::{Arrival, Barriers, barriers_digest}, order::{OrderKey, PathHash}};
/// let waits = Arrival { order_key: OrderKey(1), path_hash: PathHash(7), edge_index: 0 };
/// // Join 0 has two sources; the first has arrived.
/// let barriers = Barriers([(0, vec![[waits].into(), [].into()])].into());
/// assert!(!barriers.is_empty());
/// assert_ne!(barriers_digest(&barriers), barriers_digest(&Barriers::default()));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Barriers(pub BTreeMap<u32, Vec<VecDeque<Arrival>>>);

impl Barriers {
    /// No join waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A page of the frontier, hashed on its own so that it can be checked on its own.
///
/// ```
/// use hapax_core::{frontier::{WorkItem, page_digest}, id::NodeId, json::Json, order::PathHash};
/// let item = |input| WorkItem::child(PathHash::ROOT, 0, NodeId::new("plan").unwrap(), input);
/// let (none, null) = (item(None), item(Some(Json::from_text("null")?)));
/// assert_ne!(page_digest(&[none]), page_digest(&[null]), "no input is not the input `null`");
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
pub fn page_digest(items: &[WorkItem]) -> Digest {
    let mut digest = DigestBuilder::new("hapax.frontier.v1");
    digest.u64(items.len() as u64);
    for item in items {
        digest.u64(item.order_key.0).u64(item.path_hash.0).text(item.node.as_str());
        digest.u64(item.input.is_some().into());
        digest.bytes(item.input.as_ref().map_or(&[], Json::as_bytes));
    }
    digest.finish()
}

/// The digests of all pages of a frontier.
///
/// ```
/// use hapax_core::{frontier::{WorkItem, page_digest, page_digests}, id::NodeId, order::PathHash};
/// let items = vec![WorkItem::child(PathHash::ROOT, 0, NodeId::new("plan")?, None)];
/// assert_eq!(page_digests(&items), [page_digest(&items)]);
/// assert!(page_digests(&[]).is_empty());
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
pub fn page_digests(items: &[WorkItem]) -> Vec<Digest> {
    items.chunks(FRONTIER_PAGE).map(page_digest).collect()
}

/// Binds the waiting barriers.
///
/// ```
/// use hapax_core::{frontier::{Arrival, Barriers, barriers_digest}, order::{OrderKey, PathHash}};
/// let came = Arrival { order_key: OrderKey(1), path_hash: PathHash(7), edge_index: 0 };
/// let first = Barriers([(0, vec![[came].into(), [].into()])].into());
/// let second = Barriers([(0, vec![[].into(), [came].into()])].into());
/// assert_ne!(barriers_digest(&first), barriers_digest(&second), "it counts which source has arrived");
/// ```
pub fn barriers_digest(barriers: &Barriers) -> Digest {
    let mut digest = DigestBuilder::new("hapax.barriers.v1");
    for (join, queues) in &barriers.0 {
        digest.u64((*join).into()).u64(queues.len() as u64);
        for queue in queues {
            digest.u64(queue.len() as u64);
            for arrival in queue {
                digest.u64(arrival.order_key.0).u64(arrival.path_hash.0).u64(arrival.edge_index.into());
            }
        }
    }
    digest.finish()
}
