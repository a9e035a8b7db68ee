//! Graphs that are described by a value: JSON in a file or a database instead of code.
//!
//! Invariant: what is executed is a [`Graph`] like any other, with the same engine, keys, recovery and replay. Only its nodes are
//! found by their names in a [`Registry`], and its state is [`Dynamic`].
//!
//! ```
//! use hapax::{Ctx, Engine, dynamic::{Dynamic, Registry, Returned}};
//! use serde_json::{Value, json};
//!
//! async fn charge(ctx: Ctx<Dynamic>, _: Value) -> hapax::Result<Value> {
//!     let cents = ctx.state().get("cents").and_then(Value::as_u64).unwrap_or(0);
//!     Ok(json!({"tax": cents / 5, "log": "charged"}))
//! }
//!
//! async fn ship(_: Ctx<Dynamic>, _: Value) -> hapax::Result<Returned> {
//!     Ok(Returned::wrote(json!({"log": "shipped"})).stop())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let registry = Registry::new().node("charge", charge).node("ship", ship);
//! let graph = registry.graph(&json!({
//!     "name": "orders",
//!     "version": 1,
//!     "start": "charge",
//!     "fields": {"cents": "last", "tax": "sum", "log": "append"},
//!     "nodes": [{"name": "charge", "attempts": 3}, {"name": "ship", "routes": true}],
//!     "edges": [{"from": "charge", "to": "ship", "if": {"path": "/cents", "op": ">", "value": 0}}],
//!     "ends": ["charge"]
//! }))?;
//! let engine = Engine::open("memory:").await?;
//! let orders = engine.register(graph, ()).await?;
//! let order = orders.start("order-42", json!({"cents": 4200}).into()).await?.wait().await?;
//! assert_eq!(order.value(), json!({"cents": 4200, "tax": 840, "log": ["charged", "shipped"]}));
//! # Ok(())
//! # }
//! ```

mod describe;

pub use hapax_core::dynamic::{Dynamic, DynamicDelta, Misfit, Reduce};

use crate::{Ctx, Graph, error::Error, error::NodeError, error::Result};
use describe::Description;
use hapax_core::{
    canary,
    error::code,
    json::Json,
    route::{Branch, Outcome, Route},
    state::State,
};
use serde::Serialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
};

type Running = Pin<Box<dyn Future<Output = Result<Returned>> + Send>>;
type Code<A> = Arc<dyn Fn(Ctx<Dynamic, A>, Value) -> Running + Send + Sync>;
type Condition = Arc<dyn Fn(&Value) -> bool + Send + Sync>;

/// The reducers of a state's fields, by their names.
type Fields = BTreeMap<String, Reduce>;

/// What a node of a described graph returns: what it wrote, by field, and where to go.
///
/// ```
/// use hapax::dynamic::Returned;
/// use serde_json::json;
/// let returned = Returned::wrote(json!({"log": "split"})).fork([("tax", json!(4200)), ("fraud", json!("anvil"))]);
/// # drop(returned);
/// ```
#[derive(Debug, Clone)]
pub struct Returned {
    wrote: Value,
    route: Route,
}

impl Returned {
    /// An object: the value of each field that is written, which its reducer folds in. `null`: nothing.
    pub fn wrote(wrote: Value) -> Self {
        Self { wrote, route: Route::Edges }
    }

    /// Goes to this node, whatever the edges say.
    pub fn goto(self, node: &str) -> Self {
        Self { route: Route::Goto(node.into()), ..self }
    }

    /// Ends this branch.
    pub fn stop(self) -> Self {
        Self { route: Route::Stop, ..self }
    }

    /// Goes to several nodes at once, each with its input.
    pub fn fork<'n, I: Serialize>(self, branches: impl IntoIterator<Item = (&'n str, I)>) -> Self {
        let branches = branches.into_iter().map(|(node, input)| Branch::to(node, &input));
        Self { route: Route::Fork(branches.collect()), ..self }
    }
}

impl From<Value> for Returned {
    fn from(wrote: Value) -> Self {
        Self::wrote(wrote)
    }
}

impl From<()> for Returned {
    fn from((): ()) -> Self {
        Self::wrote(Value::Null)
    }
}

/// The nodes and conditions that described graphs may name.
///
/// ```
/// use hapax::dynamic::Registry;
/// use serde_json::{Value, json};
/// let registry: Registry = Registry::new()
///     .node("charge", async |_, _| Ok(json!({"log": "charged"})))
///     .condition("large", |state: &Value| state["cents"].as_u64() > Some(100_000));
/// let graph = json!({"name": "orders", "start": "pay", "nodes": [{"name": "pay", "use": "charge"}]});
/// assert!(registry.graph(&graph).unwrap().check().is_ok());
/// let unknown = json!({"name": "orders", "start": "pay", "nodes": [{"name": "pay"}]});
/// let error = registry.graph(&unknown).err().unwrap();
/// assert!(error.to_string().contains("no node `pay` is registered; there are charge"), "{error}");
/// ```
pub struct Registry<A = ()> {
    nodes: HashMap<String, Code<A>>,
    conditions: HashMap<String, Condition>,
    /// What was registered under a name that was taken: a description can't say which one it means.
    twice: Option<String>,
}

impl<A> Default for Registry<A> {
    fn default() -> Self {
        Self { nodes: HashMap::new(), conditions: HashMap::new(), twice: None }
    }
}

impl<A> fmt::Debug for Registry<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.nodes.keys()).finish()
    }
}

impl<A: Send + Sync + 'static> Registry<A> {
    /// One that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers a node under a name, which no other node has. It gets its input, `null` if nobody forked to it with one.
    pub fn node<F, Fut, R>(mut self, name: &str, node: F) -> Self
    where
        F: Fn(Ctx<Dynamic, A>, Value) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R>> + Send + 'static,
        R: Into<Returned>,
    {
        let code: Code<A> = Arc::new(move |ctx, input| {
            let run = node(ctx, input);
            Box::pin(async move { run.await.map(Into::into) })
        });
        if self.nodes.insert(name.into(), code).is_some() {
            self.twice = Some(format!("the node `{name}`"));
        }
        self
    }

    /// Registers a condition of edges under a name, which no other condition has. It must be pure.
    pub fn condition(mut self, name: &str, holds: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        if self.conditions.insert(name.into(), Arc::new(holds)).is_some() {
            self.twice = Some(format!("the condition `{name}`"));
        }
        self
    }

    fn names_are_one_thing_each(&self) -> Result<(), Error> {
        match &self.twice {
            None => Ok(()),
            Some(what) => Err(Error::Description(format!("{what} is registered twice"))),
        }
    }

    /// The graph that a value describes, to be registered like any other. See the guide for the description's form.
    pub fn graph(&self, description: &Value) -> Result<Graph<Dynamic, A>, Error> {
        Description::read(description)?.build(self)
    }
}

/// A node's code in a graph: what it reads and writes is held against the fields' reducers.
fn guarded<A: Send + Sync + 'static>(
    code: Code<A>,
    fields: Arc<Fields>,
    routes: bool,
) -> crate::node::BoxNode<Dynamic, A> {
    Arc::new(move |ctx, input| {
        let (code, fields) = (code.clone(), fields.clone());
        Box::pin(async move {
            if !canary::on("fields_unchecked") {
                fits(&fields, &ctx.state())?;
            }
            let input = input.as_ref().map_or("null", Json::as_str);
            let input = serde_json::from_str(input).map_err(|error| unfit(&error))?;
            let Returned { wrote, route } = code(ctx, input).await?;
            if !routes && !matches!(route, Route::Edges) {
                return Err(unfit(
                    &"it chose where to go, and its description doesn't say `\"routes\": true`",
                ));
            }
            Ok(Outcome { delta: written(&fields, wrote)?, route })
        })
    })
}

/// Whether a state is one that the reducers can fold into.
fn fits(fields: &Fields, state: &Dynamic) -> Result<()> {
    for (field, value) in state.fields_of() {
        if let Some(reduce) = fields.get(field) {
            reduce.check(field, value, true).map_err(|misfit| unfit(&misfit))?;
        }
    }
    Ok(())
}

fn written(fields: &Fields, wrote: Value) -> Result<DynamicDelta> {
    let wrote = match wrote {
        Value::Null => return Ok(Dynamic::delta()),
        Value::Object(wrote) => wrote,
        _ => return Err(unfit(&"a node writes an object: a value for each field")),
    };
    wrote.into_iter().try_fold(Dynamic::delta(), |delta, (field, value)| {
        let unknown =
            || unfit(&format!("it wrote the field `{field}`, which its graph's `fields` don't name"));
        let reduce = fields.get(&field).ok_or_else(unknown)?;
        delta.write(&field, *reduce, value).map_err(|misfit| unfit(&misfit))
    })
}

fn unfit(why: &dyn fmt::Display) -> NodeError {
    NodeError::coded(code::STATE_SHAPE, why.to_string(), false)
}
