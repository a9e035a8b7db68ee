//! A fork over many inputs: a thousand lines are counted side by side, and the counts come together in a fixed order.

use hapax::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Count {
    lines: u64,
    #[state(sum)]
    words: u64,
    #[state(max)]
    longest: u64,
    #[state(union)]
    seen: BTreeSet<String>,
}
type Ctx = hapax::Ctx<Count>;

const SPLIT: Node = Node::new("split");
const COUNT: Node<u64> = Node::new("count");

async fn split(ctx: Ctx) -> Outcome<Count> {
    Count::delta().fork((0..ctx.state().lines).map(|line| COUNT.with(line)))
}

async fn count(mut ctx: Ctx, line: u64) -> CountDelta {
    // The same draws in every attempt, on every machine.
    let words = 1 + ctx.rng().below(9);
    Count::delta().words(words).longest(words).seen([format!("bucket {}", line % 3)])
}

#[tokio::main]
async fn main() -> hapax::Result<()> {
    let graph = Graph::new("words", 1, SPLIT).node(SPLIT, split).node(COUNT, count);
    let options = Options::default().max_concurrent_nodes(16);
    let engine = Engine::builder().options(options).open("sqlite:words.db").await?;
    let counts = engine.register(graph, ()).await?;
    let end = counts.start("count-1", Count { lines: 1000, ..Count::default() }).await?.wait().await?;
    println!("{} words in {} lines, at most {} in one", end.words, end.lines, end.longest);
    println!("{:?}", end.seen);
    Ok(())
}
