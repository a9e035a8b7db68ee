//! Finds the first place where two values part, and says it in words that hide what is secret.

use crate::{item::Difference, secrets::Secrets};
use hapax_core::{checkpoint::Checkpoint, route::SettledRoute};
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

/// The first place where two deltas part.
pub(super) fn delta_differs(secrets: &Secrets, expected: &str, got: &str) -> Option<Difference> {
    differs_in("delta", expected, got, |field| secrets.hides_in_delta(field))
}

/// The first place where the states of two checkpoints part.
pub(super) fn states_differ(
    secrets: &Secrets,
    expected: &Checkpoint,
    got: &Checkpoint,
) -> Option<Difference> {
    let text = |checkpoint: &Checkpoint| String::from_utf8_lossy(&checkpoint.state).into_owned();
    let versions = [expected.state_version, got.state_version];
    differs_in("state", &text(expected), &text(got), |field| secrets.hides_in_states(field, versions))
}

/// The first place where two JSON texts part; `hides`: whether nobody may see a field of theirs, or what has no fields.
fn differs_in(
    what: &str,
    expected: &str,
    got: &str,
    hides: impl Fn(Option<&str>) -> bool,
) -> Option<Difference> {
    if expected == got {
        return None;
    }
    let parse = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    let (mut path, expected, got) = first(what.into(), Some(parse(expected)), Some(parse(got)));
    let field = path.split('/').nth(1).map(|field| field.replace("~1", "/").replace("~0", "~"));
    if hides(field.as_deref()) {
        path = path.splitn(3, '/').take(2).collect::<Vec<_>>().join("/");
        return Some(differ(&path, "(secret)", "(another secret)"));
    }
    let shown = |value: Option<Value>| value.map_or_else(|| "nothing".into(), |value| value.to_string());
    Some(differ(&path, shown(expected), shown(got)))
}

/// Two routes that differ, without the secrets of a state to begin anew with.
pub(super) fn routes_differ(secrets: &Secrets, expected: SettledRoute, got: SettledRoute) -> Difference {
    if let (
        SettledRoute::ContinueAs { state: old, version: from },
        SettledRoute::ContinueAs { state: new, version: to },
    ) = (&expected, &got)
        && let Some(difference) = differs_in("route", old.as_str(), new.as_str(), |field| {
            secrets.hides_in_states(field, [*from, *to])
        })
    {
        return difference;
    }
    let shown = |route| serde_json::to_string(&secrets.route(route)).unwrap_or_default();
    differ("route", shown(expected), shown(got))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use hapax_core::json::Json;
    use serde::{Deserialize, Serialize};

    #[derive(State, Clone, Default, Serialize, Deserialize)]
    #[state(crate = crate)]
    struct Safe {
        #[state(secret)]
        pin: String,
        room: u64,
    }

    #[test]
    fn what_a_run_begins_anew_with_is_compared_without_its_secrets() {
        let anew =
            |json: &str| SettledRoute::ContinueAs { state: Json::from_text(json).unwrap(), version: 1 };
        let secrets = Secrets::of_state::<Safe>();
        let pins = [r#"{"pin":"1234","room":1}"#, r#"{"pin":"9876","room":1}"#];
        let found = routes_differ(&secrets, anew(pins[0]), anew(pins[1]));
        assert_eq!((found.field.as_str(), found.expected.as_str()), ("route/pin", "(secret)"));
        let found = routes_differ(&secrets, anew(pins[0]), SettledRoute::Stop);
        assert!(
            found.expected.contains("[secret]") && !found.expected.contains("1234"),
            "{}",
            found.expected
        );
        assert_eq!((found.field.as_str(), found.got.as_str()), ("route", "\"stop\""));
    }

    #[test]
    fn a_field_that_the_state_does_not_have_is_hidden() {
        let secrets = Secrets::of_state::<Safe>();
        let part = |expected: &str, got: &str| {
            differs_in("state", expected, got, |field| secrets.hides_in_states(field, [1, 1])).unwrap()
        };
        let found = part(r#"{"iban":"DE","room":1}"#, r#"{"room":1}"#);
        assert_eq!((found.field.as_str(), found.expected.as_str()), ("state/iban", "(secret)"));
        let found = part(r#"{"room":1}"#, r#"{"room":2}"#);
        assert_eq!(
            (found.field.as_str(), found.expected.as_str(), found.got.as_str()),
            ("state/room", "1", "2")
        );
    }
}
