//! Conflict-free fields through the engine: branches that write side by side, whichever is done first.

use crate::common::{Diary, Signal, engine};
use hapax::{
    ConflictPolicy,
    crdt::{CrdtMap, GCounter, GSet, Lww, Max, Min, OrSet, PnCounter, Replica},
    prelude::*,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, sync::Arc};

#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Shared {
    #[state(crdt)]
    grow: GCounter,
    #[state(crdt)]
    count: PnCounter,
    #[state(crdt)]
    last: Lww<u64>,
    #[state(crdt)]
    high: Max<u64>,
    #[state(crdt)]
    low: Min<u64>,
    #[state(crdt)]
    seen: GSet<u64>,
    #[state(crdt)]
    tags: OrSet<u64>,
    #[state(crdt)]
    map: CrdtMap<String, GCounter>,
}

const START: Node = Node::new("start");
const BRANCH: Node<u64> = Node::new("branch");
const BRANCHES: u64 = 8;

/// Everything that a branch can write, to what it sees.
fn writes(state: &Shared, by: &Replica, n: u64) -> SharedDelta {
    let count = if n.is_multiple_of(2) { state.count.added(by, n) } else { state.count.removed(by, n) };
    let tags = if n.is_multiple_of(2) { state.tags.added(n, by) } else { state.tags.removed(&(n - 1)) };
    Shared::delta()
        .grow(state.grow.added(by, n))
        .count(count)
        .last(state.last.set(n, by))
        .high(Max::of(n))
        .low(Min::of(n))
        .seen(GSet::of(n))
        .tags(tags)
        .map(state.map.with((n % 3).to_string(), |votes| votes.added(by, 1)))
}

/// Two rounds of branches under a policy; those that come first end last where that is asked for.
async fn two_rounds(policy: ConflictPolicy, backwards: bool) -> (Shared, Vec<String>) {
    let turns: Arc<Vec<Signal>> = Arc::new((0..=BRANCHES * 2).map(|_| Signal::default()).collect());
    let finished = Diary::default();
    if backwards {
        turns[BRANCHES as usize].give();
        turns[BRANCHES as usize * 2].give();
    }
    let rounds = |state: &Shared| if state.seen.iter().next().is_none() { 1 } else { 2 };
    let start = |_: hapax::Ctx<Shared>| {
        std::future::ready(Shared::delta().fork((0..BRANCHES).map(|n| BRANCH.with(n))))
    };
    let (waits, notes) = (turns.clone(), finished.clone());
    let branch = move |ctx: hapax::Ctx<Shared>, n: u64| {
        let (turns, finished) = (waits.clone(), notes.clone());
        async move {
            let state = ctx.state();
            let round = rounds(&state);
            let place = (round - 1) * BRANCHES + n % BRANCHES;
            if backwards {
                turns[place as usize + 1].take().await;
            }
            finished.note(n.to_string());
            // The first of a round may be waited for by nobody.
            turns[place as usize].give();
            let delta = writes(&state, &Replica::from(ctx.path_hash()), n);
            if round == 1 { delta.fork([BRANCH.with(n + BRANCHES)]) } else { delta.stop() }
        }
    };
    let graph = Graph::new("shared", 1, START).node(START, start).node(BRANCH, branch);
    let options = Options::default().conflict_policy(policy).max_concurrent_nodes(BRANCHES as usize);
    let flow = engine(options).register(graph, ()).await.unwrap();
    let state = flow.start("run", Shared::default()).await.unwrap().wait().await.unwrap();
    (state, finished.all())
}

#[tokio::test]
async fn branches_write_side_by_side_and_every_write_counts() {
    let (state, _) = two_rounds(ConflictPolicy::Fail, false).await;
    let all = 0..BRANCHES * 2;
    assert_eq!(state.grow.value(), all.clone().sum::<u64>());
    let (up, down): (Vec<u64>, Vec<u64>) = all.clone().partition(|n| n % 2 == 0);
    let expected = i128::from(up.iter().sum::<u64>()) - i128::from(down.iter().sum::<u64>());
    assert_eq!(state.count.value(), expected);
    assert_eq!((state.high.get(), state.low.get()), (Some(&15), Some(&0)));
    assert_eq!(state.seen.iter().copied().collect::<BTreeSet<_>>(), all.clone().collect());
    assert_eq!(state.map.iter().map(|(_, votes)| votes.value()).sum::<u64>(), all.count() as u64);
    assert!(*state.last.get().unwrap() >= BRANCHES, "the second round has seen the first");
    // Nobody of a round has seen what the others of that round add, so nothing of it is taken out.
    assert_eq!(state.tags.iter().copied().collect::<Vec<_>>(), up);
}

#[tokio::test]
async fn whichever_branch_is_done_first_the_fields_are_the_same() {
    let (forwards, _) = two_rounds(ConflictPolicy::Crdt, false).await;
    let (backwards, finished) = two_rounds(ConflictPolicy::Crdt, true).await;
    assert_eq!(finished[..3], ["7", "6", "5"]);
    assert_eq!(forwards, backwards);
    assert_eq!(
        serde_json::to_string(&forwards).unwrap(),
        serde_json::to_string(&backwards).unwrap(),
        "byte for byte"
    );
}
