//! Adversary 4b: combinations under SIGKILL; `worker` executes, anything else is the command line.
use hapax::{Call, Child, prelude::*};
use serde::{Deserialize, Serialize};
use std::{io::Write as _, process::ExitCode, time::Duration};

#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Loop {
    round: u64,
    #[state(append)]
    log: Vec<String>,
    #[state(sum)]
    sum: u64,
}
type Ctx = hapax::Ctx<Loop>;

const WORK: Node = Node::new("work");
const X: Node<u64> = Node::new("x");
const Y: Node<u64> = Node::new("y");
const END: Node = Node::new("end");
const KID: Child<Loop> = Child::new("kid");

fn call_out(what: &str, key: &str) -> std::io::Result<String> {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(std::env::var("ADV_LOG").unwrap())?;
    file.write_all(format!("{what} {key}\n").as_bytes())?;
    file.sync_data()?;
    Ok(what.to_owned())
}

async fn work(mut ctx: Ctx) -> hapax::Result<Outcome<Loop>> {
    let (round, id) = (ctx.state().round, ctx.run_id().to_string());
    ctx.stream(&format!("begin {round}")).await?;
    let (mut a, mut b, mut c, mut d) = (ctx.scope("a"), ctx.scope("b"), ctx.scope("c"), ctx.scope("d"));
    let kid = Loop { round, ..Loop::default() };
    let name = format!("{id}-{round}");
    let what = format!("pay {id} {round}");
    let (kid, signal, paid, race) = tokio::join!(
        a.child(KID, &name, &kid),
        b.signal::<u64>("s"),
        async {
            let p = c
                .effect("pay", Write, &what, async |call: Call| {
                    call.stream(&format!("paying {round}")).await?;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    Ok::<_, NodeError>(call_out(&what, call.key())?)
                })
                .await;
            c.emit("t", "lane", &format!("{round} c"))?;
            p
        },
        async {
            let (mut l, mut r) = (d.scope("l"), d.scope("r"));
            tokio::select! {
                x = l.sleep(Duration::from_millis(1100)) => x.map(|()| "timer".to_owned()),
                x = r.signal::<String>("hurry") => x,
            }
        },
    );
    let (kid, signal, _, race) = (kid?, signal?, paid?, race?);
    ctx.emit("t", "", &format!("{round} a"))?;
    ctx.emit("t", "", &format!("{round} b"))?;
    Ok(Loop::delta().log(format!("{round}:{signal}:{}:{}", kid.sum, race == "timer" || race == "now")).fork([X.with(round), Y.with(round)]))
}

async fn side(mut ctx: Ctx, n: u64) -> hapax::Result<LoopDelta> {
    let what = format!("{} {} {n}", ctx.node_id(), ctx.run_id());
    let node = ctx.node_id().to_string();
    ctx.effect("side", Write, &what, async |call: Call| call_out(&what, call.key())).await?;
    ctx.emit("t", "", &format!("{n} {node}"))?;
    Ok(Loop::delta().sum(1u64))
}

async fn end(mut ctx: Ctx) -> hapax::Result<Outcome<Loop>> {
    let state = ctx.state();
    ctx.emit("t", "", &format!("{} end", state.round))?;
    if state.round < 3 {
        return Ok(Outcome::continue_as(&Loop { round: state.round + 1, ..(*state).clone() }));
    }
    Ok(Loop::delta().log("over").stop())
}

async fn kid(mut ctx: Ctx) -> hapax::Result<LoopDelta> {
    let (round, what) = (ctx.state().round, format!("kid {}", ctx.run_id()));
    ctx.effect("kid", Write, &what, async |call: Call| call_out(&what, call.key())).await?;
    ctx.sleep(Duration::from_millis(if round % 2 == 0 { 20 } else { 1100 })).await?;
    ctx.emit("k", "", &round)?;
    Ok(Loop::delta().sum(round))
}

#[tokio::main]
async fn main() -> hapax::Result<ExitCode> {
    let worker = std::env::args().nth(1).as_deref() == Some("worker");
    let options = Options::default().finds_work(worker);
    let engine = Engine::builder().options(options).open(&std::env::var("HAPAX_STORE").unwrap()).await?;
    engine.register(Graph::new("kid", 1, WORK).node(WORK, kid), ()).await?;
    let graph = Graph::new("loop", 1, WORK).node(WORK, work).node(X, side).node(Y, side).node(END, end).join((X, Y), END);
    let flow = engine.register(graph, ()).await?;
    if !worker {
        return Ok(hapax_cli::run(engine).await);
    }
    let mut runs = vec![];
    for i in 0..8 {
        runs.push(flow.start(&format!("r{i}"), Loop::default()).await?);
    }
    for run in runs {
        let end = run.wait().await?;
        println!("{} {}", run.id(), serde_json::to_string(&end).unwrap());
    }
    Ok(ExitCode::SUCCESS)
}
