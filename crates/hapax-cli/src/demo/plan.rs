//! When the worker is killed: drawn from the seed before anything runs.
//!
//! Invariant: the answers that all lives before the last may get from the ledger are fewer than the orders, so no
//! order of moments can finish the work before the last kill.

use hapax::{Rng, core::order::PathHash};
use std::time::Duration;

/// Kills that the ledger triggers, at the least: after a charge was applied, before its answer leaves.
const BETWEEN: u32 = 5;
/// A kill at any moment comes this long after the worker's start at the latest.
const LATEST: Duration = Duration::from_millis(700);

/// How one life of the worker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Aim {
    /// Charges that the ledger answers in this life. It applies the next one, and keeps the answer to itself.
    pub(super) answers: u32,
    /// The kill comes so long after the start; `None`: when the ledger keeps an answer to itself.
    pub(super) after: Option<Duration>,
}

/// One aim for each kill.
pub(super) fn plan(seed: u64, orders: u32, kills: u32) -> Vec<Aim> {
    let mut rng = Rng::for_item(seed, 0, PathHash::ROOT, "kills");
    let between = (kills / 3).max(BETWEEN).min(kills);
    let mut is_between: Vec<bool> = (0..kills).map(|kill| kill < between).collect();
    for last in (1..is_between.len()).rev() {
        is_between.swap(last, below(&mut rng, last as u64 + 1) as usize);
    }
    let mut left = orders.saturating_sub(1);
    let aims = (0..kills).zip(is_between).map(|(kill, between)| {
        let share = u64::from(left / (kills - kill));
        let answers = (below(&mut rng, 2 * share) + 1).min(left.into()) as u32;
        left -= answers;
        let after = Duration::from_micros(below(&mut rng, LATEST.as_micros() as u64));
        Aim { answers, after: (!between).then_some(after) }
    });
    aims.collect()
}

fn below(rng: &mut Rng, n: u64) -> u64 {
    rng.below(n.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan() {
        assert_eq!(plan(7, 200, 25), plan(7, 200, 25));
        assert_ne!(plan(7, 200, 25), plan(8, 200, 25));
    }

    #[test]
    fn no_plan_lets_the_orders_finish_before_the_last_kill() {
        for (orders, kills) in [(200, 25), (20, 5), (1, 1), (1, 30), (3, 50), (10_000, 2)] {
            for seed in 0..50 {
                let plan = plan(seed, orders, kills);
                assert_eq!(plan.len(), kills as usize);
                assert!(plan.iter().map(|aim| aim.answers).sum::<u32>() < orders, "{orders} {kills} {seed}");
            }
        }
    }

    #[test]
    fn enough_kills_come_between_a_charge_and_its_answer() {
        let between = |kills| plan(1, 200, kills).iter().filter(|aim| aim.after.is_none()).count();
        assert_eq!([1, 4, 5, 12, 25].map(between), [1, 4, 5, 5, 8]);
    }
}
