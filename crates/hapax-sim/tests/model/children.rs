//! Every store-call boundary of a run with children: whatever fails there, each child is there once, what it came to is
//! recorded once, and all of them end step by step as they do undisturbed.

use hapax::{
    Child, Coded, Durability, EffectError, Options, State, Status,
    core::{
        error::code,
        journal::{EffectKind, Entry, JournalRow},
        key::Digest,
    },
    prelude::*,
    store::{Clock, ListFilter, MemoryStore, Store, faulty::Fault},
    testing::Lab,
};
use hapax_sim::boundaries::{Place, cut_short, pass_slowly, runtime};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Job {
    task: String,
    #[state(append)]
    log: Vec<String>,
}

const WORK: Node = Node::new("work");
const PAY: Node = Node::new("pay");
const JOBS: Child<Job> = Child::new("jobs");

fn job(task: &str) -> Job {
    Job { task: task.into(), log: vec![] }
}

/// The outside: each key takes effect once.
#[derive(Clone, Default)]
struct Outside(Arc<Mutex<BTreeMap<String, String>>>);

impl Outside {
    async fn write(&self, ctx: &mut Ctx, request: &str) -> Result<String, EffectError> {
        let take_effect = async |call: hapax::Call| {
            let mut effects = self.0.lock().unwrap();
            let known = effects.entry(call.key().to_owned()).or_insert_with(|| request.to_owned());
            assert_eq!(known, request, "one key for two requests");
            Ok::<_, NodeError>(request.to_owned())
        };
        ctx.effect("write", Write, request, take_effect).await
    }

    fn effects(&self) -> Vec<String> {
        let mut effects: Vec<_> = self.0.lock().unwrap().values().cloned().collect();
        effects.sort();
        effects
    }
}

type Ctx = hapax::Ctx<Job, Outside>;

/// What a job does is its task: it ends well, fails, waits for ever, or has children that do.
async fn work(mut ctx: Ctx) -> Result<JobDelta, NodeError> {
    let (outside, task) = (ctx.app(), ctx.state().task.clone());
    match task.as_str() {
        "paint" => Ok(Job::delta().log(outside.write(&mut ctx, "paint").await?)),
        "break" => {
            outside.write(&mut ctx, "break").await?;
            Err(NodeError::new("it broke").fatal())
        }
        "lead" => lead(ctx).await,
        "hand on" => hand_on(ctx, "middle", "pass on").await,
        "pass on" => hand_on(ctx, "lower", "pass down").await,
        "pass down" => hand_on(ctx, "last", "wait").await,
        _ => Ok(ctx.signal::<()>("never").await.map(|()| Job::delta())?),
    }
}

/// One child ends well and one fails, side by side; then there is one that somebody cancels.
async fn lead(mut ctx: Ctx) -> Result<JobDelta, NodeError> {
    let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
    let (paint, clumsy) = (job("paint"), job("break"));
    let (good, bad) = futures::join!(left.child(JOBS, "good", &paint), right.child(JOBS, "bad", &clumsy));
    let stopped = ctx.child(JOBS, "stopped", &job("wait")).await;
    let why =
        |ended: Result<Job, EffectError>| ended.map_or_else(|error| error.to_string(), |_| "fine".into());
    Ok(Job::delta().log(good?.log.join("+")).log(why(bad)).log(why(stopped)))
}

async fn hand_on(mut ctx: Ctx, child: &str, task: &str) -> Result<JobDelta, NodeError> {
    let ended = ctx.child(JOBS, child, &job(task)).await?;
    Ok(Job::delta().log(ended.log.join("+")))
}

/// Pays for what the children came to: another outcome would be another request, under another key.
async fn pay(mut ctx: Ctx) -> Result<JobDelta, EffectError> {
    let (outside, request) = (ctx.app(), format!("pay {}", ctx.state().log.join(", ")));
    outside.write(&mut ctx, &request).await?;
    Ok(Job::delta().log("paid"))
}

async fn start(lab: &Lab, outside: &Outside, task: &str) -> Result<hapax::Run<Job>, hapax::Error> {
    let engine = lab.engine();
    engine.register(Graph::new("jobs", 1, WORK).node(WORK, work), outside.clone()).await?;
    let parents = Graph::new("parents", 1, WORK).node(WORK, work).node(PAY, pay).edge(WORK, PAY);
    let parents = engine.register(parents, outside.clone()).await?;
    insist(async || parents.start("parent", job(task)).await).await
}

/// Asks again when the answer was lost.
async fn insist<T>(ask: impl AsyncFn() -> Result<T, hapax::Error>) -> Result<T, hapax::Error> {
    loop {
        match ask().await {
            Err(error) if error.code() == code::STORE_UNKNOWN => {}
            answer => return answer,
        }
    }
}

/// Waits until a run is there.
async fn there(engine: &Engine, run: &str) -> Result<(), hapax::Error> {
    loop {
        match engine.status(run).await {
            Err(error) if error.code() == code::RUN_NOT_FOUND => tokio::task::yield_now().await,
            status => return status.map(drop),
        }
    }
}

/// Cancels a run as soon as another is there; one that is over stays as it is.
async fn cancel(engine: &Engine, run: &str, behind: &str) -> Result<(), hapax::Error> {
    there(engine, behind).await?;
    match insist(async || engine.cancel(run).await).await {
        Err(error) if error.code() == code::ALREADY_FINISHED => Ok(()),
        cancelled => cancelled,
    }
}

/// Moves the clock on until all runs that there are have ended.
async fn all_over(lab: &Lab) -> Result<(), hapax::Error> {
    loop {
        let runs = lab.engine().list(ListFilter::default()).await?;
        let Some(open) = runs.iter().find(|run| !run.status.is_final()) else { return Ok(()) };
        lab.until(open.key.run.as_str(), Status::is_final).await?;
    }
}

/// What the lives of a process are about.
#[derive(Clone, Copy, PartialEq)]
enum Story {
    /// What children come to goes up: a result, a failure, a cancel.
    Up,
    /// A cancel goes down, to a child, its child and the child of that, once they are there.
    Down,
    /// The same, but only a second life asks for it, wherever the first one stopped.
    DownLater,
}

impl Story {
    /// One life: until all runs are over, or there is nothing more to do in it.
    async fn live(
        self,
        lab: &Lab,
        outside: &Outside,
        clock: &Clock,
        is_first: bool,
    ) -> Result<(), hapax::Error> {
        start(lab, outside, if self == Story::Up { "lead" } else { "hand on" }).await?;
        let engine = lab.engine();
        let whole = async {
            match self {
                Story::Up => cancel(engine, "stopped", "stopped").await?,
                Story::Down => cancel(engine, "parent", "last").await?,
                Story::DownLater if is_first => {
                    there(engine, "last").await?;
                    return lab
                        .until("last", |status| matches!(status, Status::Waiting { .. }))
                        .await
                        .map(drop);
                }
                Story::DownLater => cancel(engine, "parent", "parent").await?,
            }
            all_over(lab).await
        };
        tokio::select! {
            ended = whole => ended,
            () = pass_slowly(clock) => unreachable!("time passes for ever"),
        }
    }

    /// Lives twice: the first time with a fault, the second time until all is over. Whether the fault was reached.
    fn with_fault(self, place: &Place, durability: Durability, at: u64, fault: Fault) -> bool {
        let (outside, options) = (Outside::default(), Options::default().durability(durability));
        let (fired, clock) = cut_short(place, &options, (at, fault), async |lab, clock| {
            // What it comes to is seen in the second life.
            let _ = self.live(lab, &outside, clock, true).await;
        });
        let context = format!("{fault:?} at {at}");
        let left = runtime().block_on(async {
            let lab = Lab::on(place.open().await, options);
            self.live(&lab, &outside, &clock, false)
                .await
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let left = Left::by(&lab).await;
            lab.engine().shutdown(Duration::from_secs(5)).await;
            left
        });
        self.check(&left, &outside, &context);
        fired
    }

    fn check(self, left: &Left, outside: &Outside, context: &str) {
        if self == Story::Up {
            let (undisturbed, effects) = undisturbed();
            assert_eq!(left, undisturbed, "{context}");
            assert_eq!(&outside.effects(), effects, "{context}: each once");
            return;
        }
        let cancelled = left.ends.values().filter(|end| **end == "cancelled").count();
        assert_eq!(cancelled, left.ends.len(), "{context}: {:?}", left.ends);
        let all = BTreeSet::from(["last", "lower", "middle", "parent"]);
        let runs: BTreeSet<_> = left.ends.keys().map(String::as_str).collect();
        assert!(runs.is_subset(&all), "{context}: {runs:?}");
        assert!(self == Story::DownLater || runs == all, "{context}: {runs:?}");
        assert!(outside.effects().is_empty(), "{context}");
    }
}

/// What is left of the runs.
#[derive(Debug, Default, PartialEq)]
struct Left {
    /// How each ended.
    ends: BTreeMap<String, &'static str>,
    /// The digests of its steps.
    steps: BTreeMap<String, Vec<Digest>>,
    /// The children that were begun, and of which an end is recorded: of each record one entry.
    begun: BTreeMap<String, Vec<String>>,
    ended: BTreeMap<String, Vec<String>>,
}

impl Left {
    async fn by(lab: &Lab) -> Self {
        let (mut left, store) = (Self::default(), lab.engine().store());
        for run in lab.engine().list(ListFilter::default()).await.unwrap() {
            let name = run.key.run.to_string();
            left.ends.insert(name.clone(), run.status.word());
            let steps = store.checkpoints(run.key.clone(), 0, 100).await.unwrap();
            left.steps.insert(name.clone(), steps.into_iter().map(|step| step.digest).collect());
            let (begun, ended) = children(&*store, run.key).await;
            left.begun.insert(name.clone(), begun);
            left.ended.insert(name, ended);
        }
        left
    }
}

/// The places of a run's calls for children: of its intents, and of its results.
async fn children(store: &dyn Store, run: hapax::core::id::RunKey) -> (Vec<String>, Vec<String>) {
    let (mut begun, mut ended) = (vec![], vec![]);
    for JournalRow { step, entry, .. } in store.journal(run, 0, 1000).await.unwrap() {
        let place = |scope: &str, index: u32| format!("{step} {scope}{index}");
        match entry {
            Entry::Intent(it) if it.kind == EffectKind::Child => begun.push(place(&it.scope, it.index)),
            Entry::Result { scope, index, .. } => ended.push(place(&scope, index)),
            _ => {}
        }
    }
    ended.retain(|place| begun.contains(place));
    begun.sort();
    ended.sort();
    (begun, ended)
}

/// What is left without any fault: the same on every store, however far steps run ahead.
fn undisturbed() -> &'static (Left, Vec<String>) {
    static LEFT: OnceLock<(Left, Vec<String>)> = OnceLock::new();
    LEFT.get_or_init(|| {
        let outside = Outside::default();
        let left = runtime().block_on(async {
            let clock = Clock::manual();
            let lab = Lab::on(MemoryStore::with_clock(clock.clone()), Options::default());
            Story::Up.live(&lab, &outside, &clock, true).await.unwrap();
            Left::by(&lab).await
        });
        let names = ["bad", "good", "parent", "stopped"].map(str::to_owned);
        let ends = names.iter().cloned().zip(["failed", "succeeded", "succeeded", "cancelled"]).collect();
        assert_eq!(left.ends, ends);
        assert_eq!(left.begun["parent"], ["0 0", "0 left0", "0 right0"]);
        assert_eq!(left.ended["parent"], left.begun["parent"]);
        let effects = outside.effects();
        assert_eq!((effects.len(), &effects[0], &effects[1]), (3, &"break".into(), &"paint".into()));
        (left, effects)
    })
}

mod ends_go_up {
    fn with_fault(place: &super::Place, durability: super::Durability, at: u64, fault: super::Fault) -> bool {
        super::Story::Up.with_fault(place, durability, at, fault)
    }
    hapax_sim::every_boundary!(with_fault);
}

mod a_cancel_goes_down {
    fn with_fault(place: &super::Place, durability: super::Durability, at: u64, fault: super::Fault) -> bool {
        super::Story::Down.with_fault(place, durability, at, fault)
    }
    hapax_sim::every_boundary!(with_fault);
}

mod a_cancel_after_a_crash_goes_down {
    fn with_fault(place: &super::Place, durability: super::Durability, at: u64, fault: super::Fault) -> bool {
        super::Story::DownLater.with_fault(place, durability, at, fault)
    }
    // To die before a call is to die after the one before it, and a lost reply ends no life.
    hapax_sim::every_boundary! { with_fault;
        in_memory_strict: Strict, After, false;
        in_memory: Pipelined, After, false;
        on_sqlite_strict: Strict, After, true;
        on_sqlite: Pipelined, After, true;
    }
}
