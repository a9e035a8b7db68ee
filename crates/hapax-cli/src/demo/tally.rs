//! What came of it: counted from the ledger's own log, the outside party's, and held against the orders.

use super::{Runs, ledger::Entry, orders, supervisor::Setup};
use crate::view::counted;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// The result. Its fields, in this order, are the answer of `--json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Tally {
    orders: u32,
    steps: u64,
    kills: u32,
    charges: usize,
    raw_calls: usize,
    duplicates: usize,
    lost: usize,
    seconds: f64,
}

/// What the ledger's log says about one order.
#[derive(Debug, Default)]
struct Account<'l> {
    keys: BTreeSet<&'l str>,
    applied: usize,
    cents: u64,
    needless: usize,
}

impl Account<'_> {
    /// Charges beyond the first, by whichever measure sees more of them, keys or money; and calls for an answer that
    /// the caller had seen already.
    fn extra(&self, due: u64) -> usize {
        let charges = self.keys.len().max(self.applied);
        charges.saturating_sub(1).max(usize::from(self.cents > due)) + self.needless
    }
}

/// What the demo itself did.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    /// How often the worker was killed.
    pub(super) kills: u32,
    /// How long it all took.
    pub(super) took: Duration,
}

impl Tally {
    /// Counts.
    pub(super) fn new(log: &[Entry], setup: &Setup, runs: &Runs, done: Done) -> Self {
        let (orders, steps) = (setup.orders, runs.steps);
        let accounts = accounts(log);
        let (mut duplicates, mut lost) = (0, 0);
        for number in 1..=orders {
            let (id, due) = (orders::id(&setup.batch, number), orders::due(number));
            let account = accounts.get(id.as_str());
            duplicates += account.map_or(0, |account| account.extra(due));
            let paid = account.is_some_and(|account| account.cents >= due);
            lost += usize::from(!paid || !runs.finished.contains(&id));
        }
        // Only the orders of this demo count.
        let ours: Vec<&Entry> = log.iter().filter(|entry| setup.is_ours(&entry.charge.order)).collect();
        let charges = ours.iter().filter(|entry| entry.applied).count();
        let seconds = (done.took.as_secs_f64() * 1000.0).round() / 1000.0;
        let (kills, raw_calls) = (done.kills, ours.len());
        Self { orders, steps, kills, charges, raw_calls, duplicates, lost, seconds }
    }

    /// Nothing was charged twice, nothing was lost, and it was not for want of trying.
    pub(super) fn holds(&self) -> bool {
        self.duplicates == 0 && self.lost == 0 && self.raw_calls > self.charges
    }

    /// Names and values, for a table.
    pub(super) fn columns(&self) -> Vec<(&'static str, String)> {
        vec![
            ("orders", self.orders.to_string()),
            ("steps", self.steps.to_string()),
            ("kills", self.kills.to_string()),
            ("charges", self.charges.to_string()),
            ("raw calls", self.raw_calls.to_string()),
            ("duplicates", self.duplicates.to_string()),
            ("lost", self.lost.to_string()),
            ("time", format!("{:.1} s", self.seconds)),
        ]
    }

    /// What it proves, or that it failed to.
    pub(super) fn verdict(&self, [between, upon]: [usize; 2]) -> String {
        let Self { orders, charges, raw_calls, duplicates, lost, .. } = self;
        let times = |count: usize| counted(count as u64, "time");
        if self.holds() {
            let upon = match upon {
                0 => ".".to_owned(),
                _ => format!(",\n{upon} in the moment in which its answer was seen."),
            };
            let (kills, asked, moved) = (times(self.kills as usize), times(*raw_calls), times(*charges));
            return format!(
                "Every order was charged exactly once and shipped, though its worker was killed {kills}:\n\
                 {between} of these kills struck after the bank had moved money and before its answer arrived{upon}\n\
                 The bank was asked {asked} and moved money {moved}: repeated calls had their first key.\n\
                 All this is counted from the bank's own log."
            );
        }
        if raw_calls <= charges && *duplicates == 0 && *lost == 0 {
            return "No call had to be repeated, so this proves nothing: more kills are needed.".into();
        }
        format!(
            "BROKEN: of {orders} orders, {lost} were lost, and {duplicates} charges were made or asked for twice."
        )
    }
}

fn accounts(log: &[Entry]) -> BTreeMap<&str, Account<'_>> {
    let mut accounts = BTreeMap::<_, Account<'_>>::new();
    for Entry { charge, applied, seen } in log {
        let account = accounts.entry(charge.order.as_str()).or_default();
        account.keys.insert(&charge.key);
        account.needless += usize::from(*seen);
        if *applied {
            account.applied += 1;
            account.cents += charge.cents;
        }
    }
    accounts
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Place, ledger::Charge},
        *,
    };
    use hapax::core::id::Namespace;
    use std::path::PathBuf;

    fn call(number: u32, key: &str, applied: bool) -> Entry {
        let (order, cents) = (orders::id("o", number), orders::due(number));
        let charge = Charge { key: key.into(), order, case: String::new(), cents };
        Entry { charge, applied, seen: false }
    }

    fn tally(log: &[Entry], finished: &[u32]) -> Tally {
        let place = Place { store: "".into(), namespace: Namespace::default() };
        let (batch, folder) = ("o".into(), PathBuf::new());
        let setup = Setup { orders: 2, kills: 1, seed: 0, place, batch, folder };
        let finished = finished.iter().map(|number| orders::id("o", *number)).collect();
        let done = Done { kills: 1, took: Duration::from_millis(1500) };
        Tally::new(log, &setup, &Runs { finished, steps: 8 }, done)
    }

    #[test]
    fn a_repeated_call_is_no_duplicate_charge() {
        let tally = tally(&[call(1, "a", true), call(1, "a", false), call(2, "b", true)], &[1, 2]);
        assert!(tally.holds());
        assert_eq!(
            serde_json::to_string(&tally).unwrap(),
            r#"{"orders":2,"steps":8,"kills":1,"charges":2,"raw_calls":3,"duplicates":0,"lost":0,"seconds":1.5}"#
        );
    }

    #[test]
    fn the_orders_of_another_demo_are_not_counted() {
        let mut other = call(1, "z", true);
        other.charge.order = orders::id("other", 1);
        let log = [call(1, "a", true), call(1, "a", false), call(2, "b", true), other];
        let tally = tally(&log, &[1, 2]);
        assert_eq!((tally.charges, tally.raw_calls, tally.holds()), (2, 3, true));
    }

    #[test]
    fn a_second_key_is_a_duplicate_charge() {
        let tally = tally(&[call(1, "a", true), call(1, "b", true), call(2, "c", true)], &[1, 2]);
        assert_eq!((tally.duplicates, tally.lost, tally.holds()), (1, 0, false));
    }

    #[test]
    fn an_answer_that_was_seen_and_is_asked_for_again_is_a_duplicate() {
        let again = Entry { seen: true, ..call(1, "a", false) };
        let tally = tally(&[call(1, "a", true), again, call(2, "c", true)], &[1, 2]);
        assert_eq!((tally.duplicates, tally.lost, tally.holds()), (1, 0, false));
    }

    #[test]
    fn money_that_moved_twice_under_one_key_is_a_duplicate_charge() {
        let tally = tally(&[call(1, "a", true), call(1, "a", true), call(2, "c", true)], &[1, 2]);
        assert_eq!((tally.duplicates, tally.holds()), (1, false));
    }

    #[test]
    fn an_order_without_charge_or_end_is_lost() {
        let log = [call(1, "a", true), call(1, "a", false), call(2, "b", true)];
        assert_eq!(tally(&log[..2], &[1, 2]).lost, 1);
        assert_eq!(tally(&log, &[2]).lost, 1);
        assert!(!tally(&log, &[2]).holds());
    }

    #[test]
    fn nothing_repeated_proves_nothing() {
        assert!(!tally(&[call(1, "a", true), call(2, "b", true)], &[1, 2]).holds());
    }
}
