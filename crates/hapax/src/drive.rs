//! One run in the hands of this engine: from its claim to its end.

use crate::{
    clock,
    gate::{Gate, Halt, Parking, budget_exceeded, micros, run_failure},
    graph::Program,
    items::Frontier,
    run_items::{Journaled, panicked},
    step::{Progress, step},
    wait::Mailbox,
    worker::{End, Shared},
};
use futures::FutureExt;
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Epoch, RunFailure, Status, Wake},
    error::code,
    frontier::{Barriers, WorkItem},
    id::{NodeId, RunKey},
    journal::{ItemRecord, JournalRow, by_item},
    key::Digest,
    order::PathHash,
    state::{self, State},
    trace::{SpanId, TraceId},
};
use hapax_store::{Lease, StoreError};
use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};
use tracing::Instrument;

/// A claimed run: where it stands, and what its journal says about the current step.
pub(crate) struct Claimed<S: State, A> {
    pub(crate) program: Arc<Program<S, A>>,
    pub(crate) app: Arc<A>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) key: RunKey,
    pub(crate) epoch: Epoch,
    pub(crate) seed: u64,
    pub(crate) step: u64,
    pub(crate) digest: Digest,
    pub(crate) state: Arc<S>,
    pub(crate) frontier: Frontier,
    pub(crate) barriers: Barriers,
    pub(crate) record: HashMap<PathHash, ItemRecord>,
    /// The items that needn't run any more. Their ends are here, not in their records.
    pub(crate) journaled: HashMap<PathHash, Journaled<S>>,
    pub(crate) mailbox: Arc<Mailbox>,
    state_json: Arc<[u8]>,
    /// The step that its history begins with.
    began: u64,
    since: Instant,
    used_before: Duration,
}

/// What is known of a run when its execution begins.
pub(crate) struct Claim {
    pub(crate) key: RunKey,
    pub(crate) lease: Lease,
    pub(crate) gate: Arc<Gate>,
    /// Step 0 of a run that was just created; any other is loaded.
    pub(crate) fresh: Option<Checkpoint>,
    /// The run's time used by earlier holders, as far as it was looked up.
    pub(crate) used: Duration,
}

impl<S: State, A: Send + Sync + 'static> Claimed<S, A> {
    /// Reads the checkpoint and the journal that builds on it, after the claim has committed.
    async fn load(
        program: Arc<Program<S, A>>,
        app: Arc<A>,
        shared: Arc<Shared>,
        claim: Claim,
    ) -> Result<Self, Halt> {
        let Claim { key, lease, gate, fresh, .. } = claim;
        if let Some(checkpoint) = fresh {
            gate.trail().begins(program.shape.name());
            return Self::at(program, app, shared, gate, (key, lease), checkpoint);
        }
        let loaded = shared.store.load(key.clone()).await.map_err(|error| match error {
            StoreError::NotFound { .. } => Halt::Fenced,
            error => Halt::Store(Arc::new(error)),
        })?;
        gate.trail().is_of(&loaded.record);
        if loaded.record.cancel_requested {
            return Err(gate.shut(Halt::Cancelled));
        }
        let fingerprint = loaded.record.fingerprint;
        if fingerprint != program.shape.fingerprint() && !program.compatible.contains(&fingerprint) {
            return Err(Halt::Drained);
        }
        if !program.shape.has_joins_of(&loaded.checkpoint.barriers) {
            return Err(joins_differ(loaded.checkpoint.step));
        }
        gate.resume_at(loaded.record.next_seq).await;
        let mut run = Self::at(program, app, shared, gate, (key, lease), loaded.checkpoint)?;
        run.recall(loaded.journal)?;
        run.used_before = Duration::from_micros(loaded.record.used_us);
        run.began = run.first_step().await?;
        Ok(run)
    }

    /// What the journal says of the step. All ends are read before anything begins: where one can't be, this program
    /// must add nothing that another couldn't read. Nor is it anybody's failure: the node did its work, so neither an
    /// attempt nor a handler may follow.
    fn recall(&mut self, journal: Vec<JournalRow>) -> Result<(), Halt> {
        self.record = by_item(self.digest, journal);
        for (item, record) in &mut self.record {
            let Some(done) = record.done.take() else { continue };
            let end = Journaled::read(done)
                .map_err(|error| unreadable(self.frontier.node(*item), self.step, &error))?;
            self.journaled.insert(*item, end);
        }
        Ok(())
    }

    /// The step that the history of a loaded run begins with, as far as somebody wants to know.
    async fn first_step(&self) -> Result<u64, Halt> {
        if self.shared.options.max_steps.is_none() {
            return Ok(self.began);
        }
        let first = self.shared.store.checkpoints(self.key.clone(), 0, 1).await;
        let first = first.map_err(|error| Halt::Store(Arc::new(error)))?;
        Ok(first.first().map_or(self.began, |checkpoint| checkpoint.step))
    }

    fn at(
        program: Arc<Program<S, A>>,
        app: Arc<A>,
        shared: Arc<Shared>,
        gate: Arc<Gate>,
        (key, lease): (RunKey, Lease),
        checkpoint: Checkpoint,
    ) -> Result<Self, Halt> {
        let state = state::decode::<S>(&checkpoint.state, checkpoint.state_version)
            .map_err(|error| run_failure(&error, checkpoint.step))?;
        let mailbox = Mailbox::new(shared.store.clone(), key.clone());
        gate.trail().claimed(checkpoint.step, lease.taken_over);
        Ok(Self {
            program,
            app,
            gate,
            key,
            epoch: lease.epoch,
            seed: checkpoint.seed,
            step: checkpoint.step,
            digest: checkpoint.digest,
            state: Arc::new(state),
            frontier: Frontier::new(
                checkpoint.step,
                checkpoint.frontier_len,
                shared.options.queue_depth,
                checkpoint.frontier.into(),
            ),
            shared,
            barriers: checkpoint.barriers,
            record: HashMap::new(),
            journaled: HashMap::new(),
            mailbox,
            state_json: checkpoint.state,
            began: checkpoint.step,
            since: clock::instant(),
            used_before: Duration::ZERO,
        })
    }
}

impl<S: State, A> Claimed<S, A> {
    /// The next checkpoint becomes the current one. The state is read back from what is committed, so that the next
    /// step sees what a step after a crash would see: JSON doesn't tell `Some(None)` from `None`, or -0 from 0.
    pub(crate) fn advance(
        &mut self,
        checkpoint: &Checkpoint,
        first_page: VecDeque<WorkItem>,
    ) -> Result<(), Halt> {
        let state = state::decode::<S>(&checkpoint.state, checkpoint.state_version)
            .map_err(|error| run_failure(&error, checkpoint.step))?;
        self.step = checkpoint.step;
        self.digest = checkpoint.digest;
        self.state = Arc::new(state);
        self.state_json = checkpoint.state.clone();
        self.barriers = checkpoint.barriers.clone();
        let depth = self.shared.options.queue_depth;
        self.frontier = Frontier::new(checkpoint.step, checkpoint.frontier_len, depth, first_page);
        self.record.clear();
        self.journaled.clear();
        Ok(())
    }

    /// The history is about to be forgotten: everything in it is durable first, since nobody could ask for it
    /// afterwards. The run's time and steps count anew, and the shape that is executed is its own from now on.
    pub(crate) async fn begin_anew(&mut self) -> Result<Digest, Halt> {
        self.gate.flush().await?;
        (self.since, self.used_before, self.began) = (clock::instant(), Duration::ZERO, self.step);
        Ok(self.program.shape.fingerprint())
    }

    /// Asked before each step: nothing stops the run, and it has steps and time left.
    pub(crate) fn may_go_on(&self) -> Result<(), Halt> {
        if let Some(halt) = self.gate.halt() {
            return Err(halt);
        }
        if self.shared.drain.is_cancelled() {
            return Err(Halt::Drained);
        }
        let options = &self.shared.options;
        let taken = self.step - self.began;
        if options.max_steps.is_some_and(|max| taken >= max) {
            return Err(Halt::Failed(Box::new(RunFailure {
                code: code::MAX_STEPS.into(),
                message: format!("the run has taken its {taken} steps and is not done"),
                step: self.step,
                node: None,
            })));
        }
        if clock::instant() >= self.deadline() {
            return Err(budget_exceeded(options.run_budget, self.step));
        }
        Ok(())
    }

    /// When the run's time is up.
    pub(crate) fn deadline(&self) -> Instant {
        let left = self.shared.options.run_budget.saturating_sub(self.used_before);
        // A budget beyond the clock's range is no budget.
        self.since.checked_add(left).unwrap_or_else(|| self.since + Duration::from_secs(86_400 * 365))
    }

    fn used(&self) -> Duration {
        self.used_before + clock::since(self.since)
    }

    pub(crate) fn used_us(&self) -> u64 {
        micros(self.used())
    }
}

/// A shape was declared compatible although its joins are not those that the run waits at.
fn joins_differ(step: u64) -> Halt {
    Halt::Failed(Box::new(RunFailure {
        code: code::GRAPH_MISMATCH.into(),
        message: "the run waits at a join that this graph does not have; the shapes are not compatible"
            .into(),
        step,
        node: None,
    }))
}

/// An end that is journaled can't be read.
fn unreadable(node: Option<&NodeId>, step: u64, error: &serde_json::Error) -> Halt {
    let who = node.map_or_else(|| "an item".to_owned(), |node| format!("`{node}`"));
    Halt::Failed(Box::new(RunFailure {
        code: code::STATE_SHAPE.into(),
        message: format!("what {who} wrote is journaled in a form that does not fit: {error}"),
        step,
        node: None,
    }))
}

/// Executes a claimed run until it ends, is parked, or is somebody else's.
pub(crate) async fn drive<S: State, A: Send + Sync + 'static>(
    program: Arc<Program<S, A>>,
    app: Arc<A>,
    shared: Arc<Shared>,
    claim: Claim,
) -> End {
    let (gate, key, used) = (claim.gate.clone(), claim.key.clone(), claim.used);
    let mut run = match unless_it_panics(0, Claimed::load(program, app, shared, claim)).await {
        Ok(run) => run,
        Err(halt) => return conclude(&gate, &key, halt, used).await,
    };
    let halt = loop {
        let span = tracing::info_span!("step", step_id = run.step, span_id = %SpanId::of_step(TraceId::of(&run.key), run.step));
        match unless_it_panics(run.step, step(&mut run)).instrument(span).await {
            Ok(Progress::Onward) => {}
            Ok(Progress::Done) => return End::Succeeded(run.state_json, S::VERSION),
            Err(halt) => break halt,
        }
    };
    conclude(&gate, &key, halt, run.used()).await
}

/// Reducers, predicates and upgrades are the user's as well: their panic fails the run, never the engine.
async fn unless_it_panics<T>(step: u64, work: impl Future<Output = Result<T, Halt>>) -> Result<T, Halt> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| Err(run_failure(&panicked(&*panic), step)))
}

/// Writes the run's last word, if it is ours to write.
async fn conclude(gate: &Gate, key: &RunKey, halt: Halt, used: Duration) -> End {
    // What the items journaled stays; if the gate is shut already, its reason is the one we have.
    let halt = match halt {
        Halt::Failed(_) | Halt::Drained | Halt::Parked(_) => {
            gate.flush().await.err().filter(is_stronger).unwrap_or(halt)
        }
        halt => halt,
    };
    let status = match halt {
        Halt::Fenced => return End::Elsewhere,
        Halt::Store(error) => return End::Stopped(Some(error)),
        Halt::Failed(error) => Status::Failed { error: *error },
        Halt::Cancelled => Status::Cancelled,
        Halt::Drained => Status::Running,
        Halt::Parked(parking) => return park(gate, *parking, used).await,
    };
    tracing::info!(run_id = %key, status = status.word(), "the run leaves this engine");
    let concluded = match gate.conclude(status.clone(), used, Wake::default()).await {
        // A cancel came first: it counts, whatever the run was about to say.
        Err(Halt::Cancelled) => return cancelled(gate, used).await,
        concluded => concluded,
    };
    match concluded {
        Ok(_) if status == Status::Running => End::Stopped(None),
        Ok(_) => End::Over(status),
        Err(Halt::Store(error)) => End::Stopped(Some(error)),
        Err(_) => End::Elsewhere,
    }
}

/// Leaves the run to whatever wakes it.
async fn park(gate: &Gate, parking: Parking, used: Duration) -> End {
    let Parking { status, wake } = parking;
    match gate.conclude(status.clone(), used, wake).await {
        Ok(_) => End::Parked(status),
        Err(Halt::Store(error)) => End::Stopped(Some(error)),
        Err(_) => End::Elsewhere,
    }
}

async fn cancelled(gate: &Gate, used: Duration) -> End {
    match gate.conclude(Status::Cancelled, used, Wake::default()).await {
        Ok(_) => End::Over(Status::Cancelled),
        Err(Halt::Store(error)) => End::Stopped(Some(error)),
        Err(_) => End::Elsewhere,
    }
}

fn is_stronger(halt: &Halt) -> bool {
    !matches!(halt, Halt::Failed(_) | Halt::Drained | Halt::Parked(_))
}
