//! When the worker is killed: drawn from the seed before anything runs.

use hapax::{Rng, core::order::PathHash};
use std::time::Duration;

/// Kills that the ledger triggers, at the least: after a charge was applied, before its answer leaves.
const BETWEEN: u64 = 5;
/// One of so many kills comes when the worker's code has just seen an answer.
const UPON_ANSWERS: u64 = 5;
/// A kill at any moment comes this long after the worker's start at the latest.
const LATEST: Duration = Duration::from_millis(720);

/// How one life of the worker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Aim {
    /// The ledger answers while there are no more charges than this. It applies the next one, and keeps the answer
    /// to itself.
    pub(super) charges: usize,
    /// When the kill comes.
    pub(super) moment: Moment,
}

/// When a kill comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    /// So long after the worker's start.
    After(Duration),
    /// When the ledger has applied a charge and keeps the answer to itself.
    BeforeAnAnswer,
    /// When a node has just seen an answer, before it does anything with it.
    UponAnAnswer,
}

impl Aim {
    /// How long after the worker's start the kill comes, if that is what decides.
    pub(super) fn after(&self) -> Option<Duration> {
        match self.moment {
            Moment::After(after) => Some(after),
            _ => None,
        }
    }
}

/// One aim for each kill, spread over the orders.
pub(super) fn plan(seed: u64, orders: u32, kills: u32) -> Vec<Aim> {
    let mut rng = Rng::for_item(seed, 0, PathHash::ROOT, "kills");
    let (orders, kills) = (u64::from(orders), u64::from(kills));
    let before = (kills / 3).max(BETWEEN).min(kills);
    let upon = (kills / UPON_ANSWERS).min(kills - before);
    let mut ranks: Vec<u64> = (0..kills).collect();
    for last in (1..ranks.len()).rev() {
        ranks.swap(last, rng.below(last as u64 + 1) as usize);
    }
    let aims = (0..kills).zip(ranks).map(|(kill, rank)| {
        let at = |kill: u64| kill * orders / (kills + 1);
        let charges = at(kill) + rng.below((at(kill + 1) - at(kill)).max(1));
        let after = Duration::from_micros(rng.below(LATEST.as_micros() as u64));
        let moment = match rank {
            _ if rank < before => Moment::BeforeAnAnswer,
            _ if rank < before + upon => Moment::UponAnAnswer,
            _ => Moment::After(after),
        };
        Aim { charges: charges as usize, moment }
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
    fn enough_kills_come_before_and_upon_an_answer() {
        let count = |kills, moment| plan(1, 200, kills).iter().filter(|aim| aim.moment == moment).count();
        assert_eq!([1, 4, 5, 12, 25].map(|kills| count(kills, Moment::BeforeAnAnswer)), [1, 4, 5, 5, 8]);
        assert_eq!([1, 5, 6, 12, 25].map(|kills| count(kills, Moment::UponAnAnswer)), [0, 0, 1, 2, 5]);
    }
}
