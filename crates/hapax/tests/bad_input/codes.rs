//! Every error code has a page, and a way to meet it through the public API.
//!
//! A new code without a page or without a line in [`PROVOCATIONS`] fails here.

use crate::common::*;
use futures::future::BoxFuture;
#[cfg(feature = "http")]
use hapax::http::Request;
use hapax::{
    Coded, Error, NodePolicy, Run,
    core::{
        commit::{Append, StatusChange, StepCommit, Wake, Write as StoreWrite},
        error::{Code, code},
    },
    prelude::*,
    store::{Claimant, Created, MemoryStore, NewRun, Pace, Store, StoreError, Ticket},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

const WORK: Node = Node::new("work");
const LEFT: Node = Node::new("left");
const RIGHT: Node = Node::new("right");

type Provocation = fn() -> BoxFuture<'static, Code>;

macro_rules! provocations {
    ($($code:ident => $provoke:expr,)*) => {
        &[$((code::$code, || Box::pin($provoke))),*]
    };
}

const PROVOCATIONS: &[(Code, Provocation)] = provocations! {
    INVALID_ID => async { refused(quiet(), "two\nlines").await },
    NO_START => async { unsound(Graph::new("graph", 1, LEFT).node(WORK, idle)) },
    UNKNOWN_NODE => async { unsound(quiet().edge(WORK, LEFT)) },
    DUPLICATE => async { unsound(quiet().node(WORK, idle)) },
    UNREACHABLE => async { unsound(quiet().node(LEFT, idle)) },
    JOIN_CANNOT_FILL => async { unsound(quiet().node(LEFT, idle).join((WORK, LEFT), LEFT)) },
    NO_ROUTE => async { failed(quiet().edge_if(WORK, WORK, "never", |_| false)).await },
    NO_PROGRESS => async { failed(half_a_join()).await },
    MERGE_CONFLICT => async { failed(two_writers()).await },
    UNKNOWN_TARGET => async { failed(graph(node!([] |ctx| { Board::delta().goto(LEFT) }))).await },
    LIMIT => async { failed(graph(node!([] |ctx| { Board::delta().word("x".repeat(20 << 20)) }))).await },
    STATE_SHAPE => async { stored_as_something_else().await },
    NOT_SERIALISABLE => async { failed(graph(sends_nan)).await },
    OWN_HANDLER => async { unsound(quiet().on_error(WORK, Node::new("work"))) },
    IMPURE => async { failed(two_answers()).await },
    UNSUPPORTED_VERSION => async { failed(graph(node!([] |ctx| { ctx.version("change", 2, 1).map(drop) }))).await },
    EVENT_SOURCE => async {
        let options = hapax::outbox::RelayOptions::default().cloud_events("no source");
        let deliver = engine(Options::default()).deliver(options, &hapax::outbox::StdoutSink).await;
        deliver.unwrap_err().code()
    },
    GRAPH_DESCRIPTION => async {
        let nothing = hapax::dynamic::Registry::<()>::new();
        nothing.graph(&serde_json::json!({"name": "graph"})).err().unwrap().code()
    },
    CANNOT_FORK => async {
        let engine = engine(Options::default());
        let flow = engine.register(quiet(), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
        engine.fork(hapax::Fork::at("run", 7)).await.unwrap_err().code()
    },
    NOT_ALONE => async { failed(half_a_join_begins_anew()).await },
    NODE_FAILED => async { failed(graph(node!([] |ctx| { Err::<(), _>(NodeError::new("no")) }))).await },
    NODE_TIMEOUT => async {
        let policy = NodePolicy::default().timeout(Duration::from_millis(1));
        failed(graph(node!([] |ctx| { forever().await; })).policy(WORK, policy)).await
    },
    NODE_PANICKED => async { failed(graph(panics)).await },
    BUDGET_EXCEEDED => async {
        let options = Options::default().run_budget(Duration::from_millis(1));
        failed_with(options, graph(node!([] |ctx| { forever().await; }))).await
    },
    MAX_STEPS => async { failed_with(Options::default().max_steps(Some(3)), quiet().edge(WORK, WORK)).await },
    CANCELLED => async { cancelled().await },
    ALREADY_FINISHED => async { finished().await.cancel().await.unwrap_err().code() },
    RUN_EXISTS => async { another_input().await },
    RUN_NOT_FOUND => async { engine(Options::default()).status("nobody").await.unwrap_err().code() },
    GRAPH_MISMATCH => async { followed_by(quiet().node(LEFT, idle).edge(WORK, LEFT)).await },
    RUN_HELD => async { held_elsewhere().await },
    REPLAY_MISMATCH => async {
        failed(graph(node!([] |ctx| { drop((ctx.scope("lane"), ctx.scope("lane"))); }))).await
    },
    SHUT_DOWN => async { started_after_the_end().await },
    DEAD_HANDLE => async { called_after_the_end().await },
    NOT_REGISTERED => async { followed_by(Graph::new("another", 1, WORK).node(WORK, idle)).await },
    NOT_FAILED => async { retried_while_it_runs().await },
    EFFECT_FAILED => async { failed(graph(calls_in_vain)).await },
    UNDECLARED_EFFECT => async {
        let policy = NodePolicy::default().effects(hapax::Effects::None);
        failed(graph(calls_in_vain).policy(WORK, policy)).await
    },
    NOT_IN_DOUBT => async {
        let engine = engine(Options::default());
        let listens = graph(node!([] |ctx| { ctx.signal::<()>("never").await }));
        engine.register(listens, ()).await.unwrap().start("run", Board::default()).await.unwrap();
        engine.resolve("run", "call", hapax::Resolution::Retry).await.unwrap_err().code()
    },
    BAD_DURATION => async { failed(graph(node!([] |ctx| { ctx.sleep(Duration::MAX).await }))).await },
    ANSWER_REJECTED => async { answered("yes").await },
    NO_QUESTION => async { answered("another").await },
    STORE_RETRY => async { after_a_gap().await },
    STORE_UNKNOWN => async { unanswered().await },
    FENCED => async { of_a_stale_holder().await },
    CONFLICT => async { of_two_minds().await },
    CORRUPT => async { tampered_with().await },
    STORE_FULL => async { full() },
    SCHEMA_TOO_NEW => async { newer().await },
    CANNOT_OPEN => async { opened(Path::new("/nowhere/at/all.db")).await },
    NETWORK_FILE_SYSTEM => async { on_nfs() },
    READ_ONLY => async { opened(Path::new("/sys/runs.db")).await },
    CLAIM_LOST => async { marked_without_a_claim().await },
    SINK_FAILED => async { hapax::outbox::FileSink::open("/nowhere/at/all.ndjson").unwrap_err().code() },
    BAD_URL => async { Engine::open("floppy:a").await.unwrap_err().code() },
};

/// One branch begins anew beside another.
fn half_a_join_begins_anew() -> Graph<Board> {
    let anew = node!([] | ctx | { Outcome::continue_as(&Board::default()) });
    quiet().node(LEFT, anew).node(RIGHT, idle).edge(WORK, LEFT).edge(WORK, RIGHT)
}

/// Its predicate counts how often it is asked.
fn two_answers() -> Graph<Board> {
    let asked = std::sync::atomic::AtomicU32::new(0);
    let odd = move |_: &Board| asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % 2 == 1;
    quiet().edge_if(WORK, WORK, "odd", odd)
}

/// Only met with the feature `http`.
const OF_HTTP: [Code; 5] =
    [code::HTTP_INVALID, code::HTTP_STATUS, code::HTTP_NO_ANSWER, code::HTTP_TOO_LARGE, code::HTTP_BODY];

#[cfg(not(feature = "http"))]
const HTTP_PROVOCATIONS: &[(Code, Provocation)] = &[];

#[cfg(feature = "http")]
const HTTP_PROVOCATIONS: &[(Code, Provocation)] = provocations! {
    HTTP_INVALID => async { requested("", |_| Request::get("/relative")).await },
    HTTP_STATUS => async { requested("HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n", Request::get).await },
    HTTP_NO_ANSWER => async { requested("", Request::get).await },
    HTTP_TOO_LARGE => async { requested(TEN_BYTES, |url| Request::get(url).max_body(9)).await },
    HTTP_BODY => async { requested(TEN_BYTES, Request::get).await },
};

/// Not of the library: the tests of `hapax-cli` meet them.
const OF_THE_COMMAND_LINE: [Code; 6] = [
    code::USAGE,
    code::SYSTEM,
    code::BAD_PROGRAM,
    code::FINDS_WORK,
    code::INTERRUPTED,
    code::REQUEST_NOT_FOUND,
];

/// What clients of a service are told: the tests of `hapax-requests` meet them over sockets.
const OF_REQUESTS: [Code; 12] = [
    code::REQUEST_KEY_MISSING,
    code::REQUEST_KEY_INVALID,
    code::REQUEST_NO_PRINCIPAL,
    code::REQUEST_NAME_INVALID,
    code::REQUEST_BODY_BROKEN,
    code::REQUEST_BODY_TOO_LARGE,
    code::REQUEST_MISMATCH,
    code::REQUEST_IN_FLIGHT,
    code::REQUEST_STORE_DOWN,
    code::REQUEST_ANSWER_TOO_LARGE,
    code::REQUEST_LOST,
    code::REQUEST_UNREADABLE,
];

/// Only met with the feature `encryption`: the tests of `hapax-store` meet them on every store, and those of `rotate` the last.
const OF_KEYS: [Code; 5] =
    [code::KEY_MISSING, code::KEY_WRONG, code::NOT_ENCRYPTED, code::BAD_KEYRING, code::KEYS_DIFFER];

/// Of object stores: the same tests meet the first, and the examples of `Resting` the second.
const OF_OBJECTS: [Code; 2] = [code::NO_DEPOT, code::BAD_DEPOT];

/// Of agents: the tests named `agents` meet them with real processes.
const OF_AGENTS: [Code; 13] = [
    code::AGENT_INVALID,
    code::AGENT_TOO_LARGE,
    code::AGENT_FAILED,
    code::AGENT_DEAD,
    code::AGENT_TIMEOUT,
    code::AGENT_PROTOCOL,
    code::AGENT_VERSION,
    code::AGENT_ARTIFACT,
    code::AGENT_OUTPUT_MISSING,
    code::AGENT_LOCKED,
    code::AGENT_ROUNDS,
    code::WORKSPACE,
    code::LEDGER,
];

/// Of sinks: the tests named `brokers` meet them with real servers.
const OF_BROKERS: [Code; 3] = [code::SINK_INVALID, code::TOPIC_UNFIT, code::NO_RECEIVER];

/// The tests of `hapax-telemetry` meet them, and those of the command line.
const OF_TELEMETRY: [Code; 2] = [code::WATCHED, code::TELEMETRY];

/// Of inboxes: the tests of `hapax-store` meet them in each database.
const OF_INBOXES: [Code; 3] = [code::INBOX_NAME, code::INBOX_NOT_DURABLE, code::INBOX_NOT_THERE];

/// Of schedules, which come with a feature: the tests named `schedules` meet them.
const OF_SCHEDULES: [Code; 6] = [
    code::BAD_CRON,
    code::BAD_ZONE,
    code::SCHEDULE_EXISTS,
    code::SCHEDULE_NOT_FOUND,
    code::BAD_SCHEDULE,
    code::SCHEDULE_INPUT,
];

/// Of flow control: the tests named `flow_control` meet them.
const OF_FLOW_CONTROL: [Code; 3] = [code::BAD_TERMS, code::SINGLETON_TAKEN, code::FLOW_NAME_ELSEWHERE];

/// Of moving house and of shards: the tests of `hapax-store` named `house` and `sharded` meet them.
const OF_HOUSES: [Code; 7] = [
    code::RUN_MOVING,
    code::RUN_MOVED,
    code::COPY_DIFFERS,
    code::ARRIVAL_TAKEN,
    code::BAD_EXPORT,
    code::SHARD_MAP,
    code::SHARD_SPLIT,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_code_can_be_met() {
    let lists: [&[Code]; 11] = [
        &OF_HOUSES,
        &OF_KEYS,
        &OF_OBJECTS,
        &OF_THE_COMMAND_LINE,
        &OF_REQUESTS,
        &OF_AGENTS,
        &OF_BROKERS,
        &OF_TELEMETRY,
        &OF_INBOXES,
        &OF_SCHEDULES,
        &OF_FLOW_CONTROL,
    ];
    let elsewhere = |code: &Code| lists.iter().any(|list| list.contains(code));
    for code in code::ALL.iter().filter(|code| !elsewhere(code)) {
        let mut provocations = PROVOCATIONS.iter().chain(HTTP_PROVOCATIONS);
        let provoke = provocations.find(|(provoked, _)| provoked == code);
        if provoke.is_none() && OF_HTTP.contains(code) && cfg!(not(feature = "http")) {
            continue;
        }
        let (_, provoke) = provoke.unwrap_or_else(|| panic!("nothing in PROVOCATIONS leads to {code}"));
        assert_eq!(provoke().await, *code);
    }
}

#[test]
fn every_code_has_a_page_with_cause_and_cure() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
    let index = std::fs::read_to_string(folder.join("README.md")).unwrap();
    for code in code::ALL {
        let page = std::fs::read_to_string(folder.join(format!("{code}.md"))).expect(code);
        assert!(page.starts_with(&format!("# {code}: ")), "{code} has no title");
        for part in ["## What happened", "## Why", "## What to do"] {
            assert!(page.contains(part), "{code} lacks {part:?}");
        }
        assert!(page.lines().count() <= 30, "{code} is longer than anybody reads");
        assert!(index.contains(&format!("[{code}]({code}.md)")), "{code} is not in the index");
    }
}

async fn idle(_: Ctx) {}

async fn panics(_: Ctx) {
    panic!("on purpose")
}

/// A run that asks for a number gets the answer "no" to its question, or to one that it doesn't ask.
async fn answered(question: &str) -> Code {
    let engine = engine(Options::default());
    let asks = graph(node!(
        [] | ctx | {
            let question = hapax::Question::new("how many?").schema(serde_json::json!({ "type": "integer" }));
            ctx.ask::<u64>("yes", question).await.map(drop)
        }
    ));
    let mut events = engine.events();
    engine.register(asks, ()).await.unwrap().start("run", Board::default()).await.unwrap();
    hear(&mut events, |event| matches!(event, hapax::Event::RunEnded { .. })).await;
    engine.answer("run", question, "no").await.unwrap_err().code()
}

async fn calls_in_vain(mut ctx: Ctx) -> hapax::Result<()> {
    ctx.effect("call", Write, &1, async |_| Err::<u64, _>(NodeError::new("engaged"))).await?;
    Ok(())
}

async fn sends_nan(mut ctx: Ctx) -> hapax::Result<()> {
    ctx.effect("call", Write, &f64::NAN, async |_| Ok::<u64, NodeError>(1)).await?;
    Ok(())
}

#[cfg(feature = "http")]
const TEN_BYTES: &str = "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789";

/// A node that wants a number, and a server that says this to whoever asks and hangs up.
#[cfg(feature = "http")]
async fn requested(said: &'static str, request: fn(&str) -> Request) -> Code {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut stream = listener.accept()?.0;
        let _request = stream.read(&mut [0; 4096])?;
        stream.write_all(said.as_bytes())
    });
    let client = hapax::http::Client::builder().no_proxy().no_system_roots().build().unwrap();
    let asks = node!(
        [client, url] | ctx | {
            let text: String = ctx.http("ask", &client, request(&url)).await?.json()?;
            Ok::<_, NodeError>(Board::delta().word(text))
        }
    );
    failed(graph(asks)).await
}

fn graph<M>(work: impl hapax::IntoNode<Board, (), (), M>) -> Graph<Board> {
    Graph::new("graph", 1, WORK).node(WORK, work)
}

fn quiet() -> Graph<Board> {
    graph(idle)
}

fn half_a_join() -> Graph<Board> {
    let stop = node!([] | ctx | { Board::delta().stop() });
    quiet().node(LEFT, stop).node(RIGHT, idle).edge(WORK, LEFT).edge(WORK, RIGHT).join((LEFT, RIGHT), WORK)
}

fn two_writers() -> Graph<Board> {
    let say = |word: &'static str| node!([] | ctx | { Board::delta().word(word.to_owned()) });
    quiet().node(LEFT, say("l")).node(RIGHT, say("r")).edge(WORK, LEFT).edge(WORK, RIGHT)
}

fn unsound(graph: Graph<Board>) -> Code {
    graph.check().unwrap_err().code()
}

async fn refused(graph: Graph<Board>, run: &str) -> Code {
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    flow.start(run, Board::default()).await.unwrap_err().code()
}

async fn failed(graph: Graph<Board>) -> Code {
    failed_with(Options::default(), graph).await
}

async fn failed_with(options: Options, graph: Graph<Board>) -> Code {
    let flow = engine(options).register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err().code()
}

async fn finished() -> Run<Board> {
    let flow = engine(Options::default()).register(quiet(), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    run.wait().await.unwrap();
    run
}

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Other {
    needed: String,
}

async fn stored_as_something_else() -> Code {
    let engine = engine(Options::default());
    let flow = engine.register(quiet(), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let idle = |_: hapax::Ctx<Other>| std::future::ready(());
    let other = engine.register(Graph::new("graph", 1, WORK).node(WORK, idle), ()).await.unwrap();
    other.attach("run").await.unwrap().wait().await.unwrap_err().code()
}

/// A run whose node is at work and stays there.
async fn at_work() -> (Engine, hapax::Flow<Board>, Run<Board>) {
    let reached = Signal::default();
    let work = node!(
        [reached] | ctx | {
            reached.give();
            ctx.cancelled().cancelled().await;
        }
    );
    let engine = engine(Options::default());
    let flow = engine.register(graph(work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    (engine, flow, run)
}

async fn cancelled() -> Code {
    let (_engine, _flow, run) = at_work().await;
    run.cancel().await.unwrap();
    run.wait().await.unwrap_err().code()
}

async fn another_input() -> Code {
    let (_engine, flow, _run) = at_work().await;
    flow.start("run", Board { total: 1, ..Board::default() }).await.unwrap_err().code()
}

async fn retried_while_it_runs() -> Code {
    let (_engine, flow, _run) = at_work().await;
    flow.retry("run").await.unwrap_err().code()
}

async fn held_elsewhere() -> Code {
    let (engine, ..) = at_work().await;
    let second = Engine::builder().with_store(engine.store());
    let flow = second.register(quiet(), ()).await.unwrap();
    flow.resume("run").await.unwrap_err().code()
}

/// Attaches with another graph to a run that is there.
async fn followed_by(graph: Graph<Board>) -> Code {
    let (engine, ..) = at_work().await;
    let flow = engine.register(graph, ()).await.unwrap();
    flow.attach("run").await.unwrap_err().code()
}

async fn started_after_the_end() -> Code {
    let engine = engine(Options::default());
    let flow = engine.register(quiet(), ()).await.unwrap();
    engine.shutdown(Duration::ZERO).await;
    flow.start("run", Board::default()).await.unwrap_err().code()
}

async fn called_after_the_end() -> Code {
    let kept: Arc<Mutex<Option<Ctx>>> = Arc::default();
    let keep = node!(
        [kept] | ctx | {
            *kept.lock().unwrap() = Some(ctx);
        }
    );
    let flow = engine(Options::default()).register(graph(keep), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let mut ctx = kept.lock().unwrap().take().unwrap();
    let late = ctx.effect("late", Write, &1, async |_| Ok::<u64, NodeError>(1)).await.unwrap_err();
    NodeError::from(late).code()
}

/// A store with one finished run, and its second step as it was written, to be written again by somebody else.
async fn written() -> (Arc<dyn Store>, StepCommit) {
    let store: Arc<dyn Store> = MemoryStore::shared();
    let engine = Engine::builder().with_store(store.clone());
    let flow = engine.register(quiet(), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let record = engine.record("run").await.unwrap();
    let before = store.checkpoint(key("run"), 0).await.unwrap().unwrap();
    let checkpoint = store.checkpoint(key("run"), 1).await.unwrap().unwrap();
    let commit = StepCommit {
        run: key("run"),
        epoch: record.epoch,
        follows: 0,
        base: before.digest,
        checkpoint,
        first_seq: 0,
        journal: vec![],
        outbox: vec![],
        ends: true,
        fresh: None,
        used_us: 0,
    };
    (store, commit)
}

async fn outcome(store: &Arc<dyn Store>, write: StoreWrite) -> Code {
    store.submit(Arc::new(write), Pace::Alone).await.unwrap().await.unwrap_err().code()
}

async fn after_a_gap() -> Code {
    let (store, commit) = written().await;
    let StepCommit { run, epoch, .. } = commit;
    let append = Append { run, epoch, first_seq: 99, rows: vec![], unless_cancelled: false };
    outcome(&store, StoreWrite::Append(append)).await
}

async fn unanswered() -> Code {
    let (writer, ticket) = Ticket::new();
    drop(writer);
    ticket.await.unwrap_err().code()
}

async fn marked_without_a_claim() -> Code {
    let (store, commit) = written().await;
    let channel = hapax::store::outbox::Channel { run: commit.run, topic: "mail".into() };
    let claim = hapax::store::outbox::Claim { channel, token: 7 };
    store.outbox().mark_sent(claim, vec![], None).await.unwrap_err().code()
}

async fn of_a_stale_holder() -> Code {
    let (store, commit) = written().await;
    let (run, mut epoch, status) = (commit.run, commit.epoch, hapax::Status::Running);
    epoch.counter -= 1;
    outcome(
        &store,
        StoreWrite::Status(StatusChange {
            run,
            epoch,
            status,
            release: true,
            used_us: 0,
            wake: Wake::default(),
        }),
    )
    .await
}

async fn of_two_minds() -> Code {
    let (store, mut commit) = written().await;
    commit.checkpoint.digest.0[0] ^= 1;
    outcome(&store, StoreWrite::Step(Box::new(commit))).await
}

async fn tampered_with() -> Code {
    let (store, commit) = written().await;
    let mut checkpoint = store.checkpoint(commit.run, 0).await.unwrap().unwrap();
    checkpoint.state = br#"{"log":[],"total":999,"word":null}"#.to_vec().into();
    let claim = Some(Claimant { owner: "nobody".into(), ttl: Duration::ZERO });
    let (fingerprint, input) = (checkpoint.digest, checkpoint.digest);
    let tags = BTreeMap::new();
    let new = NewRun {
        key: key("forged"),
        graph: "graph".into(),
        fingerprint,
        input,
        checkpoint,
        tags,
        claim,
        parent: None,
        terms: hapax::control::Terms::default(),
        journal: vec![],
    };
    assert!(matches!(store.create(new).await, Ok(Created::New(_))));
    let error: Error = store.load(key("forged")).await.unwrap_err().into();
    error.code()
}

fn full() -> Code {
    crate::full_disk::in_a_small_world()
}

async fn opened(path: &Path) -> Code {
    crate::files::refusal(path).await.0
}

async fn newer() -> Code {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let engine = Engine::open(&format!("sqlite:{}", path.display())).await.unwrap();
    engine.shutdown(Duration::ZERO).await;
    let outside = rusqlite::Connection::open(&path).unwrap();
    outside.execute("UPDATE hapax_schema SET version = 99", ()).unwrap();
    opened(&path).await
}

fn on_nfs() -> Code {
    const NFS: u64 = 0x6969;
    let error: StoreError = hapax::store::sqlite::check_file_system(Path::new("runs.db"), NFS).unwrap_err();
    error.code()
}
