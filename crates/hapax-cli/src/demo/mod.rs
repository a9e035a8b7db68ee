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

use hapax::{Engine, Status, store::ListFilter};
use picture::Picture;
use std::{
    collections::BTreeSet,
    hash::{BuildHasher, Hasher, RandomState},
    process::ExitCode,
    time::Duration,
};
use supervisor::{Broken, Setup, supervise};
use tally::Tally;

/// What Ctrl-C makes of a program, by custom.
const INTERRUPTED: u8 = 130;

/// Pay orders while their worker is killed again and again, and count what the bank saw
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, override_usage = "hapax demo [OPTIONS]")]
pub struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Orders to pay
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    orders: u32,
    /// How often the worker is killed with SIGKILL
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    kills: u32,
    /// Draws the plan of the kills; a new one each time unless given
    #[arg(long)]
    seed: Option<u64>,
    /// Where the orders live, like `sqlite:demo.db`; kept afterwards. Default: a file that is removed at the end
    #[arg(long, value_name = "URL", value_parser = survives_a_kill)]
    store: Option<String>,
    /// Only the result, as one line of JSON
    #[arg(long)]
    json: bool,
}

/// A part that the demo gives to a child.
#[derive(Debug, clap::Subcommand)]
enum Role {
    #[command(hide = true)]
    Worker(worker::Args),
    #[command(hide = true)]
    Ledger(ledger::Args),
}

fn survives_a_kill(url: &str) -> Result<String, String> {
    if url.starts_with("memory:") || url.ends_with(":memory:") {
        return Err("what is only in memory dies with the worker; use a file: `sqlite:demo.db`".into());
    }
    Ok(url.to_owned())
}

/// Runs the demo. Exit code 0: every order was charged exactly once, though calls had to be repeated.
pub fn run(args: Args) -> ExitCode {
    let played = match args.role {
        Some(Role::Worker(args)) => worker::run(args),
        Some(Role::Ledger(args)) => ledger::run(args).map_err(Into::into),
        None => return show(&args).unwrap_or_else(failed),
    };
    played.map_or_else(failed, |()| ExitCode::SUCCESS)
}

#[allow(clippy::needless_pass_by_value, reason = "it ends a chain of results")]
fn failed(error: hapax::NodeError) -> ExitCode {
    eprintln!("hapax demo: {error:?}");
    ExitCode::FAILURE
}

fn show(args: &Args) -> hapax::Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("hapax-demo-").tempdir()?;
    let fresh = || format!("sqlite:{}", folder.path().join("orders.db").display());
    let setup = Setup {
        orders: args.orders,
        kills: args.kills,
        seed: args.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish() % 1_000_000),
        store: args.store.clone().unwrap_or_else(fresh),
        batch: args.store.as_ref().map_or_else(|| "order".into(), |_| format!("demo-{}", clock::stamp())),
        folder: folder.path().to_owned(),
    };
    // A store that can't be opened is reported before anything is started.
    runs(&setup)?;
    let (done, scene) = match supervise(&setup, Picture::new(args.json)) {
        Ok(done) => done,
        Err(Broken::Interrupted) => return Ok(ExitCode::from(INTERRUPTED)),
        Err(Broken::Failed(why)) => {
            return Err(hapax::NodeError::new(format!("{why}; seed {}", setup.seed)));
        }
    };
    let (finished, steps) = runs(&setup)?;
    let log = ledger::read_log(&setup.log())?;
    let tally = Tally::new(&log, &setup.batch, setup.orders, (&finished, steps), done);
    if args.json {
        println!("{}", serde_json::to_string(&tally)?);
    } else {
        picture::result(&tally, &scene);
    }
    Ok(ExitCode::from(u8::from(!tally.holds())))
}

/// The orders that were finished, and the steps that all of them committed, as the store has it.
fn runs(setup: &Setup) -> hapax::Result<(BTreeSet<String>, u64)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listed = runtime.block_on(async {
        let engine = Engine::open(&setup.store).await?;
        let filter =
            ListFilter { graph: Some(orders::GRAPH.into()), limit: usize::MAX, ..ListFilter::default() };
        let listed = engine.list(filter).await;
        engine.shutdown(Duration::from_secs(1)).await;
        listed
    })?;
    let ours = listed.into_iter().filter(|record| record.key.run.as_str().starts_with(&setup.batch));
    let mut finished = BTreeSet::new();
    let mut steps = 0;
    for record in ours {
        steps += record.step;
        if record.status == Status::Succeeded {
            finished.insert(record.key.run.to_string());
        }
    }
    Ok((finished, steps))
}
