//! A graph as nodes and lines, with the path of a run drawn in; one file per language.

pub(crate) mod dot;
mod joins;
pub(crate) mod mermaid;
pub(crate) mod svg;
mod trace;

pub(crate) use trace::Trace;

use hapax::GraphOutline;
use serde::Serialize;
use trace::Hop;

/// A drawing.
#[derive(Debug, Serialize)]
pub(crate) struct Drawing {
    pub(crate) graph: String,
    pub(crate) title: String,
    pub(crate) nodes: Vec<Node>,
    pub(crate) edges: Vec<Edge>,
}

/// A node of a drawing.
#[derive(Debug, Serialize)]
pub(crate) struct Node {
    pub(crate) id: String,
    pub(crate) mark: Mark,
    /// How many items of it the run had.
    pub(crate) visits: u64,
    pub(crate) start: bool,
    pub(crate) end: bool,
}

/// How a node stands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mark {
    /// Not visited.
    Plain,
    /// The run was there.
    Visited,
    /// The run is there.
    Next,
    /// The run failed there.
    Failed,
}

/// A line of a drawing.
#[derive(Debug, Serialize)]
pub(crate) struct Edge {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) label: Option<String>,
    pub(crate) kind: Kind,
    /// The run went along it.
    pub(crate) taken: bool,
    #[serde(skip)]
    join: Option<usize>,
}

/// Why a line is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// A declared edge, always taken.
    Always,
    /// A declared edge with a condition.
    When,
    /// A source of a join.
    Join,
    /// To the handler of a failure.
    OnError,
    /// A route that a node chose.
    Routed,
    /// A way that the store doesn't rule out: the node ran, and left nothing that says where it led.
    Presumed,
}

impl Drawing {
    /// Nothing yet; a path brings its own nodes.
    pub(crate) fn empty(graph: &str) -> Self {
        Self { graph: graph.into(), title: graph.into(), nodes: vec![], edges: vec![] }
    }

    /// A registered graph.
    pub(crate) fn of(graph: &GraphOutline) -> Self {
        let mut drawing = Self::empty(&graph.name);
        drawing.title = format!("{} v{}", graph.name, graph.version);
        for node in &graph.nodes {
            let at = drawing.node(node.id.as_str());
            drawing.nodes[at].start = node.id == graph.start;
            drawing.nodes[at].end = node.end;
        }
        for node in &graph.nodes {
            for edge in &node.edges {
                let label = edge.label.as_ref().map(ToString::to_string);
                let kind = if label.is_some() { Kind::When } else { Kind::Always };
                drawing.line(node.id.as_str(), edge.to.as_str(), kind, label);
            }
            if let Some(handler) = &node.on_error {
                let label = Some("on error".to_owned());
                drawing.line(node.id.as_str(), handler.as_str(), Kind::OnError, label);
            }
        }
        for (number, join) in graph.joins.iter().enumerate() {
            for source in &join.sources {
                let at = drawing.line(source.as_str(), join.to.as_str(), Kind::Join, Some("join".into()));
                drawing.edges[at].join = Some(number);
            }
        }
        drawing
    }

    fn node(&mut self, id: &str) -> usize {
        self.nodes.iter().position(|node| node.id == id).unwrap_or_else(|| {
            let start = false;
            self.nodes.push(Node { id: id.into(), mark: Mark::Plain, visits: 0, start, end: false });
            self.nodes.len() - 1
        })
    }

    fn line(&mut self, from: &str, to: &str, kind: Kind, label: Option<String>) -> usize {
        let (from, to) = (self.node(from), self.node(to));
        self.edges.push(Edge { from, to, label, kind, taken: false, join: None });
        self.edges.len() - 1
    }

    /// Draws a run's path in. `shape`: the graph, where its code is known.
    pub(crate) fn draw_path(
        &mut self,
        trace: &Trace,
        shape: Option<&GraphOutline>,
        failed: Option<&str>,
        over: bool,
    ) {
        for (id, visits) in trace.visits() {
            let at = self.node(id);
            (self.nodes[at].visits, self.nodes[at].mark) = (visits, Mark::Visited);
        }
        for id in trace.last() {
            let at = self.node(id);
            let alone = self.nodes[at].visits <= 1;
            self.nodes[at].mark = match (over, failed == Some(id)) {
                (_, true) => Mark::Failed,
                (false, false) => Mark::Next,
                // A step that failed or was cancelled was begun, not finished.
                (true, false) if alone => Mark::Plain,
                (true, false) => Mark::Visited,
            };
        }
        if let Some(start) = trace.start().filter(|_| shape.is_none()) {
            let at = self.node(start);
            self.nodes[at].start = true;
        }
        let [joined, presumed] = if shape.is_none() { trace.joined() } else { Default::default() };
        for (from, to) in &joined {
            let at = self.line(from.as_str(), to.as_str(), Kind::Join, Some("join".into()));
            self.edges[at].taken = true;
        }
        trace.hops().for_each(|hop| self.take(hop, shape));
        for (from, to) in &presumed {
            self.line(from.as_str(), to.as_str(), Kind::Presumed, Some("perhaps".into()));
        }
        if let Some(shape) = shape {
            self.take_coalesced(trace, shape);
        }
    }

    /// Marks the line that an item came by, or draws one.
    fn take(&mut self, hop: &Hop, shape: Option<&GraphOutline>) {
        let (from, to) = (self.node(hop.from.as_str()), self.node(hop.to.as_str()));
        let node = shape.and_then(|shape| shape.nodes.iter().find(|node| node.id == hop.from));
        let index = hop.edge_index as usize;
        if let Some(node) = node {
            let join = index.checked_sub(node.edges.len()).and_then(|at| node.joins.get(at)).copied();
            let fires = |edge: &Edge| edge.join.is_some() && edge.join == join && edge.to == to;
            if self.edges.iter().any(fires) {
                self.edges.iter_mut().filter(|edge| fires(edge)).for_each(|edge| edge.taken = true);
                return;
            }
            let declared = node.edges.get(index).filter(|edge| edge.to == hop.to);
            let label = declared.map(|edge| edge.label.as_deref());
            let same = |edge: &&mut Edge| {
                let by_edge = label.is_some_and(|label| edge.label.as_deref() == label);
                edge.from == from
                    && edge.to == to
                    && (by_edge || (label.is_none() && edge.kind == Kind::OnError))
            };
            if let Some(edge) = self.edges.iter_mut().find(same) {
                edge.taken = true;
                return;
            }
        }
        let drawn = |edge: &Edge| edge.kind == Kind::Routed || (edge.kind == Kind::Join && shape.is_none());
        let known = |edge: &Edge| edge.from == from && edge.to == to && drawn(edge);
        if !self.edges.iter().any(known) {
            let kind = Kind::Routed;
            self.edges.push(Edge { from, to, label: None, kind, taken: true, join: None });
        }
    }

    /// Several plain edges into one node make one item, which names only the first of them.
    fn take_coalesced(&mut self, trace: &Trace, shape: &GraphOutline) {
        for (from, to) in trace.neighbours() {
            let chooses = shape.nodes.iter().any(|node| node.id.as_str() == from && node.routes);
            let (from, to) = (self.node(from), self.node(to));
            let plain = |edge: &&mut Edge| edge.from == from && edge.to == to && edge.kind == Kind::Always;
            if !chooses {
                self.edges.iter_mut().filter(plain).for_each(|edge| edge.taken = true);
            }
        }
    }
}
