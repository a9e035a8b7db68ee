//! Flow control in memory: slots, queues and names in ordered maps.

use super::{MemoryStore, Run, Tables};
use crate::{
    check::check_new_run,
    clock::Clock,
    error::StoreError,
    flow::{
        Flow, Holder, KeyRecord, KeyView, NameKind, NameRecord, RESTED_US, Replaced, Seen, Spread,
        SpreadPage, Stands, bucket, is_spread, keeps_name, let_go, may_be_replaced, moved_in, names_of,
        next_token, stands, waits_anew, waits_for_key, walks,
    },
    store::{Answer, NewRun, RunRecord},
};
use hapax_core::{
    flow::{Debounce, Key, Rate, Reservation, Terms},
    id::{Namespace, RunId, RunKey},
    limits::FLOW_PAGE,
};
use std::collections::{BTreeMap, BTreeSet};

/// What is kept of flow control.
#[derive(Debug, Default)]
pub(super) struct FlowTables {
    /// By key and number.
    slots: BTreeMap<(Namespace, String, u32), Slot>,
    /// By key, in the order in which they are let go.
    queue: BTreeMap<(Namespace, String, i64, RunId), Place>,
    names: BTreeMap<(Namespace, NameKind, String), Name>,
    /// The tokens of runs that walk from key to key.
    walking: BTreeMap<(Namespace, RunId), String>,
}

#[derive(Debug)]
struct Slot {
    run: RunId,
    token: String,
    most: u32,
    since_us: i64,
}

#[derive(Debug)]
struct Place {
    token: String,
    most: u32,
    /// The keys that the run takes after this one.
    rest: Vec<Key>,
}

#[derive(Debug, Default)]
struct Name {
    run: Option<RunId>,
    token: String,
    at_us: i64,
}

impl Tables {
    /// The run that lives under a name that a new one asks for.
    pub(super) fn name_holder(&self, new: &NewRun) -> Option<RunRecord> {
        let holder = |(kind, name): (NameKind, &str)| {
            let name = self.flow.names.get(&(new.key.namespace.clone(), kind, name.to_owned()))?;
            let run = RunKey { namespace: new.key.namespace.clone(), run: name.run.clone()? };
            self.runs.get(&run).map(|run| &run.record).filter(|record| keeps_name(kind, record))
        };
        names_of(&new.terms).find_map(holder).cloned()
    }

    /// Meets the terms of a run that was just created.
    pub(super) fn meet_terms(&mut self, run: &RunKey, now_us: i64) {
        let mut terms = self.runs[run].record.terms.clone();
        if let Some(rate) = terms.rate.as_ref().filter(|_| terms.not_before_us.is_none()) {
            let reserved = self.reserve(&run.namespace, rate, now_us);
            terms.not_before_us = Some(reserved.at_us);
        }
        if let Some(calm) = &terms.debounce {
            terms.not_before_us = Some(calm.due_us(now_us, now_us));
        }
        self.take_names(run, &terms, now_us);
        self.admit(run, &terms, now_us);
    }

    fn take_names(&mut self, run: &RunKey, terms: &Terms, now_us: i64) {
        for (kind, name) in names_of(terms) {
            let name = (run.namespace.clone(), kind, name.to_owned());
            let taken = Name { run: Some(run.run.clone()), token: terms.token.clone(), at_us: now_us };
            self.flow.names.insert(name, taken);
        }
    }

    /// Parks a run until it has its slots and its time, or lets it go.
    fn admit(&mut self, run: &RunKey, terms: &Terms, now_us: i64) {
        let waits = !terms.keys.is_empty();
        let (status, wake_at) = if waits { (waits_for_key(), None) } else { let_go(terms, now_us) };
        let stored = self.runs.get_mut(run).expect("it was created or retried just now");
        if terms.parks() {
            (stored.record.status, stored.record.wake.at_us) = (status, wake_at);
        }
        stored.record.terms = terms.clone();
        self.set_out(run, terms, now_us);
    }

    /// Sends a run to its keys: to all of them here, or from one database to the next.
    fn set_out(&mut self, run: &RunKey, terms: &Terms, now_us: i64) {
        if walks(terms) {
            self.flow.walking.insert((run.namespace.clone(), run.run.clone()), terms.token.clone());
        } else {
            self.enrol(run, terms, now_us);
        }
    }

    /// The terms on which a failed run goes on; an error when its name is another's now.
    pub(super) fn terms_again(&self, run: &RunKey) -> Result<Terms, StoreError> {
        let terms = self.runs[run].record.terms.clone();
        let beside = |run: RunId, namespace: &Namespace| RunKey { namespace: namespace.clone(), run };
        if let Some(name) = &terms.singleton
            && let Some(kept) =
                self.flow.names.get(&(run.namespace.clone(), NameKind::Singleton, name.clone()))
            && let Some(holder) = kept.run.clone().filter(|holder| *holder != run.run)
            && let Some(there) = self.runs.get(&beside(holder.clone(), &run.namespace))
            && !there.record.status.is_final()
        {
            return Err(StoreError::NameTaken { name: name.clone(), holder });
        }
        let token = next_token(&terms.token);
        Ok(terms.again(token))
    }

    /// A failed run that goes on takes what it held again.
    pub(super) fn readmit(&mut self, run: &RunKey, terms: &Terms, now_us: i64) {
        if terms.holds() {
            self.free_all(run, now_us);
            self.take_names(run, terms, now_us);
            self.admit(run, terms, now_us);
        }
    }

    /// Frees what a run has of an earlier life and nobody has given back yet: it must not wait for itself.
    fn free_all(&mut self, run: &RunKey, now_us: i64) {
        let slots = self.flow.slots.iter().map(|((of, ..), slot)| (of, &slot.run, &slot.token));
        let queue = self.flow.queue.iter().map(|((of, _, _, waiting), place)| (of, waiting, &place.token));
        let ours =
            slots.chain(queue).filter(|(of, held_by, _)| **of == run.namespace && **held_by == run.run);
        let tokens: BTreeSet<String> = ours.map(|(.., token)| token.clone()).collect();
        for token in tokens {
            self.release(run, &token, now_us);
        }
    }

    /// A run that stays after all may have been given its slots while it was shut.
    pub(super) fn stay(&mut self, run: &RunKey, now_us: i64) {
        let record = &self.runs[run].record;
        let ours = |slot: &&Slot| slot.run == run.run && slot.token == record.terms.token;
        let held = self.flow.slots.iter().filter(|((of, ..), _)| *of == run.namespace);
        let has_all = held.map(|(_, slot)| slot).filter(ours).count() == record.terms.keys.len();
        if has_all && !walks(&record.terms) {
            self.wake(run, now_us);
        }
    }

    /// A run that came from another store takes here what it held there. A name that is another's here stays so.
    pub(super) fn move_in(&mut self, run: &RunKey, now_us: i64) {
        let Some(stored) = self.runs.get(run) else { return };
        if stored.record.status.is_final() || !stored.record.terms.holds() {
            return;
        }
        let terms = moved_in(stored.record.terms.clone());
        self.free_all(run, now_us);
        if self.terms_again(run).is_ok() {
            self.take_names(run, &terms, now_us);
        }
        if let Some(stored) = self.runs.get_mut(run) {
            stored.record.terms = terms.clone();
            if waits_anew(&stored.record.status, &terms) {
                stored.record.status = waits_for_key();
            }
        }
        self.set_out(run, &terms, now_us);
    }

    fn enrol(&mut self, run: &RunKey, terms: &Terms, now_us: i64) -> Vec<RunKey> {
        let Some((first, rest)) = terms.keys.split_first() else { return vec![] };
        let holds = self.flow.slots.iter().any(|((namespace, key, _), slot)| {
            *namespace == run.namespace
                && *key == first.name
                && slot.run == run.run
                && slot.token == terms.token
        });
        let waits = self.flow.queue.iter().any(|((namespace, key, _, waiting), place)| {
            *namespace == run.namespace
                && *key == first.name
                && *waiting == run.run
                && place.token == terms.token
        });
        if holds || waits {
            return if holds && rest.is_empty() { vec![run.clone()] } else { vec![] };
        }
        let rank = now_us - terms.head_start_us();
        self.queue(run, rank, &terms.token, first, rest);
        self.hand_out(&run.namespace, [first.name.clone()].into(), now_us)
    }

    fn queue(&mut self, run: &RunKey, rank: i64, token: &str, key: &Key, rest: &[Key]) {
        let place = Place { token: token.to_owned(), most: key.most, rest: rest.to_vec() };
        self.flow.queue.insert((run.namespace.clone(), key.name.clone(), rank, run.run.clone()), place);
    }

    /// Gives what is free of these keys to those who wait longest.
    fn hand_out(&mut self, namespace: &Namespace, mut keys: BTreeSet<String>, now_us: i64) -> Vec<RunKey> {
        let mut free = vec![];
        while let Some(key) = keys.pop_first() {
            while let Some((run, rank, place)) = self.next_of(namespace, &key, now_us) {
                match place.rest.split_first() {
                    Some((next, rest)) => {
                        self.queue(&run, rank, &place.token, next, rest);
                        keys.insert(next.name.clone());
                    }
                    // Whether a run has all of its slots that are spread, no database knows by itself.
                    None if is_spread(&place.token) => free.push(run),
                    None => {
                        self.wake(&run, now_us);
                        free.push(run);
                    }
                }
            }
        }
        free
    }

    /// Whether a run isn't over, and what it has under that token is its own, not that of an earlier life under the same name.
    fn lives(&self, run: &RunKey, token: &str) -> bool {
        let lives = |run: &Run| !run.record.status.is_final() && run.record.terms.token == token;
        self.runs.get(run).is_some_and(lives)
    }

    /// Gives a slot to the first who waits, if one is free for it. A place that a run has left behind is nobody's turn.
    fn next_of(&mut self, namespace: &Namespace, key: &str, now_us: i64) -> Option<(RunKey, i64, Place)> {
        let first = loop {
            let mut waiting = self.flow.queue.iter();
            let (first, place) = waiting.find(|((of, name, ..), _)| of == namespace && name == key)?;
            let run = RunKey { namespace: namespace.clone(), run: first.3.clone() };
            let first = first.clone();
            // Of runs that are spread this store can't tell.
            if is_spread(&place.token) || self.lives(&run, &place.token) {
                break first;
            }
            self.flow.queue.remove(&first);
        };
        let taken = self.flow.slots.keys().filter(|(of, name, _)| of == namespace && name == key);
        let taken: Vec<u32> = taken.map(|(.., slot)| *slot).collect();
        let most = self.flow.queue[&first].most;
        let slot = Key::new(key, most).free_slot(&taken)?;
        let place = self.flow.queue.remove(&first)?;
        let (_, _, rank, run) = first;
        let held = Slot { run: run.clone(), token: place.token.clone(), most, since_us: now_us };
        self.flow.slots.insert((namespace.clone(), key.to_owned(), slot), held);
        Some((RunKey { namespace: namespace.clone(), run }, rank, place))
    }

    /// A run that has all of its slots goes on.
    fn wake(&mut self, run: &RunKey, now_us: i64) {
        let Some(Run { record, .. }) = self.runs.get_mut(run) else { return };
        if record.status == waits_for_key() {
            (record.status, record.wake.at_us) = let_go(&record.terms, now_us);
            record.updated_at_us = now_us;
        }
    }

    /// Lets a run go that has all of its slots under a token. One that moves goes on when it has settled.
    fn arrived(&mut self, run: &RunKey, token: &str) -> bool {
        let Some(Run { record, .. }) = self.runs.get(run) else { return false };
        if record.terms.token != token || record.status.is_moving() {
            return false;
        }
        let (waited, now) = (record.status == waits_for_key(), self.clock.now_us());
        self.flow.walking.remove(&(run.namespace.clone(), run.run.clone()));
        self.wake(run, now);
        self.stats.transactions += 1;
        waited
    }

    fn release(&mut self, run: &RunKey, token: &str, now_us: i64) -> Vec<RunKey> {
        let (mut keys, FlowTables { slots, queue, names, walking }) = (BTreeSet::new(), &mut self.flow);
        slots.retain(|(namespace, key, _), slot| {
            let ours = *namespace == run.namespace && slot.run == run.run && slot.token == token;
            if ours {
                keys.insert(key.clone());
            }
            !ours
        });
        // Those behind it may go where it could not.
        queue.retain(|(namespace, key, _, waiting), place| {
            let ours = *namespace == run.namespace && *waiting == run.run && place.token == token;
            if ours {
                keys.insert(key.clone());
            }
            !ours
        });
        names.retain(|(namespace, ..), name| {
            !(*namespace == run.namespace && name.run.as_ref() == Some(&run.run) && name.token == token)
        });
        walking.retain(|(namespace, walker), under| {
            !(*namespace == run.namespace && *walker == run.run && under == token)
        });
        self.stats.transactions += 1;
        self.hand_out(&run.namespace, keys, now_us)
    }

    fn reserve(&mut self, namespace: &Namespace, rate: &Rate, now_us: i64) -> Reservation {
        let entry = self.flow.names.entry((namespace.clone(), NameKind::Rate, bucket(rate)));
        let name = entry.or_insert_with(|| Name { at_us: now_us, ..Name::default() });
        let reserved = rate.reserve(Some(name.at_us), now_us);
        name.at_us = reserved.arrival_us;
        self.stats.transactions += 1;
        reserved
    }

    fn replace(&mut self, new: NewRun, calm: &Debounce) -> Result<Replaced, StoreError> {
        let now = self.clock.now_us();
        let name = self.flow.names.get(&(new.key.namespace.clone(), NameKind::Debounce, calm.name.clone()));
        let Some(first) = name.filter(|name| name.run.as_ref() == Some(&new.key.run)).map(|name| name.at_us)
        else {
            return Ok(Replaced::TooLate);
        };
        let Some(run) = self.runs.get_mut(&new.key) else { return Ok(Replaced::TooLate) };
        if !may_be_replaced(&run.record, &new)? {
            return Ok(Replaced::TooLate);
        }
        let mut record = run.record.clone();
        let due = calm.due_us(first, now);
        record.terms.not_before_us = Some(due);
        record.wake.at_us = Some(due);
        (record.input, record.fingerprint, record.updated_at_us) = (new.input, new.fingerprint, now);
        let mut replaced = Run::new(new, run.number, now);
        record.digest = replaced.record.digest;
        replaced.record = record;
        *run = replaced;
        self.stats.transactions += 1;
        Ok(Replaced::Done)
    }

    fn sweep(&mut self, namespace: &Namespace) -> u64 {
        let now = self.clock.now_us();
        let slots = self.flow.slots.iter().map(|((of, ..), slot)| (of, Some(&slot.run), &slot.token));
        let queue = self.flow.queue.iter().map(|((of, .., run), place)| (of, Some(run), &place.token));
        // Of those that are spread this store can't tell.
        let slots = slots.chain(queue).filter(|(.., token)| !is_spread(token));
        let walking = self.flow.walking.iter().map(|((of, run), token)| (of, Some(run), token));
        let names = self.flow.names.iter().map(|((of, ..), name)| (of, name.run.as_ref(), &name.token));
        let held = slots.chain(walking).chain(names).filter(|(of, ..)| *of == namespace);
        let held: BTreeSet<(RunKey, String)> = held
            .filter_map(|(of, run, token)| {
                Some((RunKey { namespace: of.clone(), run: run?.clone() }, token.clone()))
            })
            .collect();
        let over = held.into_iter().filter(|(key, token)| !self.lives(key, token));
        let over: Vec<_> = over.take(FLOW_PAGE).collect();
        for (run, token) in &over {
            self.release(run, token, now);
        }
        self.flow.names.retain(|(of, kind, _), name| {
            of != namespace || *kind != NameKind::Rate || name.at_us >= now - RESTED_US
        });
        over.len() as u64
    }

    fn flow_keys(&self, namespace: &Namespace) -> Vec<KeyRecord> {
        let mut keys = BTreeMap::<&str, KeyRecord>::new();
        let slots = self.flow.slots.iter().map(|((of, key, _), slot)| (of, key, slot.most, true));
        let queue = self.flow.queue.iter().map(|((of, key, ..), place)| (of, key, place.most, false));
        for (_, key, most, held) in slots.chain(queue).filter(|(of, ..)| *of == namespace) {
            let record = keys.entry(key).or_insert_with(|| KeyRecord {
                name: key.clone(),
                held: 0,
                most: 0,
                waiting: 0,
            });
            record.held += u64::from(held);
            record.waiting += u64::from(!held);
            record.most = record.most.max(most);
        }
        keys.into_values().collect()
    }

    fn flow_key(&self, namespace: &Namespace, name: &str) -> KeyView {
        let slots = self.flow.slots.iter().filter(|((of, key, _), _)| of == namespace && key == name);
        let waiting = self.flow.queue.keys().filter(|(of, key, ..)| of == namespace && key == name);
        KeyView {
            held: slots
                .map(|((.., slot), held)| Holder {
                    slot: *slot,
                    run: held.run.clone(),
                    since_us: held.since_us,
                })
                .collect(),
            waiting: waiting.take(FLOW_PAGE).map(|(.., run)| run.clone()).collect(),
        }
    }

    fn spread(&self, namespace: &Namespace, seen: Seen, behind: Option<&RunId>) -> SpreadPage {
        let one = |run: &RunId, token: &String| Spread { run: run.clone(), token: token.clone() };
        let found: BTreeSet<Spread> = match seen {
            Seen::Walking => {
                let here = self.flow.walking.iter().filter(|((of, _), _)| of == namespace);
                here.map(|((_, run), token)| one(run, token)).collect()
            }
            Seen::Holding => {
                let slots = self.flow.slots.iter().map(|((of, ..), slot)| (of, &slot.run, &slot.token));
                let queue = self.flow.queue.iter().map(|((of, .., run), place)| (of, run, &place.token));
                let here = slots.chain(queue).filter(|(of, _, token)| *of == namespace && is_spread(token));
                here.map(|(_, run, token)| one(run, token)).collect()
            }
        };
        let mut runs: Vec<_> =
            found.into_iter().filter(|one| behind.is_none_or(|behind| one.run > *behind)).collect();
        let until = runs.get(FLOW_PAGE - 1).map(|last| last.run.clone());
        runs.retain(|one| until.as_ref().is_none_or(|until| one.run <= *until));
        SpreadPage { runs, until }
    }

    fn standing(&self, namespace: &Namespace, runs: &[RunId]) -> Vec<(Spread, Stands)> {
        let key = |run: &RunId| RunKey { namespace: namespace.clone(), run: run.clone() };
        let live = runs.iter().filter_map(|run| self.runs.get(&key(run))).map(|run| {
            let one = Spread { run: run.record.key.run.clone(), token: run.record.terms.token.clone() };
            (one, stands(&run.record.status))
        });
        let queued =
            self.flow.queue.iter().filter(|((of, _, _, run), _)| of == namespace && runs.contains(run));
        let queued = queued.map(|((.., run), place)| {
            (Spread { run: run.clone(), token: place.token.clone() }, Stands::Queued)
        });
        live.chain(queued).collect()
    }

    fn flow_names(&self, namespace: &Namespace) -> Vec<NameRecord> {
        let ours = self.flow.names.iter().filter(|((of, ..), _)| of == namespace);
        ours.map(|((_, kind, name), kept)| NameRecord {
            kind: *kind,
            name: name.clone(),
            run: kept.run.clone(),
            at_us: kept.at_us,
        })
        .collect()
    }
}

impl Flow for MemoryStore {
    fn enrol(&self, run: RunKey, terms: Terms) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let terms = terms.in_order();
            terms.check().map_err(StoreError::Terms)?;
            let mut tables = self.tables();
            let now = tables.clock.now_us();
            Ok(tables.enrol(&run, &terms, now))
        })
    }

    fn release(&self, run: RunKey, token: String) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move {
            let mut tables = self.tables();
            let now = tables.clock.now_us();
            Ok(tables.release(&run, &token, now))
        })
    }

    fn reserve(&self, namespace: Namespace, rate: Rate) -> Answer<'_, Reservation> {
        Box::pin(async move {
            rate.check().map_err(StoreError::Terms)?;
            let mut tables = self.tables();
            let now = tables.clock.now_us();
            Ok(tables.reserve(&namespace, &rate, now))
        })
    }

    fn clock(&self, _: &str) -> Clock {
        self.tables().clock.clone()
    }

    fn replace(&self, run: NewRun) -> Answer<'_, Replaced> {
        Box::pin(async move {
            check_new_run(&run)?;
            let Some(calm) = run.terms.debounce.clone() else { return Ok(Replaced::TooLate) };
            self.tables().replace(run, &calm)
        })
    }

    fn sweep(&self, namespace: Namespace) -> Answer<'_, u64> {
        Box::pin(async move { Ok(self.tables().sweep(&namespace)) })
    }

    fn keys(&self, namespace: Namespace) -> Answer<'_, Vec<KeyRecord>> {
        Box::pin(async move { Ok(self.tables().flow_keys(&namespace)) })
    }

    fn key(&self, namespace: Namespace, name: String) -> Answer<'_, KeyView> {
        Box::pin(async move { Ok(self.tables().flow_key(&namespace, &name)) })
    }

    fn names(&self, namespace: Namespace) -> Answer<'_, Vec<NameRecord>> {
        Box::pin(async move { Ok(self.tables().flow_names(&namespace)) })
    }

    fn holder(&self, namespace: Namespace, kind: NameKind, name: String) -> Answer<'_, Option<RunId>> {
        Box::pin(async move {
            let tables = self.tables();
            Ok(tables.flow.names.get(&(namespace, kind, name)).and_then(|name| name.run.clone()))
        })
    }

    fn let_go(&self, run: RunKey, token: String) -> Answer<'_, bool> {
        Box::pin(async move { Ok(self.tables().arrived(&run, &token)) })
    }

    fn spread(&self, namespace: Namespace, seen: Seen, behind: Option<RunId>) -> Answer<'_, SpreadPage> {
        Box::pin(async move { Ok(self.tables().spread(&namespace, seen, behind.as_ref())) })
    }

    fn standing(&self, namespace: Namespace, runs: Vec<RunId>) -> Answer<'_, Vec<(Spread, Stands)>> {
        Box::pin(async move { Ok(self.tables().standing(&namespace, &runs)) })
    }
}
