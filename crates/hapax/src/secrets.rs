//! Which values of a run nobody may see: the one place that decides it, for states, deltas and entries of the journal.
//!
//! Invariant: in doubt a value is hidden. Only of a graph that isn't registered at all is everything shown as it is stored.

use crate::outline::GraphOutline;
use hapax_core::{
    canary,
    checkpoint::Checkpoint,
    journal::{Done, Entry},
    json::Json,
    key::Digest,
    route::SettledRoute,
    state::Field,
};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Stands for a value that is hidden.
const HIDDEN: &str = "\"[secret]\"";

/// What of a run's values is hidden from people. The graph that the run is of says so: the one of its own shape, else one
/// that was declared compatible with it. If neither is registered, whatever any graph of that name calls secret is.
///
/// Fields that the graph doesn't describe, as an older version of the state may have them, are hidden as well, and of a
/// state of another version also what is secret in any graph of that name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Serialize, Deserialize};
/// #[derive(State, Clone, Default, Serialize, Deserialize)]
/// struct Note { text: String, #[state(secret)] pin: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Note>) {}
/// # let engine = Engine::open("memory:").await?;
/// # let notes = engine.register(Graph::new("notes", 1, WRITE).node(WRITE, write), ()).await?;
/// let note = Note { text: "once".into(), pin: "1234".into() };
/// notes.start("note-1", note).await?.wait().await?;
/// let secrets = engine.secrets(&engine.record("note-1").await?);
/// assert_eq!(secrets.state(r#"{"pin":"1234","text":"once"}"#, 1), r#"{"pin":"[secret]","text":"once"}"#);
/// assert_eq!(secrets.state(r#"{"code":"77","text":"once"}"#, 0), r#"{"code":"[secret]","text":"once"}"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Secrets {
    /// The graphs that speak for the run.
    own: Vec<Shape>,
    /// All graphs of its name.
    named: Vec<Shape>,
}

/// What a graph says of its state.
#[derive(Debug, Clone, Copy)]
struct Shape {
    version: u32,
    fields: &'static [Field],
}

impl Secrets {
    pub(crate) fn of(graphs: &[GraphOutline], graph: &str, fingerprint: Digest) -> Self {
        let among = |fits: &dyn Fn(&GraphOutline) -> bool| -> Vec<Shape> {
            let found = graphs.iter().filter(|it| *it.name == *graph && fits(it));
            found.map(|it| Shape { version: it.state_version, fields: it.fields }).collect()
        };
        let named = among(&|_| true);
        let own = among(&|it| it.fingerprint == fingerprint);
        let able = || among(&|it| it.compatible.contains(&fingerprint));
        let own = [own, able()].into_iter().find(|some| !some.is_empty());
        Self { own: own.unwrap_or_else(|| named.clone()), named }
    }

    /// Those of a state that is at hand.
    #[cfg(test)]
    pub(crate) fn of_state<S: hapax_core::state::State>() -> Self {
        let own = vec![Shape { version: S::VERSION, fields: S::fields() }];
        Self { named: own.clone(), own }
    }

    /// A state of that version, as JSON.
    pub fn state(&self, json: &str, version: u32) -> String {
        let (judges, is_open) = self.judges_of(version);
        self.redacted(json, judges, is_open, |field| field.json)
    }

    /// The state of a checkpoint.
    pub fn state_of(&self, checkpoint: &Checkpoint) -> String {
        self.state(&String::from_utf8_lossy(&checkpoint.state), checkpoint.state_version)
    }

    /// What a node wrote, as JSON.
    pub fn delta(&self, json: &str) -> String {
        self.redacted(json, &self.own, self.is_open(), |field| field.name)
    }

    /// An entry of the journal.
    pub fn entry(&self, entry: Entry) -> Entry {
        match entry {
            Entry::ItemDone { done: Done::Ok { delta, route, messages } } => {
                let delta = json(&self.delta(delta.as_str()));
                Entry::ItemDone { done: Done::Ok { delta, route: self.route(route), messages } }
            }
            Entry::Several(entries) => {
                Entry::Several(entries.into_iter().map(|entry| self.entry(entry)).collect())
            }
            entry => entry,
        }
    }

    /// A run that begins anew has its state in the journal.
    pub(crate) fn route(&self, route: SettledRoute) -> SettledRoute {
        match route {
            SettledRoute::ContinueAs { state, version } => {
                SettledRoute::ContinueAs { state: json(&self.state(state.as_str(), version)), version }
            }
            route => route,
        }
    }

    /// Whether a field of a delta is hidden, by whichever of its names; `None`: what has no fields.
    pub(crate) fn hides_in_delta(&self, field: Option<&str>) -> bool {
        self.hides(field, &self.own, self.is_open())
    }

    /// Whether a field is hidden in one of two states of these versions, which are held against each other.
    pub(crate) fn hides_in_states(&self, field: Option<&str>, versions: [u32; 2]) -> bool {
        versions.into_iter().any(|version| {
            let (judges, is_open) = self.judges_of(version);
            self.hides(field, judges, is_open)
        })
    }

    /// A delta calls a field by its name, a state by what serde makes of that.
    fn hides(&self, field: Option<&str>, judges: &[Shape], is_open: bool) -> bool {
        let Some(name) = field else { return !is_open };
        let is_called = |field: &Field| field.name == name || field.json == name;
        in_any(judges, |field| field.secret && is_called(field)) || !(is_open || in_any(&self.own, is_called))
    }

    /// Whether none of the graphs that speak for the run knows its fields beforehand.
    fn is_open(&self) -> bool {
        let mut open = self.own.iter().map(|shape| shape.fields.is_empty());
        if canary::on("opened_by_any_form") { open.any(|is| is) } else { open.all(|is| is) }
    }

    /// Who says what is secret in a state of that version, and whether it is of a kind whose fields nobody knows beforehand.
    fn judges_of(&self, version: u32) -> (&[Shape], bool) {
        let is_open = self.is_open();
        // Beside a form that knows the fields, one that doesn't speaks for no version: the state may be an older one of the
        // first.
        let speaks = |shape: &Shape| shape.version == version && (is_open || !shape.fields.is_empty());
        match self.own.iter().any(speaks) {
            true => (&self.own, is_open),
            false => (&self.named, false),
        }
    }

    /// Hides values. `is_open`: the state is of a kind whose fields nobody knows beforehand; `name`: what a field is called.
    fn redacted(
        &self,
        json: &str,
        judges: &[Shape],
        is_open: bool,
        name: impl Fn(&Field) -> &'static str,
    ) -> String {
        if self.named.is_empty() {
            return json.to_owned();
        }
        let is_hidden = |key: &str| {
            in_any(judges, |field| field.secret && name(field) == key)
                || !(is_open || in_any(&self.own, |field| name(field) == key))
        };
        let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(json) else {
            return if is_open { json.to_owned() } else { HIDDEN.to_owned() };
        };
        let members = members.iter().map(|(key, value)| {
            let value = if is_hidden(key) { HIDDEN } else { value.get() };
            format!("{}:{value}", serde_json::Value::from(key.as_str()))
        });
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }
}

fn in_any(shapes: &[Shape], fits: impl Fn(&Field) -> bool) -> bool {
    shapes.iter().flat_map(|shape| shape.fields).any(fits)
}

/// What is hidden stays so if it can't be written.
fn json(text: &str) -> Json {
    Json::from_text(text).unwrap_or_else(|_| Json::null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{id::NodeId, key::sha256, state::Reducer};

    const fn field(name: &'static str, json: &'static str, secret: bool) -> Field {
        Field { name, json, reducer: Reducer::Last, secret }
    }

    static CARD_IS_SECRET: [Field; 2] = [field("card", "creditCard", true), field("sku", "sku", false)];
    static SKU_IS_SECRET: [Field; 2] = [field("card", "creditCard", false), field("sku", "sku", true)];
    const STATE: &str = r#"{"creditCard":{"n":1},"sku":"a"}"#;
    const NO_CARD: &str = r#"{"creditCard":"[secret]","sku":"a"}"#;
    const NO_SKU: &str = r#"{"creditCard":{"n":1},"sku":"[secret]"}"#;
    const NEITHER: &str = r#"{"creditCard":"[secret]","sku":"[secret]"}"#;

    fn graph(shape: &str, state_version: u32, fields: &'static [Field]) -> GraphOutline {
        GraphOutline {
            name: "orders".into(),
            version: 1,
            fingerprint: sha256(shape.as_bytes()),
            compatible: vec![],
            start: NodeId::new("start").unwrap(),
            nodes: vec![],
            joins: vec![],
            state_version,
            fields,
        }
    }

    fn secrets(graphs: &[GraphOutline], shape: &str) -> Secrets {
        Secrets::of(graphs, "orders", sha256(shape.as_bytes()))
    }

    #[test]
    fn the_graph_of_a_runs_own_shape_says_what_is_secret_whichever_was_registered_first() {
        let (old, new) = (graph("old", 1, &CARD_IS_SECRET), graph("new", 1, &SKU_IS_SECRET));
        for graphs in [[old.clone(), new.clone()], [new, old]] {
            assert_eq!(secrets(&graphs, "old").state(STATE, 1), NO_CARD);
            assert_eq!(secrets(&graphs, "new").state(STATE, 1), NO_SKU);
        }
    }

    #[test]
    fn without_it_a_compatible_graph_does() {
        let mut able = graph("new", 1, &SKU_IS_SECRET);
        able.compatible.push(sha256(b"old"));
        let graphs = [graph("other", 1, &CARD_IS_SECRET), able];
        assert_eq!(secrets(&graphs, "old").state(STATE, 1), NO_SKU);
    }

    #[test]
    fn without_either_the_secrets_of_all_graphs_of_the_name_are_hidden() {
        let mut stranger = graph("x", 1, &[]);
        stranger.name = "strangers".into();
        let graphs = [graph("a", 1, &CARD_IS_SECRET), graph("b", 1, &SKU_IS_SECRET), stranger];
        assert_eq!(secrets(&graphs, "gone").state(STATE, 1), NEITHER);
        assert_eq!(secrets(&graphs, "gone").state(r#"{"pin":7}"#, 1), r#"{"pin":"[secret]"}"#);
    }

    #[test]
    fn a_graph_that_nobody_registered_hides_nothing() {
        assert_eq!(secrets(&[], "any").state(STATE, 1), STATE);
        assert_eq!(secrets(&[], "any").delta("7"), "7");
    }

    #[test]
    fn of_a_state_of_another_version_only_what_is_surely_no_secret_is_shown() {
        let graphs = [graph("old", 1, &SKU_IS_SECRET), graph("new", 2, &CARD_IS_SECRET)];
        let new = secrets(&graphs, "new");
        assert_eq!(new.state(STATE, 2), NO_CARD);
        assert_eq!(new.state(STATE, 1), NEITHER, "the other graph of that name calls `sku` secret");
        let only = secrets(&graphs[1..], "new");
        let old = r#"{"iban":"DE","sku":"a"}"#;
        assert_eq!(only.state(old, 1), r#"{"iban":"[secret]","sku":"a"}"#);
        assert_eq!(only.state("[4111]", 1), "\"[secret]\"", "what has no fields is hidden whole");
    }

    #[test]
    fn of_a_state_whose_fields_are_not_known_beforehand_all_is_shown() {
        let described = [graph("own", 1, &[])];
        assert_eq!(secrets(&described, "own").state(STATE, 1), STATE);
        assert_eq!(secrets(&described, "own").delta(r#"{"sku":["last","a"]}"#), r#"{"sku":["last","a"]}"#);
        assert_eq!(secrets(&described, "own").state(STATE, 2), NEITHER);
    }

    #[test]
    fn where_both_forms_of_a_graph_are_registered_the_one_that_knows_its_fields_says_what_is_hidden() {
        let (in_code, from_a_value) = (graph("own", 1, &CARD_IS_SECRET), graph("own", 1, &[]));
        for graphs in [[in_code.clone(), from_a_value.clone()], [from_a_value, in_code]] {
            let own = secrets(&graphs, "own");
            let state = r#"{"creditCard":{"n":1},"pin":7,"sku":"a"}"#;
            assert_eq!(own.state(state, 1), r#"{"creditCard":"[secret]","pin":"[secret]","sku":"a"}"#);
            let delta = r#"{"card":{"n":1},"pin":7,"sku":"a"}"#;
            assert_eq!(own.delta(delta), r#"{"card":"[secret]","pin":"[secret]","sku":"a"}"#);
            let hides = |field| own.hides_in_delta(field) && own.hides_in_states(field, [1, 1]);
            assert!(hides(Some("pin")) && hides(None));
            assert!(!own.hides_in_delta(Some("sku")) && !own.hides_in_states(Some("sku"), [1, 1]));
            assert_eq!(own.state("[4111]", 1), HIDDEN, "what has no fields is hidden whole");
        }
    }

    /// A description has no versions, so its states are of the first.
    #[test]
    fn the_form_that_knows_its_fields_says_it_of_all_versions() {
        let (in_code, from_a_value) = (graph("own", 2, &CARD_IS_SECRET), graph("own", 1, &[]));
        let before = graph("before", 1, &SKU_IS_SECRET);
        for graphs in
            [[in_code.clone(), from_a_value.clone(), before.clone()], [before, from_a_value, in_code]]
        {
            let own = secrets(&graphs, "own");
            assert_eq!(own.state(STATE, 2), NO_CARD);
            assert_eq!(
                own.state(r#"{"creditCard":7,"pin":7}"#, 1),
                r#"{"creditCard":"[secret]","pin":"[secret]"}"#
            );
            assert_eq!(own.state(STATE, 1), NEITHER, "it may be an older one of the form in code");
        }
    }

    #[test]
    fn of_two_states_that_are_compared_the_one_of_another_version_hides_more() {
        let graphs = [graph("old", 1, &SKU_IS_SECRET), graph("new", 2, &CARD_IS_SECRET)];
        let new = secrets(&graphs, "new");
        assert!(!new.hides_in_states(Some("sku"), [2, 2]) && !new.hides_in_delta(Some("sku")));
        assert!(new.hides_in_states(Some("sku"), [1, 2]), "the other graph of that name calls `sku` secret");
        assert!(new.hides_in_states(Some("card"), [2, 2]) && new.hides_in_states(Some("creditCard"), [2, 2]));
    }

    #[test]
    fn an_entry_hides_what_a_node_wrote_and_what_its_run_begins_anew_with() {
        let graphs = [graph("own", 1, &CARD_IS_SECRET)];
        let done = |delta: &str, state: &str| Entry::ItemDone {
            done: Done::Ok {
                delta: Json::from_text(delta).unwrap(),
                route: SettledRoute::ContinueAs { state: Json::from_text(state).unwrap(), version: 1 },
                messages: vec![],
            },
        };
        let delta = r#"{"card":{"n":1},"gone":1,"sku":"a"}"#;
        let hidden = done(r#"{"card":"[secret]","gone":"[secret]","sku":"a"}"#, NO_CARD);
        let own = secrets(&graphs, "own");
        assert_eq!(own.entry(done(delta, STATE)), hidden);
        assert_eq!(own.entry(Entry::Several(vec![done(delta, STATE)])), Entry::Several(vec![hidden]));
    }
}
