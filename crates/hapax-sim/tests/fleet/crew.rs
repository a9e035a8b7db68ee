//! Workers as processes, the orders that they work on, and what must be true of them in the end.

use hapax::{Engine, Flow, Options};
use hapax_core::id::{Namespace, RunId, RunKey};
use hapax_sim::{
    kills::{
        Party, Process, Reporter, Waits,
        ledger::{self, Call},
    },
    naps::{self, Nap},
    orders::{self, CALLS, Order, Shop},
};
use hapax_store::{ListFilter, Store};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, BufReader},
    path::Path,
    process::ChildStdout,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Longer than anything here takes. Who waits longer waits for something that never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The same for the work of a whole fleet.
const FLEET_PATIENCE: Duration = Duration::from_secs(1200);

/// Steps of an order, with its step 0.
const STEPS: usize = 11;

const WORKER: &str = env!("CARGO_BIN_EXE_hapax-fleet");

/// How a worker is set up.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) ttl_ms: u32,
    pub(crate) active: u32,
    pub(crate) drain_ms: u32,
}

/// A database, an outside party, and whoever submits orders.
pub(crate) struct Yard {
    url: String,
    pub(crate) ledger: Party,
    _folder: TempDir,
    runtime: tokio::runtime::Runtime,
    engine: Engine,
    flow: Flow<Order, Shop>,
    naps: Flow<Nap>,
}

impl Yard {
    pub(crate) fn new(url: String) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let ledger = Party::start(Path::new(env!("CARGO_BIN_EXE_hapax-ledger")), folder.path());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let shop = shop(&ledger);
        let (engine, flow, naps) = runtime.block_on(async {
            // It only submits and looks.
            let options = Options::default().finds_work(false);
            let engine = Engine::builder().options(options).open(&url).await.expect("the database opens");
            let flow = engine.register(orders::graph(), shop).await.expect("a graph");
            let naps = engine.register(naps::graph(), ()).await.expect("a graph");
            (engine, flow, naps)
        });
        Self { url, ledger, _folder: folder, runtime, engine, flow, naps }
    }

    /// Starts a worker, and waits until it works.
    pub(crate) fn worker(&self, terms: Terms) -> Crew {
        Self::works(Process::start(Path::new(WORKER), self.args(terms)))
    }

    /// The same for one whose machine's clock is off by that much.
    pub(crate) fn worker_off_by(&self, shift: &str, terms: Terms) -> Crew {
        let off = hapax_servers::clock_off_by(shift).expect("libfaketime");
        let off = off.into_iter().map(|(name, value)| format!("{name}={value}"));
        let command = off.chain([WORKER.to_owned()]).chain(self.args(terms));
        Self::works(Process::start(Path::new("/usr/bin/env"), command))
    }

    fn args(&self, terms: Terms) -> impl Iterator<Item = String> {
        let numbers = [terms.ttl_ms, terms.active, terms.drain_ms].map(|number| number.to_string());
        [self.url.clone(), self.ledger.socket().display().to_string()].into_iter().chain(numbers)
    }

    fn works(started: io::Result<(Process, BufReader<ChildStdout>)>) -> Crew {
        let (process, said) = started.expect("the worker starts");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let crew = Crew { process, lines };
        crew.until("works ");
        crew
    }

    /// Submits orders, which nobody holds yet; again when the server was restarted meanwhile.
    pub(crate) fn submit(&self, numbers: std::ops::Range<u32>) {
        let waits = Waits::begin(PATIENCE);
        let submit = async |number| {
            let order = orders::order(number);
            while let Err(error) = self.flow.submit(&order.id, order.clone()).await {
                waits.check(&format!("an order is submitted: {error}"));
            }
        };
        self.runtime.block_on(futures::future::join_all(numbers.map(submit)));
    }

    /// Submits a nap, which nobody holds yet.
    pub(crate) fn submit_nap(&self, id: &str) {
        self.runtime.block_on(self.naps.submit(id, Nap::default())).expect("the database answers");
    }

    /// What a nap came to, and how often it was claimed.
    pub(crate) fn nap(&self, id: &str) -> (Nap, u64) {
        self.runtime.block_on(async {
            let nap = self.naps.attach(id).await.expect("it is there").wait().await.expect("it is over");
            (nap, self.engine.record(id).await.expect("a run").epoch.counter)
        })
    }

    /// How many runs stand like this.
    pub(crate) fn count(&self, status: &str) -> usize {
        let filter = ListFilter { statuses: vec![status.into()], limit: usize::MAX, ..ListFilter::default() };
        // A server that is just being restarted is asked again.
        self.runtime.block_on(self.engine.list(filter)).map_or(0, |runs| runs.len())
    }

    /// Waits until so many orders are done; `meanwhile` is called again and again.
    pub(crate) fn until_done(&self, orders: usize, mut meanwhile: impl FnMut()) {
        let waits = Waits::begin(FLEET_PATIENCE);
        while self.count("succeeded") < orders {
            waits.check(&format!("{} of {orders} orders are done", self.count("succeeded")));
            meanwhile();
        }
    }

    /// The run of an order: its epoch, and whether it succeeded.
    pub(crate) fn run(&self, number: u32) -> (u64, bool) {
        let record = self.runtime.block_on(self.engine.record(&orders::order(number).id)).expect("a run");
        (record.epoch.counter, record.status.word() == "succeeded")
    }

    /// Nothing is lost, stuck or doubled: each order has all its steps, each of its calls has one key, and its receipts
    /// are those that the outside gave.
    pub(crate) fn check(&self, numbers: std::ops::Range<u32>) {
        let calls = self.ledger.calls();
        let keys: BTreeSet<_> = calls.iter().map(|call| &call.key).collect();
        assert_eq!(keys.len(), numbers.len() * CALLS, "calls are lost or doubled");
        let mut asked: BTreeMap<String, BTreeMap<&str, &Call>> = BTreeMap::new();
        for call in &calls {
            asked.entry(call.request.to_string()).or_default().insert(&call.key, call);
        }
        let repeated = calls.len() - keys.len();
        println!(
            "{} orders, {} calls, {repeated} of them repeated under their key",
            numbers.len(),
            keys.len()
        );
        for number in numbers {
            self.check_order(number, &asked);
        }
    }

    fn check_order(&self, number: u32, asked: &BTreeMap<String, BTreeMap<&str, &Call>>) {
        let order = orders::order(number);
        let receipts = orders::requests(number).into_iter().map(|request| {
            let keys = &asked[&request.to_string()];
            assert_eq!(keys.len(), 1, "{request} was asked for under several keys");
            keys.values().next().expect("there is one").receipt()
        });
        let expected = orders::shipped(number, receipts.collect());
        let (store, key) = (self.engine.store(), key_of(&order.id));
        let (record, steps) = self.runtime.block_on(async {
            let record = store.run(key.clone()).await.expect("the store answers").expect("the run is there");
            (record, steps(&*store, key).await)
        });
        assert_eq!((record.status.word(), record.owner), ("succeeded", None), "{}", order.id);
        assert_eq!(
            steps.iter().map(|(step, _)| *step).collect::<Vec<_>>(),
            (0..STEPS as u64).collect::<Vec<_>>()
        );
        let state: Order = serde_json::from_slice(&steps[STEPS - 1].1).expect("an order");
        assert_eq!(state, expected);
    }
}

fn key_of(run: &str) -> RunKey {
    RunKey { namespace: Namespace::default(), run: RunId::new(run).expect("a short name") }
}

/// The steps of a run, with their states; each was checked against its digest when it was read.
async fn steps(store: &dyn Store, key: RunKey) -> Vec<(u64, Arc<[u8]>)> {
    let mut steps = vec![];
    loop {
        let from = steps.last().map_or(0, |(step, _)| step + 1);
        let more = store.checkpoints(key.clone(), from, 100).await.expect("the store answers");
        if more.is_empty() {
            return steps;
        }
        steps.extend(more.into_iter().map(|checkpoint| (checkpoint.step, checkpoint.state)));
    }
}

#[allow(clippy::disallowed_methods, reason = "a reporter wants to know when its life began")]
fn shop(ledger: &Party) -> Shop {
    let reports = Arc::new(Reporter::new(std::io::sink(), std::time::Instant::now()));
    Shop { ledger: ledger.socket().to_owned(), reports }
}

/// A worker.
pub(crate) struct Crew {
    pub(crate) process: Process,
    lines: mpsc::Receiver<String>,
}

impl Crew {
    /// Waits for the line that begins like this; those before it are dropped. Answers the rest of it.
    pub(crate) fn until(&self, beginning: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("the worker never said `{beginning}`"));
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.to_owned();
            }
        }
    }

    /// Asks it to stop, and waits for what it says at the end: finished, handed over, lost.
    pub(crate) fn stop(&self) -> [u64; 3] {
        self.process.terminate();
        let told = self.until("stopped ");
        assert!(self.process.wait().success(), "the worker failed");
        let numbers: Vec<u64> = told.split(' ').map(|number| number.parse().expect("a number")).collect();
        numbers.try_into().expect("three numbers")
    }
}

/// Calls of the outside that are applied and never answered: whoever makes them is in the middle of a call.
pub(crate) fn hold_next_call(yard: &Yard) -> ledger::Held {
    ledger::hold(yard.ledger.socket(), 1).expect("the ledger listens")
}
