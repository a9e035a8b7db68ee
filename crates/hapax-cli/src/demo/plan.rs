//! When the worker is killed: drawn from the seed before anything runs.

use hapax::{Rng, core::order::PathHash};
use std::time::Duration;

/// Kills that the ledger triggers, at the least: after a charge was applied, before its answer leaves.
const BETWEEN: u64 = 5;
/// A kill at any moment comes this long after the worker's start at the latest.
const LATEST: Duration = Duration::from_millis(720);

/// How one life of the worker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Aim {
    /// The ledger answers while there are no more charges than this. It applies the next one, and keeps the answer
    /// to itself.
    pub(super) charges: usize,
    /// The kill comes so long after the start; `None`: when the ledger keeps an answer to itself.
    pub(super) after: Option<Duration>,
}

/// One aim for each kill, spread over the orders.
pub(super) fn plan(seed: u64, orders: u32, kills: u32) -> Vec<Aim> {
    let mut rng = Rng::for_item(seed, 0, PathHash::ROOT, "kills");
    let (orders, kills) = (u64::from(orders), u64::from(kills));
    let between = (kills / 3).max(BETWEEN).min(kills);
    let mut is_between: Vec<bool> = (0..kills).map(|kill| kill < between).collect();
    for last in (1..is_between.len()).rev() {
        is_between.swap(last, rng.below(last as u64 + 1) as usize);
    }
    let aims = (0..kills).zip(is_between).map(|(kill, between)| {
        let at = |kill: u64| kill * orders / (kills + 1);
        let charges = at(kill) + rng.below((at(kill + 1) - at(kill)).max(1));
        let after = Duration::from_micros(rng.below(LATEST.as_micros() as u64));
        Aim { charges: charges as usize, after: (!between).then_some(after) }
    });
    aims.collect()
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
    fn the_kills_are_spread_over_the_orders() {
        for (orders, kills) in [(200, 25), (20, 5), (1, 1), (1, 30), (3, 50), (10_000, 2)] {
            for seed in 0..50 {
                let plan = plan(seed, orders, kills);
                assert_eq!(plan.len(), kills as usize);
                assert!(plan.is_sorted_by_key(|aim| aim.charges), "{orders} {kills} {seed}");
                assert!(plan.iter().all(|aim| aim.charges < orders as usize), "{orders} {kills} {seed}");
            }
        }
    }

    #[test]
    fn enough_kills_come_between_a_charge_and_its_answer() {
        let between = |kills| plan(1, 200, kills).iter().filter(|aim| aim.after.is_none()).count();
        assert_eq!([1, 4, 5, 12, 25].map(between), [1, 4, 5, 5, 8]);
    }
}
