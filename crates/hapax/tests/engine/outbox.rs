//! Messages leave with the step that sent them, and a relay delivers them in order.

use crate::common::*;
use futures::future::BoxFuture;
use hapax::{
    Coded, Effects, NodePolicy,
    core::{commit::Write as StoreWrite, error::code, journal::Entry, trace::TraceId},
    outbox::{Delivery, FileSink, OnPoison, RelayOptions, Sink, SinkError},
    prelude::*,
    store::{
        Store,
        outbox::{MessageState, OutboxFilter},
    },
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

const WORK: Node = Node::new("work");
const LEFT: Node = Node::new("left");
const RIGHT: Node = Node::new("right");
const HANDLE: Node<NodeFailure> = Node::new("handle");
/// Longer than any test lasts.
const LONG: Duration = Duration::from_secs(3600);
/// What takes so long never comes.
const GIVE_UP: Duration = Duration::from_secs(60);

/// All messages of the store as `topic/key payload state`.
async fn rows(store: &Arc<dyn Store>) -> Vec<String> {
    let records = store.outbox().list(OutboxFilter::default()).await.unwrap();
    let row = |record: &hapax::store::outbox::OutboxRecord| {
        let message = &record.message;
        format!("{}/{} {} {}", message.topic, message.key, message.payload.as_str(), record.state.word())
    };
    records.iter().map(row).collect()
}

/// What arrived, and which payloads are refused.
#[derive(Clone, Default)]
struct Outside {
    diary: Diary,
    ids: Arc<Mutex<Vec<String>>>,
    came: Signal,
    refused: Arc<Mutex<BTreeSet<String>>>,
    down: Arc<Mutex<bool>>,
}

impl Outside {
    fn refusing(texts: &[&str]) -> Self {
        let outside = Self::default();
        outside.refused.lock().unwrap().extend(texts.iter().map(|text| format!("{text:?}")));
        outside
    }
}

impl Sink for Outside {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            if *self.down.lock().unwrap() {
                return Err(SinkError::unavailable("nobody there"));
            }
            if self.refused.lock().unwrap().contains(message.payload.as_str()) {
                return Err(SinkError::refused("poison"));
            }
            self.diary.note(format!("{} {}", message.topic, message.payload.as_str()));
            self.ids.lock().unwrap().push(message.id.clone());
            self.came.give();
            Ok(())
        })
    }
}

fn at_once() -> RelayOptions {
    RelayOptions::default().backoff(|_| Duration::ZERO).max_attempts(3)
}

/// An engine whose run has sent these to topic `t`.
async fn sent(texts: &[&str]) -> Engine {
    let engine = engine(Options::default());
    let texts: Arc<Vec<String>> = Arc::new(texts.iter().map(|text| (*text).to_owned()).collect());
    let work = node!(
        [texts] | ctx | {
            for text in texts.iter() {
                ctx.emit("t", "k", text)?;
            }
            Ok::<(), NodeError>(())
        }
    );
    let flow = engine.register(Graph::new("sends", 1, WORK).node(WORK, work), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    engine
}

#[tokio::test]
async fn messages_leave_in_the_order_of_items_and_calls() {
    let store = memory();
    let work = node!(
        [] | ctx | {
            ctx.emit("t", "", "first")?;
            let (mut b, mut a) = (ctx.scope("b"), ctx.scope("a"));
            b.emit("t", "", "lane b")?;
            a.emit("t", "", "lane a")?;
            ctx.emit("t", "", "second")?;
            Ok::<(), NodeError>(())
        }
    );
    let says = |word: &'static str| {
        node!(
            [] | ctx | {
                ctx.emit("t", word, &1)?;
                Ok::<(), NodeError>(())
            }
        )
    };
    let graph = Graph::new("orders", 1, WORK)
        .node(WORK, work)
        .node(LEFT, says("left"))
        .node(RIGHT, says("right"))
        .edge(WORK, LEFT)
        .edge(WORK, RIGHT);
    let flow = Engine::builder().with_store(store.clone()).register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let expected = [
        "t/ \"first\" pending",
        "t/ \"second\" pending",
        "t/ \"lane a\" pending",
        "t/ \"lane b\" pending",
        "t/left 1 pending",
        "t/right 1 pending",
    ];
    assert_eq!(rows(&store).await, expected);
}

#[tokio::test]
async fn a_failed_attempt_sends_nothing_and_a_repeated_one_sends_once() {
    let store = memory();
    let work = node!(
        [] | ctx | {
            ctx.emit("t", "", &ctx.attempt())?;
            if ctx.attempt() < 3 { Err(NodeError::new("again")) } else { Ok(()) }
        }
    );
    let fails = node!(
        [] | ctx | {
            ctx.emit("t", "", "never")?;
            Err::<(), _>(NodeError::new("no").fatal())
        }
    );
    let retry = NodePolicy::default().retry(Retry::standard().backoff(|_| Duration::ZERO));
    let graph = Graph::new("tries", 1, WORK)
        .node(WORK, work)
        .node(LEFT, fails)
        .node(HANDLE, |_: Ctx, _: NodeFailure| std::future::ready(()))
        .edge(WORK, LEFT)
        .on_error(LEFT, HANDLE)
        .policy(WORK, retry);
    let flow = Engine::builder().with_store(store.clone()).register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(rows(&store).await, ["t/ 3 pending"]);
}

/// Of two items one is done and journaled when the process dies before the step's commit.
#[test]
fn the_messages_of_a_finished_item_survive_a_crash_that_runs_the_others_again() {
    let (store, runs) = (memory(), Diary::default());
    let graph = || {
        let says = |word: &'static str| {
            node!(
                [runs] | ctx | {
                    runs.note(word);
                    ctx.emit("t", "", word)?;
                    Ok::<(), NodeError>(())
                }
            )
        };
        Graph::new("two", 1, WORK)
            .node(WORK, |_: Ctx| std::future::ready(()))
            .node(LEFT, says("left"))
            .node(RIGHT, says("right"))
            .edge(WORK, LEFT)
            .edge(WORK, RIGHT)
    };
    let done = Mutex::new(0);
    let dying = Process::dying_before(&store, move |write| {
        let is_done = |entry: &Entry| matches!(entry, Entry::ItemDone { .. });
        let StoreWrite::Append(append) = write else { return false };
        let mut done = done.lock().unwrap();
        *done += append.rows.iter().filter(|row| is_done(&row.entry)).count();
        *done == 2
    });
    let engine = dying.engine(Options::default());
    dying.run_to_death(async {
        let flow = engine.register(graph(), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
    });
    assert_eq!(runs.len(), 2);
    let process = Process::healthy(&store);
    process.run(async {
        let flow = process.engine(Options::default()).register(graph(), ()).await.unwrap();
        flow.attach("run").await.unwrap().wait().await.unwrap();
        assert_eq!(rows(&store).await, ["t/ \"left\" pending", "t/ \"right\" pending"]);
    });
    assert_eq!(runs.len(), 3, "only the one that wasn't journaled ran again");
}

async fn failed_with(
    work: impl Fn(&mut Ctx) -> Result<(), hapax::EffectError> + Send + Sync + 'static,
) -> String {
    let store = memory();
    let node = move |mut ctx: Ctx| std::future::ready(work(&mut ctx));
    let graph = Graph::new("refused", 1, WORK).node(WORK, node);
    let flow = Engine::builder().with_store(store.clone()).register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert!(rows(&store).await.is_empty());
    error.code().to_owned()
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_where_it_is_sent() {
    assert_eq!(failed_with(|ctx| ctx.emit("", "", &1)).await, code::INVALID_ID);
    assert_eq!(failed_with(|ctx| ctx.emit("two\nlines", "", &1)).await, code::INVALID_ID);
    assert_eq!(failed_with(|ctx| ctx.emit("t", &"k".repeat(256), &1)).await, code::INVALID_ID);
    assert_eq!(failed_with(|ctx| ctx.emit("t", "", &f64::NAN)).await, code::NOT_SERIALISABLE);
    assert_eq!(failed_with(|ctx| ctx.emit("t", "", &"x".repeat(16 << 20))).await, code::LIMIT);
    let half = "x".repeat(9 << 20);
    let twice = move |ctx: &mut Ctx| ctx.emit("t", "", &half).and_then(|()| ctx.emit("t", "", &half));
    assert_eq!(failed_with(twice).await, code::LIMIT, "the messages of an item share the limit");
}

#[tokio::test]
async fn a_node_that_changes_nothing_outside_cannot_send() {
    let work = node!(
        [] | ctx | {
            // Even a node that doesn't look at the answer fails.
            let _ = ctx.emit("t", "", &1);
        }
    );
    let policy = NodePolicy::default().effects(Effects::Reads);
    let graph = Graph::new("quiet", 1, WORK).node(WORK, work).policy(WORK, policy);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(error.code(), code::UNDECLARED_EFFECT);
}

/// It would look again in an hour.
#[tokio::test]
async fn a_relay_hears_at_once_of_what_its_engine_sends() {
    let engine = engine(Options::default());
    let outside = Outside::default();
    let relay = engine.relay(at_once().poll_interval(LONG), outside.clone()).unwrap();
    let work = node!(
        [] | ctx | {
            ctx.emit("t", "", "hello")?;
            Ok::<(), NodeError>(())
        }
    );
    let flow = engine.register(Graph::new("sends", 1, WORK).node(WORK, work), ()).await.unwrap();
    for run in ["one", "two"] {
        until_idle_briefly().await;
        flow.start(run, Board::default()).await.unwrap().wait().await.unwrap();
        outside.came.take().await;
    }
    relay.stop().await;
    assert_eq!(rows(&engine.store()).await, ["t/ \"hello\" sent"; 2]);
}

/// Lets the other tasks of this thread come to rest.
async fn until_idle_briefly() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_refused_message_stops_its_topic_until_it_is_taken_or_dead() {
    let engine = sent(&["a", "poison", "b"]).await;
    let outside = Outside::refusing(&["poison"]);
    let delivered = engine.deliver(at_once(), &outside).await.unwrap();
    assert_eq!((delivered.sent, delivered.refused, delivered.dead), (2, 2, 1));
    assert_eq!(outside.diary.all(), ["t \"a\"", "t \"b\""]);
    assert_eq!(rows(&engine.store()).await, ["t/k \"a\" sent", "t/k \"poison\" dead", "t/k \"b\" sent"]);
    outside.refused.lock().unwrap().clear();
    assert_eq!(engine.retry_dead("run").await.unwrap(), 1);
    assert_eq!(engine.deliver(at_once(), &outside).await.unwrap().sent, 1);
    let states = vec![MessageState::Dead, MessageState::Pending];
    assert!(engine.outbox(OutboxFilter { states, ..OutboxFilter::default() }).await.unwrap().is_empty());
}

#[tokio::test]
async fn poison_that_blocks_keeps_the_order() {
    let engine = sent(&["a", "poison", "b"]).await;
    let outside = Outside::refusing(&["poison"]);
    let refusals = Arc::new(Mutex::new(0));
    let count = refusals.clone();
    let often = move |_: u32| {
        let mut refusals = count.lock().unwrap();
        *refusals += 1;
        if *refusals < 10 { Duration::ZERO } else { LONG }
    };
    let block = RelayOptions::default().max_attempts(2).on_poison(OnPoison::Block).backoff(often);
    let delivered = engine.deliver(block, &outside).await.unwrap();
    assert_eq!((delivered.sent, delivered.refused, delivered.dead), (1, 10, 0));
    assert_eq!(outside.diary.all(), ["t \"a\""]);
    assert_eq!(
        rows(&engine.store()).await,
        ["t/k \"a\" sent", "t/k \"poison\" pending", "t/k \"b\" pending"]
    );
}

#[tokio::test]
async fn a_sink_that_cannot_be_reached_costs_no_message_an_attempt() {
    let engine = sent(&["a", "b"]).await;
    let outside = Outside::default();
    *outside.down.lock().unwrap() = true;
    for _ in 0..10 {
        let delivered = engine.deliver(at_once(), &outside).await.unwrap();
        assert!(delivered.unavailable.is_some() && delivered.sent == 0);
    }
    assert!(engine.outbox(OutboxFilter::default()).await.unwrap().iter().all(|record| record.attempts == 0));
    *outside.down.lock().unwrap() = false;
    assert_eq!(engine.deliver(at_once(), &outside).await.unwrap().sent, 2);
    assert_eq!(outside.diary.all(), ["t \"a\"", "t \"b\""]);
}

/// Knows which pairs of run and topic are being delivered.
#[derive(Clone, Default)]
struct Narrow {
    inside: Arc<Mutex<BTreeSet<String>>>,
    outside: Outside,
}

impl Sink for Narrow {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let channel = format!("{} {}", message.run, message.topic);
            assert!(
                self.inside.lock().unwrap().insert(channel.clone()),
                "{channel} is delivered twice at once"
            );
            tokio::task::yield_now().await;
            self.outside.publish(message).await?;
            self.inside.lock().unwrap().remove(&channel);
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_share_the_work_and_never_a_run_and_topic() {
    let store = memory();
    let work = node!(
        [] | ctx | {
            for number in 0..20 {
                ctx.emit(if number % 2 == 0 { "even" } else { "odd" }, "", &number)?;
            }
            Ok::<(), NodeError>(())
        }
    );
    let first = Engine::builder().with_store(store.clone());
    let flow = first.register(Graph::new("sends", 1, WORK).node(WORK, work), ()).await.unwrap();
    let narrow = Narrow::default();
    let others: Vec<Engine> = (0..3).map(|_| Engine::builder().with_store(store.clone())).collect();
    let options = || at_once().batch(3).poll_interval(Duration::from_millis(1));
    for engine in others.iter().chain([&first]) {
        engine.relay(options(), narrow.clone()).unwrap();
    }
    for run in 0..5 {
        flow.start(&format!("run {run}"), Board::default()).await.unwrap().wait().await.unwrap();
    }
    for _ in 0..100 {
        narrow.outside.came.take().await;
    }
    for engine in others.iter().chain([&first]) {
        engine.shutdown(LONG).await;
    }
    assert!(rows(&store).await.iter().all(|row| row.ends_with(" sent")));
    let ids = narrow.outside.ids.lock().unwrap().clone();
    assert_eq!((ids.len(), ids.iter().collect::<BTreeSet<_>>().len()), (100, 100));
}

/// Its messages to `slow` are taken one by one, when the test wants it.
#[derive(Clone, Default)]
struct Slow {
    begun: Signal,
    go_on: Signal,
    outside: Outside,
}

impl Sink for Slow {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            if message.topic == "slow" {
                self.begun.give();
                self.go_on.take().await;
            }
            self.outside.publish(message).await
        })
    }
}

/// Two runs and two topics; the second is sent while a message of the first is under way.
#[tokio::test]
async fn a_slow_topic_holds_up_no_other() {
    let engine = engine(Options::default());
    let work = node!(
        [] | ctx | {
            let topic = ctx.run_id().to_string();
            for number in 0..3 {
                ctx.emit(&topic, "", &number)?;
            }
            Ok::<(), NodeError>(())
        }
    );
    let flow = engine.register(Graph::new("sends", 1, WORK).node(WORK, work), ()).await.unwrap();
    let slow = Slow::default();
    let relay = engine.relay(at_once().poll_interval(LONG).claim_ttl(LONG), slow.clone()).unwrap();
    flow.start("slow", Board::default()).await.unwrap().wait().await.unwrap();
    slow.begun.take().await;
    flow.start("fast", Board::default()).await.unwrap().wait().await.unwrap();
    let fast = async {
        for _ in 0..3 {
            slow.outside.came.take().await;
        }
    };
    tokio::time::timeout(GIVE_UP, fast).await.expect("the fast one waits for the slow one");
    for _ in 0..3 {
        slow.go_on.give();
        slow.outside.came.take().await;
    }
    relay.stop().await;
    let all = ["fast 0", "fast 1", "fast 2", "slow 0", "slow 1", "slow 2"];
    assert_eq!(slow.outside.diary.all(), all);
    assert!(rows(&engine.store()).await.iter().all(|row| row.ends_with(" sent")));
}

/// Samples the traces of half of the runs.
struct Half;

impl hapax::watch::Watch for Half {
    fn over(&self, _: hapax::watch::Span) {}

    fn samples(&self, trace: TraceId) -> bool {
        trace == TraceId::of(&key("run"))
    }
}

#[tokio::test]
async fn a_trace_is_sampled_for_receivers_if_it_is_for_the_engine() {
    for (watched, flags) in [(false, "-00"), (true, "-01")] {
        let (engine, kept) = (sent(&["a"]).await, Kept::default());
        if watched {
            engine.watch(Arc::new(Half)).unwrap();
        }
        engine.deliver(at_once(), &kept).await.unwrap();
        let delivery = kept.0.lock().unwrap().remove(0);
        assert!(delivery.traceparent().ends_with(flags), "{}", delivery.traceparent());
    }
}

/// Keeps what it gets.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<Delivery>>>);

impl Sink for Kept {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        self.0.lock().unwrap().push(message.clone());
        Box::pin(std::future::ready(Ok(())))
    }
}

#[tokio::test]
async fn an_event_has_its_time_and_a_source_that_is_one() {
    let (engine, kept) = (sent(&["a"]).await, Kept::default());
    for source in ["/a b", "://"] {
        let refused = engine.deliver(at_once().cloud_events(source), &kept).await.unwrap_err();
        assert_eq!(refused.code(), code::EVENT_SOURCE);
        assert_eq!(engine.relay(at_once().cloud_events(source), kept.clone()).unwrap_err().code(), "HX0075");
    }
    engine.deliver(at_once().cloud_events("urn:shop"), &kept).await.unwrap();
    let event = serde_json::to_value(&kept.0.lock().unwrap()[0]).unwrap();
    let written = engine.outbox(OutboxFilter::default()).await.unwrap()[0].written_at_us;
    let time: jiff::Timestamp = event["time"].as_str().unwrap().parse().unwrap();
    assert_eq!((time.as_microsecond(), &event["source"]), (written, &"urn:shop".into()));
}

fn numbered(number: u64) -> Delivery {
    let payload = hapax::core::json::Json::of(&number).unwrap();
    Delivery::new(&format!("msg:{number}"), key("run"), 1, payload)
}

/// The payloads of the lines of a file that are messages.
fn kept_in(path: &std::path::Path) -> Vec<u64> {
    let text = std::fs::read_to_string(path).unwrap();
    let read = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["payload"].as_u64();
    text.lines().filter_map(read).collect()
}

/// As another relay leaves it that dies while the disk is full.
#[tokio::test]
async fn a_line_that_another_relay_tore_spoils_no_message() {
    use std::io::Write as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("messages.ndjson");
    let sink = FileSink::open(&path).unwrap();
    sink.publish(&numbered(1)).await.unwrap();
    let mut other = std::fs::File::options().append(true).open(&path).unwrap();
    other.write_all(b"{\"id\":\"msg:ha").unwrap();
    sink.publish(&numbered(2)).await.unwrap();
    sink.publish(&numbered(3)).await.unwrap();
    assert_eq!(kept_in(&path), [1, 2, 3]);
    assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 4);
}

/// By an operator, or by a program that rotates logs.
#[tokio::test]
async fn a_file_that_is_moved_or_deleted_is_made_again_and_loses_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let [path, moved] = ["messages.ndjson", "messages.1"].map(|name| folder.path().join(name));
    let sink = FileSink::open(&path).unwrap();
    sink.publish(&numbered(1)).await.unwrap();
    std::fs::rename(&path, &moved).unwrap();
    sink.publish(&numbered(2)).await.unwrap();
    assert_eq!((kept_in(&moved), kept_in(&path)), (vec![1], vec![2]));
    std::fs::remove_file(&path).unwrap();
    sink.publish(&numbered(3)).await.unwrap();
    assert_eq!(kept_in(&path), [3]);
    std::fs::rename(&moved, &path).unwrap();
    sink.publish(&numbered(4)).await.unwrap();
    assert_eq!(kept_in(&path), [1, 4], "another file has taken its place");
    drop(folder);
    assert!(sink.publish(&numbered(5)).await.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn a_file_keeps_a_line_for_each_message_and_survives_a_torn_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("messages.ndjson");
    std::fs::write(&path, "{\"id\":\"half").unwrap();
    let engine = sent(&["a", "b"]).await;
    let sink = FileSink::open(&path).unwrap();
    assert_eq!(engine.deliver(at_once(), &sink).await.unwrap().sent, 2);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "{\"id\":\"half"));
    let line: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
    let id =
        hapax::core::outbox::message_id(&key("run"), hapax::core::outbox::Place { step: 1, position: 0 });
    let expected = serde_json::json!({
        "id": id, "topic": "t", "key": "k", "payload": "a", "namespace": "default", "run": "run", "step": 1
    });
    assert_eq!(line, expected);
    assert!(text.ends_with('\n'));
}
