//! A registered graph without its code and types: for people, drawings and tools.

use hapax_core::{
    graph::{Graph, Join},
    id::NodeId,
    key::Digest,
    state::{Field, State},
};
use std::sync::Arc;

/// The shape of a registered graph.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Draft>) {}
/// # let engine = Engine::open("memory:").await?;
/// engine.register(Graph::new("drafts", 1, WRITE).node(WRITE, write), ()).await?;
/// let drafts = &engine.graphs()[0];
/// assert_eq!((&*drafts.name, drafts.start.as_str(), drafts.fields[0].name), ("drafts", "write", "text"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphOutline {
    /// Its name.
    pub name: Arc<str>,
    /// Its version.
    pub version: u32,
    /// What its runs are bound to.
    pub fingerprint: Digest,
    /// Earlier shapes whose runs it goes on with.
    pub compatible: Vec<Digest>,
    /// Where runs begin.
    pub start: NodeId,
    /// All nodes, in declaration order.
    pub nodes: Vec<NodeOutline>,
    /// All joins, in declaration order.
    pub joins: Vec<Join>,
    /// The version of its state's shape.
    pub state_version: u32,
    /// The fields of its state.
    pub fields: &'static [Field],
}

/// A node and what leaves it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
/// # struct Draft { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Draft>) -> DraftDelta { Draft::delta().text("once") }
/// # let engine = Engine::open("memory:").await?;
/// # let graph = Graph::new("drafts", 1, WRITE).node(WRITE, write);
/// engine.register(graph, ()).await?;
/// let node = &engine.graphs()[0].nodes[0];
/// assert_eq!(node.id.as_str(), "write");
/// assert!(node.edges.is_empty() && !node.routes && !node.wants_input);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOutline {
    /// Its name.
    pub id: NodeId,
    /// It may answer with `goto`, `stop` or `fork`.
    pub routes: bool,
    /// It wants an input, so only a fork can reach it.
    pub wants_input: bool,
    /// A branch may end here although it has conditional edges.
    pub end: bool,
    /// Declared edges; the position is the edge index.
    pub edges: Vec<EdgeOutline>,
    /// Joins that wait for it, by number; their edge indices follow those of the edges.
    pub joins: Vec<usize>,
    /// Where an exhausted attempt leads.
    pub on_error: Option<NodeId>,
}

/// A declared edge.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Draft { words: u64 }
/// # const WRITE: Node = Node::new("write");
/// # const CUT: Node = Node::new("cut");
/// # async fn node(_: hapax::Ctx<Draft>) {}
/// # let engine = Engine::open("memory:").await?;
/// let graph = Graph::new("drafts", 1, WRITE).node(WRITE, node).node(CUT, node);
/// let graph = graph.edge_if(WRITE, CUT, "too long", |draft: &Draft| draft.words > 9).end(WRITE);
/// engine.register(graph, ()).await?;
/// let edge = &engine.graphs()[0].nodes[0].edges[0];
/// assert_eq!((edge.to.as_str(), edge.label.as_deref()), ("cut", Some("too long")));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeOutline {
    /// Where it leads.
    pub to: NodeId,
    /// When it is taken; `None`: always.
    pub label: Option<Arc<str>>,
}

impl GraphOutline {
    pub(crate) fn of<S: State>(graph: &Graph<S>, compatible: &[Digest]) -> Self {
        let nodes = graph.nodes().iter().map(|node| NodeOutline {
            id: node.id.clone(),
            routes: node.routes,
            wants_input: node.wants_input,
            end: node.end,
            edges: node
                .edges
                .iter()
                .map(|edge| EdgeOutline { to: edge.to.clone(), label: edge.label.clone() })
                .collect(),
            joins: node.joins.clone(),
            on_error: node.on_error.clone(),
        });
        Self {
            name: graph.name().clone(),
            version: graph.version(),
            fingerprint: graph.fingerprint(),
            compatible: compatible.to_vec(),
            start: graph.start().clone(),
            nodes: nodes.collect(),
            joins: graph.joins().to_vec(),
            state_version: S::VERSION,
            fields: S::fields(),
        }
    }
}
