//! What a run left behind, and whether it is what it should be.

use crate::world::{Event, Logged, Site, World};
use hapax_core::{
    commit::Status,
    id::RunKey,
    journal::{EffectOutcome, Entry},
    key::{Digest, StepKey},
    order::PathHash,
};
use hapax_store::Store;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

/// Everything that an undisturbed and a disturbed execution of one run must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// How it ended, with the failure word for word.
    pub status: Status,
    /// The final state.
    pub state: String,
    /// Key and digest of every step.
    pub steps: Vec<(StepKey, Digest)>,
    /// The calls that the outside saw, each once, with their requests.
    pub calls: BTreeSet<(Site, u64)>,
    /// How many good answers are recorded for each call.
    pub answers: BTreeMap<Site, usize>,
}

/// Reads what a run left in the store and in the world.
pub async fn left(store: &Arc<dyn Store>, run: &RunKey, world: &World) -> Left {
    let record = store.run(run.clone()).await.expect("readable").expect("the run is there");
    let mut steps = vec![];
    let mut state = String::new();
    for step in 0..=record.step {
        let stored = store.checkpoint(run.clone(), step).await.expect("intact").expect("every step is kept");
        state = String::from_utf8_lossy(&stored.state).into_owned();
        steps.push((stored.key, stored.digest));
    }
    let mut answers = BTreeMap::new();
    for row in store.journal(run.clone(), 0, usize::MAX).await.expect("readable") {
        if let Entry::Result { scope, index, outcome: EffectOutcome::Ok { .. }, .. } = row.entry {
            let (step, path_hash) = (row.step, row.path_hash);
            *answers.entry(Site { step, path_hash, scope: scope.to_string(), index }).or_default() += 1;
        }
    }
    Left { status: record.status, state, steps, calls: calls(&world.log()), answers }
}

fn calls(log: &[Logged]) -> BTreeSet<(Site, u64)> {
    let call = |(_, event): &Logged| match event {
        Event::Called { site, request, .. } => Some((site.clone(), *request)),
        _ => None,
    };
    log.iter().filter_map(call).collect()
}

impl Left {
    /// What differs from the undisturbed execution.
    pub fn differences(&self, undisturbed: &Self) -> Vec<String> {
        let mut found = vec![];
        let mut differs = |what: &str, same: bool, detail: String| {
            if !same {
                found.push(format!("{what}: {detail}"));
            }
        };
        let (ours, theirs) = (self, undisturbed);
        differs(
            "status",
            ours.status == theirs.status,
            format!("{:?}, not {:?}", ours.status, theirs.status),
        );
        differs("state", ours.state == theirs.state, format!("{}, not {}", ours.state, theirs.state));
        let first = ours.steps.iter().zip(&theirs.steps).position(|(our, their)| our != their);
        let lengths = (ours.steps.len(), theirs.steps.len());
        differs("steps", ours.steps == theirs.steps, format!("{lengths:?}, first different: {first:?}"));
        let odd: Vec<_> = ours.calls.symmetric_difference(&theirs.calls).collect();
        differs("calls", odd.is_empty(), format!("only in one of the two: {odd:?}"));
        let answers = |left: &Self| left.answers.keys().cloned().collect::<BTreeSet<_>>();
        let odd: Vec<_> = answers(ours).symmetric_difference(&answers(theirs)).cloned().collect();
        differs("answers", odd.is_empty(), format!("only in one of the two: {odd:?}"));
        if let Some((site, count)) = ours.answers.iter().find(|(_, count)| **count != 1) {
            found.push(format!("{site:?} has {count} recorded answers"));
        }
        found
    }
}

/// What the world saw that must not be, whatever crashed. The executions of a stale life don't count: it can't know
/// what others committed, and its writes are refused.
pub fn broken_promises(world: &World, stale: Option<u32>) -> Vec<String> {
    let mut found = world.violations();
    let mut committed = 0;
    let mut done: HashSet<(u64, PathHash)> = HashSet::new();
    let mut answered: HashSet<Site> = HashSet::new();
    let mut seen = |event: &Event| match event {
        Event::Committed { step } if *step != committed + 1 => {
            Some(format!("step {step} was committed after step {committed}"))
        }
        Event::Committed { step } => {
            committed = *step;
            None
        }
        Event::Done { step, path_hash } => {
            done.insert((*step, *path_hash));
            None
        }
        Event::Answered { site } => {
            answered.insert(site.clone());
            None
        }
        Event::Executed { step, node, .. } if *step < committed => {
            Some(format!("{node} of step {step} was executed after step {committed} was committed"))
        }
        Event::Executed { step, node, path_hash, .. } if done.contains(&(*step, *path_hash)) => {
            Some(format!("{node} of step {step} was executed after it was journaled as done"))
        }
        Event::Called { site, .. } if answered.contains(site) => {
            Some(format!("{site:?} was called after its answer was recorded"))
        }
        _ => None,
    };
    for (life, event) in world.log() {
        let code = matches!(event, Event::Executed { .. } | Event::Called { .. });
        if !(code && stale == Some(life)) {
            found.extend(seen(&event));
        }
    }
    found
}
