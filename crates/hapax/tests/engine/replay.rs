//! Replay: a run again from its record, with the outside out of reach; and the places where changed code is found out.

use crate::common::*;
use hapax::{
    Divergence, NodePolicy, Replay, State, Status,
    core::error::code,
    prelude::*,
    store::{BoxFuture, Store},
    testing::Lab,
};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const START: Node = Node::new("start");
const LEFT: Node<u64> = Node::new("left");
const RIGHT: Node<u64> = Node::new("right");
const PAY: Node = Node::new("pay");
const EXCUSE: Node<hapax::NodeFailure> = Node::new("excuse");
const WAIT: Node = Node::new("wait");

/// How the code of a graph differs from the one that made the record.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Change {
    Nothing,
    Delta,
    Route,
    Draws,
    Order,
    Request,
    MoreCalls,
    FewerCalls,
    LaneCall,
    Message,
    Failure,
    LoneDelta,
    LoneRoute,
}

/// A graph that does everything that is recorded. Whoever calls the outside notes it.
fn graph(outside: &Diary, change: Change) -> Graph<Board> {
    let is = move |other| change == other;
    let start = node!(
        [] | ctx | {
            let roll = ctx.rng().below(1 << 40) + if is(Change::Draws) { ctx.random() % 2 } else { 0 };
            let at = ctx.now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_micros());
            let line = format!("{roll} {at} {}", ctx.uuid());
            let branches = [LEFT.with(1), RIGHT.with(2)];
            let delta = Board::delta().log(if is(Change::LoneDelta) { "other".into() } else { line });
            Ok::<_, NodeError>(if is(Change::LoneRoute) {
                delta.fork([LEFT.with(9)])
            } else {
                delta.fork(branches)
            })
        }
    );
    let pay = node!(
        [outside] | ctx | {
            if ctx.attempt() < 2 {
                return Err(NodeError::new("not yet"));
            }
            let refuse = async |_: hapax::Call| {
                outside.note("refused");
                Err::<(), _>(NodeError::new("refused"))
            };
            ctx.effect("pay", Write, &1, refuse).await.map_err(NodeError::from)?;
            Ok::<(), NodeError>(())
        }
    );
    let excuse = node!([] |ctx, failure: hapax::NodeFailure| {
        let why = if is(Change::Failure) { "another".into() } else { failure.message };
        Board::delta().log(why).goto(WAIT)
    });
    let wait = node!(
        [] | ctx | {
            ctx.sleep(Duration::from_secs(86_400)).await?;
            let word: String = ctx.signal("word").await?;
            Ok::<_, NodeError>(Board::delta().word(word))
        }
    );
    let twice = Retry::standard().backoff(|_| Duration::ZERO);
    let retry = NodePolicy::default().retry(twice.attempts(3));
    branches(Graph::new("all", 1, START), outside, change)
        .node(START, start)
        .node(PAY, pay)
        .node(EXCUSE, excuse)
        .node(WAIT, wait)
        .join((LEFT, RIGHT), PAY)
        .on_error(PAY, EXCUSE)
        .policy(PAY, retry)
}

/// The two branches, with calls in a row and side by side.
fn branches(graph: Graph<Board>, outside: &Diary, change: Change) -> Graph<Board> {
    let is = move |other| change == other;
    let left = node!([outside] |ctx, input: u64| {
        let ask = async |what: &str| {
            outside.note(what);
            Ok::<u64, NodeError>(7)
        };
        let (first, second) = if is(Change::Order) { ("b", "a") } else { ("a", "b") };
        let a: u64 = ctx.effect(first, Read, &input, async |_| ask(first).await).await?;
        let request = if is(Change::Request) { 99 } else { a };
        let b: u64 = ctx.effect(second, Write, &request, async |_| ask(second).await).await?;
        if is(Change::MoreCalls) {
            ctx.effect("c", Write, &b, async |_| ask("c").await).await?;
        }
        let total = if is(Change::Delta) { a + b + 1 } else { a + b };
        Ok::<_, NodeError>(Board::delta().total(total).log(format!("left {input}")))
    });
    let right = node!([outside] |ctx, input: u64| {
        let (mut up, mut down) = (ctx.scope("up"), ctx.scope("down"));
        let ask = async |_: hapax::Call| {
            outside.note("lane");
            Ok::<u64, NodeError>(1)
        };
        let name = if is(Change::LaneCall) { "other" } else { "lane" };
        let (a, b) = tokio::join!(up.effect("lane", Write, &1, ask), down.effect(name, Write, &2, ask));
        let more = if is(Change::FewerCalls) {
            0
        } else {
            ctx.effect("last", Write, &3, async |_| { outside.note("last"); Ok::<u64, NodeError>(1) }).await?
        };
        ctx.emit("sums", "", &if is(Change::Message) { "other" } else { "sum" })?;
        let delta = Board::delta().total(a? + b? + more).log(format!("right {input}"));
        Ok::<_, NodeError>(if is(Change::Route) { delta.stop() } else { Outcome { delta, route: hapax::Route::Edges } })
    });
    graph.node(LEFT, left).node(RIGHT, right)
}

/// A finished run of the graph as it was, in the lab, and what it called.
async fn recorded() -> (Lab, Diary) {
    let (lab, outside) = (Lab::new(), Diary::default());
    let flow = lab.engine().register(graph(&outside, Change::Nothing), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    lab.engine().signal("run", "word", "done").await.unwrap();
    let board = lab.finish(&run).await.unwrap();
    assert_eq!((board.total, board.word.as_deref()), (17, Some("done")));
    (lab, outside)
}

async fn replayed(change: Change) -> Replay {
    let (lab, outside) = recorded().await;
    let called = outside.len();
    lab.engine().register(graph(&outside, change), ()).await.unwrap();
    let replay = lab.engine().replay("run").await.unwrap();
    assert_eq!(outside.len(), called, "nothing outside is called");
    replay
}

#[tokio::test]
async fn a_run_that_does_everything_is_made_again_without_the_outside() {
    let replay = replayed(Change::Nothing).await;
    assert_eq!((replay.divergence, replay.steps, replay.items), (None, 5, 6));
    assert_eq!(replay.calls, 2 + 2 + 3 + 1 + 2);
}

/// Where the change is found: step, node, call, field.
async fn found(change: Change) -> (u64, String, String, String) {
    let Divergence { step, node, call, field, expected, got, .. } =
        replayed(change).await.divergence.unwrap_or_else(|| panic!("{change:?} isn't found"));
    assert_ne!(expected, got, "{change:?}");
    (step, node.map(|node| node.to_string()).unwrap_or_default(), call.unwrap_or_default(), field)
}

#[tokio::test]
async fn each_change_of_the_code_is_reported_where_it_is() {
    let at = |step, node: &str, call: &str, field: &str| (step, node.into(), call.into(), field.into());
    for (change, place) in [
        (Change::Delta, at(1, "left", "", "delta/total")),
        (Change::Route, at(1, "right", "", "route")),
        (Change::Draws, at(0, "start", "", "draws")),
        (Change::Order, at(1, "left", "0 a", "name")),
        (Change::Request, at(1, "left", "1 b", "request")),
        (Change::MoreCalls, at(1, "left", "2 c", "call")),
        (Change::FewerCalls, at(1, "right", "0 last", "call")),
        (Change::LaneCall, at(1, "right", "down/0 lane", "name")),
        (Change::Message, at(1, "right", "", "messages")),
        (Change::Failure, at(3, "excuse", "", "state/log/3")),
        (Change::LoneDelta, at(0, "start", "", "state/log/0")),
        (Change::LoneRoute, at(0, "start", "", "frontier")),
    ] {
        assert_eq!(found(change).await, place, "{change:?}");
    }
}

/// The board of a program whose reducer was changed.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Board")]
struct Maximal {
    #[state(append)]
    log: Vec<String>,
    #[state(max)]
    total: u64,
    word: Option<String>,
}

#[tokio::test]
async fn a_changed_reducer_is_found_in_the_merge() {
    let lab = Lab::new();
    let start = |_: Ctx| async { Board::delta().fork([LEFT.with(1), RIGHT.with(2)]) };
    let add = |_: Ctx, n: u64| async move { Board::delta().total(n) };
    let graph = Graph::new("sums", 1, START).node(START, start).node(LEFT, add).node(RIGHT, add);
    let flow = lab.engine().register(graph, ()).await.unwrap();
    assert_eq!(flow.start("run", Board::default()).await.unwrap().wait().await.unwrap().total, 3);
    let start = |_: hapax::Ctx<Maximal>| async { Maximal::delta().fork([LEFT.with(1), RIGHT.with(2)]) };
    let add = |_: hapax::Ctx<Maximal>, n: u64| async move { Maximal::delta().total(n) };
    let graph = Graph::new("sums", 1, START).node(START, start).node(LEFT, add).node(RIGHT, add);
    lab.engine().register(graph, ()).await.unwrap();
    let found = lab.engine().replay("run").await.unwrap().divergence.unwrap();
    assert_eq!((found.step, found.node, found.field.as_str()), (1, None, "state/total"));
    assert_eq!((found.expected.as_str(), found.got.as_str()), ("3", "2"));
}

#[tokio::test]
async fn a_secret_stays_one_in_the_report() {
    #[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
    struct Safe {
        #[state(secret)]
        #[serde(rename = "code")]
        pin: String,
    }
    let graph = |pin: &'static str| {
        let node = move |_: hapax::Ctx<Safe>| async move { Safe::delta().pin(pin) };
        Graph::new("safes", 1, START).node(START, node)
    };
    let engine = engine(Options::default());
    let flow = engine.register(graph("1234"), ()).await.unwrap();
    flow.start("run", Safe::default()).await.unwrap().wait().await.unwrap();
    engine.register(graph("9876"), ()).await.unwrap();
    let found = engine.replay("run").await.unwrap().divergence.unwrap();
    assert_eq!(found.field, "state/code");
    assert!(!format!("{found:?}").contains("1234") && !format!("{found:?}").contains("9876"));
}

/// A run that waits for a signal, after a call.
fn waits(outside: &Diary, name: &'static str) -> Graph<Board> {
    let work = node!(
        [outside] | ctx | {
            let ask = async |_: hapax::Call| {
                outside.note("asked");
                Ok::<u64, NodeError>(5)
            };
            let total: u64 = ctx.effect(name, Write, &1, ask).await?;
            let word: String = ctx.signal("word").await?;
            Ok::<_, NodeError>(Board::delta().total(total).word(word))
        }
    );
    Graph::new("waits", 1, START).node(START, work)
}

#[tokio::test]
async fn runs_in_flight_are_replayed_as_far_as_they_are_recorded() {
    let (lab, outside) = (Lab::new(), Diary::default());
    let flow = lab.engine().register(waits(&outside, "ask"), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    lab.until("run", |status| matches!(status, Status::Waiting { .. })).await.unwrap();
    let [replay] = lab.engine().replay_in_flight().await.unwrap().try_into().unwrap();
    assert_eq!((replay.steps, replay.items, replay.calls, replay.divergence), (0, 1, 2, None));
    lab.engine().register(waits(&outside, "ask differently"), ()).await.unwrap();
    let [replay] = lab.engine().replay_in_flight().await.unwrap().try_into().unwrap();
    let found = replay.divergence.unwrap();
    assert_eq!((found.call.as_deref(), found.field.as_str()), (Some("0 ask"), "name"));
    assert_eq!(outside.len(), 1);
    assert!(
        matches!(lab.engine().status("run").await.unwrap(), Status::Waiting { .. }),
        "it waits as before"
    );
}

/// An item that is under way and takes its time has no end in its record: that it has none now is no difference.
#[tokio::test(start_paused = true)]
async fn an_item_without_a_recorded_end_may_take_its_time() {
    for calls in [0, 1] {
        let begun = Diary::default();
        let work = node!(
            [begun] | ctx | {
                if calls > 0 {
                    ctx.effect("ask", Write, &1, async |_| Ok::<u64, NodeError>(5)).await?;
                }
                begun.note("begun");
                std::future::pending::<Result<(), NodeError>>().await
            }
        );
        let engine = engine(Options::default().node_timeout(Duration::from_secs(86_400)));
        let flow = engine.register(Graph::new("slow", 1, START).node(START, work), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        while begun.len() == 0 {
            tokio::task::yield_now().await;
        }
        let replay = engine.replay("run").await.unwrap();
        assert_eq!((replay.items, replay.calls, replay.divergence), (calls, calls, None));
    }
}

/// Counts to six, with a call for each one. With `anew` it begins anew after two and after four.
fn counts(anew: bool) -> Graph<Board> {
    let count = node!(
        [] | ctx | {
            let (total, add) = (ctx.state().total, async |_: hapax::Call| Ok::<u64, NodeError>(1));
            let one: u64 = ctx.effect("add", Write, &total, add).await?;
            Ok::<_, NodeError>(match total + one {
                6 => Board::delta().total(one).stop(),
                next @ (2 | 4) if anew => Outcome::continue_as(&Board { total: next, ..Board::default() }),
                _ => Board::delta().total(one).goto(START),
            })
        }
    );
    Graph::new("counts", 1, START).node(START, count)
}

/// Lets a worker make its next writes, one by one, as long as its run isn't over.
async fn write_on(store: Arc<dyn Store>, next: Signal, writes: usize) {
    for _ in 0..writes {
        let before = store.stats().writes;
        if store.run(key("run")).await.unwrap().unwrap().status.is_final() {
            return;
        }
        next.give();
        while store.stats().writes == before {
            tokio::task::yield_now().await;
        }
    }
}

/// When a worker writes, while its run is replayed.
#[derive(Clone, Copy, Debug)]
struct Writes {
    /// To a run that begins anew now and then.
    anew: bool,
    /// So often before the replay begins.
    before: usize,
    /// Again before its read of this number, counted from 0,
    read: usize,
    /// so often.
    then: usize,
}

/// Replays a run while it goes on. Answers also whether it did.
async fn replayed_meanwhile(writes: Writes) -> (Replay, bool) {
    let (store, next) = (memory(), Signal::default());
    let worker = Engine::builder().with_store(Arc::new(Mortal::late(store.clone(), &next)));
    let run =
        worker.register(counts(writes.anew), ()).await.unwrap().start("run", Board::default()).await.unwrap();
    write_on(store.clone(), next.clone(), writes.before).await;
    let reads = Arc::new(AtomicUsize::new(0));
    let meanwhile = {
        let (store, next, reads) = (store.clone(), next.clone(), reads.clone());
        move || -> BoxFuture<'static, ()> {
            let is_due = reads.fetch_add(1, Ordering::SeqCst) == writes.read;
            Box::pin(write_on(store.clone(), next.clone(), if is_due { writes.then } else { 0 }))
        }
    };
    let reader = Arc::new(Mortal::reading_while(store.clone(), meanwhile));
    let reader = Engine::builder().options(Options::default().finds_work(false)).with_store(reader);
    reader.register(counts(writes.anew), ()).await.unwrap();
    let replay = reader.replay("run").await.unwrap();
    write_on(store, next, usize::MAX).await;
    assert_eq!(run.wait().await.unwrap().total, 6);
    (replay, reads.load(Ordering::SeqCst) > writes.read)
}

/// A commit between two reads of a replay must not look like a record with holes. Each step makes three writes: an
/// intent, a result, a commit.
#[tokio::test]
async fn a_run_that_goes_on_meanwhile_does_not_diverge() {
    for before in 0..=18 {
        for then in 1..=7 {
            replayed_at_each_read(Writes { anew: false, before, read: 0, then }).await;
        }
    }
}

/// What is forgotten between two reads must not look like it either.
#[tokio::test]
async fn a_run_that_begins_anew_meanwhile_does_not_diverge() {
    for before in 0..=18 {
        for then in 1..=10 {
            replayed_at_each_read(Writes { anew: true, before, read: 0, then }).await;
        }
    }
}

/// The worker writes before the first read, then before the second, and so on.
async fn replayed_at_each_read(mut writes: Writes) {
    loop {
        let (replay, went_on) = replayed_meanwhile(writes).await;
        assert_eq!(replay.divergence, None, "{writes:?}");
        let (least, most) = (writes.before / 3, (writes.before + writes.then) / 3);
        let counted = writes.anew || (least..=most).contains(&(replay.steps as usize));
        assert!(counted, "{writes:?}: {} steps", replay.steps);
        if !went_on {
            assert!(writes.read > 3, "a replay takes more than {} reads", writes.read);
            return;
        }
        writes.read += 1;
    }
}

#[tokio::test]
async fn a_shape_that_is_not_compatible_diverges_before_the_first_step() {
    let (lab, outside) = recorded().await;
    let other = Lab::on(lab.engine().store(), Options::default());
    let of = |replay: Replay| replay.divergence.map(|found| (found.field, found.got)).unwrap();
    assert_eq!(
        of(other.engine().replay("run").await.unwrap()),
        ("graph".into(), "no graph of that name".into())
    );
    let changed = graph(&outside, Change::Nothing).edge(WAIT, START);
    other.engine().register(changed, ()).await.unwrap();
    assert_eq!(of(other.engine().replay("run").await.unwrap()).0, "graph");
}

#[tokio::test]
async fn a_reducer_or_predicate_with_two_answers_fails_the_run_in_debug_builds() {
    use std::sync::atomic::{AtomicU64, Ordering};
    static CALLS: AtomicU64 = AtomicU64::new(0);
    fn restless(into: &mut u64, _: u64) {
        *into = CALLS.fetch_add(1, Ordering::SeqCst);
    }
    #[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
    struct Restless {
        #[state(reduce = restless)]
        count: u64,
    }
    let engine = engine(Options::default());
    let node = |_: hapax::Ctx<Restless>| async { Restless::delta().count(1u64) };
    let flow = engine.register(Graph::new("reducer", 1, START).node(START, node), ()).await.unwrap();
    let error = flow.start("reducer", Restless::default()).await.unwrap().wait().await.unwrap_err();
    assert!(error.to_string().contains("the reducer of `count`"), "{error}");
    assert_eq!(failure(&error).code, code::IMPURE);

    let flips = |_: &Board| CALLS.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
    let node = |_: Ctx| async { Board::delta().total(1u64) };
    let graph =
        Graph::new("predicate", 1, START).node(START, node).edge_if(START, START, "flips", flips).end(START);
    let flow = engine.register(graph, ()).await.unwrap();
    let error = flow.start("predicate", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert!(error.to_string().contains("`flips`"), "{error}");
}
