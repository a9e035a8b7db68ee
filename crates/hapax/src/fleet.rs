//! A process's part in a fleet: it works until it is told to stop, and leaves nothing behind that others must wait for.

use crate::engine::Engine;
use std::{fmt, io, sync::atomic::Ordering, time::Duration};

/// How long steps in flight may take when a worker stops.
const DRAIN: Duration = Duration::from_secs(30);

/// A process that takes up whatever runs there are, beside any number of others over one database.
///
/// It works with an [`Engine`] on which its graphs are registered. How many runs it holds at a time, how long its leases
/// last and what it is called are the engine's [`Options`](crate::Options): `max_active_runs`, `lease_ttl`, `name`. The
/// engine needn't look for work by itself: with [`finds_work(false)`](crate::Options::finds_work) it begins with the worker.
///
/// A worker that is asked to stop, by SIGTERM as service managers do or by Ctrl-C, takes no new run, lets the steps in
/// flight commit, and gives all its runs back, so that others go on with them at once. One that is killed can't; its runs
/// are taken over when their leases end.
///
/// ```
/// use hapax::{Worker, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { paid: bool }
/// # const PAY: Node = Node::new("pay");
/// # async fn pay(_: hapax::Ctx<Order>) -> OrderDelta { Order::delta().paid(true) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let graph = Graph::new("orders", 1, PAY).node(PAY, pay);
/// # let address = "memory:"; // in a fleet it is postgres://hapax@db.internal/orders
/// let options = Options::default().max_active_runs(64);
/// let engine = Engine::builder().options(options).open(address).await?;
/// let orders = engine.register(graph, ()).await?;
/// let order = orders.submit("order-42", Order::default()).await?; // whoever is free takes it up
/// let report = Worker::new(engine).run_until(order.wait()).await;
/// assert_eq!(report.to_string(), "1 run finished, 0 handed over");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Worker {
    engine: Engine,
    drain: Duration,
}

impl Worker {
    /// Works with this engine, and shuts it down at the end.
    pub fn new(engine: Engine) -> Self {
        Self { engine, drain: DRAIN }
    }

    /// How long steps in flight may take once it is asked to stop; what takes longer is dropped, and begun again by
    /// whoever goes on. Default: 30 s. Keep it below the time after which the service manager kills: systemd waits 90 s,
    /// Kubernetes 30 s, Docker 10 s, unless they are told otherwise.
    #[must_use]
    pub fn drain_within(mut self, deadline: Duration) -> Self {
        self.drain = deadline;
        self
    }

    /// The name under which it holds runs, as `hapax workers` shows it.
    pub fn name(&self) -> &str {
        &self.engine.shared.owner
    }

    /// Works until SIGTERM or SIGINT. An error when those can't be heard.
    ///
    /// ```no_run
    /// # async fn example(engine: hapax::Engine) -> hapax::Result<()> {
    /// let report = hapax::Worker::new(engine).run().await?;
    /// println!("{report}"); // 5120 runs finished, 3 handed over
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run(self) -> io::Result<WorkerReport> {
        let stop = signals()?;
        Ok(self.run_until(stop).await)
    }

    /// Works until `stop` resolves.
    ///
    /// ```
    /// use hapax::{Engine, Worker};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// let (stop, asked) = tokio::sync::oneshot::channel::<()>();
    /// let worker = Worker::new(Engine::open("memory:").await?);
    /// let working = tokio::spawn(worker.run_until(asked));
    /// drop(stop);
    /// assert_eq!(working.await?.finished, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_until(self, stop: impl Future) -> WorkerReport {
        let shared = &self.engine.shared;
        shared.hired.cancel();
        stop.await;
        tracing::info!(worker = %shared.owner, "asked to stop; handing over");
        self.engine.shutdown(self.drain).await;
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let tally = &shared.tally;
        WorkerReport {
            finished: count(&tally.finished),
            handed_over: count(&tally.handed_over),
            // Those that it still holds couldn't be given back in time.
            lost: count(&tally.lost) + shared.holding().len() as u64,
        }
    }
}

/// What became of the runs that a worker held. Those that it parked, since they wait for something, aren't counted.
///
/// ```
/// use hapax::{Engine, Worker};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let report = Worker::new(Engine::open("memory:").await?).run_until(async {}).await;
/// assert_eq!(report.to_string(), "0 runs finished, 0 handed over");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// They ended: well, by a failure or by a cancel.
    pub finished: u64,
    /// It gave them back: others go on with them at once.
    pub handed_over: u64,
    /// It lost them: another took them over since a lease had ended, or the store was out of reach for too long.
    pub lost: u64,
}

impl fmt::Display for WorkerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = if self.finished == 1 { "run" } else { "runs" };
        write!(f, "{} {runs} finished, {} handed over", self.finished, self.handed_over)?;
        if self.lost > 0 {
            write!(f, ", {} lost", self.lost)?;
        }
        Ok(())
    }
}

/// Resolves with the first request to stop. From this call on none of them ends the process by itself.
fn signals() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
