//! What a kill hit: the victim's reports, put together after its death.
//!
//! Invariant: a kill counts for one phase only, and only for one that was open when the victim died, by its last
//! report. A kill that came too late for its aim counts for what it really hit.

use super::{Mark, Report};
use hapax::core::rng::Rng;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// What a victim is in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Opening the store, or repairing it after the kill before.
    Opening,
    /// Inside a node's body.
    Running,
    /// Inside a call that took effect outside and has no answer yet.
    Calling,
    /// Journal rows are on their way to the disk.
    Journaling,
    /// A step is on its way to the disk.
    InCommit,
    /// A step is durable, and nobody knows yet.
    Committed,
    /// Between two of them.
    Idle,
}

impl Phase {
    /// The phases that kills are aimed at, each of which must be hit often enough.
    pub const AIMED: [Phase; 5] =
        [Phase::Running, Phase::Calling, Phase::Journaling, Phase::InCommit, Phase::Committed];
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Opening => "opening the store",
            Phase::Running => "running",
            Phase::Calling => "running, called but unanswered",
            Phase::Journaling => "journaling",
            Phase::InCommit => "in commit",
            Phase::Committed => "committed but unacknowledged",
            Phase::Idle => "between these",
        })
    }
}

/// When to kill: some reports after the n-th one that opens a phase, or at the n-th of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aim {
    /// The phase; `None`: whatever it is.
    pub phase: Option<Phase>,
    /// A write that holds this, whatever the phase.
    pub mark: Option<Mark>,
    /// Which report, counted from 1.
    pub nth: u64,
    /// How many more of any kind to wait for, so that not every kill comes at the beginning of its phase.
    pub then: u64,
}

impl Aim {
    /// Any moment of a life, or the n-th time of a phase.
    pub fn draw(rng: &mut Rng, phase: Option<Phase>) -> Self {
        let (most, then) = match phase {
            None => (80, 1),
            Some(Phase::Calling) => (5, 1),
            // A victim that holds back an answer may have nothing more to say.
            Some(Phase::Committed) => (15, 1),
            Some(_) => (15, 3),
        };
        Self { phase, mark: None, nth: 1 + rng.below(most), then: rng.below(then) }
    }

    /// The n-th write that holds something.
    pub fn at(rng: &mut Rng, mark: Mark) -> Self {
        Self { phase: None, mark: Some(mark), nth: 1 + rng.below(3), then: rng.below(2) }
    }

    /// Whether a report is one of those that are counted.
    fn counts(&self, report: &Report) -> bool {
        if let Some(mark) = self.mark {
            let (Report::Appending { holds, .. } | Report::Committing { holds, .. }) = report else {
                return false;
            };
            return holds.contains(&mark);
        }
        match (self.phase, report) {
            (None, _)
            | (Some(Phase::Running), Report::BodyBegan(_))
            | (Some(Phase::Journaling), Report::Appending { .. })
            | (Some(Phase::InCommit), Report::Committing { .. })
            | (Some(Phase::Committed), Report::Committed(_)) => true,
            (Some(_), _) => false,
        }
    }
}

/// Counts reports until it is time to kill.
#[derive(Debug)]
pub struct Trigger {
    aim: Aim,
    nth_left: u64,
    then_left: Option<u64>,
}

impl Trigger {
    /// Waits for what the aim says.
    pub fn new(aim: Aim) -> Self {
        Self { aim, nth_left: aim.nth, then_left: None }
    }

    /// Whether this report is the one to kill at. Says so once.
    pub fn is_pulled_by(&mut self, report: &Report) -> bool {
        if let Some(left) = &mut self.then_left {
            *left = left.wrapping_sub(1);
            return *left == 0;
        }
        if self.aim.counts(report) {
            self.nth_left -= 1;
        }
        if self.nth_left == 0 {
            self.then_left = Some(self.aim.then);
        }
        self.nth_left == 0 && self.aim.then == 0
    }
}

/// What the store promised about one run before the kill.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Promised {
    /// The latest step that it called durable.
    pub step: u64,
    /// The number after the last journal row that it called durable.
    pub next_seq: u64,
}

/// One life of the victim, as its reports tell it.
#[derive(Debug, Default)]
pub struct Scene {
    opened: bool,
    /// What is open, the latest report last.
    open: Vec<(u64, Phase)>,
    writes: BTreeMap<u64, (String, Promised)>,
    marks: BTreeMap<u64, BTreeSet<Mark>>,
    /// What the store promised, by run.
    pub promised: BTreeMap<String, Promised>,
    /// What nodes were shown of the outside.
    pub saw: Vec<String>,
    /// From the process's begin to its first durable step, in microseconds.
    pub recovered_us: Option<u64>,
    /// All orders were shipped.
    pub done: bool,
}

impl Scene {
    /// Takes the next report.
    pub fn see(&mut self, report: &Report) {
        match report {
            Report::Began => {}
            Report::Saw(answer) => self.saw.push(answer.clone()),
            Report::Opened => self.opened = true,
            Report::BodyBegan(id) => self.enter(*id, Phase::Running),
            Report::BodyEnded(id) | Report::HandedOn(id) | Report::Refused(id) => self.leave(*id),
            Report::Appending { id, run, next_seq, holds } => {
                self.marks.insert(*id, holds.clone());
                self.writes.insert(*id, (run.clone(), Promised { step: 0, next_seq: *next_seq }));
                self.enter(*id, Phase::Journaling);
            }
            Report::Committing { id, run, step, holds } => {
                self.marks.insert(*id, holds.clone());
                self.writes.insert(*id, (run.clone(), Promised { step: *step, next_seq: 0 }));
                self.enter(*id, Phase::InCommit);
            }
            Report::Appended(id) => {
                self.leave(*id);
                self.promise(*id);
            }
            Report::Committed(id) => {
                self.enter(*id, Phase::Committed);
                self.promise(*id);
            }
            Report::Recovered { after_us } => self.recovered_us = Some(*after_us),
            Report::Done => self.done = true,
        }
    }

    fn enter(&mut self, id: u64, phase: Phase) {
        self.leave(id);
        self.open.push((id, phase));
    }

    fn leave(&mut self, id: u64) {
        self.open.retain(|(open, _)| *open != id);
    }

    fn promise(&mut self, id: u64) {
        let Some((run, made)) = self.writes.get(&id) else { return };
        let promised = self.promised.entry(run.clone()).or_default();
        promised.step = promised.step.max(made.step);
        promised.next_seq = promised.next_seq.max(made.next_seq);
    }

    /// What the kill hit: its aim if that was open, else what was reported last and is open still.
    pub fn hit(&self, aimed: Option<Phase>) -> Phase {
        let is_open = |phase: &Phase| self.open.iter().any(|(_, open)| open == phase);
        let latest = self.open.last().map(|(_, phase)| *phase);
        let nothing = if self.opened { Phase::Idle } else { Phase::Opening };
        aimed.filter(is_open).or(latest).unwrap_or(nothing)
    }

    /// What the writes hold that were open.
    pub fn marks(&self) -> BTreeSet<Mark> {
        let held = self.open.iter().filter_map(|(id, _)| self.marks.get(id));
        held.flatten().copied().collect()
    }

    /// Steps that were on their way to the disk: run and step.
    pub fn in_commit(&self) -> impl Iterator<Item = (&str, u64)> {
        let open = self.open.iter().filter(|(_, phase)| *phase == Phase::InCommit);
        open.filter_map(|(id, _)| self.writes.get(id)).map(|(run, promised)| (run.as_str(), promised.step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(reports: &[Report]) -> Scene {
        let mut scene = Scene::default();
        reports.iter().for_each(|report| scene.see(report));
        scene
    }

    fn committing(id: u64) -> Report {
        Report::Committing { id, run: "a".into(), step: 7, holds: [Mark::Outbox].into() }
    }

    #[test]
    fn a_kill_that_came_too_late_does_not_count_for_its_aim() {
        let late = scene(&[Report::Opened, committing(1), Report::Committed(1), Report::HandedOn(1)]);
        assert_eq!(late.hit(Some(Phase::InCommit)), Phase::Idle);
        let in_time = scene(&[Report::Opened, committing(1), Report::BodyBegan(2)]);
        assert_eq!(in_time.hit(Some(Phase::InCommit)), Phase::InCommit);
        assert_eq!(in_time.hit(Some(Phase::Committed)), Phase::Running);
        assert_eq!(in_time.hit(None), Phase::Running);
        assert_eq!(scene(&[Report::Began]).hit(None), Phase::Opening);
        assert_eq!((late.marks().len(), in_time.marks()), (0, [Mark::Outbox].into()));
    }

    #[test]
    fn a_trigger_is_pulled_once() {
        let reports = [committing(1), Report::Opened, committing(2), Report::Opened, committing(3)];
        let pulled_at = |nth, then| {
            let mut trigger = Trigger::new(Aim { phase: Some(Phase::InCommit), mark: None, nth, then });
            let mut pulled = reports.iter().map(|report| trigger.is_pulled_by(report)).enumerate();
            let at = pulled.by_ref().find(|(_, pulled)| *pulled).map(|(at, _)| at);
            assert!(pulled.all(|(_, pulled)| !pulled));
            at
        };
        assert_eq!([pulled_at(1, 0), pulled_at(2, 0), pulled_at(2, 1)], [Some(0), Some(2), Some(3)]);
        assert_eq!(pulled_at(4, 0), None);
    }

    #[test]
    fn only_an_answer_is_a_promise() {
        assert!(scene(&[committing(1)]).promised.is_empty());
        assert_eq!(scene(&[committing(1), Report::Committed(1)]).promised["a"].step, 7);
        assert!(scene(&[committing(1), Report::Refused(1)]).promised.is_empty());
    }
}
