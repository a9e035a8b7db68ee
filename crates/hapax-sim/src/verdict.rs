//! What a run left behind, and whether it is what it should be.

use crate::{
    workload::{FICKLE, LOOK},
    world::{Event, Logged, Site, World},
};
use hapax_core::{
    commit::Status,
    id::RunKey,
    journal::{EffectOutcome, Entry, Seen},
    key::{Digest, StepKey},
    order::PathHash,
};
use hapax_store::Store;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
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
    /// The calls that the outside saw, each once, with their requests where two executions agree on them.
    pub calls: BTreeSet<(Site, u64)>,
    /// How many good answers are recorded for each call.
    pub answers: BTreeMap<Site, usize>,
    /// The first step in which it saw what can't be repeated: digests hold that from the next one on.
    pub fickle_in: Option<u64>,
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
    let (mut answers, mut fickle_in) = (BTreeMap::new(), None);
    for row in store.journal(run.clone(), 0, usize::MAX).await.expect("readable") {
        let (step, path_hash) = (row.step, row.path_hash);
        if is_fickle(&row.entry) {
            fickle_in.get_or_insert(step);
        }
        if let Entry::Result { scope, index, outcome: EffectOutcome::Ok { .. }, .. }
        | Entry::Seen(Seen { scope, index, outcome: EffectOutcome::Ok { .. }, .. }) = row.entry
        {
            *answers.entry(Site { step, path_hash, scope: scope.to_string(), index }).or_default() += 1;
        }
    }
    Left { status: record.status, state, steps, calls: calls(&world.log()), answers, fickle_in }
}

/// Whether no two executions agree on it.
fn is_fickle(entry: &Entry) -> bool {
    matches!(entry, Entry::Seen(seen) if [LOOK, "hapax.now", "hapax.uuid"].contains(&seen.name.as_str()))
}

fn calls(log: &[Logged]) -> BTreeSet<(Site, u64)> {
    let call = |(_, event): &Logged| match event {
        Event::Called { site, request, .. } => Some((site.clone(), (*request).min(FICKLE))),
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
        let alike = [ours.fickle_in, theirs.fickle_in].into_iter().flatten().min().unwrap_or(u64::MAX);
        let pairs = ours.steps.iter().zip(&theirs.steps).take(alike.saturating_add(1) as usize);
        let first = pairs.into_iter().position(|(our, their)| our != their);
        let lengths = (ours.steps.len(), theirs.steps.len());
        let same = first.is_none() && lengths.0 == lengths.1;
        differs("steps", same, format!("{lengths:?}, first different: {first:?}"));
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
    let mut keys: HashMap<Site, String> = HashMap::new();
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
        // This holds for a stale life too: no call leaves before all that it rests on is durable.
        if let Event::Called { site, key, .. } = &event
            && let Some(other) = keys.insert(site.clone(), key.clone()).filter(|other| other != key)
        {
            found.push(format!("{site:?} was called under two keys: {other} and {key}"));
        }
        let code = matches!(event, Event::Executed { .. } | Event::Called { .. });
        if !(code && stale == Some(life)) {
            found.extend(seen(&event));
        }
    }
    found
}
