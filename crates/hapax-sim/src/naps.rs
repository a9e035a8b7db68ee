//! Work that asks for the time and lets some of it pass.

use hapax::{EffectError, prelude::*};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longer than a wait in place: a nap parks its run.
const LONG: Duration = Duration::from_millis(1500);

/// A nap.
#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
pub struct Nap {
    /// When it began and when it was over, in microseconds since 1970, as the node was told.
    pub from_to_us: Option<(i64, i64)>,
}

const SLEEP: Node = Node::new("sleep");

async fn sleep(mut ctx: hapax::Ctx<Nap>) -> Result<NapDelta, EffectError> {
    let from_us = us(ctx.now());
    ctx.sleep(LONG).await?;
    Ok(Nap::delta().from_to_us((from_us, us(ctx.now()))))
}

/// Microseconds since 1970.
fn us(time: std::time::SystemTime) -> i64 {
    let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Naps.
pub fn graph() -> Graph<Nap> {
    Graph::new("naps", 1, SLEEP).node(SLEEP, sleep)
}
