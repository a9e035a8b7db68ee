//! Adversary 4b: programs against the public API.
#[path = "common/mod.rs"]
mod common;
use common::*;
use hapax::{
    Child, Coded, EffectError, Question, Resolution, Status, StreamEvent, Unsent, prelude::*, testing::Lab,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

const WORK: Node = Node::new("work");
const A: Node = Node::new("a");
const B: Node = Node::new("b");
const CHILD: Child<Board> = Child::new("child");

async fn until(engine: &Engine, run: &str, f: impl Fn(&Status) -> bool) -> Status {
    for _ in 0..400 {
        let s = engine.status(run).await.unwrap();
        if f(&s) { return s; }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{run} stands at {:?}", engine.status(run).await.unwrap());
}
fn waiting(s: &Status) -> bool { matches!(s, Status::Waiting { .. }) }

/// A write at most once that lost its race, and a node that then fails for good: how many attempts?
#[tokio::test]
async fn t01_doubt_that_lost_its_race_then_fatal() {
    let ran = Diary::default();
    let engine = engine(Options::default());
    let work = node!([ran] |ctx| {
        ran.note("attempt");
        let (mut l, mut r) = (ctx.scope("l"), ctx.scope("r"));
        tokio::select! {
            x = l.effect("pay", WriteAtMostOnce, "q", async |_| { forever().await; Ok::<_, NodeError>(1u64) }) => { x?; }
            x = r.sleep(Duration::from_millis(50)) => { x?; }
        }
        Err::<BoardDelta, _>(NodeError::new("no").fatal())
    });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(3), run.wait()).await;
    eprintln!("t01 end {end:?} status {:?} attempts {}", engine.status("run").await, ran.len());
    assert!(ran.len() < 5, "{} attempts", ran.len());
}

/// Two items ask under one name, with different schemas.
#[tokio::test]
async fn t02_two_questions_of_one_name() {
    let engine = engine(Options::default());
    let start = node!([] |ctx| { Board::delta().fork([A.with(()), B.with(())]) });
    let a = node!([] |ctx| {
        let _: u64 = ctx.effect("slow", Read, "q", async |_| { tokio::time::sleep(Duration::from_millis(200)).await; Ok::<_, NodeError>(1) }).await?;
        let n: serde_json::Value = ctx.ask("ok", Question::new("number?").schema(json!({"type":"integer"}))).await?;
        Ok::<_, EffectError>(Board::delta().log(format!("a got {n}")))
    });
    let b = node!([] |ctx| {
        let n: serde_json::Value = ctx.ask("ok", Question::new("text?").schema(json!({"type":"string"}))).await?;
        Ok::<_, EffectError>(Board::delta().log(format!("b got {n}")))
    });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, start).node(A, a).node(B, b), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    until(&engine, "run", waiting).await;
    eprintln!("t02 inbox {:?}", engine.inbox().await.unwrap().iter().map(|q| (q.text.clone(), q.schema.clone())).collect::<Vec<_>>());
    let first = engine.answer("run", "ok", "hello").await;
    eprintln!("t02 answer string {first:?}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let second = engine.answer("run", "ok", &7).await;
    eprintln!("t02 answer 7 {second:?}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    eprintln!("t02 inbox then {:?}", engine.inbox().await.unwrap().iter().map(|q| (q.text.clone(), q.schema.clone())).collect::<Vec<_>>());
    let third = engine.answer("run", "ok", "x").await;
    eprintln!("t02 answer x {third:?}");
    let end = tokio::time::timeout(Duration::from_secs(2), run.wait()).await;
    eprintln!("t02 {end:?} {:?}", engine.status("run").await);
    let board = end.expect("every question can be answered").unwrap();
    assert!(!board.log.iter().any(|l| l.starts_with("a got \"")), "{board:?}");
}

/// A write: first attempt sent and failed, second unsent, third after 24 hours.
#[tokio::test]
async fn t03_unsent_masks_an_older_send() {
    let lab = Lab::new();
    let ran = Diary::default();
    let day = Duration::from_secs(24 * 3600);
    let work = node!([ran] |ctx| {
        let attempt = ctx.attempt();
        let call = async |call: hapax::Call| {
            ran.note(format!("{attempt} {}", call.key()));
            match attempt {
                1 => Err(NodeError::new("timeout: it may have arrived").retry_after(Duration::from_secs(3600))),
                2 => Err(NodeError::from(Unsent::new("no route")).retry_after(Duration::from_secs(24*3600))),
                _ => Ok(1u64),
            }
        };
        let n = ctx.effect("pay", Write, "q", call).await?;
        Ok::<_, EffectError>(Board::delta().total(n))
    });
    let _ = day;
    let policy = NodePolicy::default().retry(Retry::standard().attempts(5).backoff(|_| Duration::ZERO));
    let flow = lab.engine().register(Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, policy), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    let status = tokio::time::timeout(Duration::from_secs(10), lab.until("run", |s| s.is_final() || *s == Status::InDoubt)).await;
    eprintln!("t03 {status:?} {:?}", ran.all());
    assert_eq!(status.unwrap().unwrap(), Status::InDoubt);
}

/// A write in doubt after 23 hours; a person says retry; the call fails once more.
#[tokio::test]
async fn t04_after_resolve_retry_the_time_counts_anew() {
    let lab = Lab::new();
    let ran = Diary::default();
    let work = node!([ran] |ctx| {
        let attempt = ctx.attempt();
        let call = async |_: hapax::Call| {
            ran.note(format!("{attempt}"));
            match ran.len() {
                1 => Err(NodeError::new("timeout").retry_after(Duration::from_secs(24 * 3600))),
                2 => Err(NodeError::new("busy")),
                _ => Ok(1u64),
            }
        };
        let n = ctx.effect("pay", Write, "q", call).await?;
        Ok::<_, EffectError>(Board::delta().total(n))
    });
    let policy = NodePolicy::default().retry(Retry::standard().attempts(5).backoff(|_| Duration::ZERO));
    let flow = lab.engine().register(Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, policy), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    lab.until("run", |s| *s == Status::InDoubt).await.unwrap();
    lab.engine().resolve("run", "pay", Resolution::Retry).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let s = lab.engine().status("run").await.unwrap();
    eprintln!("t04 {s:?} {:?}", ran.all());
    assert_eq!(s, Status::Succeeded);
}

/// Two lanes whose 200 calls interleave win a race against a timer; then a crash; then the timer is over.
#[test]
fn t05_a_long_race_is_made_again() {
    let graph = |ran: &Diary, reached: &Signal, stuck: bool| {
        let work = node!([ran, reached] |ctx| {
            let (mut x, mut y, mut z) = (ctx.scope("x"), ctx.scope("y"), ctx.scope("z"));
            let (tx, rx) = (Arc::new(tokio::sync::Semaphore::new(1)), Arc::new(tokio::sync::Semaphore::new(0)));
            let (tx2, rx2) = (tx.clone(), rx.clone());
            let both = async {
                let one = async { for i in 0..300u64 { tx.acquire().await.unwrap().forget(); let _: u64 = x.effect("e", Read, &i, async |_| Ok::<_, NodeError>(i)).await.unwrap(); rx.add_permits(1); } };
                let two = async { for i in 0..300u64 { rx2.acquire().await.unwrap().forget(); let _: u64 = y.effect("e", Read, &i, async |_| Ok::<_, NodeError>(i)).await.unwrap(); tx2.add_permits(1); } };
                tokio::join!(one, two);
            };
            let winner = tokio::select! {
                () = both => "calls",
                s = z.sleep(Duration::from_millis(900)) => { s.unwrap(); "timer" }
            };
            ran.note(winner);
            let _: u64 = ctx.effect(winner, Write, winner, async |_| { reached.give(); if stuck { forever().await } Ok::<_, NodeError>(1) }).await?;
            Ok::<_, EffectError>(Board::delta().log(winner))
        });
        Graph::new("g", 1, WORK).node(WORK, work)
    };
    let (ran, reached, store) = (Diary::default(), Signal::default(), memory());
    crash_in(&store, graph(&ran, &reached, true), &reached);
    std::thread::sleep(Duration::from_millis(1200));
    let end = go_on(&store, graph(&ran, &reached, false));
    eprintln!("t05 {:?} {end:?}", ran.all());
    assert_eq!(end.unwrap().log, ["calls"]);
}

/// A large answer of a write, a large child.
#[tokio::test]
async fn t06_large_answers() {
    let engine = engine(Options::default());
    let ran = Diary::default();
    let big = node!([ran] |ctx| {
        ran.note("try");
        let n = ctx.effect("pay", Write, "q", async |_| { ran.note("call"); Ok::<_, NodeError>("x".repeat(17 << 20)) }).await?;
        Ok::<_, EffectError>(Board::delta().total(n.len() as u64))
    });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, big), ()).await.unwrap();
    let e = flow.start("big", Board::default()).await.unwrap().wait().await.unwrap_err();
    eprintln!("t06 write: {} {e} {:?}", e.code(), ran.all());
    let kid = node!([] |ctx| { Board::delta().word("y".repeat((16 << 20) - 200)) });
    engine.register(Graph::new("child", 1, WORK).node(WORK, kid), ()).await.unwrap();
    let parent = node!([] |ctx| {
        let c = ctx.child(CHILD, "kid", &Board::default()).await?;
        Ok::<_, EffectError>(Board::delta().total(c.word.unwrap().len() as u64))
    });
    let flow = engine.register(Graph::new("p", 1, WORK).node(WORK, parent), ()).await.unwrap();
    let e = tokio::time::timeout(Duration::from_secs(10), flow.start("par", Board::default()).await.unwrap().wait()).await;
    eprintln!("t06 child: {e:?} {:?}", engine.status("kid").await);
    assert!(e.unwrap().is_ok());
}

/// A chain of children, a hundred deep, with siblings in lanes; cancel the root.
#[tokio::test]
async fn t07_cancel_goes_down() {
    let engine = engine(Options::default());
    let node = node!([] |ctx| {
        let depth = ctx.state().total;
        if depth == 0 { let _: u64 = ctx.signal("go").await?; return Ok(Board::delta()); }
        let id = ctx.run_id().to_string();
        let (mut l, mut r, mut s) = (ctx.scope("l"), ctx.scope("r"), ctx.scope("s"));
        let state = Board { total: depth - 1, ..Board::default() };
        let leaf = Board::default();
        let (li, ri) = (format!("{id}l"), format!("{id}r"));
        let (a, b, c) = tokio::join!(l.child(CHILD, &li, &state), r.child(CHILD, &ri, &leaf), s.signal::<u64>("x"));
        a?; b?; c?;
        Ok::<_, EffectError>(Board::delta())
    });
    let flow = engine.register(Graph::new("child", 1, WORK).node(WORK, node), ()).await.unwrap();
    let run = flow.start("k", Board { total: 60, ..Board::default() }).await.unwrap();
    let last = format!("k{}", "l".repeat(60));
    for _ in 0..400 { if engine.status(&last).await.is_ok() { break; } tokio::time::sleep(Duration::from_millis(25)).await; }
    until(&engine, &last, waiting).await;
    run.cancel().await.unwrap();
    let t = std::time::Instant::now();
    for i in 0..800 {
        if engine.status(&last).await.unwrap() == Status::Cancelled { break; }
        tokio::time::sleep(Duration::from_millis(25)).await;
        if i % 40 == 0 {
            let all = engine.list(hapax::store::ListFilter { limit: 1000, ..Default::default() }).await.unwrap();
            eprintln!("t07 {:?}: {} live", t.elapsed(), all.iter().filter(|r| r.status != Status::Cancelled).count());
        }
    }
    let all = engine.list(hapax::store::ListFilter { limit: 1000, ..Default::default() }).await.unwrap();
    let bad: Vec<_> = all.iter().filter(|r| r.status != Status::Cancelled).map(|r| (r.key.to_string(), r.status.clone())).collect();
    eprintln!("t07 {} runs, not cancelled {bad:?}", all.len());
    assert!(bad.is_empty());
}

/// continue_as: keys, message ids, cursors.
#[tokio::test]
async fn t08_continue_as() {
    let engine = engine(Options::default());
    let ran = Diary::default();
    let work = node!([ran] |ctx| {
        let round = ctx.state().total;
        ctx.stream(&format!("round {round} step {}", ctx.step_id())).await?;
        let _: u64 = ctx.effect("pay", Write, "same", async |call| { ran.note(call.key()); Ok::<_, NodeError>(1) }).await?;
        ctx.emit("t", "", &round)?;
        if round < 3 {
            let _: u64 = ctx.signal("go").await?;
            return Ok(Outcome::continue_as(&Board { total: round + 1, ..Board::default() }));
        }
        Ok::<_, EffectError>(Board::delta().log("end").stop())
    });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let mut cursors = vec![0u64];
    let mut got = vec![];
    for i in 0..4 {
        until(&engine, "run", |s| waiting(s) || s.is_final()).await;
        let mut tail = engine.tail("run").from(*cursors.last().unwrap()).so_far();
        while let Some(ev) = tail.next().await.unwrap() {
            if let StreamEvent::Chunk(c) = &ev { got.push(c.payload.read::<String>().unwrap()); }
            cursors.push(ev.cursor());
        }
        if i < 3 { engine.signal("run", "go", &1).await.unwrap(); tokio::time::sleep(Duration::from_millis(200)).await; }
    }
    run.wait().await.unwrap();
    let mut keys = ran.all(); keys.sort(); keys.dedup();
    let out = engine.outbox(Default::default()).await.unwrap();
    eprintln!("t08 got {got:?} cursors {cursors:?} keys {} outbox {:?}", keys.len(), out.iter().map(|o| format!("{o:?}")).collect::<Vec<_>>());
    assert_eq!(keys.len(), 4);
    for r in 0..4 { assert!(got.iter().any(|g| g.starts_with(&format!("round {r}"))), "{r} missing"); }
}

/// A fork of a step that has waited for a child, and of one before it.
#[tokio::test]
async fn t09_fork_of_a_parent() {
    let engine = engine(Options::default());
    let kid = node!([] |ctx| { let w: u64 = ctx.signal("go").await?; Ok::<_, EffectError>(Board::delta().total(w)) });
    engine.register(Graph::new("child", 1, WORK).node(WORK, kid), ()).await.unwrap();
    let parent = node!([] |ctx| {
        let c = ctx.child(CHILD, "kid", &Board::default()).await?;
        Ok::<_, EffectError>(Board::delta().total(c.total))
    });
    let flow = engine.register(Graph::new("p", 1, WORK).node(WORK, parent), ()).await.unwrap();
    let run = flow.start("par", Board::default()).await.unwrap();
    until(&engine, "par", waiting).await;
    let f = engine.fork(hapax::Fork::at("par", 0).named("f1")).await;
    eprintln!("t09 fork while waiting: {f:?}");
    if f.is_ok() { tokio::time::sleep(Duration::from_millis(300)).await; eprintln!("t09 f1 {:?}", engine.status("f1").await); }
    engine.signal("kid", "go", &5).await.unwrap();
    run.wait().await.unwrap();
    let f = engine.fork(hapax::Fork::at("par", 0).named("f2")).await;
    eprintln!("t09 fork afterwards: {f:?}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    eprintln!("t09 f2 {:?} f1 {:?}", engine.status("f2").await, engine.status("f1").await);
}

/// The lab and a backoff of an hour.
#[tokio::test]
async fn t10_lab_backoff() {
    let lab = Lab::new();
    lab.script("x").fails("busy").fails("busy").answers(&1u64);
    let work = node!([] |ctx| { let n: u64 = ctx.effect("x", Read, "q", async |_| Ok::<_, NodeError>(1)).await?; Ok::<_, EffectError>(Board::delta().total(n)) });
    let policy = NodePolicy::default().retry(Retry::standard().attempts(5).backoff(|_| Duration::from_secs(3600)));
    let flow = lab.engine().register(Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, policy), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let r = tokio::time::timeout(Duration::from_secs(5), lab.finish(&run)).await;
    eprintln!("t10 {r:?}");
    assert!(r.is_ok());
}

/// A parent with many children in lanes.
#[tokio::test]
async fn t11_many_children() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(&format!("sqlite:{}", dir.path().join("x.db").display())).await.unwrap();
    let kid = node!([] |ctx| { Ok::<_, EffectError>(Board::delta().total(1u64)) });
    engine.register(Graph::new("child", 1, WORK).node(WORK, kid), ()).await.unwrap();
    let parent = node!([] |ctx| {
        let lanes: Vec<_> = (0..300).map(|i| ctx.scope(i)).collect();
        let board = Board::default();
        let all = futures::future::join_all(lanes.into_iter().enumerate().map(|(i, mut l)| { let board = &board; async move { l.child(CHILD, &format!("kid{i}"), board).await } })).await;
        let mut sum = 0; for c in all { sum += c?.total; }
        Ok::<_, EffectError>(Board::delta().total(sum))
    });
    let flow = engine.register(Graph::new("p", 1, WORK).node(WORK, parent), ()).await.unwrap();
    let t = std::time::Instant::now();
    let r = tokio::time::timeout(Duration::from_secs(60), flow.start("par", Board::default()).await.unwrap().wait()).await;
    eprintln!("t11 {r:?} in {:?}", t.elapsed());
    assert_eq!(r.unwrap().unwrap().total, 300);
}

/// As t01, without a pause: how many attempts in a second?
#[tokio::test]
async fn t12_doubt_loop_without_pause() {
    let ran = Diary::default();
    let engine = engine(Options::default());
    let work = node!([ran] |ctx| {
        ran.note("attempt");
        let (mut l, mut r) = (ctx.scope("l"), ctx.scope("r"));
        tokio::select! {
            x = l.effect("pay", WriteAtMostOnce, "q", async |_| { forever().await; Ok::<_, NodeError>(1u64) }) => { x?; }
            x = r.sleep(Duration::from_millis(50)) => { x?; }
        }
        Err::<BoardDelta, _>(NodeError::new("no").fatal())
    });
    let policy = NodePolicy::default().retry(Retry::none().backoff(|_| Duration::ZERO));
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, policy), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(1), run.wait()).await;
    eprintln!("t12 end {end:?} status {:?} attempts {}", engine.status("run").await, ran.len());
    eprintln!("t12 resolve {:?}", engine.resolve("run", "pay", Resolution::Fail("x".into())).await);
    assert!(ran.len() < 5, "{} attempts", ran.len());
}

/// One lane computes between its two calls and wins against a timer; then a crash.
#[test]
fn t13_a_race_with_a_computation_between() {
    let graph = |ran: &Diary, reached: &Signal, stuck: bool| {
        let work = node!([ran, reached] |ctx| {
            let (mut x, mut z) = (ctx.scope("x"), ctx.scope("z"));
            let both = async {
                let _: u64 = x.effect("one", Write, "1", async |_| Ok::<_, NodeError>(1)).await.unwrap();
                tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(20))).await.unwrap();
                let _: u64 = x.effect("two", Write, "2", async |_| Ok::<_, NodeError>(1)).await.unwrap();
            };
            let winner = tokio::select! {
                () = both => "calls",
                s = z.sleep(Duration::from_millis(900)) => { s.unwrap(); "timer" }
            };
            ran.note(winner);
            let _: u64 = ctx.effect(winner, Write, winner, async |_| { reached.give(); if stuck { forever().await } Ok::<_, NodeError>(1) }).await?;
            Ok::<_, EffectError>(Board::delta().log(winner))
        });
        Graph::new("g", 1, WORK).node(WORK, work)
    };
    let (ran, reached, store) = (Diary::default(), Signal::default(), memory());
    crash_in(&store, graph(&ran, &reached, true), &reached);
    std::thread::sleep(Duration::from_millis(1200));
    let end = go_on(&store, graph(&ran, &reached, false));
    eprintln!("t13 {:?} {end:?}", ran.all());
    let process = Process::healthy(&store);
    let again = process.run(async {
        let flow = process.engine(Options::default()).register(graph(&ran, &reached, false), ()).await?;
        flow.retry("run").await?.wait().await
    });
    eprintln!("t13 retried: {again:?}");
    assert_eq!(end.unwrap().log, ["calls"]);
}

/// Replay of a step with: an item that times out to a handler, one that panics, one that fails after a fallback, one that waits.
#[tokio::test]
async fn t14_replay_of_a_rough_step() {
    const T: Node<u64> = Node::new("t");
    const P: Node<u64> = Node::new("p");
    const F: Node<u64> = Node::new("f");
    const W: Node<u64> = Node::new("w");
    const H: Node<hapax::NodeFailure> = Node::new("h");
    let engine = engine(Options::default());
    let start = node!([] |ctx| { let n = ctx.random() % 3; Board::delta().fork([T.with(n), P.with(n), F.with(n), W.with(n)]) });
    let t = node!([] |ctx, n: u64| {
        let (mut a, mut b) = (ctx.scope("a"), ctx.scope("b"));
        let (x, y) = tokio::join!(a.effect("r", Read, &n, async |_| Ok::<_, NodeError>(n)), b.effect("w", Write, &n, async |_| { forever().await; Ok::<_, NodeError>(n) }));
        x?; y?;
        Ok::<_, EffectError>(Board::delta())
    });
    let p = node!([] |ctx, n: u64| {
        let now = ctx.now();
        let id = ctx.uuid();
        let r: u64 = ctx.effect("r", Read, &n, async |_| Ok::<_, NodeError>(n)).await?;
        ctx.emit("t", "", &r)?;
        if ctx.attempt() < 4 { panic!("{now:?} {id} {r} {}", ctx.random()); }
        Ok::<_, EffectError>(Board::delta())
    });
    let f = node!([] |ctx, n: u64| {
        let attempt = ctx.attempt();
        let r = ctx.effect("r", Write, &n, async |_| Err::<u64, _>(NodeError::new(format!("bad {attempt}")))).await;
        let back = ctx.effect("back", Write, &r.as_ref().map_err(|e| e.to_string()), async |_| Err::<u64, _>(NodeError::new(format!("worse {attempt}")))).await;
        let _ = ctx.random();
        back?;
        Ok::<_, EffectError>(Board::delta())
    });
    let w = node!([] |ctx, n: u64| {
        let (mut a, mut b) = (ctx.scope("ä/".trim_end_matches('/')), ctx.scope("名"));
        let who = tokio::select! {
            x = a.signal::<String>("go") => { x? }
            x = b.sleep(Duration::from_secs(2)) => { x?; "timer".into() }
        };
        ctx.sleep(Duration::from_millis(10)).await?;
        ctx.emit("t", "k", &who)?;
        Ok::<_, EffectError>(Board::delta().log(who))
    });
    let h = node!([] |ctx, failure: hapax::NodeFailure| {
        let _: u64 = ctx.effect("h", Write, &failure.message, async |_| Ok::<_, NodeError>(1)).await?;
        Ok::<_, EffectError>(Board::delta().log(failure.message.clone()))
    });
    let retry = Retry::standard().attempts(3).backoff(|_| Duration::ZERO);
    let pol = || NodePolicy::default().timeout(Duration::from_millis(300)).retry(retry.clone());
    let graph = Graph::new("g", 1, WORK).node(WORK, start).node(T, t).node(P, p).node(F, f).node(W, w).node(H, h)
        .policy(T, pol()).policy(P, pol()).policy(F, pol()).on_error(T, H).on_error(P, H).on_error(F, H);
    let flow = engine.register(graph, ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    for i in 0..30 {
        let r = engine.replay("run").await;
        match r { Ok(r) => r.expect_same(), Err(e) => panic!("{i}: {e}") }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until(&engine, "run", |s| waiting(s) || s.is_final()).await;
    engine.replay("run").await.unwrap().expect_same();
    engine.signal("run", "go", "né").await.unwrap();
    let end = run.wait().await;
    eprintln!("t14 {end:?}");
    engine.replay("run").await.unwrap().expect_same();
    for step in 0..3 {
        let name = format!("f{step}");
        match engine.fork(hapax::Fork::at("run", step).named(&name)).await {
            Ok(_) => {
                let e = tokio::time::timeout(Duration::from_secs(8), engine.wait(&name)).await;
                eprintln!("t14 fork {step} {e:?}");
                engine.replay(&name).await.unwrap().expect_same();
            }
            Err(e) => eprintln!("t14 fork {step}: {e}"),
        }
    }
}

/// Cancel at each kind of wait.
#[tokio::test]
async fn t15_cancel_at_each_wait() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(&format!("sqlite:{}", dir.path().join("x.db").display())).await.unwrap();
    let kid = node!([] |ctx| { let _: u64 = ctx.signal("go").await?; Ok::<_, EffectError>(Board::delta()) });
    engine.register(Graph::new("child", 1, WORK).node(WORK, kid), ()).await.unwrap();
    let work = node!([] |ctx| {
        let word = ctx.state().word.clone().unwrap();
        match &*word {
            "sleep" => ctx.sleep(Duration::from_secs(1000)).await?,
            "short" => ctx.sleep(Duration::from_millis(999)).await?,
            "signal" => ctx.signal::<u64>("x").await.map(drop)?,
            "ask" => ctx.ask::<u64>("x", Question::new("?")).await.map(drop)?,
            "child" => { let (mut a, mut b) = (ctx.scope("a"), ctx.scope("b")); let z = Board::default(); let (x, y) = tokio::join!(a.child(CHILD, "k1", &z), b.child(CHILD, "k2", &z)); x?; y?; }
            "doubt" => ctx.effect("x", WriteAtMostOnce, "", async |_| Err::<u64, _>(NodeError::new("?"))).await.map(drop)?,
            "after" => return Err(NodeError::new("later").retry_after(Duration::from_secs(100))),
            "after2" => ctx.effect("x", Write, "", async |_| Err::<u64, _>(NodeError::new("?").retry_after(Duration::from_secs(100)))).await.map(drop)?,
            "write" => ctx.effect("x", Write, "", async |_| { forever().await; Ok::<u64, NodeError>(1) }).await.map(drop)?,
            "loop" => loop { let _: u64 = ctx.effect("x", Read, "", async |_| Ok::<u64, NodeError>(1)).await?; ctx.stream("x").await?; },
            _ => {}
        }
        Ok::<_, NodeError>(Board::delta())
    });
    let policy = NodePolicy::default().retry(Retry::standard().attempts(3).backoff(|_| Duration::from_millis(300)));
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, policy), ()).await.unwrap();
    let kinds = ["sleep", "short", "signal", "ask", "child", "doubt", "after", "after2", "write", "loop"];
    for k in kinds { flow.start(k, Board { word: Some(k.into()), ..Board::default() }).await.unwrap(); }
    tokio::time::sleep(Duration::from_millis(800)).await;
    for k in kinds { eprintln!("t15 {k} {:?}", engine.status(k).await.unwrap()); engine.cancel(k).await.unwrap(); }
    for k in kinds.into_iter().chain(["k1", "k2"]) {
        let s = until(&engine, k, Status::is_final).await;
        if s != Status::Cancelled { eprintln!("t15 {k} ended as {s:?}"); }
        let late = (engine.signal(k, "x", &1).await.map(drop).map_err(|e| e.code()), engine.answer(k, "x", &1).await.map_err(|e| e.code()), engine.resolve(k, "x", Resolution::Retry).await.map_err(|e| e.code()));
        if k == "doubt" { eprintln!("t15 late {late:?}"); }
        if k != "loop" { engine.replay(k).await.unwrap().expect_same(); }
    }
}

/// Two engines on one file: each sends signals to runs that the other may hold; nothing is lost, nothing comes twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t16_signals_across_engines() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("x.db").display());
    let graph = || {
        let kid = node!([] |ctx| { let n: u64 = ctx.signal("k").await?; Ok::<_, EffectError>(Board::delta().total(n)) });
        let work = node!([] |ctx| {
            let i = ctx.state().total;
            let id = format!("{}-{i}", ctx.run_id());
            let (mut a, mut b) = (ctx.scope("a"), ctx.scope("b"));
            let z = Board::default();
            let (x, y) = tokio::join!(a.signal::<u64>("s"), b.child(CHILD, &id, &z));
            let (x, y) = (x?, y?);
            ctx.emit("t", "", &x)?;
            let d = Board::delta().log(format!("{x}:{}", y.total)).total(1u64);
            Ok::<_, EffectError>(if i < 9 { d.goto(WORK) } else { d.stop() })
        });
        (Graph::new("child", 1, WORK).node(WORK, kid), Graph::new("g", 1, WORK).node(WORK, work))
    };
    let (one, two) = (Engine::open(&url).await.unwrap(), Engine::open(&url).await.unwrap());
    let (c, g) = graph(); one.register(c, ()).await.unwrap(); let f1 = one.register(g, ()).await.unwrap();
    let (c, g) = graph(); two.register(c, ()).await.unwrap(); two.register(g, ()).await.unwrap();
    let runs = 6;
    let mut ends = vec![];
    for r in 0..runs { ends.push(f1.start(&format!("r{r}"), Board::default()).await.unwrap()); }
    let mut senders = vec![];
    for r in 0..runs {
        let (one, two) = (one.clone(), two.clone());
        senders.push(tokio::spawn(async move {
            for i in 0..10u64 {
                let (e, o) = if (r + i) % 2 == 0 { (&one, &two) } else { (&two, &one) };
                e.signal(&format!("r{r}"), "s", &i).await.unwrap();
                let kid = format!("r{r}-{i}");
                let t = std::time::Instant::now();
                while let Err(err) = o.signal_as(&kid, "id", "k", &i).await {
                    assert!(t.elapsed() < Duration::from_secs(20), "{kid}: {err}");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }));
    }
    for s in senders { s.await.unwrap(); }
    let t = std::time::Instant::now();
    for (r, e) in ends.iter().enumerate() {
        let b = tokio::time::timeout(Duration::from_secs(20), e.wait()).await;
        let Ok(b) = b else { panic!("r{r} stuck at {:?}", one.status(&format!("r{r}")).await) };
        let want: Vec<_> = (0..10).map(|i| format!("{i}:{i}")).collect();
        assert_eq!(b.unwrap().log, want);
        one.replay(&format!("r{r}")).await.unwrap().expect_same();
    }
    eprintln!("t16 all ended {:?} after the last signal", t.elapsed());
}

/// A child that failed, was retried and ended well; then the parent is retried.
#[tokio::test]
async fn t17_child_mended_then_parent() {
    let ran = Diary::default();
    let engine = engine(Options::default());
    let kid = node!([ran] |ctx| { ran.note("kid"); if ran.len() < 2 { return Err(NodeError::new("ill").fatal()); } Ok(Board::delta().total(3u64)) });
    engine.register(Graph::new("child", 1, WORK).node(WORK, kid), ()).await.unwrap();
    let parent = node!([] |ctx| { let c = ctx.child(CHILD, "kid", &Board::default()).await?; Ok::<_, EffectError>(Board::delta().total(c.total)) });
    let flow = engine.register(Graph::new("p", 1, WORK).node(WORK, parent), ()).await.unwrap();
    let run = flow.start("par", Board::default()).await.unwrap();
    let e = run.wait().await.unwrap_err();
    eprintln!("t17 {} {e}", e.code());
    engine.retry("kid").await.unwrap();
    assert_eq!(engine.wait("kid").await.unwrap(), Status::Succeeded);
    engine.retry("par").await.unwrap();
    assert_eq!(run.wait().await.unwrap().total, 3);
    engine.replay("par").await.unwrap().expect_same();
}

/// Streams across retries and parks; every resumption sees the same survivors.
#[tokio::test]
async fn t18_streams() {
    let engine = engine(Options::default());
    let work = node!([] |ctx| {
        let attempt = ctx.attempt();
        ctx.stream(&format!("own {attempt}")).await?;
        let (mut a, mut b) = (ctx.scope("a"), ctx.scope("b"));
        let (x, y) = tokio::join!(
            a.effect("m", Write, "", async |c: hapax::Call| { c.stream(&format!("a1-{attempt}")).await?; tokio::task::yield_now().await; c.stream(&format!("a2-{attempt}")).await?; Ok::<_, NodeError>(1u64) }),
            b.effect("m", Read, "", async |c: hapax::Call| { c.stream(&format!("b1-{attempt}")).await?; if attempt < 3 { return Err(NodeError::new("x")); } c.stream(&format!("b2-{attempt}")).await?; Ok::<_, NodeError>(1u64) }),
        );
        x?; y?;
        let w: String = ctx.signal("go").await?;
        ctx.stream(&w).await?;
        let w: String = ctx.signal("go").await?;
        ctx.stream(&w).await?;
        Ok::<_, EffectError>(Board::delta())
    });
    let policy = NodePolicy::default().retry(Retry::standard().attempts(4).backoff(|_| Duration::from_millis(10)));
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, policy), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    until(&engine, "run", waiting).await;
    engine.signal("run", "go", "w1").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    engine.signal("run", "go", "w2").await.unwrap();
    run.wait().await.unwrap();
    let mut all = vec![];
    let mut tail = engine.tail("run");
    while let Some(e) = tail.next().await.unwrap() { all.push(e); }
    let survivors = |ev: &[StreamEvent]| {
        let mut page: Vec<hapax::StreamChunk> = vec![];
        for e in ev { match e { StreamEvent::Chunk(c) => page.push(c.clone()), StreamEvent::Superseded(o) => page.retain(|c| !o.supersedes(c)), _ => {} } }
        page.iter().map(|c| c.payload.read::<String>().unwrap()).collect::<Vec<_>>()
    };
    let want = survivors(&all);
    eprintln!("t18 {want:?}");
    for cut in 0..=all.len() {
        let mut seen = all[..cut].to_vec();
        let from = seen.last().map_or(0, |e| e.cursor());
        let mut tail = engine.tail("run").from(from);
        if cut == 0 { tail = engine.tail("run"); }
        while let Some(e) = tail.next().await.unwrap() { seen.push(e); }
        assert_eq!(seen.len(), all.len(), "cut {cut}");
        assert_eq!(survivors(&seen), want);
    }
    assert_eq!(want, ["a1-1", "a2-1", "b1-3", "b2-3", "own 3", "w1", "w2"]);
}

/// try_join! of a write at most once and a read that fails: the read's error cuts the write off.
#[tokio::test]
async fn t19_try_join_cuts_a_write_off() {
    let ran = Diary::default();
    let engine = engine(Options::default());
    let work = node!([ran] |ctx| {
        ran.note("attempt");
        let (mut l, mut r) = (ctx.scope("l"), ctx.scope("r"));
        let pay = l.effect("pay", WriteAtMostOnce, "q", async |_| { ran.note("pay"); tokio::time::sleep(Duration::from_millis(200)).await; Ok::<_, NodeError>(1u64) });
        let stock = r.effect("stock", Read, "q", async |_| { tokio::time::sleep(Duration::from_millis(20)).await; Err::<u64, _>(NodeError::new("no stock").fatal()) });
        let (a, b) = tokio::try_join!(pay, stock)?;
        Ok::<_, EffectError>(Board::delta().total(a + b))
    });
    let policy = NodePolicy::default().retry(Retry::none());
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work).policy(WORK, policy), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(4), run.wait()).await;
    let resolved = engine.resolve("run", "pay", Resolution::Fail("x".into())).await;
    eprintln!("t19 end {end:?} status {:?} {:?} resolve {resolved:?}", engine.status("run").await, ran.all());
    assert!(ran.all().iter().filter(|w| *w == "attempt").count() < 4, "{:?}", ran.all());
}

/// One child id in two lanes.
#[tokio::test]
async fn t20_one_child_in_two_lanes() {
    let engine = engine(Options::default());
    let kid = node!([] |ctx| { let w: u64 = ctx.signal("go").await?; Ok::<_, EffectError>(Board::delta().total(w)) });
    engine.register(Graph::new("child", 1, WORK).node(WORK, kid), ()).await.unwrap();
    let parent = node!([] |ctx| {
        let (mut l, mut r) = (ctx.scope("l"), ctx.scope("r"));
        let z = Board::default();
        let (a, b) = tokio::join!(l.child(CHILD, "kid", &z), r.child(CHILD, "kid", &z));
        Ok::<_, EffectError>(Board::delta().total(a?.total + b?.total))
    });
    let flow = engine.register(Graph::new("p", 1, WORK).node(WORK, parent), ()).await.unwrap();
    let run = flow.start("par", Board::default()).await.unwrap();
    until(&engine, "par", waiting).await;
    until(&engine, "kid", waiting).await;
    engine.signal("kid", "go", &2).await.unwrap();
    let e = tokio::time::timeout(Duration::from_secs(3), run.wait()).await;
    eprintln!("t20 {e:?}");
    assert_eq!(e.unwrap().unwrap().total, 4);
}

/// A question that lost its race while its answer lay in the mailbox; the next question of that name gets it.
#[test]
fn t21_a_stale_answer() {
    let graph = || {
        let work = node!([] |ctx| {
            let (mut l, mut r) = (ctx.scope("l"), ctx.scope("r"));
            let q = Question::new("Refund 1 cent?").schema(json!({"type":"boolean"}));
            let got = tokio::select! { biased;
                s = r.sleep(Duration::from_millis(1500)) => { s?; "timer".to_owned() }
                a = l.ask::<bool>("ok", q) => a?.to_string(),
            };
            Ok::<_, EffectError>(Board::delta().log(got).goto(A))
        });
        let a = node!([] |ctx| {
            let q = Question::new("How many millions to refund?").schema(json!({"type":"integer"}));
            let n: serde_json::Value = ctx.ask("ok", q).await?;
            Ok::<_, EffectError>(Board::delta().log(n.to_string()))
        });
        Graph::new("g", 1, WORK).node(WORK, work).node(A, a)
    };
    let store = memory();
    let process = Process::doomed(&store);
    process.run(async {
        let engine = process.engine(Options::default());
        let flow = engine.register(graph(), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        until(&engine, "run", waiting).await;
    });
    process.crash();
    std::thread::sleep(Duration::from_millis(1800));
    let other = Process::healthy(&store);
    other.run(async {
        let engine = other.engine(Options::default().finds_work(false));
        engine.answer("run", "ok", &true).await.unwrap();
    });
    let process = Process::healthy(&store);
    process.run(async {
        let engine = process.engine(Options::default());
        let flow = engine.register(graph(), ()).await.unwrap();
        let end = tokio::time::timeout(Duration::from_secs(3), flow.attach("run").await.unwrap().wait()).await;
        eprintln!("t21 {end:?} {:?}", engine.status("run").await);
        assert!(!matches!(end, Ok(Ok(ref b)) if b.log == ["timer", "true"]), "{end:?}");
    });
}

/// A thousand lanes, a crash in the middle.
#[test]
fn t22_a_thousand_lanes() {
    let graph = |ran: &Diary, reached: &Signal, stuck: bool| {
        let work = node!([ran, reached] |ctx| {
            let lanes: Vec<_> = (0..1000).map(|i| ctx.scope(format!("lane {i} ü"))).collect();
            let all = futures::future::join_all(lanes.into_iter().enumerate().map(|(i, mut l)| { let (ran, reached) = (ran.clone(), reached.clone()); async move {
                let n: u64 = l.effect("w", Write, &i, async |c| { ran.note(c.key()); Ok::<_, NodeError>(i as u64) }).await?;
                if i == 999 { let _: u64 = l.effect("last", Write, &i, async |_| { reached.give(); if stuck { forever().await } Ok::<_, NodeError>(0) }).await?; }
                Ok::<_, EffectError>(n)
            }})).await;
            let mut sum = 0; for c in all { sum += c?; }
            Ok::<_, EffectError>(Board::delta().total(sum))
        });
        Graph::new("g", 1, WORK).node(WORK, work)
    };
    let (ran, reached, store) = (Diary::default(), Signal::default(), memory());
    let t = std::time::Instant::now();
    crash_in(&store, graph(&ran, &reached, true), &reached);
    let end = go_on(&store, graph(&ran, &reached, false));
    let mut keys = ran.all(); let raw = keys.len(); keys.sort(); keys.dedup();
    eprintln!("t22 {:?} raw {raw} keys {} {end:?}", t.elapsed(), keys.len());
    assert_eq!(end.unwrap().total, 499500);
}

/// Subgraphs: nested, used twice, with handlers inside and outside, joined.
#[tokio::test]
async fn t23_subgraphs() {
    const IN: Node = Node::new("in");
    const OK: Node = Node::new("ok");
    const L: Node = Node::new("l");
    const R: Node = Node::new("r");
    const X: Node = Node::new("x");
    const FIX: Node<hapax::NodeFailure> = Node::new("fix");
    const OUT: Node<hapax::NodeFailure> = Node::new("out");
    const P1: Node = Node::new("p1");
    const P2: Node = Node::new("p2");
    const Q: Node = Node::new("q");
    const DONE: Node = Node::new("done");
    let say = |w: &'static str| move |_: Ctx| async move { Board::delta().log(w) };
    let part = || {
        let r = node!([] |ctx| { Err::<BoardDelta, _>(NodeError::new("r is bad").fatal()) });
        let x = node!([] |ctx| { Err::<BoardDelta, _>(NodeError::new("x is bad").fatal()) });
        let fork = node!([] |ctx| { Board::delta().log("in").fork([L.with(()), R.with(()), X.with(())]) });
        let fix = node!([] |ctx, f: hapax::NodeFailure| { Ok::<_, EffectError>(Board::delta().log(format!("fixed {}", f.node))) });
        Graph::new("part", 1, IN).node(IN, fork).node(L, say("l")).node(R, r).node(X, x).node(FIX, fix).on_error(R, FIX)
    };
    let middle = || Graph::new("middle", 1, P1).subgraph(P1, part()).node(OK, say("after p1")).edge(P1, OK);
    let out = node!([] |ctx, f: hapax::NodeFailure| { Ok::<_, EffectError>(Board::delta().log(format!("out {}", f.node))) });
    let both = node!([] |ctx| { Board::delta().fork([P2.with(()), Q.with(())]) });
    let graph = Graph::new("g", 1, WORK).node(WORK, both).subgraph(P2, part()).subgraph(Q, middle()).node(OUT, out).node(DONE, say("done"))
        .join((P2, Q), DONE).on_error(P2, OUT).on_error(Q, OUT);
    let engine = engine(Options::default());
    match engine.register(graph, ()).await {
        Err(e) => eprintln!("t23 refused {} {e}", e.code()),
        Ok(flow) => {
            let r = tokio::time::timeout(Duration::from_secs(3), flow.start("run", Board::default()).await.unwrap().wait()).await;
            eprintln!("t23 {r:?}");
            engine.replay("run").await.unwrap().expect_same();
        }
    }
}

/// Bad inputs: each a typed error with a code.
#[tokio::test]
async fn t24_bad_inputs() {
    let engine = engine(Options::default());
    let work = node!([] |ctx| {
        let q = match ctx.state().word.clone().unwrap().as_str() {
            "ref" => Question::new("?").schema(json!({"$ref": "http://127.0.0.1:9/x.json"})),
            "file" => Question::new("?").schema(json!({"$ref": "file:///etc/passwd"})),
            "none" => Question::new("?").schema(json!({"type": 7})),
            "huge" => Question::new("x".repeat(17 << 20)),
            "name" => { ctx.ask::<u64>("", Question::new("?")).await?; return Ok(Board::delta()) }
            "sig" => { ctx.signal::<u64>("").await?; return Ok(Board::delta()) }
            "sig2" => { ctx.signal::<u64>("a\nb\0").await?; return Ok(Board::delta()) }
            "kid" => { ctx.child(CHILD, "", &Board::default()).await?; return Ok(Board::delta()) }
            "nan" => { ctx.effect("x", Write, "", async |_| Ok::<_, NodeError>(f64::NAN)).await?; return Ok(Board::delta()) }
            "map" => { ctx.effect("x", Write, "", async |_| Ok::<_, NodeError>(std::collections::BTreeMap::from([((1u8, 2u8), 3u8)]).into_iter().collect::<Vec<_>>())).await?; return Ok(Board::delta()) }
            "topic" => { ctx.emit("", "", &1)?; return Ok(Board::delta()) }
            "emit" => { ctx.emit("t", "", &"x".repeat(17 << 20))?; return Ok(Board::delta()) }
            "chunk" => { ctx.stream(&"x".repeat(300 << 10)).await?; return Ok(Board::delta()) }
            "ver" => { ctx.version("v", 3, 2)?; return Ok(Board::delta()) }
            _ => Question::new("?").schema(json!({"type": "integer", "pattern": "("})),
        };
        let _: u64 = ctx.ask("q", q).await?;
        Ok::<_, EffectError>(Board::delta())
    });
    engine.register(Graph::new("child", 1, A).node(A, node!([] |ctx| { Board::delta() })), ()).await.unwrap();
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    for w in ["ref", "file", "none", "huge", "name", "sig", "sig2", "kid", "nan", "map", "topic", "emit", "chunk", "ver", "pattern"] {
        let r = tokio::time::timeout(Duration::from_secs(5), flow.start(w, Board { word: Some(w.into()), ..Board::default() }).await.unwrap().wait()).await;
        let line = match r { Ok(Ok(_)) => "fine".into(), Ok(Err(e)) => format!("{} {}", e.code(), e.to_string().chars().take(150).collect::<String>()), Err(_) => format!("{:?}", engine.status(w).await) };
        eprintln!("t24 {w}: {line}");
    }
    let c = |r: Result<bool, hapax::Error>| r.map_err(|e| format!("{} {}", e.code(), e.to_string().chars().take(120).collect::<String>()));
    eprintln!("t24 signal unknown {:?}", c(engine.signal("nobody", "x", &1).await.map(|_| true)));
    eprintln!("t24 signal empty {:?}", c(engine.signal("sig", "", &1).await.map(|_| true)));
    eprintln!("t24 signal finished {:?}", c(engine.signal("map", "x", &1).await.map(|_| true)));
    eprintln!("t24 signal huge {:?}", c(engine.signal("sig2", "x", &"x".repeat(17 << 20)).await.map(|_| true)));
    eprintln!("t24 signal nan {:?}", c(engine.signal("sig2", "x", &f64::NAN).await.map(|_| true)));
    eprintln!("t24 resolve empty {:?}", c(engine.resolve("sig2", "", Resolution::Retry).await.map(|_| true)));
    eprintln!("t24 sleep max {:?}", Duration::MAX);
}

/// A fork from a step before a child whose id is fixed; and of one whose id holds the run's.
#[tokio::test]
async fn t25_fork_before_a_child() {
    let engine = engine(Options::default());
    let kid = node!([] |ctx| { Ok::<_, EffectError>(Board::delta().total(1u64)) });
    engine.register(Graph::new("child", 1, WORK).node(WORK, kid), ()).await.unwrap();
    let first = node!([] |ctx| { Board::delta().goto(A) });
    let parent = node!([] |ctx| {
        let own = ctx.state().word.is_some();
        let id = if own { format!("{}-kid", ctx.run_id()) } else { "kid".into() };
        let c = ctx.child(CHILD, &id, &Board::default()).await?;
        Ok::<_, EffectError>(Board::delta().total(c.total))
    });
    let flow = engine.register(Graph::new("p", 1, WORK).node(WORK, first).node(A, parent), ()).await.unwrap();
    let mut bad = vec![];
    for (run, word) in [("fixed", None), ("own", Some("x".to_owned()))] {
        flow.start(run, Board { word, ..Board::default() }).await.unwrap().wait().await.unwrap();
        for step in 0..2 {
            let f = engine.fork(hapax::Fork::at(run, step)).await.unwrap();
            let s = engine.wait(f.run.as_str()).await.unwrap();
            eprintln!("t25 {run}@{step}: {s:?}");
            if s != Status::Succeeded { bad.push(f.run.to_string()); }
        }
    }
    assert!(bad.is_empty(), "{bad:?}");
}

/// Five thousand signals that wait, taken in one node.
#[tokio::test]
async fn t26_many_signals() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(&format!("sqlite:{}", dir.path().join("x.db").display())).await.unwrap();
    let work = node!([] |ctx| {
        let _: u64 = ctx.signal("go").await?;
        let mut sum = 0;
        for i in 0..3000u64 { let n: u64 = ctx.signal("s").await?; if n != i { return Err(NodeError::new(format!("{n} at {i}"))) } sum += n; }
        Ok::<_, NodeError>(Board::delta().total(sum))
    });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let t = std::time::Instant::now();
    for i in 0..3000u64 { engine.signal("run", "s", &i).await.unwrap(); }
    eprintln!("t26 sent {:?}", t.elapsed());
    engine.signal("run", "go", &1).await.unwrap();
    let t = std::time::Instant::now();
    let r = tokio::time::timeout(Duration::from_secs(40), run.wait()).await;
    eprintln!("t26 {:?} {r:?}", t.elapsed());
    engine.replay("run").await.unwrap().expect_same();
}

/// A predicate that changes its mind.
#[tokio::test]
async fn t27_impure_predicate() {
    let engine = engine(Options::default());
    let flip = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let graph = Graph::new("g", 1, WORK).node(WORK, node!([] |ctx| { Board::delta() })).node(A, node!([] |ctx| { Board::delta() })).node(B, node!([] |ctx| { Board::delta() }))
        .edge_if(WORK, A, "flips", move |_: &Board| flip.fetch_xor(true, std::sync::atomic::Ordering::SeqCst)).edge(WORK, B);
    let flow = engine.register(graph, ()).await.unwrap();
    let e = flow.start("run", Board::default()).await.unwrap().wait().await;
    eprintln!("t27 {:?}", e.as_ref().map_err(|e| format!("{} {e}", e.code())));
    assert_eq!(e.unwrap_err().code().to_string(), "HX0015");
}

/// Many chunks, watched from another engine; and a follower across continue_as.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn t28_many_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("x.db").display());
    let (one, two) = (Engine::open(&url).await.unwrap(), Engine::builder().options(Options::default().finds_work(false)).open(&url).await.unwrap());
    let work = node!([] |ctx| {
        let round = ctx.state().total;
        for i in 0..5000u64 { ctx.stream(&(round, i)).await?; }
        if round < 2 { return Ok(Outcome::continue_as(&Board { total: round + 1, ..Board::default() })); }
        Ok::<_, EffectError>(Board::delta().stop())
    });
    let flow = one.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board { total: 2, ..Board::default() }).await.unwrap();
    let mut tail = two.tail("run");
    let mut next = 0;
    while let Some(e) = tail.next().await.unwrap() { if let StreamEvent::Chunk(c) = e { let (_, i): (u64, u64) = c.payload.read().unwrap(); assert_eq!(i, next); next += 1; } }
    assert_eq!(next, 5000);
    run.wait().await.unwrap();
    flow.start("again", Board::default()).await.unwrap();
    let mut tail = two.tail("again");
    let mut got = vec![];
    let follow = async { while let Some(e) = tail.next().await.unwrap() { if let StreamEvent::Chunk(c) = e { got.push(c.payload.read::<(u64, u64)>().unwrap()); } } };
    tokio::time::timeout(Duration::from_secs(20), follow).await.expect("it ends");
    assert!(got.is_sorted(), "in order");
    eprintln!("t28 followed {} of 15000; last round {}", got.len(), got.iter().filter(|(r, _)| *r == 2).count());
    assert_eq!(got.iter().filter(|(r, _)| *r == 2).count(), 5000);
}

/// Two lanes ask under one name.
#[tokio::test]
async fn t29_two_lanes_ask_under_one_name() {
    let engine = engine(Options::default());
    let work = node!([] |ctx| {
        let (mut l, mut r) = (ctx.scope("l"), ctx.scope("r"));
        let slow = async { let _: u64 = l.effect("slow", Read, "", async |_| { tokio::time::sleep(Duration::from_millis(100)).await; Ok::<_, NodeError>(1) }).await?; l.ask::<serde_json::Value>("ok", Question::new("l?")).await };
        let (a, b) = tokio::join!(slow, r.ask::<serde_json::Value>("ok", Question::new("r?")));
        Ok::<_, EffectError>(Board::delta().log(format!("{} {}", a?, b?)))
    });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    until(&engine, "run", waiting).await;
    for i in 0..4 {
        let open: Vec<_> = engine.inbox().await.unwrap().into_iter().map(|q| q.text).collect();
        eprintln!("t29 open {open:?} answer {:?}", engine.answer("run", "ok", &i).await.map_err(|e| e.to_string()));
        tokio::time::sleep(Duration::from_millis(300)).await;
        if engine.status("run").await.unwrap().is_final() { break; }
    }
    let r = tokio::time::timeout(Duration::from_secs(1), run.wait()).await;
    eprintln!("t29 {r:?}");
    assert!(r.is_ok());
}

/// A child that is cancelled by itself; a parent that handles it.
#[tokio::test]
async fn t30_child_cancelled_alone() {
    const H: Node<hapax::NodeFailure> = Node::new("h");
    let engine = engine(Options::default());
    let kid = node!([] |ctx| { let _: u64 = ctx.signal("go").await?; Ok::<_, EffectError>(Board::delta()) });
    engine.register(Graph::new("child", 1, WORK).node(WORK, kid), ()).await.unwrap();
    let parent = node!([] |ctx| { let c = ctx.child(CHILD, "kid", &Board::default()).await?; Ok::<_, EffectError>(Board::delta().total(c.total)) });
    let h = node!([] |ctx, f: hapax::NodeFailure| { Ok::<_, EffectError>(Board::delta().log(format!("{} {}", f.code, f.message))) });
    let flow = engine.register(Graph::new("p", 1, WORK).node(WORK, parent).node(H, h).on_error(WORK, H), ()).await.unwrap();
    let run = flow.start("par", Board::default()).await.unwrap();
    until(&engine, "par", waiting).await;
    until(&engine, "kid", waiting).await;
    engine.cancel("kid").await.unwrap();
    let r = tokio::time::timeout(Duration::from_secs(3), run.wait()).await;
    eprintln!("t30 {r:?}");
    engine.replay("par").await.unwrap().expect_same();
    assert!(r.unwrap().is_ok());
}

/// The timeout that the guide recommends, `ctx.sleep` in a lane of its own, around a call that takes long.
#[tokio::test]
async fn t31_a_durable_timeout_around_a_slow_call() {
    let engine = engine(Options::default());
    let work = node!([] |ctx| {
        let long = Duration::from_millis(ctx.state().total);
        let (mut l, mut r) = (ctx.scope("l"), ctx.scope("r"));
        let who = tokio::select! {
            x = l.effect("slow", Write, "q", async |_| { tokio::time::sleep(Duration::from_secs(6)).await; Ok::<_, NodeError>(1u64) }) => { x?; "call" }
            x = r.sleep(long) => { x?; "timer" }
        };
        Ok::<_, EffectError>(Board::delta().log(who))
    });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    for ms in [900u64, 1500] {
        let t = std::time::Instant::now();
        let b = flow.start(&format!("run{ms}"), Board { total: ms, ..Board::default() }).await.unwrap().wait().await.unwrap();
        eprintln!("t31 {ms} ms: {:?} after {:?}", b.log, t.elapsed());
        assert_eq!(b.log, ["timer"], "{ms} ms of 6 s");
    }
}

/// A signal that comes while the other lane's call is under way.
#[tokio::test]
async fn t32_a_signal_during_a_slow_call() {
    let engine = engine(Options::default());
    let work = node!([] |ctx| {
        let (mut l, mut r) = (ctx.scope("l"), ctx.scope("r"));
        let who = tokio::select! {
            x = l.effect("slow", Write, "q", async |_| { tokio::time::sleep(Duration::from_secs(5)).await; Ok::<_, NodeError>(1u64) }) => { x?; "call" }
            x = r.signal::<u64>("stop") => { x?; "signal" }
        };
        Ok::<_, EffectError>(Board::delta().log(who))
    });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, work), ()).await.unwrap();
    let t = std::time::Instant::now();
    let run = flow.start("run", Board::default()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    engine.signal("run", "stop", &1).await.unwrap();
    let b = run.wait().await.unwrap();
    eprintln!("t32 {:?} after {:?}", b.log, t.elapsed());
    assert_eq!(b.log, ["signal"]);
}

/// Items of one step: one sleeps and then calls, one is slow; one asks.
#[tokio::test]
async fn t33_waits_beside_a_slow_item() {
    const S: Node = Node::new("s");
    let (engine, ran) = (engine(Options::default()), Diary::default());
    let t = std::time::Instant::now();
    let start = node!([] |ctx| { Board::delta().fork([A.with(()), B.with(()), S.with(())]) });
    let a = node!([ran] |ctx| { ctx.sleep(Duration::from_millis(1500)).await?; ran.note(format!("timer after {:?}", t.elapsed())); Ok::<_, EffectError>(Board::delta()) });
    let b = node!([ran] |ctx| { let _: u64 = ctx.ask("q", Question::new("?")).await?; ran.note(format!("answer after {:?}", t.elapsed())); Ok::<_, EffectError>(Board::delta()) });
    let s = node!([ran] |ctx| { let _: u64 = ctx.effect("slow", Read, "", async |_| { tokio::time::sleep(Duration::from_secs(6)).await; Ok::<_, NodeError>(1) }).await?; Ok::<_, EffectError>(Board::delta()) });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, start).node(A, a).node(B, b).node(S, s), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let asked = loop { if !engine.inbox().await.unwrap().is_empty() { break t.elapsed(); } tokio::time::sleep(Duration::from_millis(20)).await; };
    engine.answer("run", "q", &1).await.unwrap();
    run.wait().await.unwrap();
    eprintln!("t33 in the inbox after {asked:?}; {:?}", ran.all());
    assert!(asked < Duration::from_secs(3), "{asked:?}");
}

/// A fork of a failed step whose other item has sent a message.
#[tokio::test]
async fn t34_fork_and_outbox() {
    let (engine, ran) = (engine(Options::default()), Diary::default());
    let start = node!([] |ctx| { ctx.emit("t", "", "start")?; Ok::<_, EffectError>(Board::delta().fork([A.with(()), B.with(())])) });
    let a = node!([ran] |ctx| { ran.note("a"); ctx.emit("t", "", "a")?; Ok::<_, EffectError>(Board::delta().total(1u64)) });
    let b = node!([ran] |ctx| { ctx.emit("t", "", "b")?; if ran.len() < 2 { ran.note("b fails"); return Err(NodeError::new("b").fatal()); } Ok(Board::delta().total(1u64)) });
    let flow = engine.register(Graph::new("g", 1, WORK).node(WORK, start).node(A, a).node(B, b), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    engine.fork(hapax::Fork::at("run", 1).named("f")).await.unwrap();
    eprintln!("t34 fork {:?}", engine.wait("f").await);
    engine.fork(hapax::Fork::at("run", 1).named("g").set("total", &5).unwrap()).await.unwrap();
    eprintln!("t34 set {:?}", engine.wait("g").await);
    engine.retry("run").await.unwrap();
    eprintln!("t34 retry {:?} {:?}", engine.wait("run").await, ran.all());
    for r in ["run", "f", "g"] { engine.replay(r).await.unwrap().expect_same(); }
    let out = engine.outbox(Default::default()).await.unwrap();
    eprintln!("t34 {:?}", out.iter().map(|o| format!("{} {:?}", o.run, o.message.payload)).collect::<Vec<_>>());
}
