//! `hapax demo`: orders are paid while their worker is killed again and again, and an outside party counts.
//!
//! Three roles, all played by this program: the supervisor, which the user starts; the worker, which it kills; and
//! the ledger, a bank that keeps its own log. Nothing here trusts Hapax: the numbers come from that log.
//!
//! | file | what it holds |
//! |---|---|
//! | `supervisor.rs`, `plan.rs` | starts and kills workers; when |
//! | `worker.rs`, `orders.rs` | what is killed; the graph of an order |
//! | `ledger.rs` | the bank |
//! | `tally.rs` | counts from the bank's log |
//! | `picture.rs` | what a person sees meanwhile |
//! | `process.rs`, `clock.rs` | children that can't outlive the demo; time |

mod clock;
mod ledger;
mod orders;
mod picture;
mod plan;
mod process;
mod supervisor;
mod tally;
mod worker;

use crate::{args::Global, failure::Failure, output::Output, payloads::Payloads, session};
use clap::{Args, Parser, Subcommand};
use hapax::{
    Engine, Options, Status,
    core::{error::code, id::Namespace},
    store::ListFilter,
};
use picture::Picture;
use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::unix::ffi::OsStrExt,
    path::Path,
    time::Duration,
};
use supervisor::{Broken, Setup, supervise};
use tally::Tally;

const AFTER_HELP: &str = "\
The worker and the bank are processes of their own. The numbers are counted from the bank's log, \
which is on its disk before any answer leaves. Exit code 0 means: no order was charged twice, none \
was lost, and calls had to be repeated.

The orders live in a temporary file, or in the store that --store names, where they stay. \
$HAPAX_STORE is not used.

Examples:
  hapax demo
  hapax demo --orders 1000 --kills 100
  hapax demo --store sqlite:demo.db
  hapax --store sqlite:demo.db list
  hapax demo --json";

/// Pay orders while their worker is killed again and again, and count at the bank
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Demo {
    /// Orders to pay
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    orders: u32,
    /// How often the worker is killed with SIGKILL
    #[arg(long, value_name = "N", default_value_t = 25)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,
    /// Draws the plan of the kills. Default: another one each time
    #[arg(long)]
    seed: Option<u64>,
}

/// The command line of a child: one of its own, so that neither help nor manual nor completions show what only the
/// demo itself calls.
#[derive(Debug, Parser)]
#[command(name = "hapax demo")]
pub(crate) struct Part {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    role: Role,
}

/// A part that the demo gives to a child.
#[derive(Debug, Subcommand)]
enum Role {
    Worker(worker::Args),
    Ledger(ledger::Args),
}

impl Part {
    /// The part that these arguments give to this process, if they are those of a child.
    pub(crate) fn from_args(args: &[OsString]) -> Option<Self> {
        let demo = args.get(1..).filter(|args| args.first().is_some_and(|arg| arg == "demo"))?;
        Role::has_subcommand(demo.get(1)?.to_str()?).then(|| Self::parse_from(demo))
    }

    pub(crate) fn run(self) -> Result<(), Failure> {
        match self.role {
            Role::Worker(args) => worker::run(args, &Place::new(&self.global, Path::new(""))?),
            Role::Ledger(args) => ledger::run(args).map_err(|error| Failure::io("ledger", &error)),
        }
    }

    /// How it says that it failed.
    pub(crate) fn output(&self) -> Output {
        Output::new(&self.global)
    }
}

/// Where the runs live.
#[derive(Debug, Clone)]
struct Place {
    store: OsString,
    namespace: Namespace,
}

impl Place {
    fn new(global: &Global, fresh: &Path) -> Result<Self, Failure> {
        let in_memory =
            |url: &OsString| url.as_bytes().starts_with(b"memory:") || url.as_bytes().ends_with(b":memory:");
        if global.store.as_ref().is_some_and(in_memory) {
            let why = "what is only in memory dies with the worker; use a file, as `--store sqlite:demo.db`";
            return Err(Failure::usage(why));
        }
        let mut fresh_store = OsString::from("sqlite:");
        fresh_store.push(fresh.join("orders.db"));
        let store = global.store.clone().unwrap_or(fresh_store);
        Ok(Self { store, namespace: session::namespace(global)? })
    }

    async fn open(&self) -> Result<Engine, Failure> {
        let options = Options::default().namespace(self.namespace.clone());
        let store = session::open_store(&self.store, false, false, Payloads::default()).await?;
        Ok(Engine::builder().options(options).with_store(store))
    }
}

/// A demo that shall break something on purpose, and can't, would prove the wrong thing.
fn holds_canary(built_in: bool, picked: bool) -> Result<(), Failure> {
    if built_in || !picked {
        return Ok(());
    }
    let why = "HAPAX_CANARY is set, but this build holds no canary: nothing would be broken on purpose";
    Err(Failure::usage(why).cured_by("unset it, or build with `--features canary`"))
}

impl Demo {
    pub(crate) fn run(&self, global: &Global, out: &Output) -> Result<(), Failure> {
        holds_canary(cfg!(feature = "canary"), env::var_os("HAPAX_CANARY").is_some())?;
        let cannot = |error: io::Error| Failure::io("cannot run the demo", &error);
        let folder = tempfile::Builder::new().prefix("hapax-demo-").tempdir().map_err(cannot)?;
        let setup = Setup {
            orders: self.orders,
            kills: self.kills,
            seed: self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() % 1_000_000),
            place: Place::new(global, folder.path())?,
            batch: global.store.as_ref().map_or_else(|| "order".into(), |_| fresh_batch()),
            folder: folder.path().to_owned(),
        };
        // A store that can't be opened is reported before anything is started.
        runs(&setup)?;
        let (done, scene) = supervise(&setup, Picture::new(out)).map_err(|broken| match broken {
            Broken::Interrupted => interrupted(),
            Broken::Failed(why, said) => {
                let known = code::ALL.iter().copied().find(|code| Some(*code) == said.as_deref());
                let why = format!("the demo broke off: {why}; seed {}", setup.seed);
                Failure::coded(known.unwrap_or(code::SYSTEM), why)
            }
        })?;
        let log = ledger::read_log(&setup.log()).map_err(cannot)?;
        let tally = Tally::new(&log, &setup, &runs(&setup)?, done);
        let told = out.answer(&tally, || picture::result(&tally, &scene, out));
        if tally.holds() { told } else { Err(Failure::Told) }
    }
}

fn interrupted() -> Failure {
    Failure::coded(code::INTERRUPTED, "interrupted; the demo's processes are ended")
        .cured_by("start it again")
}

/// Names what one demo leaves in a store that outlives it; another may begin in the same moment.
fn fresh_batch() -> String {
    format!("demo-{}-{:04x}", clock::stamp(), uuid::Uuid::new_v4().as_u128() as u16)
}

/// What the store has of the orders.
#[derive(Debug, Default)]
struct Runs {
    /// The names of those that succeeded.
    finished: BTreeSet<String>,
    /// What all of them committed, after their start.
    steps: u64,
}

fn runs(setup: &Setup) -> Result<Runs, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let listed = runtime.map_err(|error| Failure::io("cannot start", &error))?.block_on(async {
        let engine = setup.place.open().await?;
        let filter =
            ListFilter { graph: Some(orders::GRAPH.into()), limit: usize::MAX, ..ListFilter::default() };
        let listed = engine.list(filter).await;
        engine.shutdown(Duration::from_secs(1)).await;
        Ok::<_, Failure>(listed?)
    })?;
    let mut runs = Runs::default();
    for record in listed.iter().filter(|record| record.key.run.as_str().starts_with(&setup.batch)) {
        runs.steps += record.step;
        if record.status == Status::Succeeded {
            runs.finished.insert(record.key.run.to_string());
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_that_is_not_built_in_is_refused() {
        assert!(holds_canary(false, true).is_err());
        assert!(holds_canary(true, true).is_ok() && holds_canary(false, false).is_ok());
    }
}
