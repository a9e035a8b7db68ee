//! Telemetry as those see it who look on: a collector, a scraper, a reader of logs.

mod collector;
mod crash;
mod logs;
mod numbers;
mod strange;
mod traces;

use hapax::prelude::*;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What the tests work on.
#[derive(State, Clone, Default, Debug, Serialize, Deserialize)]
struct Order {
    #[state(sum)]
    total: u64,
    #[state(secret)]
    card: String,
}

type Ctx<A = ()> = hapax::Ctx<Order, A>;

const PLACE: Node = Node::new("place");
const CHARGE: Node = Node::new("charge");

/// As often as it likes, without a pause.
fn at_once(attempts: u32) -> NodePolicy {
    NodePolicy::default().retry(Retry::standard().attempts(attempts).backoff(|_| Duration::ZERO))
}
