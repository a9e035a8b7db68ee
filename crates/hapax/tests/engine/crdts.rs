//! Conflict-free fields through the engine: branches that write side by side, whichever is done first, and whatever dies.

use crate::common::{Diary, Process, Signal, engine, memory};
use futures::{FutureExt, future::BoxFuture};
use hapax::{
    ConflictPolicy, Ctx,
    core::{commit::Write as StoreWrite, json::Json},
    crdt::{CrdtMap, GCounter, GSet, Lww, Max, Min, OrSet, PnCounter, Replica},
    dynamic::{Dynamic, Reduce, Registry, Returned},
    prelude::*,
};
use proptest::{collection::vec, prelude::*};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    future::ready,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Each field is called by the word for it in graphs from values.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Shared {
    #[state(crdt)]
    g_counter: GCounter,
    #[state(crdt)]
    pn_counter: PnCounter,
    #[state(crdt)]
    lww: Lww<u64>,
    #[state(crdt)]
    max_register: Max<u64>,
    #[state(crdt)]
    min_register: Min<u64>,
    #[state(crdt)]
    g_set: GSet<u64>,
    #[state(crdt)]
    or_set: OrSet<u64>,
    #[state(crdt)]
    counters: CrdtMap<String, PnCounter>,
    #[state(crdt)]
    g_counters: CrdtMap<String, GCounter>,
    #[state(crdt)]
    registers: CrdtMap<String, Lww<u64>>,
    #[state(crdt)]
    max_registers: CrdtMap<String, Max<u64>>,
    #[state(crdt)]
    min_registers: CrdtMap<String, Min<u64>>,
    #[state(crdt)]
    g_sets: CrdtMap<String, GSet<u64>>,
    #[state(crdt)]
    or_sets: CrdtMap<String, OrSet<u64>>,
}

const START: Node = Node::new("start");
const BRANCH: Node<u64> = Node::new("branch");
const BRANCHES: u64 = 8;

fn part(n: u64) -> String {
    (n / 2 % 3).to_string()
}

/// Everything that a branch can write, to what it sees.
fn writes(state: &Shared, by: &Replica, n: u64) -> SharedDelta {
    let adds = n.is_multiple_of(2);
    let count = |count: &PnCounter| if adds { count.added(by, n) } else { count.removed(by, n) };
    let tags = if adds { state.or_set.added(n, by) } else { state.or_set.removed(&(n - 1)) };
    // Of the round before.
    let gone = n.saturating_sub(1 + BRANCHES);
    let sets = if adds {
        state.or_sets.with(part(n), |tags| tags.added(n, by))
    } else {
        state.or_sets.with(part(gone), |tags| tags.removed(&gone))
    };
    Shared::delta()
        .g_counter(state.g_counter.added(by, n))
        .pn_counter(count(&state.pn_counter))
        .lww(state.lww.set(n, by))
        .max_register(Max::of(n))
        .min_register(Min::of(n))
        .g_set(GSet::of(n))
        .or_set(tags)
        .counters(state.counters.with(part(n), count))
        .g_counters(state.g_counters.with(part(n), |votes| votes.added(by, 1)))
        .registers(state.registers.with(part(n), |title| title.set(n, by)))
        .max_registers(state.max_registers.with(part(n), |_| Max::of(n)))
        .min_registers(state.min_registers.with(part(n), |_| Min::of(n)))
        .g_sets(state.g_sets.with(part(n), |_| GSet::of(n)))
        .or_sets(sets)
}

/// What a branch waits for before it writes.
type Turn = Arc<dyn Fn(u64) -> BoxFuture<'static, ()> + Send + Sync>;

fn at_once() -> Turn {
    Arc::new(|_| ready(()).boxed())
}

/// Each branch lets the others go first for a while.
fn paused(pauses: Vec<usize>) -> Turn {
    Arc::new(move |n| {
        let pauses = pauses[n as usize];
        async move {
            for _ in 0..pauses {
                tokio::task::yield_now().await;
            }
        }
        .boxed()
    })
}

/// Those that come first in a round end last.
fn backwards(finished: &Diary) -> Turn {
    let turns: Arc<Vec<Signal>> = Arc::new((0..=BRANCHES * 2).map(|_| Signal::default()).collect());
    let finished = finished.clone();
    turns[BRANCHES as usize].give();
    turns[BRANCHES as usize * 2].give();
    Arc::new(move |n| {
        let (turns, finished) = (turns.clone(), finished.clone());
        async move {
            turns[n as usize + 1].take().await;
            finished.note(n.to_string());
            // The first of a round may be waited for by nobody.
            turns[n as usize].give();
        }
        .boxed()
    })
}

/// Two rounds of branches.
fn in_code(turn: &Turn) -> Graph<Shared> {
    let turn = turn.clone();
    let start = |_: Ctx<Shared>| ready(Shared::delta().fork((0..BRANCHES).map(|n| BRANCH.with(n))));
    let branch = move |ctx: Ctx<Shared>, n: u64| {
        let turn = turn(n);
        async move {
            turn.await;
            let delta = writes(&ctx.state(), &Replica::from(ctx.path_hash()), n);
            if n < BRANCHES { delta.fork([BRANCH.with(n + BRANCHES)]) } else { delta.stop() }
        }
    };
    Graph::new("shared", 1, START).node(START, start).node(BRANCH, branch)
}

/// The same as a value, with a field of every conflict-free word.
fn from_a_value(turn: &Turn) -> Graph<Dynamic> {
    let turn = turn.clone();
    let branch = move |ctx: Ctx<Dynamic>, n: Value| {
        let n = n.as_u64().unwrap();
        let turn = turn(n);
        async move {
            turn.await;
            let state: Shared = serde_json::from_value(ctx.state().value())?;
            let delta = writes(&state, &Replica::from(ctx.path_hash()), n);
            let wrote = Returned::wrote(serde_json::to_value(delta)?);
            Ok::<_, NodeError>(if n < BRANCHES {
                wrote.fork([("branch", n + BRANCHES)])
            } else {
                wrote.stop()
            })
        }
    };
    let crdts = Reduce::ALL.map(Reduce::word).into_iter().skip_while(|word| *word != "g_counter");
    let fields: Value = crdts.map(|word| (word.to_owned(), json!(word))).collect();
    let description = json!({
        "name": "shared",
        "start": "start",
        "fields": fields,
        "nodes": [{"name": "start", "routes": true}, {"name": "branch", "routes": true, "input": true}]
    });
    Registry::new()
        .node("start", async |_, _| Ok(Returned::from(()).fork((0..BRANCHES).map(|n| ("branch", n)))))
        .node("branch", branch)
        .graph(&description)
        .unwrap()
}

/// The end of a run, and the keys and digests of its steps.
async fn end_of<S: State>(graph: Graph<S>, start: S, policy: ConflictPolicy) -> (S, Vec<(String, String)>) {
    let options = Options::default().conflict_policy(policy).max_concurrent_nodes(BRANCHES as usize);
    let engine = engine(options);
    let flow = engine.register(graph, ()).await.unwrap();
    let end = flow.start("run", start).await.unwrap().wait().await.unwrap();
    let key = engine.record("run").await.unwrap().key;
    let steps = engine.store().checkpoints(key, 0, usize::MAX).await.unwrap();
    let steps = steps.iter().map(|step| (format!("{:?}", step.key), format!("{:?}", step.digest)));
    (end, steps.collect())
}

fn nothing() -> Dynamic {
    serde_json::to_value(Shared::default()).unwrap().into()
}

#[tokio::test]
async fn branches_write_side_by_side_and_every_write_counts() {
    let (state, _) = end_of(in_code(&at_once()), Shared::default(), ConflictPolicy::Fail).await;
    let all = 0..BRANCHES * 2;
    assert_eq!(state.g_counter.value(), all.clone().sum::<u64>());
    let (up, down): (Vec<u64>, Vec<u64>) = all.clone().partition(|n| n % 2 == 0);
    let expected = i128::from(up.iter().sum::<u64>()) - i128::from(down.iter().sum::<u64>());
    assert_eq!(state.pn_counter.value(), expected);
    assert_eq!(state.counters.iter().map(|(_, count)| count.value()).sum::<i128>(), expected);
    assert_eq!((state.max_register.get(), state.min_register.get()), (Some(&15), Some(&0)));
    assert_eq!(state.g_set.iter().copied().collect::<BTreeSet<_>>(), all.clone().collect());
    assert_eq!(state.g_counters.iter().map(|(_, votes)| votes.value()).sum::<u64>(), all.count() as u64);
    assert!(*state.lww.get().unwrap() >= BRANCHES, "the second round has seen the first");
    // Nobody of a round has seen what the others of that round add, so nothing of it is taken out.
    assert_eq!(state.or_set.iter().copied().collect::<Vec<_>>(), up);
    // What the first round added is what the second takes out.
    let tagged: BTreeSet<u64> = state.or_sets.iter().flat_map(|(_, tags)| tags.iter().copied()).collect();
    assert_eq!(tagged, BTreeSet::from([8, 10, 12, 14]));
}

#[tokio::test]
async fn whichever_branch_is_done_first_the_fields_are_the_same() {
    let finished = Diary::default();
    let (forwards, _) = end_of(in_code(&at_once()), Shared::default(), ConflictPolicy::Crdt).await;
    let (backwards, _) =
        end_of(in_code(&backwards(&finished)), Shared::default(), ConflictPolicy::Crdt).await;
    assert_eq!(finished.all()[..3], ["7", "6", "5"]);
    assert_eq!(forwards, backwards);
    assert_eq!(
        serde_json::to_string(&forwards).unwrap(),
        serde_json::to_string(&backwards).unwrap(),
        "byte for byte"
    );
}

#[tokio::test]
async fn a_described_graph_of_every_word_has_the_keys_and_digests_of_its_typed_twin() {
    let (typed, steps) = end_of(in_code(&at_once()), Shared::default(), ConflictPolicy::Fail).await;
    let graph = from_a_value(&backwards(&Diary::default()));
    let (described, described_steps) = end_of(graph, nothing(), ConflictPolicy::Fail).await;
    assert_eq!(Json::of(&described).unwrap(), Json::of(&typed).unwrap());
    assert_eq!(described_steps, steps);
}

/// What a run comes to whose process dies in the middle of a fork, after so many branches are journaled.
fn through_a_crash<S: State>(
    graph: impl Fn() -> Graph<S>,
    start: S,
    concurrent: usize,
    journaled: usize,
) -> Json {
    let (store, appended) = (memory(), AtomicUsize::new(0));
    let fatal = move |write: &StoreWrite| {
        matches!(write, StoreWrite::Append(_)) && appended.fetch_add(1, Ordering::SeqCst) == journaled
    };
    let options = || Options::default().max_concurrent_nodes(concurrent);
    let process = Process::dying_before(&store, fatal);
    process.run(async {
        let flow = process.engine(options()).register(graph(), ()).await.unwrap();
        flow.start("run", start).await.unwrap();
        process.died().await;
    });
    process.crash();
    let process = Process::healthy(&store);
    let end = process.run(async {
        let flow = process.engine(options()).register(graph(), ()).await.unwrap();
        flow.attach("run").await.unwrap().wait().await.unwrap()
    });
    Json::of(&end).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_is_done_first_and_wherever_a_process_dies_the_fields_are_the_same(
        pauses in vec(0..8usize, BRANCHES as usize * 2),
        concurrent in 1..=BRANCHES as usize,
        journaled in 0..BRANCHES as usize * 2,
        described: bool,
    ) {
        let turn = paused(pauses);
        let end = if described {
            through_a_crash(|| from_a_value(&turn), nothing(), concurrent, journaled)
        } else {
            through_a_crash(|| in_code(&turn), Shared::default(), concurrent, journaled)
        };
        let undisturbed = end_of(in_code(&at_once()), Shared::default(), ConflictPolicy::Fail);
        let undisturbed = Process::healthy(&memory()).run(undisturbed).0;
        prop_assert_eq!(end, Json::of(&undisturbed).unwrap());
    }
}
