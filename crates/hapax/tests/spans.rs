//! Traces show a run, its steps and their nodes, nested as they belong.

use hapax::prelude::*;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};
use tracing::{Subscriber, span};
use tracing_subscriber::{Layer, layer::Context, prelude::*, registry::LookupSpan};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Tally {
    #[state(sum)]
    total: u64,
}
type Ctx = hapax::Ctx<Tally>;

const FAN: Node = Node::new("fan");
const LEAF: Node<u64> = Node::new("leaf");

async fn fan(_: Ctx) -> Outcome<Tally> {
    Tally::delta().fork([LEAF.with(1), LEAF.with(2)])
}

async fn leaf(_: Ctx, n: u64) -> TallyDelta {
    Tally::delta().total(n)
}

/// Keeps the names from each span up to its root.
#[derive(Clone, Default)]
struct Paths(Arc<Mutex<BTreeSet<String>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Paths {
    fn on_new_span(&self, _: &span::Attributes<'_>, id: &span::Id, ctx: Context<'_, S>) {
        let names: Vec<_> = ctx.span_scope(id).unwrap().from_root().map(|span| span.name()).collect();
        self.0.lock().unwrap().insert(names.join(" > "));
    }
}

#[tokio::test]
async fn spans_nest_run_step_node_also_across_tasks() {
    let paths = Paths::default();
    let subscriber = tracing_subscriber::registry().with(paths.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let engine = Engine::open("memory:").await.unwrap();
    let graph = Graph::new("tally", 1, FAN).node(FAN, fan).node(LEAF, leaf);
    let flow = engine.register(graph, ()).await.unwrap();
    let end = flow.start("t", Tally::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(end.total, 3);
    let seen = paths.0.lock().unwrap().clone();
    assert_eq!(seen, ["run", "run > step", "run > step > node"].map(String::from).into());
}
