//! A process that has agents work: `hapax-foreman DB WORKSPACE WORK PROGRAM [ARG…]` does the work of the review loop, given as
//! JSON, whatever an earlier life has left of it, says `done` and ends. In each argument `{kind}` stands for the agent's kind.
//!
//! It says what the engine does, a line for each event. It ends with its standard input, so that it can't outlive the test
//! that started it.

use hapax::{
    Engine, Event, Options,
    agent::{
        Workspace,
        flows::{self, Work},
    },
};
use hapax_sim::crafts;
use std::{env, io::Read, process, thread, time::Duration};
use tokio::sync::broadcast::{self, error::RecvError};

/// Longer than any life takes. A foreman that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(240);

struct Args {
    db: String,
    workspace: String,
    work: Work,
    command: Vec<String>,
}

fn args() -> Option<Args> {
    let mut args = env::args().skip(1);
    let (db, workspace) = (args.next()?, args.next()?);
    let work = serde_json::from_str(&args.next()?).ok()?;
    let command: Vec<_> = args.collect();
    (!command.is_empty()).then_some(Args { db, workspace, work, command })
}

fn main() -> hapax::Result<()> {
    let Some(args) = args() else {
        eprintln!("usage: hapax-foreman DB WORKSPACE WORK PROGRAM [ARG…]");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the foreman.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let done = runtime.block_on(async { tokio::time::timeout(PATIENCE, live(args)).await });
    done.unwrap_or_else(|_| {
        eprintln!("the foreman is stuck: it wasn't done within {PATIENCE:?}");
        process::exit(4);
    })
}

async fn live(args: Args) -> hapax::Result<()> {
    let workspace = Workspace::open(&args.workspace)?;
    let team = crafts::team(&workspace, |kind| crafts::program(kind, &args.command))?;
    let options = Options::default().run_budget(PATIENCE);
    let engine = Engine::builder().options(options).open(&format!("sqlite:{}", args.db)).await?;
    println!("opened");
    tokio::spawn(tell(engine.events()));
    let flow = engine.register(flows::review_loop(), team).await?;
    flow.start(crafts::RUN, args.work).await?.wait().await?;
    engine.shutdown(PATIENCE).await;
    println!("done");
    Ok(())
}

async fn tell(mut events: broadcast::Receiver<Event>) {
    loop {
        match events.recv().await {
            Ok(Event::ItemStarted { node, .. }) => println!("started {node}"),
            Ok(Event::ItemFinished { node, .. }) => println!("finished {node}"),
            Ok(Event::StepCommitted { step, .. }) => println!("committed {step}"),
            Ok(Event::Retrying { error, .. }) => println!("retrying {error}"),
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
