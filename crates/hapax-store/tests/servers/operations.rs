//! Everything that a store does to a run, each to a run of its own in a namespace of its own.

use crate::both::{Kind, sql};
use hapax_core::{
    commit::{Append, Status, StatusChange, WaitsOn, Wake, Write, Written},
    id::{Namespace, RunKey},
    journal::{Entry, JournalRow},
    mailbox::{NewLetter, end_of},
    order::PathHash,
    outbox::Place,
    schedule::{Schedule, ScheduleKey},
};
use hapax_store::{
    Pace, ReadyFilter, Store, StoreError,
    conformance::{
        Holder, Sample,
        sample::{LONG, claimant, failed, json, message, shape, step},
        schedules::{added, nightly},
    },
    outbox::{Claim, ClaimFilter, Failure},
    schedules::Fire,
};
use std::{sync::Arc, time::Duration};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Claim,
    ClaimReady,
    Renew,
    Cancel,
    Post,
    Retry,
    Delete,
    Step,
    StepWithAll,
    StepThatEndsAChild,
    Append,
    AppendThatTakes,
    Park,
    OutboxClaim,
    MarkSent,
    MarkFailed,
    Fire,
}

impl Operation {
    pub(crate) const ALL: [Self; 18] = [
        Self::Create,
        Self::Claim,
        Self::ClaimReady,
        Self::Renew,
        Self::Cancel,
        Self::Post,
        Self::Retry,
        Self::Delete,
        Self::Step,
        Self::StepWithAll,
        Self::StepThatEndsAChild,
        Self::Append,
        Self::AppendThatTakes,
        Self::Park,
        Self::OutboxClaim,
        Self::MarkSent,
        Self::MarkFailed,
        Self::Fire,
    ];

    /// Whether others have something to do when it is done.
    pub(crate) fn is_hinted_at(self) -> bool {
        matches!(self, Self::Cancel | Self::Post | Self::Retry | Self::StepThatEndsAChild | Self::Fire)
    }
}

/// A run on which an operation can be done.
pub(crate) struct Subject {
    operation: Operation,
    name: String,
    holder: Option<Holder>,
    /// What is to be written, where that is the operation.
    pub(crate) write: Option<Arc<Write>>,
    claim: Option<Claim>,
    fire: Option<Fire>,
}

fn sample(name: &str) -> Sample {
    Sample::run("r").namespace(name).graph("sample")
}

fn namespace(name: &str) -> Namespace {
    Namespace::new(name).expect("a name")
}

fn letter() -> NewLetter {
    NewLetter { id: "once".into(), subject: "go".into(), payload: json("hello") }
}

impl Subject {
    /// Brings a run to where the operation can be done.
    pub(crate) async fn make(store: &Arc<dyn Store>, operation: Operation, name: &str) -> Self {
        Self::make_for(store, operation, name, LONG).await
    }

    /// The same by a holder whose lease lasts for so long.
    pub(crate) async fn make_for(
        store: &Arc<dyn Store>,
        operation: Operation,
        name: &str,
        ttl: Duration,
    ) -> Self {
        let name_of = name.to_owned();
        let mut subject =
            Self { operation, name: name_of, holder: None, write: None, claim: None, fire: None };
        match operation {
            Operation::Create => {}
            Operation::Claim | Operation::ClaimReady => {
                sample(name).create(store).await;
            }
            Operation::StepThatEndsAChild => {
                let parent = sample(name).hold(store).await;
                submit(store, &park(&parent)).await.expect("it waits");
                let child = Sample::run("child").namespace(name).child_of(&parent.key).hold(store).await;
                subject.write = Some(Arc::new(step(child.last("end"))));
                subject.holder = Some(child);
            }
            _ => {
                let mut holder = sample(name).claimed_by("a", ttl).hold(store).await;
                subject.lead_up(store, &mut holder).await;
                subject.write = write(operation, &holder).map(Arc::new);
                subject.holder = Some(holder);
            }
        }
        subject
    }

    /// What comes before the operation.
    async fn lead_up(&mut self, store: &Arc<dyn Store>, holder: &mut Holder) {
        match self.operation {
            Operation::Post => {
                submit(store, &park(holder)).await.expect("it waits");
            }
            Operation::Retry => {
                let write = Write::Status(holder.status(failed(), true));
                submit(store, &write).await.expect("it fails");
            }
            Operation::Delete => holder.clone().finish().await,
            Operation::AppendThatTakes => {
                store.post(holder.key.clone(), letter()).await.expect("a letter");
            }
            Operation::OutboxClaim | Operation::MarkSent | Operation::MarkFailed => {
                let commit = holder.next_with("one", 1, 0, vec![message("a"), message("b")]);
                holder.commit(commit).await.expect("a step");
                if self.operation != Operation::OutboxClaim {
                    let claimed = store.outbox().claim(self.messages(), claimant("relay", LONG)).await;
                    self.claim = claimed.expect("an answer").pop().map(|batch| batch.claim);
                }
            }
            Operation::Fire => self.fire = Some(self.due(store).await),
            _ => {}
        }
    }

    /// A firing of a schedule that is due.
    async fn due(&self, store: &Arc<dyn Store>) -> Fire {
        let key = ScheduleKey { namespace: namespace(&self.name), name: "s".into() };
        let read = added(&**store, Schedule { key, ..nightly("s") }).await;
        let run = Sample::run("fired").namespace(&self.name).tag("k", "v").build();
        Fire { run: Some(run), missed: 3, ..Fire::of(&read, 2) }
    }

    fn messages(&self) -> ClaimFilter {
        ClaimFilter { namespace: namespace(&self.name), ..ClaimFilter::default() }
    }

    /// Its run.
    pub(crate) fn key(&self) -> RunKey {
        sample(&self.name).build().key
    }

    /// Does it.
    pub(crate) async fn act(&self, store: &Arc<dyn Store>) -> Result<(), StoreError> {
        let (by, first) = (claimant("a", LONG), Place { step: 1, position: 0 });
        match self.operation {
            Operation::Create => {
                let new = sample(&self.name).tag("k", "v").items(3).claimed_by("a", LONG);
                store.create(new.build()).await.map(drop)
            }
            Operation::Claim => store.claim(self.key(), by).await.map(drop),
            Operation::ClaimReady => {
                let graphs = vec![("sample".into(), shape("sample"))];
                let filter = ReadyFilter { namespace: namespace(&self.name), graphs, limit: 10 };
                store.claim_ready(filter, by).await.map(drop)
            }
            Operation::Renew => {
                let epoch = self.holder.as_ref().expect("a holder").epoch;
                store.renew(vec![(self.key(), epoch)], claimant("a", 2 * LONG)).await.map(drop)
            }
            Operation::Cancel => store.request_cancel(self.key()).await,
            Operation::Post => store.post(self.key(), letter()).await.map(drop),
            Operation::Retry => store.retry(self.key()).await,
            Operation::Delete => store.delete(self.key()).await,
            Operation::OutboxClaim => {
                store.outbox().claim(self.messages(), claimant("relay", LONG)).await.map(drop)
            }
            Operation::MarkSent => {
                let claim = self.claim.clone().expect("a claim");
                store.outbox().mark_sent(claim, vec![first], None).await
            }
            Operation::MarkFailed => {
                let failure = Failure {
                    error: "no".into(),
                    again_after: Duration::ZERO,
                    counts: true,
                    dead_after: Some(1),
                };
                let claim = self.claim.clone().expect("a claim");
                store.outbox().mark_failed(claim, first, failure).await.map(drop)
            }
            Operation::Fire => store.schedules().fire(self.fire.clone().expect("a firing")).await.map(drop),
            _ => submit(store, self.write.as_ref().expect("a write")).await.map(drop),
        }
    }

    /// Does it again after it may have been done; what says that it was done is fine.
    pub(crate) async fn act_again(&self, store: &Arc<dyn Store>) {
        let done = self.act(store).await;
        // A claim by the same worker, which never heard of it, ends by itself; so has that of a mark.
        let is_fine = matches!(
            (&self.operation, &done),
            (_, Ok(()))
                | (Operation::Claim, Err(StoreError::Held { .. }))
                | (Operation::Retry, Err(StoreError::WrongStatus { .. }))
                | (Operation::Delete, Err(StoreError::NotFound { .. }))
                | (Operation::MarkSent | Operation::MarkFailed, Err(StoreError::ClaimLost { .. }))
        );
        assert!(is_fine, "{:?}: {done:?}", self.operation);
    }

    /// All that is stored of its namespace, but for times and random numbers.
    pub(crate) fn content(&self, kind: Kind, url: &str) -> String {
        let list = |table: &str, columns: &str, order: &str| {
            let list = kind.pick(
                format!("string_agg(concat_ws(',', {columns}), ' ' ORDER BY {order})"),
                format!("GROUP_CONCAT(concat_ws(',', {columns}) ORDER BY {order} SEPARATOR ' ')"),
            );
            format!(
                "coalesce((SELECT {list} FROM hapax_{table} WHERE namespace = '{}'), 'no {table}')",
                self.name
            )
        };
        let is = |column: &str| format!("CASE WHEN {column} IS NULL THEN 0 ELSE 1 END");
        let run = format!(
            "run_id, step_id, next_seq, epoch, status, cancel_requested, owner, lease_ttl, {}, {}",
            is("ready_at"),
            is("wake_letters")
        );
        let columns = [
            list("runs", &run, "run_id"),
            list("keys", "run_id, step_id", "run_id, step_id"),
            list("checkpoints", "run_id, step_id, next_seq, frontier_len", "run_id, step_id"),
            list("frontier", "run_id, step_id, page", "run_id, step_id, page"),
            list("journal", "run_id, seq, step_id", "run_id, seq"),
            list("outbox", "step_id, position, status, attempts", "step_id, position"),
            list("channels", &format!("topic, {}", is("token")), "topic"),
            list("letters", "run_id, number, taken", "run_id, number"),
            list("tags", "tag_key, tag_value", "tag_key"),
            list("schedules", "name, next_at, started, skipped, missed, last_run", "name"),
        ];
        sql(url, &format!("SELECT concat_ws(' / ', {})", columns.join(", ")))
    }
}

/// Writes, and waits for the outcome.
async fn submit(store: &Arc<dyn Store>, write: &Write) -> Result<Written, StoreError> {
    store.submit(Arc::new(write.clone()), Pace::Ahead).await?.await
}

/// The holder parks its run until a letter comes.
fn park(holder: &Holder) -> Write {
    let wake = Wake { at_us: None, letters: ["go".into(), end_of("child")].into() };
    let status = Status::Waiting { on: WaitsOn::Signal };
    Write::Status(StatusChange { wake, ..holder.status(status, true) })
}

fn write(operation: Operation, holder: &Holder) -> Option<Write> {
    Some(match operation {
        Operation::Step => step(holder.next("one")),
        Operation::StepWithAll => {
            let pages = hapax_core::limits::FRONTIER_PAGE as u32 + 1;
            step(holder.next_with("one", pages, 3, vec![message("a"), message("b")]))
        }
        Operation::Append => Write::Append(holder.append(3)),
        Operation::AppendThatTakes => {
            let row = JournalRow {
                seq: holder.next_seq,
                base: holder.digest,
                step: holder.step,
                path_hash: PathHash(1),
                entry: Entry::Took { letter: 1 },
            };
            Write::Append(Append { rows: vec![row], ..holder.append(0) })
        }
        Operation::Park => park(holder),
        _ => return None,
    })
}
