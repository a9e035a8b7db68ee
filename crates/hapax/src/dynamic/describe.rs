//! From a graph's description to the graph.

use super::{Condition, Fields, Reduce, Registry, guarded};
use crate::{Graph, NodePolicy, Retry, dynamic::Dynamic, error::Error};
use hapax_core::dynamic::compare;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;
use std::{cmp::Ordering, collections::BTreeMap, sync::Arc, time::Duration};

/// A graph as a value. What it doesn't know is refused: a misspelt word would be a rule that nobody keeps.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    name: String,
    #[serde(default = "one")]
    version: u32,
    start: String,
    #[serde(default)]
    fields: BTreeMap<String, String>,
    nodes: Vec<Node>,
    #[serde(default)]
    edges: Vec<Edge>,
    #[serde(default)]
    joins: Vec<Join>,
    #[serde(default)]
    ends: Vec<String>,
}

fn one() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    name: String,
    /// The registered name; its own, if left out.
    #[serde(rename = "use")]
    code: Option<String>,
    /// It may choose where to go.
    #[serde(default)]
    routes: bool,
    /// It is forked to with an input.
    #[serde(default)]
    input: bool,
    timeout_ms: Option<u64>,
    attempts: Option<u32>,
    on_error: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edge {
    from: String,
    to: String,
    #[serde(rename = "if", default, deserialize_with = "there")]
    when: Option<When>,
    label: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Join {
    from: Vec<String>,
    to: String,
}

/// What is written is meant: `null` isn't the same as nothing.
fn there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<When>, D::Error> {
    When::deserialize(deserializer).map(Some)
}

/// When an edge is taken: by a registered condition, or by a field of the state.
enum When {
    Named(String),
    Compared(Comparison),
}

/// By hand, since an untagged enum doesn't say what is wrong.
impl<'de> Deserialize<'de> for When {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(name) => Ok(Self::Named(name)),
            value @ Value::Object(_) => {
                Comparison::deserialize(value).map(Self::Compared).map_err(D::Error::custom)
            }
            value => Err(D::Error::custom(format_args!(
                "`if` is the name of a condition or a comparison (`path`, `op`, `value`), not {value}"
            ))),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Comparison {
    /// Where in the state, as RFC 6901 has it.
    path: String,
    op: Op,
    value: Value,
}

#[derive(Deserialize, Clone, Copy)]
enum Op {
    #[serde(rename = "==")]
    Equal,
    #[serde(rename = "!=")]
    Differs,
    #[serde(rename = "<")]
    Less,
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = ">")]
    More,
    #[serde(rename = ">=")]
    AtLeast,
}

impl Description {
    pub(super) fn read(value: &Value) -> Result<Self, Error> {
        let read = Self::deserialize(value).map_err(|error| Error::Description(error.to_string()))?;
        read.inputs_are_forked()?;
        read.nodes.iter().try_for_each(Node::can_run)?;
        read.edges.iter().try_for_each(Edge::can_be_taken)?;
        Ok(read)
    }

    pub(super) fn build<A: Send + Sync + 'static>(
        self,
        registry: &Registry<A>,
    ) -> Result<Graph<Dynamic, A>, Error> {
        registry.names_are_one_thing_each()?;
        let fields = Arc::new(fields(&self.fields)?);
        let mut graph = Graph::described(&self.name, self.version, &self.start);
        for node in &self.nodes {
            let code = node.code.as_ref().unwrap_or(&node.name);
            let code = found("node", code, &registry.nodes)?.clone();
            graph.add(&node.name, node.routes, node.input, guarded(code, fields.clone(), node.routes));
            graph.set_policy(&node.name, node.policy());
        }
        for edge in &self.edges {
            match &edge.when {
                None => graph.lead(&edge.from, &edge.to),
                Some(when) => {
                    let (label, holds) = when.condition(registry)?;
                    let label = edge.label.clone().unwrap_or(label);
                    graph.lead_if(&edge.from, &edge.to, &label, move |state| holds(&state.value()));
                }
            }
        }
        self.joins.into_iter().for_each(|join| graph.gather(join.from, &join.to));
        self.ends.iter().for_each(|node| graph.may_end(node));
        for node in &self.nodes {
            node.on_error.iter().for_each(|handler| graph.handle(&node.name, handler));
        }
        Ok(graph)
    }

    /// Only a fork hands a node its input; in code, the types say so. A handler's input is the failure.
    fn inputs_are_forked(&self) -> Result<(), Error> {
        let starts = ("its `start`", &self.start);
        let edges = self.edges.iter().map(|edge| ("an edge", &edge.to));
        let joins = self.joins.iter().map(|join| ("a join", &join.to));
        let mut led = std::iter::once(starts).chain(edges).chain(joins);
        let wants = |name: &String| self.nodes.iter().any(|node| node.input && node.name == *name);
        match led.find(|(_, to)| wants(to)) {
            None => Ok(()),
            Some((way, to)) => Err(Error::Description(format!(
                "the node `{to}` takes an input (`\"input\": true`), which only a fork can hand it, and {way} leads there"
            ))),
        }
    }
}

fn fields(named: &BTreeMap<String, String>) -> Result<Fields, Error> {
    let reducers = || Reduce::ALL.map(Reduce::word).join(", ");
    let reduce = |(field, word): (&String, &String)| match Reduce::named(word) {
        Some(reduce) => Ok((field.clone(), reduce)),
        None => Err(Error::Description(format!(
            "the field `{field}` has no reducer `{word}`; there are {}",
            reducers()
        ))),
    };
    named.iter().map(reduce).collect()
}

/// What is registered under a name.
fn found<'r, T>(
    what: &str,
    name: &str,
    registered: &'r std::collections::HashMap<String, T>,
) -> Result<&'r T, Error> {
    registered.get(name).ok_or_else(|| {
        let mut known: Vec<_> = registered.keys().map(String::as_str).collect();
        known.sort_unstable();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Error::Description(format!("no {what} `{name}` is registered; there are {known}"))
    })
}

impl Node {
    fn can_run(&self) -> Result<(), Error> {
        let zero = |word: &str| {
            let why = format!("the node `{}` can't run with `{word}` of 0; leave the word out", self.name);
            Err(Error::Description(why))
        };
        match (self.attempts, self.timeout_ms) {
            (Some(0), _) => zero("attempts"),
            (_, Some(0)) => zero("timeout_ms"),
            _ => Ok(()),
        }
    }

    fn policy(&self) -> NodePolicy {
        let mut policy = NodePolicy::default();
        if let Some(timeout_ms) = self.timeout_ms {
            policy = policy.timeout(Duration::from_millis(timeout_ms));
        }
        if let Some(attempts) = self.attempts {
            policy = policy.retry(Retry::standard().attempts(attempts));
        }
        policy
    }
}

impl Edge {
    fn can_be_taken(&self) -> Result<(), Error> {
        let why = match (&self.when, &self.label) {
            (None, Some(label)) => {
                format!("has the label `{label}`, which only a condition has: it needs an `if`")
            }
            (Some(When::Compared(Comparison { op, value, .. })), _) if !op.compares(value) => {
                format!(
                    "compares by `{}` with {value}, which has no order: numbers and texts have one",
                    op.word()
                )
            }
            _ => return Ok(()),
        };
        Err(Error::Description(format!("the edge from `{}` to `{}` {why}", self.from, self.to)))
    }
}

impl When {
    /// What it is called in drawings, which is part of the graph's identity, and whether it holds.
    fn condition<A>(&self, registry: &Registry<A>) -> Result<(String, Condition), Error> {
        match self {
            When::Named(name) => Ok((name.clone(), found("condition", name, &registry.conditions)?.clone())),
            When::Compared(Comparison { path, op, value }) => {
                if !path.is_empty() && !path.starts_with('/') {
                    let why = format!("`{path}` is no path into the state: it begins with `/`");
                    return Err(Error::Description(why));
                }
                let (path, op, value) = (path.clone(), *op, value.clone());
                let label = format!("{path} {} {value}", op.word());
                Ok((label, Arc::new(move |state| op.holds(state.pointer(&path), &value))))
            }
        }
    }
}

impl Op {
    fn word(self) -> &'static str {
        match self {
            Op::Equal => "==",
            Op::Differs => "!=",
            Op::Less => "<",
            Op::AtMost => "<=",
            Op::More => ">",
            Op::AtLeast => ">=",
        }
    }

    /// Whether it can ever hold for such a value.
    fn compares(self, value: &Value) -> bool {
        matches!(self, Op::Equal | Op::Differs) || value.is_number() || value.is_string()
    }

    /// What isn't there equals nothing; numbers and texts have an order among their kind, nothing else has one.
    fn holds(self, there: Option<&Value>, value: &Value) -> bool {
        let order = there.and_then(|there| ordered(there, value));
        match self {
            // Not by `==`: 1 and 1.0 are one text once they are stored, also inside of lists and objects.
            Op::Equal => there.is_some_and(|there| compare(there, value).is_eq()),
            Op::Differs => !Op::Equal.holds(there, value),
            Op::Less => order.is_some_and(Ordering::is_lt),
            Op::AtMost => order.is_some_and(Ordering::is_le),
            Op::More => order.is_some_and(Ordering::is_gt),
            Op::AtLeast => order.is_some_and(Ordering::is_ge),
        }
    }
}

fn ordered(one: &Value, other: &Value) -> Option<Ordering> {
    match (one, other) {
        (Value::Number(_), Value::Number(_)) | (Value::String(_), Value::String(_)) => {
            Some(compare(one, other))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_comparison_holds_among_its_kind_alone() {
        let state = json!({"cents": 5, "sku": "b", "tags": ["x"], "ones": [1, {"one": 1.0}]});
        for (path, op, value, holds) in [
            ("/cents", ">", json!(4.5), true),
            ("/cents", "<=", json!(5), true),
            ("/cents", "==", json!(5.0), true),
            ("/cents", ">", json!("4"), false),
            ("/sku", "<", json!("c"), true),
            ("/tags", "==", json!(["x"]), true),
            ("/ones", "==", json!([1.0, {"one": 1}]), true),
            ("/ones", "!=", json!([1, {"one": 1.5}]), true),
            ("/tags/0", "!=", json!("x"), false),
            ("/nothing", "!=", json!(1), true),
            ("/nothing", "<", json!(1), false),
        ] {
            let comparison = json!({"path": path, "op": op, "value": value});
            let Comparison { path, op, value } = Comparison::deserialize(&comparison).unwrap();
            assert_eq!(op.holds(state.pointer(&path), &value), holds, "{comparison}");
        }
    }
}
