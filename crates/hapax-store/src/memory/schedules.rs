//! Schedules in memory.

use super::{MemoryStore, Tables};
use crate::{
    check::check_new_run,
    clock::Clock,
    error::StoreError,
    schedules::{
        Added, Counts, DueFilter, Fire, Fired, LastFiring, ScheduleRecord, Schedules, Turn, check_schedule,
        new_token,
    },
    store::{Answer, Created},
};
use hapax_core::{
    canary,
    id::{Namespace, RunKey},
    schedule::{Overlap, Schedule, ScheduleKey},
};

impl Tables {
    fn add_schedule(&mut self, schedule: Schedule, next_us: Option<i64>) -> Added {
        if let Some(there) = self.schedules.get(&schedule.key) {
            return Added::Exists(Box::new(there.clone()));
        }
        let record = ScheduleRecord {
            token: new_token(),
            paused: false,
            next_us,
            last: None,
            started: 0,
            skipped: 0,
            missed: 0,
            created_at_us: self.clock.now_us(),
            schedule,
        };
        self.schedules.insert(record.schedule.key.clone(), record.clone());
        self.stats.transactions += 1;
        Added::New(Box::new(record))
    }

    fn due_schedules(&self, filter: &DueFilter) -> Vec<ScheduleRecord> {
        let now = self.clock.now_us();
        let mut due: Vec<_> =
            self.schedules.values().filter(|record| filter.admits(record, now)).cloned().collect();
        due.sort_by_key(|record| record.next_us);
        due
    }

    fn turn(&mut self, key: &ScheduleKey, to: Turn) -> Option<ScheduleRecord> {
        let record = self.schedules.get_mut(key)?;
        match to {
            Turn::Off if !record.paused => record.paused = true,
            Turn::On { token, next_us, missed } if record.paused && record.token == token => {
                (record.paused, record.next_us) = (false, next_us);
                record.missed += missed;
            }
            _ => return Some(record.clone()),
        }
        record.token = new_token();
        self.stats.transactions += 1;
        Some(record.clone())
    }

    fn fire(&mut self, fire: Fire) -> Fired {
        if canary::on("schedule_fires_first")
            && let Some(run) = fire.run.clone()
        {
            self.create(run);
        }
        let now = self.clock.now_us();
        let is_read = |record: &&ScheduleRecord| record.token == fire.token && !record.paused;
        let Some(record) = self.schedules.get(&fire.key).filter(is_read) else { return Fired::NotNow };
        if fire.at_us > now {
            return Fired::NotNow;
        }
        let (overlap, before) = (record.schedule.overlap, record.last.clone());
        let starts = fire.run.is_some();
        let (key, at_us, missed, next_us) = (fire.key.clone(), fire.at_us, fire.missed, fire.next_us);
        let Some((fired, last)) = self.start(fire, overlap, before) else { return Fired::Waits };
        let counts = Counts::of(fired, starts);
        let record = self.schedules.get_mut(&key).expect("it was there just now");
        record.token = new_token();
        record.next_us = next_us;
        record.missed += missed;
        record.started += counts.started;
        record.skipped += counts.skipped;
        record.last = last.map(|run| LastFiring { at_us, run: run.run }).or(record.last.take());
        self.stats.transactions += 1;
        fired
    }

    /// Starts the run of a firing, unless the one before it is in its way; `None`: it waits for that.
    fn start(
        &mut self,
        fire: Fire,
        overlap: Overlap,
        before: Option<LastFiring>,
    ) -> Option<(Fired, Option<RunKey>)> {
        let Some(run) = fire.run else { return Some((Fired::Skipped, None)) };
        let before = before.map(|last| RunKey { namespace: fire.key.namespace, run: last.run });
        let lives = |key: &RunKey| self.runs.get(key).is_some_and(|run| !run.record.status.is_final());
        if let Some(before) = before.filter(lives) {
            match overlap {
                Overlap::Skip => return Some((Fired::Skipped, None)),
                Overlap::Queue => return None,
                // It lives, so the cancel is taken.
                Overlap::Cancel => drop(self.request_cancel(&before)),
            }
        }
        let key = run.key.clone();
        match self.create(run) {
            Created::New(_) => Some((Fired::Started, Some(key))),
            Created::Exists(_) => Some((Fired::Exists, Some(key))),
        }
    }
}

impl Schedules for MemoryStore {
    fn add(&self, schedule: Schedule, next_us: Option<i64>) -> Answer<'_, Added> {
        Box::pin(async move {
            check_schedule(&schedule)?;
            Ok(self.tables().add_schedule(schedule, next_us))
        })
    }

    fn get(&self, key: ScheduleKey) -> Answer<'_, Option<ScheduleRecord>> {
        Box::pin(async move { Ok(self.tables().schedules.get(&key).cloned()) })
    }

    fn list(&self, namespace: Namespace) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(async move {
            let tables = self.tables();
            let ours = tables.schedules.values().filter(|record| record.schedule.key.namespace == namespace);
            Ok(ours.cloned().collect())
        })
    }

    fn due(&self, filter: DueFilter) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(async move { Ok(self.tables().due_schedules(&filter)) })
    }

    fn turn(&self, key: ScheduleKey, to: Turn) -> Answer<'_, Option<ScheduleRecord>> {
        Box::pin(async move { Ok(self.tables().turn(&key, to)) })
    }

    fn remove(&self, key: ScheduleKey) -> Answer<'_, bool> {
        Box::pin(async move { Ok(self.tables().schedules.remove(&key).is_some()) })
    }

    fn fire(&self, fire: Fire) -> Answer<'_, Fired> {
        Box::pin(async move {
            fire.run.as_ref().map_or(Ok::<_, StoreError>(()), check_new_run)?;
            Ok(self.tables().fire(fire))
        })
    }

    fn clock(&self, _: &ScheduleKey) -> Clock {
        self.tables().clock.clone()
    }
}
