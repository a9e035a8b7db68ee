//! Finds the first place where two values part, and says it in words that hide what is secret.

use crate::item::Difference;
use hapax_core::{checkpoint::Checkpoint, state::State};
use serde_json::Value;
use std::fmt::Display;

/// How much of a value is shown.
const SHOWN: usize = 400;

pub(super) fn differ(field: &str, expected: impl Display, got: impl Display) -> Difference {
    Difference { call: None, field: field.into(), expected: clip(&expected), got: clip(&got) }
}

fn clip(value: &impl Display) -> String {
    let mut text = value.to_string();
    if let Some((end, _)) = text.char_indices().nth(SHOWN) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The first place where two JSON texts of a state, or of a delta of it, part.
pub(super) fn differs_in<S: State>(what: &str, expected: &str, got: &str) -> Option<Difference> {
    if expected == got {
        return None;
    }
    let parse = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let (mut path, expected, got) = first(what.into(), Some(parse(expected)), Some(parse(got)));
    let field = path.split('/').nth(1).map(|field| field.replace("~1", "/").replace("~0", "~"));
    // A delta calls it by its name, a state by what serde makes of that.
    let secret = field.is_some_and(|field| {
        S::fields().iter().any(|known| known.secret && (known.name == field || known.json == field))
    });
    if secret {
        path = path.splitn(3, '/').take(2).collect::<Vec<_>>().join("/");
        return Some(differ(&path, "(secret)", "(another secret)"));
    }
    let shown = |value: Option<Value>| value.map_or_else(|| "nothing".into(), |value| value.to_string());
    Some(differ(&path, shown(expected), shown(got)))
}

/// Walks down while exactly one member differs in a way that can be named.
fn first(
    path: String,
    expected: Option<Value>,
    got: Option<Value>,
) -> (String, Option<Value>, Option<Value>) {
    let step = |key: &str| format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
    match (expected, got) {
        (Some(Value::Object(mut expected)), Some(Value::Object(mut got))) => {
            let keys: std::collections::BTreeSet<String> =
                expected.keys().chain(got.keys()).cloned().collect();
            match keys.into_iter().find(|key| expected.get(key) != got.get(key)) {
                Some(key) => first(step(&key), expected.remove(&key), got.remove(&key)),
                None => (path, Some(Value::Object(expected)), Some(Value::Object(got))),
            }
        }
        (Some(Value::Array(mut expected)), Some(Value::Array(mut got))) => {
            let longer = expected.len().max(got.len());
            match (0..longer).find(|at| expected.get(*at) != got.get(*at)) {
                Some(at) => {
                    let take = |from: &mut Vec<Value>| (at < from.len()).then(|| from.swap_remove(at));
                    first(step(&at.to_string()), take(&mut expected), take(&mut got))
                }
                None => (path, Some(Value::Array(expected)), Some(Value::Array(got))),
            }
        }
        (expected, got) => (path, expected, got),
    }
}

/// Where two frontiers part: in their nodes, else in what an item was handed.
pub(super) fn frontier(expected: &Checkpoint, got: &Checkpoint) -> Difference {
    let nodes = |checkpoint: &Checkpoint| match &*checkpoint.frontier {
        [] => "the end".to_owned(),
        items => items.iter().map(|item| item.node.as_str()).collect::<Vec<_>>().join(", "),
    };
    let (expected_nodes, got_nodes) = (nodes(expected), nodes(got));
    let apart = expected.frontier.iter().zip(&got.frontier).position(|(a, b)| a != b);
    match apart {
        Some(at) if expected_nodes == got_nodes => {
            let item =
                |checkpoint: &Checkpoint| serde_json::to_string(&checkpoint.frontier[at]).unwrap_or_default();
            differ(&format!("frontier/{at}"), item(expected), item(got))
        }
        _ => differ("frontier", expected_nodes, got_nodes),
    }
}
