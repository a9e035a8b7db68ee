//! The workloads: each is one process, one engine and one timed part, through the public API alone.

mod agents;
mod chain;
mod crash;
mod fan_out;
mod journal;
mod large_state;
mod moves;
mod payloads;
mod requests;
mod starts;
mod telemetry;
mod transfers;

use crate::{
    Result,
    args::{Drive, Payloads, Workload},
    limits,
};
use hapax::{EffectKind, Engine, Options};
use std::time::Duration;
use telemetry::Watched;
use tokio::runtime::{Builder, Runtime};

/// A run of a million strict steps takes longer than the default allows.
const BUDGET: Duration = Duration::from_secs(24 * 60 * 60);
/// How long runs may take to stop once the result is printed; there are none left by then.
const SHUTDOWN: Duration = Duration::from_secs(10);

/// Runs one workload in this process, and counts its syncs.
pub(crate) fn run(drive: &Drive) -> Result<()> {
    hapax_vfs::install()?;
    match &drive.workload {
        Workload::LimitFsync { count } => limits::fsync(&drive.store, *count),
        Workload::LimitRows { commits, rows } => limits::rows(&drive.store, *commits, *rows),
        Workload::LimitSteps { commits, steps } => limits::steps(&drive.store, *commits, *steps),
        Workload::LimitInserts { commits, connections } => {
            limits::inserts(&drive.store, *commits, *connections)
        }
        workload => runtime(drive.threads)?.block_on(run_on_engine(drive, workload)),
    }
}

async fn run_on_engine(drive: &Drive, workload: &Workload) -> Result<()> {
    match workload {
        Workload::W1 { steps } => chain::one_run(drive, *steps).await,
        Workload::W2 { runs, steps, in_flight } => {
            chain::many_runs(drive, "w2", (*runs, *steps), *in_flight).await
        }
        Workload::Turns { steps, pairs } => chain::by_turns(drive, *steps, *pairs).await,
        Workload::Fill { runs, steps } => chain::many_runs(drive, "fill", (*runs, *steps), 64).await,
        Workload::Starts { start, count, in_flight } => starts::run(drive, *count, *in_flight, *start).await,
        Workload::W3 { items } => fan_out::run(drive, *items).await,
        Workload::W4 { steps, bytes, replaced } => large_state::run(drive, *steps, *bytes, *replaced).await,
        Workload::W5 { steps, file, die_at } => crash::run(drive, *steps, file, *die_at).await,
        Workload::W5Resume { steps, file } => crash::resume(drive, *steps, file).await,
        Workload::Reads { steps, each } => journal::calls(drive, EffectKind::Read, (1, *steps, *each)).await,
        Workload::Writes { runs, each } => journal::calls(drive, EffectKind::Write, (*runs, 1, *each)).await,
        Workload::Transfers { count, in_flight, strategy, step } => {
            transfers::run(drive, [*count, *in_flight, *step], *strategy).await
        }
        Workload::Requests { count, connections, asks, cached } => {
            requests::run(drive, [*count, *connections], *asks, *cached).await
        }
        Workload::OtlpSink => telemetry::sink().await,
        Workload::Agents(call) => agents::run(drive, call).await,
        Workload::Serve { layered, redis } => requests::serve(&drive.store, *layered, redis.as_deref()).await,
        Workload::Replay { steps } => journal::replay(drive, *steps).await,
        Workload::Migrate { from } => moves::run(drive, from).await,
        Workload::Timers { runs, seconds } => journal::timers(drive, *runs, *seconds).await,
        Workload::LimitFsync { .. }
        | Workload::LimitRows { .. }
        | Workload::LimitSteps { .. }
        | Workload::LimitInserts { .. } => unreachable!("limits need no engine"),
    }
}

fn runtime(threads: Option<usize>) -> std::io::Result<Runtime> {
    match threads {
        Some(1) => Builder::new_current_thread().enable_all().build(),
        Some(threads) => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
        None => Builder::new_multi_thread().enable_all().build(),
    }
}

/// Traces of the engine, if they are asked for.
async fn watched(drive: &Drive, engine: &Engine) -> Result<Option<Watched>> {
    match drive.telemetry {
        true => Ok(Some(Watched::start(engine).await?)),
        false => Ok(None),
    }
}

async fn open(drive: &Drive) -> Result<Engine> {
    let builder = Engine::builder().options(options(drive));
    if drive.payloads == Payloads::default() {
        return Ok(builder.open(&drive.store).await?);
    }
    Ok(builder.with_store(payloads::open(&drive.store, drive.payloads).await?))
}

fn options(drive: &Drive) -> Options {
    let options = Options::default().durability(drive.durability).run_budget(BUDGET).node_timeout(BUDGET);
    match drive.lease_ms {
        Some(lease_ms) => options.lease_ttl(Duration::from_millis(lease_ms)),
        None => options,
    }
}

async fn close(engine: &Engine) {
    engine.shutdown(SHUTDOWN).await;
}
