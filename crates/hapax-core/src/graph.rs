//! The shape of the work: nodes, edges, joins, ends, error handlers. Checked when it is built.
//!
//! Invariant: every name in a built graph is one of its nodes, so routing along declared edges can't fail.

use crate::{
    frontier::Barriers,
    id::{InvalidId, NodeId},
    key::{Digest, DigestBuilder},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

/// A pure question about the merged state.
///
/// ```
/// use hapax_core::graph::Predicate;
/// use std::sync::Arc;
/// let large: Predicate<u64> = Arc::new(|sum| *sum > 9);
/// assert!(large(&10) && !large(&9));
/// ```
pub type Predicate<S> = Arc<dyn Fn(&S) -> bool + Send + Sync>;

/// A graph that passed its checks.
///
/// ```
/// use hapax_core::graph::GraphBuilder;
/// let graph = |version| GraphBuilder::<u64>::new("sums", version, "add").node("add", false, false).build();
/// let (old, new) = (graph(1)?, graph(2)?);
/// assert_eq!((old.position("add"), old.position("subtract")), (Some(0), None));
/// assert_ne!(old.fingerprint(), new.fingerprint(), "a run stays with the shape that it began with");
/// # Ok::<(), hapax_core::graph::GraphError>(())
/// ```
pub struct Graph<S> {
    name: Arc<str>,
    version: u32,
    start: NodeId,
    nodes: Vec<NodeSpec<S>>,
    index: HashMap<NodeId, usize>,
    joins: Vec<Join>,
    fingerprint: Digest,
}

/// A node and what leaves it.
///
/// ```
/// use hapax_core::graph::GraphBuilder;
/// let graph = GraphBuilder::<u64>::new("orders", 1, "charge")
///     .node("charge", false, false)
///     .node("apologise", false, true)
///     .on_error("charge", "apologise")
///     .build()?;
/// let [charge, apologise] = graph.nodes() else { unreachable!() };
/// assert_eq!(charge.on_error.as_ref(), Some(&apologise.id));
/// assert!(apologise.wants_input, "it gets the failure");
/// # Ok::<(), hapax_core::graph::GraphError>(())
/// ```
pub struct NodeSpec<S> {
    /// Its name.
    pub id: NodeId,
    /// It may answer with `Goto`, `Stop` or `Fork`; what that leads to can't be known beforehand.
    pub routes: bool,
    /// It wants an input, so only a fork can reach it.
    pub wants_input: bool,
    /// Declared edges; the position is the edge index.
    pub edges: Vec<Edge<S>>,
    /// Joins that wait for it, by number; their edge indices follow those of the edges.
    pub joins: Vec<usize>,
    /// It may end the run even though no conditional edge holds.
    pub end: bool,
    /// Where an exhausted attempt leads.
    pub on_error: Option<NodeId>,
}

/// A declared edge.
///
/// ```
/// use hapax_core::graph::GraphBuilder;
/// use std::sync::Arc;
/// let graph = GraphBuilder::<u64>::new("sums", 1, "add")
///     .node("add", false, false)
///     .edge_if("add", "add", "small", Arc::new(|sum: &u64| *sum < 9))
///     .end("add")
///     .build()?;
/// let again = &graph.nodes()[0].edges[0];
/// assert_eq!((again.to.as_str(), again.label.as_deref()), ("add", Some("small")));
/// assert!(again.when.as_ref().is_some_and(|holds| holds(&8) && !holds(&9)));
/// # Ok::<(), hapax_core::graph::GraphError>(())
/// ```
pub struct Edge<S> {
    /// Where it leads.
    pub to: NodeId,
    /// Why it is taken; part of the fingerprint and of the drawing. `None`: always.
    pub label: Option<Arc<str>>,
    /// When it is taken; `None`: always.
    pub when: Option<Predicate<S>>,
}

/// A barrier: one firing takes one arrival of each source.
///
/// ```
/// use hapax_core::graph::GraphBuilder;
/// let graph = GraphBuilder::<u64>::new("sums", 1, "split")
///     .node("split", false, false)
///     .node("left", false, false)
///     .node("right", false, false)
///     .node("report", false, false)
///     .edge("split", "left")
///     .edge("split", "right")
///     .join(["left", "right"], "report")
///     .build()?;
/// assert_eq!((graph.joins()[0].sources.len(), graph.joins()[0].to.as_str()), (2, "report"));
/// assert_eq!(graph.nodes()[1].joins, [0], "`left` knows who waits for it");
/// # Ok::<(), hapax_core::graph::GraphError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The producers it waits for.
    pub sources: Vec<NodeId>,
    /// What runs once per firing.
    pub to: NodeId,
}

/// What is wrong with a graph, and how to mend it.
///
/// ```
/// use hapax_core::graph::{GraphBuilder, GraphError};
/// let broken = GraphBuilder::<u64>::new("sums", 1, "add").build();
/// assert!(matches!(broken, Err(GraphError::NoStart { .. })));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A name is no name.
    #[error(transparent)]
    Id(#[from] InvalidId),
    /// The start isn't a node.
    #[error("graph `{graph}` starts at `{start}`, which is not one of its nodes; add `.node({start:?}, …)`")]
    NoStart {
        /// The graph.
        graph: String,
        /// Its declared start.
        start: String,
    },
    /// An edge, join or handler names a node that isn't there.
    #[error(
        "graph `{graph}`: {mention} names `{node}`, which is not a node; the nodes are: {known}. Add `.node({node:?}, …)` or mend the name"
    )]
    UnknownNode {
        /// The graph.
        graph: String,
        /// The unknown name.
        node: String,
        /// Who names it.
        mention: String,
        /// All nodes.
        known: String,
    },
    /// Something is declared twice.
    #[error("graph `{graph}`: {what} is declared twice; remove one or give it another name or label")]
    Duplicate {
        /// The graph.
        graph: String,
        /// What.
        what: String,
    },
    /// Nodes that nothing can reach.
    #[error("graph `{graph}`: nothing leads to {nodes}; add an edge to it, or remove it")]
    Unreachable {
        /// The graph.
        graph: String,
        /// The nodes.
        nodes: String,
    },
    /// A join one of whose producers can never arrive.
    #[error(
        "graph `{graph}`: the join into `{to}` can never fire, because {missing} cannot run before it; join only nodes that run without it"
    )]
    JoinCannotFill {
        /// The graph.
        graph: String,
        /// The join's target.
        to: String,
        /// The sources that can't arrive.
        missing: String,
    },
    /// A node that is to handle its own failures.
    #[error(
        "graph `{graph}`: `{node}` is its own error handler, so a failure that stays would repeat it without end; give it a `Retry`, or another node as its handler"
    )]
    OwnHandler {
        /// The graph.
        graph: String,
        /// The node.
        node: String,
    },
    /// A join without producers.
    #[error(
        "graph `{graph}`: the join into `{to}` waits for no node, so it can never fire; name its sources, or remove it"
    )]
    EmptyJoin {
        /// The graph.
        graph: String,
        /// The join's target.
        to: String,
    },
}

impl<S> Graph<S> {
    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its version.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Where runs begin.
    pub fn start(&self) -> &NodeId {
        &self.start
    }

    /// All nodes, in declaration order.
    pub fn nodes(&self) -> &[NodeSpec<S>] {
        &self.nodes
    }

    /// All joins, in declaration order.
    pub fn joins(&self) -> &[Join] {
        &self.joins
    }

    /// A node's position.
    pub fn position(&self, node: &str) -> Option<usize> {
        self.index.get(node).copied()
    }

    /// Whether stored barriers belong to joins of this graph; those of a shape that was declared compatible may not.
    pub fn has_joins_of(&self, barriers: &Barriers) -> bool {
        let sources = |join: u32| self.joins.get(join as usize).map(|join| join.sources.len());
        barriers.0.iter().all(|(join, queues)| sources(*join) == Some(queues.len()))
    }

    /// What a run is bound to: nodes, edges, labels, joins and version.
    pub fn fingerprint(&self) -> Digest {
        self.fingerprint
    }
}

impl<S> fmt::Debug for Graph<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} v{}, {} nodes)", self.name, self.version, self.nodes.len())
    }
}

/// The name of the node by which branches leave a part that ends in several places.
const EXIT: &str = "end";

/// Where the branches of a part end: at nodes that lead nowhere, and at those that may, with the condition.
struct Leave<S> {
    last: Vec<String>,
    undecided: Vec<(String, Predicate<S>)>,
}

/// From, to, label and condition, as declared.
type DeclaredEdge<S> = (String, String, Option<String>, Option<Predicate<S>>);

/// Collects declarations; [`GraphBuilder::build`] checks them all at once.
///
/// ```
/// use hapax_core::graph::GraphBuilder;
/// use std::sync::Arc;
/// let graph = GraphBuilder::<u64>::new("sums", 1, "add")
///     .node("add", false, false)
///     .node("report", false, false)
///     .edge_if("add", "report", "large", Arc::new(|sum: &u64| *sum > 9))
///     .end("add")
///     .build()?;
/// assert_eq!(graph.start().as_str(), "add");
/// assert_eq!(graph.nodes()[0].edges[0].to.as_str(), "report");
/// # Ok::<(), hapax_core::graph::GraphError>(())
/// ```
pub struct GraphBuilder<S> {
    name: String,
    version: u32,
    start: String,
    nodes: Vec<(String, bool, bool)>,
    edges: Vec<DeclaredEdge<S>>,
    joins: Vec<(Vec<String>, String)>,
    ends: Vec<String>,
    handlers: Vec<(String, String)>,
    parts: Vec<(String, GraphBuilder<S>)>,
}

impl<S: 'static> GraphBuilder<S> {
    /// Begins a graph.
    pub fn new(name: impl Into<String>, version: u32, start: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version,
            start: start.into(),
            nodes: vec![],
            edges: vec![],
            joins: vec![],
            ends: vec![],
            handlers: vec![],
            parts: vec![],
        }
    }

    /// Declares a node. `routes`: it may route by itself; `wants_input`: only a fork reaches it.
    pub fn node(mut self, id: &str, routes: bool, wants_input: bool) -> Self {
        self.nodes.push((id.into(), routes, wants_input));
        self
    }

    /// Declares an edge that is always taken.
    pub fn edge(mut self, from: &str, to: &str) -> Self {
        self.edges.push((from.into(), to.into(), None, None));
        self
    }

    /// Declares an edge that is taken when the merged state says so.
    pub fn edge_if(mut self, from: &str, to: &str, label: &str, when: Predicate<S>) -> Self {
        self.edges.push((from.into(), to.into(), Some(label.into()), Some(when)));
        self
    }

    /// Declares a barrier.
    pub fn join(mut self, sources: impl IntoIterator<Item = impl Into<String>>, to: &str) -> Self {
        self.joins.push((sources.into_iter().map(Into::into).collect(), to.into()));
        self
    }

    /// Declares that a branch may end at `node`.
    pub fn end(mut self, node: &str) -> Self {
        self.ends.push(node.into());
        self
    }

    /// Declares where an exhausted `node` leads.
    pub fn on_error(mut self, node: &str, handler: &str) -> Self {
        self.handlers.push((node.into(), handler.into()));
        self
    }

    /// Declares that a whole graph stands in the place of a node. Its nodes become nodes of this graph, under the part's
    /// name and a `/`. What leads to the part leads to its start; what leaves the part leaves it where its branches end.
    ///
    /// ```
    /// use hapax_core::graph::GraphBuilder;
    /// let payment = GraphBuilder::<u64>::new("payment", 1, "charge")
    ///     .node("charge", false, false)
    ///     .node("receipt", false, false)
    ///     .edge("charge", "receipt");
    /// let order = GraphBuilder::<u64>::new("order", 1, "reserve")
    ///     .node("reserve", false, false)
    ///     .subgraph("pay", payment)
    ///     .node("ship", false, false)
    ///     .edge("reserve", "pay")
    ///     .edge("pay", "ship")
    ///     .build()?;
    /// let names: Vec<&str> = order.nodes().iter().map(|node| node.id.as_str()).collect();
    /// assert_eq!(names, ["reserve", "ship", "pay", "pay/charge", "pay/receipt"]);
    /// # Ok::<(), hapax_core::graph::GraphError>(())
    /// ```
    pub fn subgraph(mut self, name: &str, part: GraphBuilder<S>) -> Self {
        self.parts.push((name.into(), part));
        self
    }

    /// Checks everything and gives the graph.
    pub fn build(self) -> Result<Graph<S>, GraphError> {
        self.flat().check()
    }

    /// All parts' nodes as nodes of this graph.
    fn flat(mut self) -> Self {
        for (name, part) in std::mem::take(&mut self.parts) {
            self.take_in(&name, part.flat());
        }
        self
    }

    fn take_in(&mut self, name: &str, part: Self) {
        let inside = |node: String| format!("{name}/{node}");
        let leave = part.leave();
        self.nodes.push((name.into(), false, false));
        self.edges.push((name.into(), inside(part.start), None, None));
        let nodes: Vec<String> = part.nodes.iter().map(|(id, ..)| inside(id.clone())).collect();
        self.nodes.extend(part.nodes.into_iter().map(|(id, routes, input)| (inside(id), routes, input)));
        let edge = |(from, to, label, when)| (inside(from), inside(to), label, when);
        self.edges.extend(part.edges.into_iter().map(edge));
        let join =
            |(sources, to): (Vec<String>, String)| (sources.into_iter().map(inside).collect(), inside(to));
        self.joins.extend(part.joins.into_iter().map(join));
        let own: BTreeSet<String> = part.handlers.iter().map(|(node, _)| inside(node.clone())).collect();
        self.handlers.extend(part.handlers.into_iter().map(|(node, to)| (inside(node), inside(to))));
        self.handle_failures(name, nodes.into_iter().filter(|node| !own.contains(node)));
        let exit = match leave {
            Leave { last, undecided } if last.len() == 1 && undecided.is_empty() => inside(last[0].clone()),
            Leave { last, undecided } => {
                let exit = inside(EXIT.into());
                self.nodes.push((exit.clone(), false, false));
                let plain = last.into_iter().map(|from| (inside(from), exit.clone(), None, None));
                let when = |(from, when)| (inside(from), exit.clone(), Some(EXIT.to_owned()), Some(when));
                let edges: Vec<_> = plain.chain(undecided.into_iter().map(when)).collect();
                self.edges.extend(edges);
                exit
            }
        };
        self.leave_by(name, &exit);
    }

    /// A failure inside a part is one of the part, unless a node of it has a handler of its own.
    fn handle_failures(&mut self, name: &str, nodes: impl Iterator<Item = String>) {
        let of_part = self.handlers.iter().position(|(node, _)| node == name);
        if let Some((_, handler)) = of_part.map(|at| self.handlers.remove(at)) {
            self.handlers.extend(nodes.map(|node| (node, handler.clone())));
        }
    }

    /// What was declared to lead on from the part leads on from its exit. The first edge is the way in.
    fn leave_by(&mut self, name: &str, exit: &str) {
        let enters = format!("{name}/");
        let rename = |node: &mut String| exit.clone_into(node);
        self.edges
            .iter_mut()
            .filter(|(from, to, ..)| from == name && !to.starts_with(&enters))
            .for_each(|(from, ..)| rename(from));
        self.joins.iter_mut().flat_map(|(sources, _)| sources).filter(|node| *node == name).for_each(rename);
        self.ends.iter_mut().filter(|node| *node == name).for_each(rename);
    }

    /// Where the branches of a part end.
    fn leave(&self) -> Leave<S> {
        let joined = |node: &String| self.joins.iter().any(|(sources, _)| sources.contains(node));
        let ends = self.nodes.iter().map(|(id, ..)| id).filter(|id| !joined(id));
        let (last, rest): (Vec<_>, Vec<_>) = ends.partition(|id| self.edges_of(id).next().is_none());
        let undecided = rest.into_iter().filter(|id| self.ends.contains(id)).map(|id| {
            let holds: Vec<Predicate<S>> = self.edges_of(id).filter_map(|(.., when)| when.clone()).collect();
            let when: Predicate<S> = Arc::new(move |state: &S| !holds.iter().any(|holds| holds(state)));
            (id.clone(), when)
        });
        Leave { undecided: undecided.collect(), last: last.into_iter().cloned().collect() }
    }

    fn edges_of<'g>(&'g self, node: &'g str) -> impl Iterator<Item = &'g DeclaredEdge<S>> {
        self.edges.iter().filter(move |(from, ..)| from == node)
    }

    fn check(self) -> Result<Graph<S>, GraphError> {
        NodeId::new(&self.name).map_err(|error| InvalidId { what: "graph name", ..error })?;
        let index = self.check_nodes()?;
        self.check_mentions(&index)?;
        self.check_declarations()?;
        let fingerprint = self.fingerprint();
        let graph = self.assemble(index, fingerprint)?;
        graph.check_reachable()?;
        Ok(graph)
    }

    fn check_nodes(&self) -> Result<HashMap<NodeId, usize>, GraphError> {
        let mut index = HashMap::new();
        for (at, (id, ..)) in self.nodes.iter().enumerate() {
            if index.insert(NodeId::new(id)?, at).is_some() {
                return Err(self.duplicate(format!("node `{id}`")));
            }
        }
        if !index.contains_key(self.start.as_str()) {
            return Err(GraphError::NoStart { graph: self.name.clone(), start: self.start.clone() });
        }
        Ok(index)
    }

    fn duplicate(&self, what: String) -> GraphError {
        GraphError::Duplicate { graph: self.name.clone(), what }
    }

    fn check_mentions(&self, index: &HashMap<NodeId, usize>) -> Result<(), GraphError> {
        let edges = self.edges.iter().flat_map(|(from, to, ..)| {
            [(from, format!("the edge {from} -> {to}")), (to, format!("the edge {from} -> {to}"))]
        });
        let joins = self.joins.iter().flat_map(|(sources, to)| {
            sources.iter().chain([to]).map(move |node| (node, format!("the join into {to}")))
        });
        let ends = self.ends.iter().map(|node| (node, "an end".to_owned()));
        let handlers = self.handlers.iter().flat_map(|(node, handler)| {
            [(node, "on_error".to_owned()), (handler, format!("on_error of {node}"))]
        });
        for (node, mention) in edges.chain(joins).chain(ends).chain(handlers) {
            if !index.contains_key(node.as_str()) {
                let known = self.nodes.iter().map(|(id, ..)| id.as_str()).collect::<Vec<_>>().join(", ");
                return Err(GraphError::UnknownNode {
                    graph: self.name.clone(),
                    node: node.clone(),
                    mention,
                    known,
                });
            }
        }
        Ok(())
    }

    fn check_declarations(&self) -> Result<(), GraphError> {
        let mut edges = BTreeSet::new();
        for (from, to, label, _) in &self.edges {
            if !edges.insert((from, to, label)) {
                let label = label.as_deref().map(|l| format!(" ({l})")).unwrap_or_default();
                return Err(self.duplicate(format!("the edge {from} -> {to}{label}")));
            }
        }
        let mut joins = BTreeSet::new();
        for (sources, to) in &self.joins {
            if sources.is_empty() {
                return Err(GraphError::EmptyJoin { graph: self.name.clone(), to: to.clone() });
            }
            let distinct: BTreeSet<_> = sources.iter().collect();
            if distinct.len() < sources.len() {
                return Err(self.duplicate(format!("a source of the join into {to}")));
            }
            if !joins.insert((distinct, to)) {
                return Err(self.duplicate(format!("the join into {to}")));
            }
        }
        let mut handlers = BTreeSet::new();
        for (node, handler) in &self.handlers {
            if !handlers.insert(node) {
                return Err(self.duplicate(format!("on_error of {node}")));
            }
            // A longer circle of handlers is a loop like any other: each of them may end it, and the run's limits do.
            if node == handler {
                return Err(GraphError::OwnHandler { graph: self.name.clone(), node: node.clone() });
            }
        }
        Ok(())
    }

    fn fingerprint(&self) -> Digest {
        let mut digest = DigestBuilder::new("hapax.graph.v1");
        digest.text(&self.name).u64(self.version.into()).text(&self.start);
        digest.u64(self.nodes.len() as u64);
        for (id, _, wants_input) in &self.nodes {
            digest.text(id).u64((*wants_input).into());
        }
        digest.u64(self.edges.len() as u64);
        for (from, to, label, _) in &self.edges {
            digest.text(from).text(to).u64(label.is_some().into()).text(label.as_deref().unwrap_or(""));
        }
        digest.u64(self.joins.len() as u64);
        for (sources, to) in &self.joins {
            digest.u64(sources.len() as u64);
            for source in sources {
                digest.text(source);
            }
            digest.text(to);
        }
        let ends: BTreeSet<_> = self.ends.iter().collect();
        digest.u64(ends.len() as u64);
        for end in ends {
            digest.text(end);
        }
        let handlers: BTreeMap<_, _> = self.handlers.iter().map(|(n, h)| (n, h)).collect();
        digest.u64(handlers.len() as u64);
        for (node, handler) in handlers {
            digest.text(node).text(handler);
        }
        digest.finish()
    }

    fn assemble(self, index: HashMap<NodeId, usize>, fingerprint: Digest) -> Result<Graph<S>, GraphError> {
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for (id, routes, wants_input) in &self.nodes {
            nodes.push(NodeSpec {
                id: NodeId::new(id)?,
                routes: *routes,
                wants_input: *wants_input,
                edges: vec![],
                joins: vec![],
                end: self.ends.contains(id),
                on_error: None,
            });
        }
        for (from, to, label, when) in self.edges {
            let label = label.map(Into::into);
            nodes[index[from.as_str()]].edges.push(Edge { to: NodeId::new(to)?, label, when });
        }
        let mut joins = Vec::with_capacity(self.joins.len());
        for (at, (sources, to)) in self.joins.into_iter().enumerate() {
            for source in &sources {
                nodes[index[source.as_str()]].joins.push(at);
            }
            let sources = sources.into_iter().map(NodeId::new).collect::<Result<_, _>>()?;
            joins.push(Join { sources, to: NodeId::new(to)? });
        }
        for (node, handler) in self.handlers {
            nodes[index[node.as_str()]].on_error = Some(NodeId::new(handler)?);
        }
        let (name, version, start) = (self.name.into(), self.version, NodeId::new(self.start)?);
        Ok(Graph { name, version, start, nodes, index, joins, fingerprint })
    }
}

impl<S> Graph<S> {
    /// What can be reached. A node that routes by itself may lead anywhere, so past one all is reachable.
    fn check_reachable(&self) -> Result<(), GraphError> {
        let reached = self.reach();
        let missing: Vec<_> = (0..self.nodes.len())
            .filter(|at| !reached.contains(at))
            .map(|at| self.nodes[at].id.as_str())
            .collect();
        for join in &self.joins {
            let late: Vec<_> = join
                .sources
                .iter()
                .filter(|s| missing.contains(&s.as_str()))
                .map(|s| format!("`{s}`"))
                .collect();
            if !late.is_empty() {
                return Err(GraphError::JoinCannotFill {
                    graph: self.name.to_string(),
                    to: join.to.to_string(),
                    missing: late.join(", "),
                });
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let nodes = missing.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
        Err(GraphError::Unreachable { graph: self.name.to_string(), nodes })
    }

    fn reach(&self) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        let mut next = vec![self.index[&self.start]];
        while let Some(at) = next.pop() {
            if !reached.insert(at) {
                continue;
            }
            let node = &self.nodes[at];
            if node.routes {
                return (0..self.nodes.len()).collect();
            }
            next.extend(node.edges.iter().map(|e| self.index[&e.to]));
            next.extend(node.on_error.iter().map(|h| self.index[h]));
            let ready = |join: &Join| join.sources.iter().all(|s| reached.contains(&self.index[s]));
            next.extend(
                node.joins.iter().map(|&j| &self.joins[j]).filter(|j| ready(j)).map(|j| self.index[&j.to]),
            );
        }
        reached
    }
}
