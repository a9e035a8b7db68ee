//! The schedules of a store that fails: a firing counts as a call, all others pass while it lives.

use super::Faulty;
use crate::{
    clock::Clock,
    schedules::{Added, DueFilter, Fire, Fired, ScheduleRecord, Schedules, Turn},
    store::Answer,
};
use hapax_core::{
    id::Namespace,
    schedule::{Schedule, ScheduleKey},
};

impl Schedules for Faulty {
    fn add(&self, schedule: Schedule, next_us: Option<i64>) -> Answer<'_, Added> {
        Box::pin(self.uncounted(async move { self.inner.schedules().add(schedule, next_us).await }))
    }

    fn get(&self, key: ScheduleKey) -> Answer<'_, Option<ScheduleRecord>> {
        Box::pin(self.uncounted(async move { self.inner.schedules().get(key).await }))
    }

    fn list(&self, namespace: Namespace) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(self.uncounted(async move { self.inner.schedules().list(namespace).await }))
    }

    fn due(&self, filter: DueFilter) -> Answer<'_, Vec<ScheduleRecord>> {
        Box::pin(self.uncounted(async move { self.inner.schedules().due(filter).await }))
    }

    fn turn(&self, key: ScheduleKey, to: Turn) -> Answer<'_, Option<ScheduleRecord>> {
        Box::pin(self.uncounted(async move { self.inner.schedules().turn(key, to).await }))
    }

    fn remove(&self, key: ScheduleKey) -> Answer<'_, bool> {
        Box::pin(self.uncounted(async move { self.inner.schedules().remove(key).await }))
    }

    fn fire(&self, fire: Fire) -> Answer<'_, Fired> {
        Box::pin(self.counted(async move { self.inner.schedules().fire(fire).await }))
    }

    fn clock(&self, key: &ScheduleKey) -> Clock {
        self.inner.schedules().clock(key)
    }
}
