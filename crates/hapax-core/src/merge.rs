//! From the results of a step's items to the next state and frontier.
//!
//! Invariant: results are pushed in order-key order, never in finish order. What comes out depends on the
//! state before, the results and the graph, and on nothing else.

use crate::{
    canonical::CanonicalError,
    failure::NodeFailure,
    frontier::{Arrival, Barriers, WorkItem},
    graph::{Edge, Graph, NodeSpec},
    id::NodeId,
    json::Json,
    limits::MAX_FAN_OUT,
    order::{OrderKey, PathHash},
    route::SettledRoute,
    state::{self, Claims, Conflict, ConflictPolicy, Reducer, State, StateShape},
};
use std::collections::{HashMap, HashSet, VecDeque, hash_map::Entry};

/// What became of one item.
///
/// ```
/// use hapax_core::{failure::NodeFailure, merge::{ItemResult, Merger}};
/// # use hapax_core::{frontier::{Barriers, WorkItem}, graph::GraphBuilder, id::NodeId, state::ConflictPolicy};
/// # use hapax_core as hapax;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
/// # #[state(crate = hapax)]
/// # struct Order { paid: bool }
/// # let graph = GraphBuilder::<Order>::new("orders", 1, "charge")
/// #     .node("charge", false, false)
/// #     .node("apologise", false, true)
/// #     .on_error("charge", "apologise")
/// #     .build()?;
/// # let charge = WorkItem::start(&graph);
/// # let (node, code, message) = (NodeId::new("charge")?, "HX0020".into(), "card declined".into());
/// # let failure = NodeFailure { node, code, message, retryable: false, attempt: 1 };
/// let mut merger = Merger::new(&graph, 0, Order::default(), Barriers::default(), ConflictPolicy::Fail, 1);
/// merger.push(&charge, ItemResult::Failed(failure.clone()))?;
/// let handler = &merger.finish()?.frontier[0];
/// assert_eq!(handler.node.as_str(), "apologise");
/// assert_eq!(handler.input.as_ref().unwrap().read::<NodeFailure>()?, failure);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub enum ItemResult<S: State> {
    /// It returned.
    Done {
        /// What it wrote.
        delta: S::Delta,
        /// Where it leads.
        route: SettledRoute,
    },
    /// Its attempts are used up; its error handler goes on.
    Failed(NodeFailure),
}

/// A step that can't be committed.
///
/// ```
/// use hapax_core::merge::{ItemResult, MergeError, Merger};
/// # use hapax_core::{frontier::{Barriers, WorkItem}, graph::GraphBuilder, route::SettledRoute};
/// # use hapax_core::state::{ConflictPolicy, State};
/// # use hapax_core as hapax;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(hapax_macros::State, Clone, Default, Debug, Serialize, Deserialize)]
/// # #[state(crate = hapax)]
/// # struct Sum { #[state(sum)] total: u64 }
/// let graph = GraphBuilder::<Sum>::new("sums", 1, "add")
///     .node("add", false, false)
///     .edge_if("add", "add", "small", std::sync::Arc::new(|sum: &Sum| sum.total < 9))
///     .build()?;
/// let mut merger = Merger::new(&graph, 0, Sum::default(), Barriers::default(), ConflictPolicy::Fail, 1);
/// let (delta, route) = (Sum::delta().total(9u64), SettledRoute::Edges);
/// merger.push(&WorkItem::start(&graph), ItemResult::Done { delta, route })?;
/// let error = merger.finish().unwrap_err();
/// assert!(matches!(error, MergeError::NoRoute { .. }));
/// assert!(error.to_string().ends_with(r#"add `.end("add")` or an edge for this case"#));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// Two items wrote one field.
    #[error("two items of step {step} wrote different values into `{}`: {first} and {second}; use a reducer that combines them, or the policy LastWriterWins", conflict.field)]
    Conflict {
        /// The step.
        step: u64,
        /// What collided.
        conflict: Conflict,
        /// The earlier writer's node.
        first: String,
        /// The later writer's node.
        second: String,
    },
    /// No conditional edge of a node holds.
    #[error(
        "no edge of `{node}` holds in step {step}, and it is not declared as an end; add `.end({node:?})` or an edge for this case"
    )]
    NoRoute {
        /// The step.
        step: u64,
        /// The node.
        node: NodeId,
    },
    /// Nothing can run any more, but something waits.
    #[error(
        "nothing can run after step {step}, but joins wait: {waiting}; every branch must reach its join or none"
    )]
    NoProgress {
        /// The step.
        step: u64,
        /// The joins, with what they wait for.
        waiting: String,
    },
    /// A node routed to a name that isn't a node.
    #[error(
        "`{from}` leads to `{to}` in step {step}, which is not a node of this graph; the route must name a declared node"
    )]
    UnknownTarget {
        /// The step.
        step: u64,
        /// Who routed.
        from: NodeId,
        /// Where to.
        to: NodeId,
    },
    /// A failed item has no handler.
    #[error("`{}` failed in step {step}: {}", failure.node, failure.message)]
    Failed {
        /// The step.
        step: u64,
        /// What happened.
        failure: NodeFailure,
    },
    /// More branches than order keys can tell apart.
    #[error("`{node}` forked into {count} branches in step {step}; at most {MAX_FAN_OUT} are possible")]
    FanOut {
        /// The step.
        step: u64,
        /// Who forked.
        node: NodeId,
        /// How many.
        count: usize,
    },
    /// Two items of one frontier share a path hash.
    #[error(
        "two items after step {step} have the path hash {path_hash}; start the run again under another id"
    )]
    PathCollision {
        /// The step.
        step: u64,
        /// The shared hash.
        path_hash: PathHash,
    },
    /// A run can't begin anew while something else of it is under way.
    #[error(
        "`{node}` continues as a fresh run in step {step}, but {beside}; only a node that is alone can: join the branches first"
    )]
    NotAlone {
        /// The step.
        step: u64,
        /// Who continued.
        node: NodeId,
        /// What else there is.
        beside: String,
    },
    /// The state to begin anew with isn't one of this program's.
    #[error("`{node}` continues in step {step} with a state that does not fit: {source}")]
    Shape {
        /// The step.
        step: u64,
        /// Who continued.
        node: NodeId,
        /// Why.
        source: StateShape,
    },
    /// A reducer or a predicate gave two answers to one question.
    #[error(
        "{what} gave two answers to the same question in step {step}; it may depend on nothing but its arguments"
    )]
    Impure {
        /// The step.
        step: u64,
        /// Which one.
        what: String,
    },
    /// What a node wrote has no canonical form.
    #[error("`{node}` wrote something that has no JSON form in step {step}: {source}")]
    Unwritable {
        /// The step.
        step: u64,
        /// The node.
        node: NodeId,
        /// Why.
        source: CanonicalError,
    },
}

/// What a step leads to.
///
/// ```
/// use hapax_core::merge::{ItemResult, Merger};
/// # use hapax_core::{frontier::{Barriers, WorkItem}, graph::GraphBuilder, route::SettledRoute};
/// # use hapax_core::state::{ConflictPolicy, State};
/// # use hapax_core as hapax;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
/// # #[state(crate = hapax)]
/// # struct Sum { #[state(sum)] total: u64 }
/// let graph = GraphBuilder::<Sum>::new("sums", 1, "add").node("add", false, false).build()?;
/// let mut merger = Merger::new(&graph, 0, Sum { total: 4 }, Barriers::default(), ConflictPolicy::Fail, 1);
/// let (delta, route) = (Sum::delta().total(3u64), SettledRoute::Edges);
/// merger.push(&WorkItem::start(&graph), ItemResult::Done { delta, route })?;
/// let merged = merger.finish()?;
/// assert_eq!(merged.state.total, 7);
/// assert!(merged.frontier.is_empty(), "nothing is left to do: the run ends with this step");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Merged<S> {
    /// The state after the step.
    pub state: S,
    /// What runs next, sorted.
    pub frontier: Vec<WorkItem>,
    /// The joins that still wait.
    pub barriers: Barriers,
    /// The run begins anew: what was before is to be forgotten.
    pub fresh: bool,
}

/// Folds the results of one step, one after the other, in order-key order.
///
/// ```
/// use hapax_core::{
///     frontier::{Barriers, WorkItem},
///     graph::GraphBuilder,
///     merge::{ItemResult, Merger},
///     route::SettledRoute,
///     state::{ConflictPolicy, State},
/// };
/// # use hapax_core as hapax;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
/// # #[state(crate = hapax)]
/// # struct Sum { #[state(sum)] total: u64 }
/// let graph = GraphBuilder::<Sum>::new("sums", 1, "add")
///     .node("add", false, false)
///     .node("report", false, false)
///     .edge("add", "report")
///     .build()?;
/// let add = WorkItem::start(&graph);
/// let mut merger = Merger::new(&graph, 0, Sum::default(), Barriers::default(), ConflictPolicy::Fail, 1);
/// let (delta, route) = (Sum::delta().total(3u64), SettledRoute::Edges);
/// merger.push(&add, ItemResult::Done { delta, route })?;
/// let merged = merger.finish()?;
/// assert_eq!((merged.state.total, merged.frontier[0].node.as_str()), (3, "report"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Merger<'g, S: State> {
    graph: &'g Graph<S>,
    step: u64,
    state: S,
    barriers: Barriers,
    claims: Option<Claims>,
    /// What the last writer of a contested field starts from, where it wins.
    before: Option<S>,
    names: HashMap<PathHash, NodeId>,
    last: Option<(OrderKey, PathHash)>,
    routed: Vec<Routed>,
    /// In debug builds: the same state, merged again. Both must be the same in the end.
    again: Option<S>,
}

struct Routed {
    order_key: OrderKey,
    path_hash: PathHash,
    node: usize,
    route: Next,
}

enum Next {
    Settled(SettledRoute),
    Handler(NodeId, Json),
}

impl<'g, S: State> Merger<'g, S> {
    /// Begins the merge of step `step` (whose frontier holds `items` items) into the state before it.
    pub fn new(
        graph: &'g Graph<S>,
        step: u64,
        state: S,
        barriers: Barriers,
        policy: ConflictPolicy,
        items: usize,
    ) -> Self {
        // Any other field that can be contested takes its last writer's value by itself.
        let custom = || S::fields().iter().any(|field| field.reducer == Reducer::Custom);
        let last_wins = policy == ConflictPolicy::LastWriterWins;
        let watched = items > 1 && (!last_wins || custom());
        Self {
            before: (watched && last_wins).then(|| state.clone()),
            again: cfg!(debug_assertions).then(|| state.clone()),
            graph,
            step,
            state,
            barriers,
            claims: watched.then(Claims::default),
            names: HashMap::new(),
            last: None,
            routed: Vec::with_capacity(items),
        }
    }

    /// Takes the next item's result. The caller keeps the order.
    pub fn push(&mut self, item: &WorkItem, result: ItemResult<S>) -> Result<(), MergeError> {
        let at = (item.order_key, item.path_hash);
        debug_assert!(
            crate::canary::on("merge_order") || self.last < Some(at),
            "results come in order-key order"
        );
        self.last = Some(at);
        let node = self.graph.position(item.node.as_str()).ok_or_else(|| MergeError::UnknownTarget {
            step: self.step,
            from: item.node.clone(),
            to: item.node.clone(),
        })?;
        let route = match result {
            ItemResult::Done { delta, route } => {
                self.claim(item, &delta)?;
                if let Some(again) = &mut self.again {
                    again.apply(delta.clone());
                }
                self.state.apply(delta);
                Next::Settled(route)
            }
            ItemResult::Failed(failure) => {
                let Some(handler) = self.graph.nodes()[node].on_error.clone() else {
                    return Err(MergeError::Failed { step: self.step, failure });
                };
                let input = Json::of(&failure).map_err(|source| self.unwritable(&item.node, source))?;
                Next::Handler(handler, input)
            }
        };
        self.routed.push(Routed { order_key: item.order_key, path_hash: item.path_hash, node, route });
        Ok(())
    }

    fn unwritable(&self, node: &NodeId, source: CanonicalError) -> MergeError {
        MergeError::Unwritable { step: self.step, node: node.clone(), source }
    }

    fn claim(&mut self, item: &WorkItem, delta: &S::Delta) -> Result<(), MergeError> {
        let Some(claims) = &mut self.claims else { return Ok(()) };
        let found = claims.check((item.order_key, item.path_hash), delta);
        let found = found.map_err(|source| self.unwritable(&item.node, source))?;
        if let (Some(before), Some(claims)) = (&self.before, &self.claims) {
            for field in claims.overruled() {
                self.state.restore(before, field);
                if let Some(again) = &mut self.again {
                    again.restore(before, field);
                }
            }
            return Ok(());
        }
        match found {
            None => {
                self.names.insert(item.path_hash, item.node.clone());
                Ok(())
            }
            Some(conflict) => Err(MergeError::Conflict {
                step: self.step,
                first: self.names.get(&conflict.items[0].1).map_or_else(String::new, ToString::to_string),
                second: item.node.to_string(),
                conflict,
            }),
        }
    }

    /// Decides what runs next.
    pub fn finish(mut self) -> Result<Merged<S>, MergeError> {
        self.check_purity()?;
        if let Some(fresh) = self.fresh()? {
            return Ok(fresh);
        }
        let mut next = Vec::new();
        let mut plain = HashSet::new();
        let mut held = HashMap::new();
        for routed in std::mem::take(&mut self.routed) {
            self.follow(routed, &mut next, &mut plain, &mut held)?;
        }
        self.fire_joins(&mut next);
        next.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        self.check_frontier(&next)?;
        Ok(Merged { state: self.state, frontier: next, barriers: self.barriers, fresh: false })
    }

    /// The run's new start, if a node asked for one.
    fn fresh(&self) -> Result<Option<Merged<S>>, MergeError> {
        let fresh = self.routed.iter().find_map(|routed| match &routed.route {
            Next::Settled(SettledRoute::ContinueAs { state, version }) => {
                Some((routed.node, state, *version))
            }
            _ => None,
        });
        let Some((node, state, version)) = fresh else { return Ok(None) };
        let (step, node) = (self.step, self.graph.nodes()[node].id.clone());
        if self.routed.len() > 1 || !self.barriers.is_empty() {
            let beside = match self.routed.len() - 1 {
                0 => format!("joins wait: {}", self.waiting()),
                others => format!("{others} other items ran beside it"),
            };
            return Err(MergeError::NotAlone { step, node, beside });
        }
        let state = state::decode(state.as_bytes(), version).map_err(|source| MergeError::Shape {
            step,
            node,
            source,
        })?;
        let frontier = vec![WorkItem::start(self.graph)];
        Ok(Some(Merged { state, frontier, barriers: Barriers::default(), fresh: true }))
    }

    /// Adds what one producer leads to. `plain` holds the nodes already reached by an edge or a goto: producers
    /// come in order, so the first one is the lowest and its key is the coalesced item's.
    fn follow(
        &mut self,
        producer: Routed,
        next: &mut Vec<WorkItem>,
        plain: &mut HashSet<NodeId>,
        held: &mut HashMap<usize, Vec<bool>>,
    ) -> Result<(), MergeError> {
        let parent = producer.path_hash;
        match producer.route {
            Next::Handler(handler, input) => next.push(WorkItem::child(parent, 0, handler, Some(input))),
            Next::Settled(SettledRoute::Stop | SettledRoute::ContinueAs { .. }) => {}
            Next::Settled(SettledRoute::Goto(to)) => {
                self.check_target(producer.node, &to)?;
                if plain.insert(to.clone()) {
                    next.push(WorkItem::child(parent, 0, to, None));
                }
            }
            Next::Settled(SettledRoute::Fork(branches)) => {
                self.fork(&producer.node, parent, branches, next)?;
            }
            Next::Settled(SettledRoute::Edges) => {
                let node = &self.graph.nodes()[producer.node];
                let edges = &node.edges;
                if let Entry::Vacant(place) = held.entry(producer.node) {
                    place.insert(self.hold(node)?);
                }
                let held = &held[&producer.node];
                for (index, edge) in edges.iter().enumerate().filter(|(index, _)| held[*index]) {
                    if plain.insert(edge.to.clone()) {
                        next.push(WorkItem::child(parent, index as u32, edge.to.clone(), None));
                    }
                }
                let any = held.contains(&true);
                self.arrive(&producer, any)?;
            }
        }
        Ok(())
    }

    /// Which edges of a node hold.
    fn hold(&self, node: &NodeSpec<S>) -> Result<Vec<bool>, MergeError> {
        let holds = |edge: &Edge<S>| {
            let Some(when) = &edge.when else { return Ok(true) };
            let holds = when(&self.state);
            if cfg!(debug_assertions) && when(&self.state) != holds {
                let label = edge.label.as_deref().unwrap_or_default();
                let what = format!("the predicate `{label}` of the edge from `{}` to `{}`", node.id, edge.to);
                return Err(MergeError::Impure { step: self.step, what });
            }
            Ok(holds)
        };
        node.edges.iter().map(holds).collect()
    }

    /// Whether both merges of the same results came to the same state.
    fn check_purity(&mut self) -> Result<(), MergeError> {
        let Some(again) = self.again.take() else { return Ok(()) };
        // What has no JSON form is reported when it is to be committed.
        let (Ok(once), Ok(twice)) = (Json::of(&self.state), Json::of(&again)) else { return Ok(()) };
        if once == twice {
            return Ok(());
        }
        let fields = |json: &Json| json.read::<HashMap<String, serde_json::Value>>().unwrap_or_default();
        let (once, twice) = (fields(&once), fields(&twice));
        let mut apart: Vec<&str> =
            once.keys().filter(|field| once.get(*field) != twice.get(*field)).map(String::as_str).collect();
        apart.sort_unstable();
        let what = format!("the reducer of `{}`", apart.join("`, `"));
        Err(MergeError::Impure { step: self.step, what })
    }

    fn check_target(&self, from: usize, to: &NodeId) -> Result<(), MergeError> {
        match self.graph.position(to.as_str()) {
            Some(_) => Ok(()),
            None => Err(MergeError::UnknownTarget {
                step: self.step,
                from: self.graph.nodes()[from].id.clone(),
                to: to.clone(),
            }),
        }
    }

    fn fork(
        &self,
        from: &usize,
        parent: PathHash,
        branches: Vec<(NodeId, Json)>,
        next: &mut Vec<WorkItem>,
    ) -> Result<(), MergeError> {
        if branches.len() > MAX_FAN_OUT {
            let (node, count) = (self.graph.nodes()[*from].id.clone(), branches.len());
            return Err(MergeError::FanOut { step: self.step, node, count });
        }
        for (index, (to, input)) in branches.into_iter().enumerate() {
            self.check_target(*from, &to)?;
            next.push(WorkItem::child(parent, index as u32, to, Some(input)));
        }
        Ok(())
    }

    /// Queues the producer at its joins. A node whose edges all failed to hold needs a join or a declared end.
    fn arrive(&mut self, producer: &Routed, took_an_edge: bool) -> Result<(), MergeError> {
        let spec = &self.graph.nodes()[producer.node];
        if !took_an_edge && spec.joins.is_empty() && !spec.edges.is_empty() && !spec.end {
            return Err(MergeError::NoRoute { step: self.step, node: spec.id.clone() });
        }
        for (rank, &join) in spec.joins.iter().enumerate() {
            let sources = &self.graph.joins()[join].sources;
            let queues =
                self.barriers.0.entry(join as u32).or_insert_with(|| vec![VecDeque::new(); sources.len()]);
            let at = sources.iter().position(|s| *s == spec.id).expect("a node knows its joins");
            queues[at].push_back(Arrival {
                order_key: producer.order_key,
                path_hash: producer.path_hash,
                edge_index: (spec.edges.len() + rank) as u32,
            });
        }
        Ok(())
    }

    /// A join fires as often as each of its producers has arrived; the k-th firing takes the k-th of each.
    fn fire_joins(&mut self, next: &mut Vec<WorkItem>) {
        for (join, queues) in &mut self.barriers.0 {
            let to = &self.graph.joins()[*join as usize].to;
            while queues.iter().all(|q| !q.is_empty()) {
                let parent = queues.iter_mut().filter_map(VecDeque::pop_front).min();
                let parent = parent.expect("a join has sources");
                next.push(WorkItem::child(parent.path_hash, parent.edge_index, to.clone(), None));
            }
        }
        self.barriers.0.retain(|_, queues| queues.iter().any(|q| !q.is_empty()));
    }

    fn check_frontier(&self, next: &[WorkItem]) -> Result<(), MergeError> {
        let mut seen = HashSet::with_capacity(if next.len() > 1 { next.len() } else { 0 });
        if next.len() > 1 {
            for item in next {
                if !seen.insert(item.path_hash) {
                    return Err(MergeError::PathCollision { step: self.step, path_hash: item.path_hash });
                }
            }
        }
        if next.is_empty() && !self.barriers.is_empty() {
            return Err(MergeError::NoProgress { step: self.step, waiting: self.waiting() });
        }
        Ok(())
    }

    fn waiting(&self) -> String {
        let join = |(number, queues): (&u32, &Vec<VecDeque<Arrival>>)| {
            let join = &self.graph.joins()[*number as usize];
            let missing: Vec<_> = join
                .sources
                .iter()
                .zip(queues)
                .filter(|(_, q)| q.is_empty())
                .map(|(s, _)| s.as_str())
                .collect();
            format!("`{}` waits for {}", join.to, missing.join(", "))
        };
        self.barriers.0.iter().map(join).collect::<Vec<_>>().join("; ")
    }
}
