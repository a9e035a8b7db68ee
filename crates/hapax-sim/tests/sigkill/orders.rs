//! Orders: killed, they end as if nothing had happened, step by step.

use crate::harness::{Harness, World};
use hapax_sim::{
    kills::{History, histories, ledger::Call},
    orders::{self, CALLS},
};
use std::collections::{BTreeMap, BTreeSet};

/// Nothing is lost, nothing is doubled, and every step is the one of the undisturbed execution.
pub(crate) fn check(harness: &Harness, undisturbed: &World) {
    let ours = harness.runtime.block_on(histories(&harness.world.db()));
    let theirs = harness.runtime.block_on(histories(&undisturbed.db()));
    assert_eq!(ours.len(), harness.numbers().len(), "orders are missing");
    for (run, (history, status, state)) in &ours {
        let (expected, _, expected_state) = &theirs[run];
        assert_same_steps(run, history, expected);
        assert_eq!(status.word(), "succeeded", "{run}");
        assert_eq!(state, expected_state, "{run}: the undisturbed execution ends otherwise");
    }
    let calls = harness.world.calls();
    let keys = |calls: &[Call]| calls.iter().map(|call| call.key.clone()).collect::<BTreeSet<_>>();
    assert_eq!(keys(&calls), keys(&undisturbed.calls()), "other keys than undisturbed");
    assert_eq!(keys(&calls).len(), harness.numbers().len() * CALLS, "lost or doubled calls");
    for number in harness.numbers() {
        let (_, _, state) = &ours[&orders::order(number).id];
        check_order(number, state, &calls);
    }
}

fn assert_same_steps(run: &str, ours: &History, undisturbed: &History) {
    let first = ours.iter().zip(undisturbed).position(|(ours, theirs)| ours != theirs);
    assert_eq!(first, None, "{run}: the first step that differs from the undisturbed execution");
    assert_eq!(ours.len(), undisturbed.len(), "{run}: another number of steps");
}

/// Each thing that an order asks of the outside has exactly one key, and its receipt is in the order.
fn check_order(number: u32, state: &[u8], calls: &[Call]) {
    let receipts = orders::requests(number).into_iter().map(|request| {
        let asked = calls.iter().filter(|call| call.request == request);
        let by_key: BTreeMap<_, _> = asked.map(|call| (&call.key, call.receipt())).collect();
        assert_eq!(by_key.len(), 1, "{request} was asked for under these keys: {by_key:?}");
        by_key.into_values().next().expect("there is one")
    });
    let expected = orders::shipped(number, receipts.collect());
    let order: orders::Order = serde_json::from_slice(state).expect("the state is an order");
    assert_eq!(order, expected);
}
