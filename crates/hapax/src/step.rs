//! THE FLOW: run the items of a frontier, merge their results, commit the next step.
//!
//! Invariant: this is the only place that commits a step, and what it commits depends on the checkpoint before,
//! the graph and the recorded effects, never on time, order of finishing or place.

use crate::{
    drive::Claimed,
    gate::{Halt, run_failure},
    options::Durability,
    run_items::Items,
};
use hapax_core::{
    canonical,
    checkpoint::{Draft, IoDigest, outbox_digest},
    commit::{StepCommit, Write},
    journal::{Entry, JournalRow},
    limits::{FRONTIER_PAGE, MAX_STATE_BYTES},
    merge::{MergeError, Merged, Merger},
    order::PathHash,
    outbox::Message,
    state::State,
};
use hapax_store::{Pace, StoreError};

/// What a step led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More to do.
    Onward,
    /// The run succeeded, and that is durable.
    Done,
}

/// Takes a run from one checkpoint to the next.
pub(crate) async fn step<S: State, A: Send + Sync + 'static>(
    run: &mut Claimed<S, A>,
) -> Result<Progress, Halt> {
    run.may_go_on()?;
    let (merged, seen) = run_and_merge(run).await?;
    commit(run, merged, seen).await
}

/// What the items of a step recorded: its digest, and what the journal doesn't have yet; and what they send.
#[derive(Default)]
struct Seen {
    io: IoDigest,
    tail: Vec<(PathHash, Entry)>,
    messages: Vec<Message>,
}

/// Runs every item of the frontier and folds the results in order-key order, whichever finished first.
async fn run_and_merge<S: State, A: Send + Sync + 'static>(
    run: &mut Claimed<S, A>,
) -> Result<(Merged<S>, Seen), Halt> {
    let program = run.program.clone();
    let (state, barriers) = (S::clone(&run.state), run.barriers.clone());
    let policy = run.shared.options.conflict_policy;
    let mut merger = Merger::new(&program.shape, run.step, state, barriers, policy, run.frontier.len());
    let mut seen = Seen::default();
    let mut failure = None;
    let mut items = Items::new(run);
    while let Some(finished) = items.next().await? {
        if failure.is_none() {
            let path_hash = finished.item.path_hash;
            seen.io.item(path_hash, &finished.recorded);
            seen.tail.extend(finished.tail.into_iter().map(|entry| (path_hash, entry)));
            seen.messages.extend(finished.messages);
            failure = merger.push(&finished.item, finished.result).err();
        }
    }
    match failure.map_or_else(|| merger.finish(), Err) {
        Ok(merged) => Ok((merged, seen)),
        Err(error) => {
            if let (MergeError::Conflict { .. }, Some(graph)) = (&error, run.gate.trail().of_graph()) {
                graph.merge_conflicts.one_more();
            }
            Err(failed(error, run.step))
        }
    }
}

fn failed(error: MergeError, step: u64) -> Halt {
    let halt = run_failure(&error, step);
    match (halt, error) {
        (Halt::Failed(mut run), MergeError::Failed { failure, .. }) => {
            run.code.clone_from(&failure.code);
            run.node = Some(failure);
            Halt::Failed(run)
        }
        (halt, _) => halt,
    }
}

/// Seals the next checkpoint and hands it to the store; waits for the disk when durability is strict, when too
/// much runs ahead of it, or when the run ends.
async fn commit<S: State, A>(
    run: &mut Claimed<S, A>,
    merged: Merged<S>,
    seen: Seen,
) -> Result<Progress, Halt> {
    let Merged { state, frontier, barriers, fresh } = merged;
    let json = canonical::to_vec(&state).map_err(|error| run_failure(&error, run.step))?;
    if json.len() > MAX_STATE_BYTES {
        let what = format!("the state after step {}", run.step);
        return Err(run_failure(
            &StoreError::TooLarge { what, size: json.len(), limit: MAX_STATE_BYTES },
            run.step,
        ));
    }
    let draft = Draft {
        step: run.step + 1,
        state: json.into(),
        state_version: S::VERSION,
        frontier,
        barriers,
        seed: run.seed,
        io: seen.io.finish(),
        outbox: outbox_digest(&seen.messages),
        label: None,
    };
    let checkpoint = draft.seal(&run.key.run);
    let ends = checkpoint.frontier.is_empty();
    let first_page = checkpoint.frontier.iter().take(FRONTIER_PAGE).cloned().collect();
    let (follows, base) = (run.step, run.digest);
    run.advance(&checkpoint, first_page)?;
    let fresh = if fresh { Some(run.begin_anew().await?) } else { None };
    let build = |first_seq| {
        let row = |((path_hash, entry), seq)| JournalRow { seq, base, step: follows, path_hash, entry };
        Write::Step(Box::new(StepCommit {
            run: run.key.clone(),
            epoch: run.epoch,
            follows,
            base,
            checkpoint,
            first_seq,
            journal: seen.tail.into_iter().zip(first_seq..).map(row).collect(),
            outbox: seen.messages,
            ends,
            fresh,
            used_us: run.used_us(),
        }))
    };
    let waits = ends || run.shared.options.durability == Durability::Strict;
    let mark = run.gate.submit(if waits { Pace::Alone } else { Pace::Ahead }, build).await?.mark;
    if waits {
        run.gate.passed(mark).await?;
    } else {
        run.gate.window().await?;
    }
    Ok(if ends { Progress::Done } else { Progress::Onward })
}
