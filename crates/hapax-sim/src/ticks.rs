//! Runs that a schedule starts: one step each, which notes that it was taken.

use hapax::{
    prelude::*,
    schedule::{Overlap, When},
};
use serde::{Deserialize, Serialize};

/// The name of the schedule.
pub const SCHEDULE: &str = "tick";

/// A run of the schedule.
#[derive(State, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tick {
    /// How often its step was committed.
    #[state(sum)]
    pub taken: u64,
}

const TAKE: Node = Node::new("take");

async fn take(_: hapax::Ctx<Tick>) -> TickDelta {
    Tick::delta().taken(1u64)
}

/// The graph.
pub fn graph() -> Graph<Tick> {
    Graph::new("ticks", 1, TAKE).node(TAKE, take)
}

/// Every second; none is passed over, however late it is.
pub fn every_second() -> When {
    When::cron("* * * * * *").overlap(Overlap::Queue).catch_up(1000)
}
