//! A graph with its code: the pure shape of `hapax_core::graph`, and a function for each node.

use crate::{
    error::Error,
    node::{BoxNode, IntoNode},
    options::{CallRules, NodePolicy},
};
use hapax_core::{
    failure::NodeFailure,
    graph::{Graph as Shape, GraphBuilder, GraphError},
    key::Digest,
    route::{Node, Outcome, Route},
    state::State,
};
use std::{collections::HashMap, sync::Arc};

/// The work: nodes, and what leads from one to the next. Checked as a whole when it is registered.
///
/// ```
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Draft { text: String, #[state(sum)] rounds: u32 }
/// # type Ctx = hapax::Ctx<Draft>;
/// const WRITE: Node = Node::new("write");
/// const REVIEW: Node = Node::new("review");
/// # async fn write(_: Ctx) -> DraftDelta { Draft::delta().rounds(1u32) }
/// # async fn review(_: Ctx) {}
/// let graph = Graph::new("drafts", 1, WRITE)
///     .node(WRITE, write)
///     .node(REVIEW, review)
///     .edge(WRITE, REVIEW)
///     .edge_if(REVIEW, WRITE, "again", |draft: &Draft| draft.rounds < 3)
///     .end(REVIEW);
/// assert!(graph.check().is_ok());
/// ```
pub struct Graph<S: State, A = ()> {
    shape: GraphBuilder<S>,
    nodes: HashMap<String, BoxNode<S, A>>,
    policies: HashMap<String, NodePolicy>,
    compatible: Vec<Digest>,
}

/// A graph that passed its checks, ready to run.
pub(crate) struct Program<S: State, A> {
    pub(crate) shape: Shape<S>,
    pub(crate) nodes: Vec<NodeCode<S, A>>,
    pub(crate) compatible: Vec<Digest>,
}

impl<S: State, A> Program<S, A> {
    /// What a node's policy says about its calls.
    pub(crate) fn rules(&self, node: &str) -> CallRules {
        self.shape.position(node).map(|node| self.nodes[node].policy.calls.clone()).unwrap_or_default()
    }
}

/// A node's code and policy, at the node's position in the shape.
pub(crate) struct NodeCode<S: State, A> {
    pub(crate) run: BoxNode<S, A>,
    pub(crate) policy: NodePolicy,
}

impl<S: State, A: Send + Sync + 'static> Graph<S, A> {
    /// Begins a graph. The version belongs to its identity: raise it when the meaning of its nodes changes.
    pub fn new(name: &str, version: u32, start: Node) -> Self {
        Self {
            shape: GraphBuilder::new(name, version, start.name()),
            nodes: HashMap::new(),
            policies: HashMap::new(),
            compatible: vec![],
        }
    }

    /// Adds a node.
    pub fn node<I, M, N: IntoNode<S, A, I, M>>(mut self, name: Node<I>, node: N) -> Self {
        self.shape = self.shape.node(name.name(), N::ROUTES, N::WANTS_INPUT);
        self.nodes.insert(name.name().into(), node.into_node());
        self
    }

    /// Adds a whole graph in the place of a node. Its nodes become nodes of this one, named `PART/NODE`; what leads to the
    /// part leads to its start, and what leaves the part leaves it where its branches end. A failure inside is one of the
    /// part, unless the node that failed has a handler of its own. Policies are those of the part's own nodes.
    ///
    /// ```
    /// # use hapax::prelude::*;
    /// # use serde::{Serialize, Deserialize};
    /// # #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// # struct Order { #[state(append)] log: Vec<String> }
    /// # type Ctx = hapax::Ctx<Order>;
    /// const CHARGE: Node = Node::new("charge");
    /// const RECEIPT: Node = Node::new("receipt");
    /// const PAY: Node = Node::new("pay");
    /// const SHIP: Node = Node::new("ship");
    /// async fn named(ctx: Ctx) -> OrderDelta { Order::delta().log(ctx.node_id().to_string()) }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let payment = Graph::new("payment", 1, CHARGE)
    ///     .node(CHARGE, named)
    ///     .node(RECEIPT, named)
    ///     .edge(CHARGE, RECEIPT);
    /// let order = Graph::new("order", 1, PAY).subgraph(PAY, payment).node(SHIP, named).edge(PAY, SHIP);
    /// # let engine = Engine::open("memory:").await?;
    /// let orders = engine.register(order, ()).await?;
    /// let order = orders.start("order-42", Order::default()).await?.wait().await?;
    /// assert_eq!(order.log, ["pay/charge", "pay/receipt", "ship"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn subgraph(mut self, name: Node, part: Graph<S, A>) -> Self {
        let name = name.name();
        let pass: BoxNode<S, A> = Arc::new(|_, _| Box::pin(async { Ok(pass()) }));
        for way in [name.to_owned(), format!("{name}/end")] {
            self.nodes.entry(way).or_insert_with(|| pass.clone());
        }
        let inside = |node: String| format!("{name}/{node}");
        for (id, node) in part.nodes {
            self.nodes.insert(inside(id), led_inside(name, node));
        }
        self.policies.extend(part.policies.into_iter().map(|(id, policy)| (inside(id), policy)));
        self.shape = self.shape.subgraph(name, part.shape);
        self
    }

    /// Gives a node a policy of its own.
    pub fn policy<I>(mut self, name: Node<I>, policy: NodePolicy) -> Self {
        self.policies.insert(name.name().into(), policy);
        self
    }

    /// Adds an edge that is always taken. Only a node without input can be its target: input comes from forks.
    pub fn edge<I>(mut self, from: Node<I>, to: Node) -> Self {
        self.shape = self.shape.edge(from.name(), to.name());
        self
    }

    /// Adds an edge that is taken when the merged state says so. All that hold are taken, in declaration order.
    /// The predicate must be pure; the label is part of the graph's fingerprint and of its drawing.
    pub fn edge_if<I>(
        mut self,
        from: Node<I>,
        to: Node,
        label: &str,
        when: impl Fn(&S) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.shape = self.shape.edge_if(from.name(), to.name(), label, Arc::new(when));
        self
    }

    /// Adds a barrier: `to` runs once for every time that each of the sources has arrived.
    pub fn join(mut self, sources: impl Sources, to: Node) -> Self {
        self.shape = self.shape.join(sources.names(), to.name());
        self
    }

    /// Says that a branch may end at `node` although it has conditional edges.
    pub fn end<I>(mut self, node: Node<I>) -> Self {
        self.shape = self.shape.end(node.name());
        self
    }

    /// Routes a node whose attempts are used up to a handler, which gets the failure as its input.
    /// A node can't be its own handler: to try again is what [`Retry`](crate::Retry) is for.
    pub fn on_error<I>(mut self, node: Node<I>, handler: Node<NodeFailure>) -> Self {
        self.shape = self.shape.on_error(node.name(), handler.name());
        self
    }

    /// Declares that runs of this earlier shape may go on with this one.
    pub fn compatible(mut self, fingerprint: Digest) -> Self {
        self.compatible.push(fingerprint);
        self
    }

    /// Begins a graph whose names are known only now, by what follows.
    pub(crate) fn described(name: &str, version: u32, start: &str) -> Self {
        let (nodes, policies) = (HashMap::new(), HashMap::new());
        Self { shape: GraphBuilder::new(name, version, start), nodes, policies, compatible: vec![] }
    }

    pub(crate) fn add(&mut self, name: &str, routes: bool, wants_input: bool, node: BoxNode<S, A>) {
        self.reshape(|shape| shape.node(name, routes, wants_input));
        self.nodes.insert(name.into(), node);
    }

    pub(crate) fn set_policy(&mut self, name: &str, policy: NodePolicy) {
        self.policies.insert(name.into(), policy);
    }

    pub(crate) fn lead(&mut self, from: &str, to: &str) {
        self.reshape(|shape| shape.edge(from, to));
    }

    pub(crate) fn lead_if(
        &mut self,
        from: &str,
        to: &str,
        label: &str,
        when: impl Fn(&S) -> bool + Send + Sync + 'static,
    ) {
        self.reshape(|shape| shape.edge_if(from, to, label, Arc::new(when)));
    }

    pub(crate) fn gather(&mut self, from: Vec<String>, to: &str) {
        self.reshape(|shape| shape.join(from, to));
    }

    pub(crate) fn may_end(&mut self, node: &str) {
        self.reshape(|shape| shape.end(node));
    }

    pub(crate) fn handle(&mut self, node: &str, handler: &str) {
        self.reshape(|shape| shape.on_error(node, handler));
    }

    fn reshape(&mut self, more: impl FnOnce(GraphBuilder<S>) -> GraphBuilder<S>) {
        let shape = std::mem::replace(&mut self.shape, GraphBuilder::new("", 0, ""));
        self.shape = more(shape);
    }

    /// Checks the graph, as `register` does.
    pub fn check(self) -> Result<Digest, Error> {
        Ok(self.build()?.shape.fingerprint())
    }

    pub(crate) fn build(mut self) -> Result<Program<S, A>, Error> {
        let shape = self.shape.build()?;
        let nodes = shape.nodes().iter().map(|spec| NodeCode {
            run: self.nodes[spec.id.as_str()].clone(),
            policy: self.policies.remove(spec.id.as_str()).unwrap_or_default(),
        });
        let nodes = nodes.collect();
        match self.policies.into_keys().next() {
            None => Ok(Program { nodes, compatible: self.compatible, shape }),
            Some(node) => Err(GraphError::UnknownNode {
                graph: shape.name().to_string(),
                node,
                mention: "a policy".into(),
                known: shape.nodes().iter().map(|spec| spec.id.as_str()).collect::<Vec<_>>().join(", "),
            }
            .into()),
        }
    }
}

/// What a way into a part or out of it returns.
fn pass<S: State>() -> Outcome<S> {
    Outcome { delta: S::delta(), route: Route::Edges }
}

/// A node of a part: the nodes that it names are the part's own.
fn led_inside<S: State, A: 'static>(part: &'static str, node: BoxNode<S, A>) -> BoxNode<S, A> {
    Arc::new(move |ctx, input| {
        let run = node(ctx, input);
        Box::pin(async move {
            let Outcome { delta, route } = run.await?;
            Ok(Outcome { delta, route: route.prefixed(part) })
        })
    })
}

/// The producers of a join: an array of nodes, or a tuple of nodes with different inputs.
///
/// ```
/// use hapax::{Node, Sources};
/// const FRAUD: Node<String> = Node::new("fraud");
/// const TAX: Node<u64> = Node::new("tax");
/// assert_eq!((FRAUD, TAX).names(), ["fraud", "tax"]);
/// assert_eq!([TAX, TAX].names(), ["tax", "tax"]);
/// ```
pub trait Sources {
    /// Their names.
    fn names(self) -> Vec<&'static str>;
}

impl<I, const N: usize> Sources for [Node<I>; N] {
    fn names(self) -> Vec<&'static str> {
        self.iter().map(|node| node.name()).collect()
    }
}

macro_rules! sources {
    ($($name:ident),*) => {
        impl<$($name),*> Sources for ($(Node<$name>,)*) {
            fn names(self) -> Vec<&'static str> {
                #[allow(non_snake_case, reason = "the type parameters name the elements")]
                let ($($name,)*) = self;
                vec![$($name.name()),*]
            }
        }
    };
}
sources!(A, B);
sources!(A, B, C);
sources!(A, B, C, D);
sources!(A, B, C, D, E);
sources!(A, B, C, D, E, F);
