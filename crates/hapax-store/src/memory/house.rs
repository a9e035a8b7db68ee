//! How runs leave and enter the reference model.
//!
//! Invariant: as everywhere in it, each call is one look and one change under the lock.

use super::{
    MemoryStore, Tables,
    run::{Kept, Run, read_back},
};
use crate::{
    error::StoreError,
    house::{
        Head, House, Image, Left, Parcel, Piece, Sender, Sign, arrives_over, awaited, cleared, closed,
        given_up, gone, leaving, look_again, may_leave, still_here, taken_back, tells_no_more,
    },
    store::{Answer, RunRecord},
};
use hapax_core::{
    canary,
    commit::{Epoch, Standing, Status, Wake},
    frontier::page_digest,
    id::{RunId, RunKey},
    json::Json,
    limits::FRONTIER_PAGE,
    mailbox::NewLetter,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

impl Tables {
    /// The family of a run, by name.
    fn family(&self, key: &RunKey) -> Result<Vec<RunKey>, StoreError> {
        let beside = |run: &RunId| RunKey { namespace: key.namespace.clone(), run: run.clone() };
        let mut root = self.run(key)?.record.clone();
        let mut seen = BTreeSet::new();
        while let Some(parent) = root.parent.as_ref().and_then(|parent| self.runs.get(&beside(parent)))
            && seen.insert(root.key.clone())
        {
            root = parent.record.clone();
        }
        let (mut family, mut at) = (BTreeSet::new(), vec![root.key]);
        while let Some(parent) = at.pop() {
            let children = self.runs.values().filter(|run| {
                run.record.key.namespace == key.namespace && run.record.parent.as_ref() == Some(&parent.run)
            });
            at.extend(children.map(|run| run.record.key.clone()).filter(|child| !family.contains(child)));
            family.insert(parent);
        }
        Ok(family.into_iter().collect())
    }

    fn still_here(&self, key: &RunKey) -> Result<Vec<RunKey>, StoreError> {
        let family = self.family(key)?;
        let records = family.iter().map(|key| Ok(self.run(key)?.record.clone()));
        let here = still_here(records.collect::<Result<_, StoreError>>()?, key)?;
        Ok(here.into_iter().map(|record| record.key).collect())
    }

    fn leave(&mut self, key: &RunKey, to: &str) -> Result<Vec<Left>, StoreError> {
        let (family, now) = (self.still_here(key)?, self.clock.now_us());
        family.iter().try_for_each(|key| self.run(key)?.may_leave(to, now))?;
        family.into_iter().map(|key| Ok((key.clone(), self.run_mut(&key)?.leave(to)))).collect()
    }

    fn stay_all(&mut self, key: &RunKey) -> Result<Vec<Left>, StoreError> {
        let (family, now) = (self.still_here(key)?, self.clock.now_us());
        for key in &family {
            let run = self.run(key)?;
            if !matches!(run.record.status, Status::Leaving { .. }) {
                return Err(run.wrong_status());
            }
        }
        let mut stays = vec![];
        for key in family {
            let run = self.run_mut(&key)?;
            run.record.epoch = raised(run.record.epoch);
            stays.push((key.clone(), run.record.epoch));
            run.settle_down(now);
            self.note_live(&key);
            self.stay(&key, now);
        }
        Ok(stays)
    }

    fn note_live(&mut self, key: &RunKey) {
        if let Some(run) = self.runs.get(key).filter(|run| !run.record.status.is_final()) {
            self.live.insert(run.number, key.clone());
        }
    }

    fn close(&mut self, family: &[Left], to: &str) -> Result<(), StoreError> {
        let closed = |(key, epoch): &Left| closed(&self.run(key)?.record, *epoch, to);
        let closed: Vec<Status> = family.iter().map(closed).collect::<Result<_, StoreError>>()?;
        for ((key, _), status) in family.iter().zip(closed) {
            let run = self.run_mut(key)?;
            run.record.status = status;
            let number = run.number;
            self.live.remove(&number);
        }
        Ok(())
    }

    fn take_back(&mut self, family: &[Left]) -> Result<(), StoreError> {
        let shut = |(key, epoch): &Left| taken_back(&self.run(key)?.record, *epoch);
        let shut: Vec<Status> = family.iter().map(shut).collect::<Result<_, StoreError>>()?;
        for ((key, epoch), status) in family.iter().zip(shut) {
            let run = self.run_mut(key)?;
            (run.record.status, run.record.epoch) = (status, raised(*epoch));
            self.note_live(key);
        }
        Ok(())
    }

    fn clear(&mut self, key: &RunKey, epoch: Epoch, forget: bool) -> Result<(), StoreError> {
        let run = self.run_mut(key)?;
        *run = Run::bare(cleared(run.record.clone(), epoch)?, run.number);
        if forget {
            self.runs.remove(key);
        }
        Ok(())
    }

    fn arrive(&mut self, head: Head, epoch: Epoch) -> Result<(), StoreError> {
        let mut new = head.arriving(epoch);
        if let Some(there) = self.runs.get(&new.key) {
            new = arrives_over(new, &there.record)?;
        }
        self.created += 1;
        self.runs.insert(new.key.clone(), Run::bare(new, self.created));
        Ok(())
    }

    fn arriving(&mut self, key: &RunKey, epoch: Epoch) -> Result<&mut Run, StoreError> {
        let run = self.run_mut(key)?;
        if !matches!(run.record.status, Status::Arriving { .. }) || run.record.epoch != epoch {
            return Err(StoreError::Fenced { run: key.clone(), owner: Some(run.record.epoch) });
        }
        Ok(run)
    }

    fn open(&mut self, family: &[Left]) -> Result<(), StoreError> {
        let mut closed = vec![];
        for (key, epoch) in family {
            let run = self.runs.get(key).ok_or_else(|| gone(key))?;
            if !matches!(run.record.status, Status::Arriving { .. }) {
                continue;
            }
            if run.record.epoch != *epoch {
                return Err(StoreError::Fenced { run: key.clone(), owner: Some(run.record.epoch) });
            }
            let latest = run.checkpoints.get(&run.record.step);
            if latest.is_none_or(|latest| latest.digest != run.record.digest) {
                let what = "its latest step is missing".to_owned();
                return Err(StoreError::CopyDiffers { run: key.clone(), what });
            }
            closed.push(key);
        }
        let now = self.clock.now_us();
        for key in closed {
            let mut children = awaited(&self.run(key)?.record).into_iter();
            if children.any(|child| tells_no_more(self.runs.get(&child).map(|child| &child.record))) {
                look_again(&mut self.run_mut(key)?.record);
            }
            self.run_mut(key)?.settle_down(now);
            self.note_live(key);
            self.move_in(key, now);
        }
        Ok(())
    }
}

fn raised(epoch: Epoch) -> Epoch {
    Epoch { counter: epoch.counter + 1, nonce: uuid::Uuid::new_v4().as_u128() }
}

impl Run {
    /// A run of which only the row is known.
    fn bare(record: RunRecord, number: u64) -> Self {
        Self {
            record,
            number,
            lease_until_us: 0,
            keys: HashMap::new(),
            checkpoints: BTreeMap::new(),
            journal: BTreeMap::new(),
            outbox: super::outbox::RunOutbox::default(),
            mailbox: vec![],
        }
    }

    /// Whether it may be shut, and why not.
    fn may_leave(&self, to: &str, now_us: i64) -> Result<(), StoreError> {
        let record = &self.record;
        if !may_leave(record, to)? {
            return Ok(());
        }
        let held = |owner: &str, until: i64| StoreError::Held {
            run: record.key.clone(),
            owner: owner.to_owned(),
            left_ms: (until - now_us).unsigned_abs().div_ceil(1000),
        };
        match &record.owner {
            Some(owner) if self.lease_until_us > now_us && !canary::on("moved_under_lease") => {
                Err(held(owner, self.lease_until_us))
            }
            _ if self.outbox.is_claimed(now_us) => Err(held("a relay", now_us)),
            _ => Ok(()),
        }
    }

    fn leave(&mut self, to: &str) -> Epoch {
        self.record.status = leaving(&self.record, to);
        let record = &mut self.record;
        (record.cancel_requested, record.wake) = (false, Wake::default());
        record.owner = None;
        record.epoch = raised(record.epoch);
        self.lease_until_us = 0;
        self.outbox.shut();
        self.record.epoch
    }

    /// Goes on here, as it stood.
    fn settle_down(&mut self, now_us: i64) {
        if let Status::Leaving { was, .. } | Status::Arriving { was, .. } = self.record.status.clone() {
            let Standing { status, cancel_requested, wake } = *was;
            (self.record.status, self.record.cancel_requested, self.record.wake) =
                (status, cancel_requested, wake);
        }
        self.outbox.reopen(now_us);
    }

    /// All that is known of it, in the order in which every store tells it.
    fn pieces(&self) -> Result<Vec<Piece>, StoreError> {
        let key = &self.record.key;
        let letters = self.mailbox.iter().zip(1..).map(|(kept, number)| {
            let Kept { letter: NewLetter { id, subject, payload }, sent_at_us, taken } = kept;
            let payload = (!taken).then(|| payload.clone());
            let (id, subject) = (id.clone(), subject.clone());
            Piece::Letter(Parcel { number, id, subject, payload, sent_at_us: *sent_at_us, taken: *taken })
        });
        let rows = self.journal.values().map(|row| Piece::Row(row.clone().into()));
        let messages = self.outbox.messages.values().map(|record| Piece::Message(record.clone().into()));
        let mut pieces: Vec<Piece> = letters.chain(rows).chain(messages).collect();
        for (step, stored) in &self.checkpoints {
            let later = self.journal.values().find(|row| row.step >= *step);
            let next_seq = later.map_or(self.record.next_seq, |row| row.seq);
            let read = read_back(key, stored)?;
            pieces.push(Piece::Checkpoint(Box::new(crate::house::Step::of(key, read, next_seq)?)));
            let pages = stored.frontier.chunks(FRONTIER_PAGE).zip(0..).skip(1);
            pieces.extend(pages.map(|(items, page)| {
                Piece::Page(crate::house::Fragment { step: *step, page, items: items.to_vec() })
            }));
        }
        Ok(pieces)
    }

    fn unpack(&mut self, piece: Piece) -> Result<(), StoreError> {
        let key = self.record.key.clone();
        match piece {
            Piece::Letter(Parcel { number, id, subject, payload, sent_at_us, taken }) => {
                let letter = NewLetter { id, subject, payload: payload.unwrap_or_else(Json::null) };
                // Letters come in their order, and those that are there are left alone.
                if self.mailbox.len() as u64 + 1 == number {
                    self.mailbox.push(Kept { letter, sent_at_us, taken });
                }
            }
            Piece::Row(row) => {
                let row = hapax_core::journal::JournalRow::from(row);
                self.journal.entry(row.seq).or_insert(row);
            }
            Piece::Message(post) => {
                let record = post.record(&key)?;
                self.outbox.messages.entry(record.place).or_insert(record);
            }
            Piece::Checkpoint(step) => {
                let (checkpoint, _) = step.checkpoint(&key)?;
                self.keys.insert(checkpoint.key, checkpoint.step);
                self.checkpoints.entry(checkpoint.step).or_insert(Arc::new(checkpoint));
            }
            Piece::Page(page) => self.unpack_page(page),
        }
        Ok(())
    }

    fn unpack_page(&mut self, page: crate::house::Fragment) {
        let Some(stored) = self.checkpoints.get_mut(&page.step) else { return };
        let wanted = stored.pages.get(page.page as usize) == Some(&page_digest(&page.items));
        if wanted && stored.frontier.len() == page.page as usize * FRONTIER_PAGE {
            Arc::make_mut(stored).frontier.extend(page.items);
        }
    }
}

impl House for MemoryStore {
    fn plate(&self, write: Option<String>, over: Option<String>) -> Answer<'_, Sign> {
        Box::pin(async move {
            let mut tables = self.tables();
            let has_runs = !tables.runs.is_empty();
            if write.is_some() && !has_runs && tables.plate == over {
                tables.plate = write;
            }
            Ok(Sign { said: tables.plate.clone(), has_runs })
        })
    }

    fn image(&self, run: RunKey) -> Answer<'_, Image> {
        Box::pin(async move {
            let (head, pieces) = {
                let tables = self.tables();
                let run = tables.run(&run)?;
                (Head::of(run.record.clone())?, run.pieces()?)
            };
            let (mut sender, parts) = Sender::new();
            tokio::spawn(async move {
                let mut read = sender.head(head).await;
                for piece in pieces {
                    if read.is_ok() {
                        read = sender.push(piece).await;
                    }
                }
                sender.end(read).await;
            });
            Image::of(parts).await
        })
    }

    fn family(&self, run: RunKey) -> Answer<'_, Vec<RunKey>> {
        Box::pin(async move { self.tables().family(&run) })
    }

    fn leave(&self, run: RunKey, to: Arc<str>) -> Answer<'_, Vec<Left>> {
        Box::pin(async move { self.tables().leave(&run, &to) })
    }

    fn stay(&self, run: RunKey) -> Answer<'_, Vec<Left>> {
        Box::pin(async move { self.tables().stay_all(&run) })
    }

    fn close(&self, family: Vec<Left>, to: Arc<str>) -> Answer<'_, ()> {
        Box::pin(async move { self.tables().close(&family, &to) })
    }

    fn take_back(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(async move { self.tables().take_back(&family) })
    }

    fn clear(&self, run: RunKey, epoch: Epoch, forget: bool) -> Answer<'_, ()> {
        Box::pin(async move { self.tables().clear(&run, epoch, forget) })
    }

    fn arrive(&self, head: Head, epoch: Epoch) -> Answer<'_, ()> {
        Box::pin(async move { self.tables().arrive(head, epoch) })
    }

    fn unpack(&self, run: RunKey, epoch: Epoch, pieces: Vec<Piece>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut tables = self.tables();
            let arriving = tables.arriving(&run, epoch)?;
            pieces.into_iter().try_for_each(|piece| arriving.unpack(piece))
        })
    }

    fn give_up(&self, run: RunKey, epoch: Epoch) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut tables = self.tables();
            match tables.arriving(&run, epoch) {
                Ok(arriving) => match given_up(arriving.record.clone()) {
                    Some(word) => *arriving = Run::bare(word, arriving.number),
                    None => drop(tables.runs.remove(&run)),
                },
                Err(StoreError::NotFound { .. } | StoreError::Fenced { .. }) => {}
                Err(error) => return Err(error),
            }
            Ok(())
        })
    }

    fn open(&self, family: Vec<Left>) -> Answer<'_, ()> {
        Box::pin(async move { self.tables().open(&family) })
    }
}
