//! One engine from its start to its end or its death.
//!
//! Invariant: a life has a runtime of its own. When its store dies, the runtime is dropped with every task where it
//! stands: that is the crash.

use crate::{
    generate::Case,
    ledger::Ledger,
    probe::{Mode, Moment, Probe, Probed, Trouble},
    stores::quick_runtime,
    workload::{AtOnce, Outside, Pace, graph},
    world::World,
};
use hapax::{Durability, Engine, Error, Event, Flow, Options};
use hapax_core::id::{Namespace, RunId, RunKey};
use hapax_store::{
    Store, StoreError,
    faulty::{Fault, Faulty},
};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::broadcast::{Receiver, error::TryRecvError};

/// The run's id in every case: keys and digests follow from it.
pub const RUN: &str = "run";
/// Far longer than any test, so that nothing happens by the clock.
const NEVER: Duration = Duration::from_secs(3600);
/// Turns of the scheduler without a call after which an engine is taken to be waiting for a lease.
const QUIET: u32 = 2000;
/// Starts after which a run that doesn't finish never will.
const ENOUGH: u32 = 100;

/// How an engine is to live.
#[derive(Clone)]
pub struct Life {
    /// Its number: the first one is 1.
    pub number: u32,
    /// The store beneath.
    pub store: Arc<dyn Store>,
    /// The log of everything.
    pub world: Arc<World>,
    /// The tenant, so that one store can hold the same run many times.
    pub namespace: String,
    /// Whether steps run ahead.
    pub durability: Durability,
    /// Whether writes reach the store late.
    pub mode: Mode,
    /// A fault at a counted call.
    pub fault: Option<(u64, Fault)>,
    /// Another trouble at a call.
    pub trouble: Option<(Moment, Trouble)>,
    /// Nodes at the same time.
    pub concurrent: usize,
    /// Whether each call to the outside looks whether the gate kept its promise.
    pub inspects: bool,
    /// When nodes finish.
    pub pace: Arc<dyn Pace>,
    /// The socket of a ledger that nodes call as well.
    pub ledger: Option<PathBuf>,
    /// Whether some writes must not be repeated; only for a life that no crash ends.
    pub at_most_once: bool,
}

/// How it went.
#[derive(Debug)]
pub struct Lived {
    /// What the run ended with; `None`: the engine died first.
    pub end: Option<Result<Ledger, Error>>,
    /// Whether the fault or the trouble came up.
    pub fired: bool,
}

impl Life {
    /// A life without trouble.
    pub fn new(number: u32, store: &Arc<dyn Store>, world: &Arc<World>, namespace: &str) -> Self {
        Self {
            number,
            store: store.clone(),
            world: world.clone(),
            namespace: namespace.to_owned(),
            durability: Durability::Strict,
            mode: Mode::Direct,
            fault: None,
            trouble: None,
            concurrent: 8,
            inspects: false,
            pace: Arc::new(AtOnce),
            ledger: None,
            at_most_once: false,
        }
    }

    /// The run in this life's namespace.
    pub fn key(&self) -> RunKey {
        key(&self.namespace)
    }

    /// The engine's limits: nothing happens by the clock.
    pub fn options(&self, case: &Case) -> Options {
        Options::default()
            .namespace(Namespace::new(&self.namespace).expect("a short name"))
            .durability(self.durability)
            .conflict_policy(case.policy)
            .max_concurrent_nodes(self.concurrent)
            .max_steps(Some(500))
            .lease_ttl(NEVER)
            .lease_renewal(NEVER)
            .scan_interval(NEVER)
    }

    /// What the nodes see.
    pub fn outside(&self) -> Outside {
        Outside {
            world: self.world.clone(),
            life: self.number,
            run: self.key(),
            disk: self.inspects.then(|| self.store.clone()),
            pace: self.pace.clone(),
            ledger: self.ledger.clone(),
            at_most_once: self.at_most_once,
        }
    }

    /// A probe as this life wants it.
    pub fn probe(&self) -> Arc<Probe> {
        Probe::new(self.store.clone(), self.world.clone(), self.number, self.mode, self.trouble)
    }

    /// Lives, in a runtime of its own.
    pub fn live(&self, case: &Case) -> Lived {
        quick_runtime().block_on(self.live_here(case))
    }

    /// Lives in the runtime that is there.
    pub async fn live_here(&self, case: &Case) -> Lived {
        let probe = self.probe();
        let (at, fault) = self.fault.unwrap_or((u64::MAX, Fault::Before));
        let faulty = Faulty::new(Arc::new(Probed(probe.clone())), at, fault);
        let pump = tokio::spawn(probe.clone().pump());
        let end = tokio::select! {
            biased;
            () = faulty.dead() => None,
            end = self.finish(case, &probe, &faulty) => Some(end),
        };
        if end.is_none() {
            probe.stop().await;
            probe.expire(&self.key()).await;
        }
        pump.abort();
        Lived { end, fired: faulty.fired() || probe.fired() }
    }

    /// Starts the run, or goes on with it, until it is over. A caller whose answer was lost asks again.
    async fn finish(&self, case: &Case, probe: &Probe, faulty: &Arc<Faulty>) -> Result<Ledger, Error> {
        let engine = Engine::builder().options(self.options(case)).with_store(faulty.clone());
        let mut events = self.may_lose_answers().then(|| engine.events());
        let flow = engine.register(graph(case), self.outside()).await?;
        for _ in 0..ENOUGH {
            if self.is_over().await || self.begin(&flow, events.as_mut(), probe, faulty).await? {
                match wait(&flow).await {
                    Err(Error::Store(error)) if may_pass(&error) => {}
                    end => return end,
                }
            }
            // A dead engine ends here.
            tokio::task::yield_now().await;
            probe.expire(&self.key()).await;
        }
        panic!("the run doesn't end after {ENOUGH} starts");
    }

    /// Whether the store can grant a run without the engine hearing of it, and still go on.
    fn may_lose_answers(&self) -> bool {
        self.trouble.is_some() || matches!(self.fault, Some((_, Fault::LoseReply)))
    }

    /// Starts the run; answers whether this engine took it up.
    async fn begin(
        &self,
        flow: &Flow<Ledger, Outside>,
        events: Option<&mut Receiver<Event>>,
        probe: &Probe,
        faulty: &Faulty,
    ) -> Result<bool, Error> {
        match flow.start(RUN, Ledger::default()).await {
            Ok(_) => {}
            Err(Error::Store(error)) if may_pass(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        match events {
            Some(events) => Ok(claimed(events, probe, faulty).await),
            None => {
                while !probe.granted() {
                    tokio::task::yield_now().await;
                }
                Ok(true)
            }
        }
    }

    async fn is_over(&self) -> bool {
        let record = self.store.run(self.key()).await.expect("the store itself is well");
        record.is_some_and(|record| record.status.is_final())
    }
}

/// The run in a namespace.
pub fn key(namespace: &str) -> RunKey {
    RunKey {
        namespace: Namespace::new(namespace).expect("a short name"),
        run: RunId::new(RUN).expect("a short name"),
    }
}

/// Waits until the engine says that it took up the run; not any more once the trouble came and all is quiet.
async fn claimed(events: &mut Receiver<Event>, probe: &Probe, faulty: &Faulty) -> bool {
    let mut quiet = 0;
    while quiet < QUIET {
        match events.try_recv() {
            Ok(Event::RunClaimed { .. }) => return true,
            Ok(_) | Err(TryRecvError::Lagged(_)) => {}
            Err(_) => {
                let stuck = (faulty.fired() || probe.fired()) && probe.idle();
                quiet = if stuck { quiet + 1 } else { 0 };
                tokio::task::yield_now().await;
            }
        }
    }
    false
}

async fn wait(flow: &Flow<Ledger, Outside>) -> Result<Ledger, Error> {
    flow.attach(RUN).await?.wait().await
}

fn may_pass(error: &StoreError) -> bool {
    matches!(error, StoreError::Retry(_) | StoreError::Unknown(_))
}
