//! Whoever sends: an engine and its relay, as a process that is killed: `hapax-emitter STORE NATS RUNS`.
//!
//! Works on the runs of the store, which anybody may have begun, and delivers what they send to a stream. It says `sent` for
//! each delivery that the stream acknowledged, and `drained` once all runs are over and nothing waits to be sent. It ends
//! with its standard input, so that it can't outlive the test that started it.

use futures::future::BoxFuture;
use hapax::{
    Engine, Options,
    outbox::{Delivery, NatsSink, RelayOptions, Sink, SinkError},
    store::outbox::{MessageState, OutboxFilter},
};
use hapax_sim::mails::{self, Sender};
use std::{env, io::Read, process, thread, time::Duration};

/// How often it looks whether all is sent, and what others have left.
const LOOK: Duration = Duration::from_millis(50);
/// How long a broker's word is waited for: one that was killed says nothing.
const IMPATIENT: Duration = Duration::from_millis(1000);

/// A sink that says what it has delivered.
struct Told(NatsSink);

impl Sink for Told {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            self.0.publish(message).await?;
            println!("sent");
            Ok(())
        })
    }
}

fn args() -> Option<(String, String, u64)> {
    let mut args = env::args().skip(1);
    Some((args.next()?, args.next()?, args.next()?.parse().ok()?))
}

fn main() -> hapax::Result<()> {
    let Some((store, nats, runs)) = args() else {
        eprintln!("usage: hapax-emitter STORE NATS RUNS");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the process.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(emit(&store, &nats, runs))
}

async fn emit(store: &str, nats: &str, runs: u64) -> hapax::Result<()> {
    let options = Options::default().store_patience(Duration::from_secs(90));
    let engine = Engine::builder().options(options).open(store).await?;
    let flow = engine.register(mails::graph(), ()).await?;
    let sink = Told(NatsSink::connect(nats).await?.timeout(IMPATIENT));
    let _relay = engine.relay(RelayOptions::default().poll_interval(LOOK), sink)?;
    for number in 0..runs {
        flow.submit(&mails::run_id(number), Sender::default()).await?;
    }
    for number in 0..runs {
        flow.attach(&mails::run_id(number)).await?.wait().await?;
    }
    loop {
        let pending =
            OutboxFilter { states: vec![MessageState::Pending], limit: 1, ..OutboxFilter::default() };
        if engine.outbox(pending).await?.is_empty() {
            println!("drained");
            return std::future::pending().await;
        }
        tokio::time::sleep(LOOK).await;
    }
}
