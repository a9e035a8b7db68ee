//! What follows from two looks: how fast things move.
//!
//! Invariant: every rate is over the store's own time between the looks, and is never more than what really happened.

use super::look::Look;
use hapax_core::id::RunId;
use hapax_store::Census;
use std::collections::HashMap;

/// The words for runs that aren't over.
pub(super) const LIVE: [&str; 5] = ["running", "pending", "waiting", "paused", "in_doubt"];

/// What moved between two looks, a second.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Pulse {
    pub(super) steps_per_s: f64,
    /// Some steps may not have been seen.
    pub(super) at_least: bool,
    pub(super) created_per_s: f64,
    /// `None`: there are more runs than are counted.
    pub(super) ended_per_s: Option<f64>,
    runs: HashMap<RunId, f64>,
}

impl Pulse {
    /// The rates between two looks; `None`: the clock hasn't moved on, or was set back.
    pub(super) fn between(before: &Look, now: &Look, limit: usize) -> Option<Self> {
        let (before, now) = (&before.census, &now.census);
        let seconds = now.at_us.saturating_sub(before.at_us) as f64 / 1e6;
        if seconds <= 0.0 {
            return None;
        }
        let earlier: HashMap<&RunId, u64> = before.runs.iter().map(|run| (&run.key.run, run.step)).collect();
        let mut steps = now.created_steps;
        let mut runs = HashMap::new();
        for run in &now.runs {
            let done = match earlier.get(&run.key.run) {
                Some(step) => {
                    let done = run.step.saturating_sub(*step);
                    steps += done;
                    done
                }
                // Those that are new are in the sum already.
                None if run.created_at_us > before.at_us => run.step,
                None => continue,
            };
            runs.insert(run.key.run.clone(), done as f64 / seconds);
        }
        let unseen = before.standing("running").count > limit as u64 || now.created.or_more;
        Some(Self {
            steps_per_s: steps as f64 / seconds,
            at_least: unseen,
            created_per_s: now.created.count as f64 / seconds,
            ended_per_s: ended(before, now).map(|ended| ended as f64 / seconds),
            runs,
        })
    }

    /// The steps of one run a second.
    pub(super) fn of(&self, run: &RunId) -> Option<f64> {
        self.runs.get(run).copied()
    }
}

/// What was alive or created since, and isn't alive any more. A run that is retried hides one that has ended.
fn ended(before: &Census, now: &Census) -> Option<u64> {
    let alive = |census: &Census| {
        let tallies = LIVE.map(|word| census.standing(word));
        let all_counted = tallies.iter().all(|tally| !tally.or_more);
        all_counted.then(|| tallies.iter().map(|tally| tally.count).sum::<u64>())
    };
    let created = (!now.created.or_more).then_some(now.created.count)?;
    Some((alive(before)? + created).saturating_sub(alive(now)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax::Engine;
    use hapax_store::{Clock, MemoryStore, Store, conformance::Sample};
    use std::{sync::Arc, time::Duration};

    /// One run goes on, one ends, one begins and ends between the looks.
    #[tokio::test]
    async fn rates_are_what_happened_between_two_looks() {
        let clock = Clock::manual();
        let store: Arc<dyn Store> = MemoryStore::with_clock(clock.clone());
        let engine =
            Engine::builder().options(hapax::Options::default().finds_work(false)).with_store(store.clone());
        let mut goes_on = Sample::run("goes on").hold(&store).await;
        let ends = Sample::run("ends").hold(&store).await;
        let view = super::super::View::new(Default::default(), Duration::from_secs(1), false);
        let first = super::super::look::look(&engine, view.next()).await.unwrap();
        assert_eq!(Pulse::between(&first, &first, 9), None, "no time has passed");
        clock.advance(Duration::from_secs(2));
        for state in ["a", "b", "c"] {
            goes_on.commit(goes_on.next(state)).await.unwrap();
        }
        ends.finish().await;
        Sample::run("short").hold(&store).await.finish().await;
        let mut view = view;
        view.take(Ok(first));
        let second = super::super::look::look(&engine, view.next()).await.unwrap();
        view.take(Ok(second));
        let pulse = view.pulse().unwrap();
        assert_eq!((pulse.steps_per_s, pulse.at_least), (2.5, false), "3 + 1 + 1 steps in two seconds");
        assert_eq!((pulse.created_per_s, pulse.ended_per_s), (0.5, Some(1.0)));
        let names: Vec<_> = view.runs().iter().map(|run| run.key.run.to_string()).collect();
        assert_eq!(names, ["goes on"], "what is over isn't shown, though it was followed");
        assert_eq!(pulse.of(&view.runs()[0].key.run), Some(1.5));
        engine.shutdown(Duration::from_secs(1)).await;
    }
}
