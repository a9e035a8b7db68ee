//! Runs that send messages, the stream that they go through, and who applies them to a database of its own.

mod books;
mod stream;

pub use books::{Books, CONSUMER};
pub use stream::{READER, Raw, STREAM, Stream, connect};

use hapax::prelude::*;
use serde::{Deserialize, Serialize};

/// Where messages go, by turns.
pub const TOPICS: [&str; 2] = ["mail.a", "mail.b"];
/// Messages of a step.
const EACH: u64 = 25;
/// Messages of a run: as many as its steps send.
pub const PER_RUN: u64 = EACH * STEPS.len() as u64;

/// A run that sends.
#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sender {
    /// How many messages it has sent.
    pub sent: u64,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Mail {
    /// The run that sends it.
    pub run: String,
    /// Which of its messages it is.
    pub number: u64,
}

const STEPS: [Node; 4] = [Node::new("first"), Node::new("second"), Node::new("third"), Node::new("last")];

async fn send(mut ctx: hapax::Ctx<Sender>) -> hapax::Result<SenderDelta> {
    let (run, from) = (ctx.run_id().to_string(), ctx.state().sent);
    for number in from..from + EACH {
        let topic = TOPICS[(number % 2) as usize];
        ctx.emit(topic, &run, &Mail { run: run.clone(), number })?;
    }
    Ok(Sender::delta().sent(from + EACH))
}

/// Four steps, each of which sends.
pub fn graph() -> Graph<Sender> {
    let [first, second, third, last] = STEPS;
    STEPS
        .into_iter()
        .fold(Graph::new("senders", 1, first), |graph, step| graph.node(step, send))
        .edge(first, second)
        .edge(second, third)
        .edge(third, last)
}

/// The name of a run.
pub fn run_id(number: u64) -> String {
    format!("sender-{number}")
}

/// What the numbers of all messages of so many runs come to.
pub fn sum(runs: u64) -> u64 {
    runs * PER_RUN * (PER_RUN - 1) / 2
}
