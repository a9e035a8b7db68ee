//! A store that reports when a write is offered, when it was durable, and when its caller is told.
//!
//! Invariant: it changes nothing but the moment at which an answer is handed on. The shipped path runs beneath it
//! as it is.

use super::{Mark, Report, Reporter};
use hapax::{
    core::{
        checkpoint::Checkpoint,
        commit::{Epoch, Write, Written},
        frontier::WorkItem,
        id::{Namespace, RunKey},
        journal::JournalRow,
        mailbox::{Letter, NewLetter, Posted},
    },
    store::{
        Answer, BoxFuture, Census, CensusFilter, Claimant, Created, Fleet, GcPolicy, GcReport, Lease,
        ListFilter, Loaded, NewRun, Outlook, Pace, ReadyFilter, Renewal, RunRecord, Store, StoreError,
        StoreStats, Ticket,
        depot::{self, Rested},
        flow::Flow,
        house::House,
        outbox::Outbox,
        recode::{self, PayloadKeys, Recoded},
        schedules::Schedules,
    },
};
use std::{
    fmt,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::oneshot;

/// The store beneath, and who hears of its writes.
#[derive(Clone)]
pub struct Observed {
    inner: Arc<dyn Store>,
    reports: Arc<Reporter>,
    /// Steps that may be handed on before one is kept back for good.
    until_hold: Option<Arc<AtomicU64>>,
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("until_hold", &self.until_hold).finish_non_exhaustive()
    }
}

/// What a write is, as far as reports go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rows,
    Step,
    Other,
}

impl Observed {
    /// Watches a store. With `hold_nth`, the answer to the n-th durable step is never handed on: the victim waits
    /// there to be killed.
    pub fn new(inner: Arc<dyn Store>, reports: Arc<Reporter>, hold_nth: Option<u64>) -> Arc<Self> {
        let until_hold = hold_nth.map(|nth| Arc::new(AtomicU64::new(nth)));
        Arc::new(Self { inner, reports, until_hold })
    }

    fn offered(&self, id: u64, write: &Write) -> Kind {
        let run = write.run().run.to_string();
        match write {
            Write::Step(commit) => {
                let mut holds = Mark::of(&commit.journal);
                holds.extend((!commit.outbox.is_empty()).then_some(Mark::Outbox));
                self.reports.say(&Report::Committing { id, run, step: commit.checkpoint.step, holds });
                Kind::Step
            }
            Write::Append(append) => {
                let next_seq = append.first_seq + append.rows.len() as u64;
                let holds = Mark::of(&append.rows);
                self.reports.say(&Report::Appending { id, run, next_seq, holds });
                Kind::Rows
            }
            _ => Kind::Other,
        }
    }

    /// Hands an answer on, once it is reported.
    async fn hand_on(
        self,
        (id, kind): (u64, Kind),
        ticket: Ticket,
        caller: oneshot::Sender<Result<Written, StoreError>>,
    ) {
        let answer = ticket.await;
        match (kind, &answer) {
            (Kind::Rows, Ok(_)) => self.reports.say(&Report::Appended(id)),
            (Kind::Step, Ok(_)) => {
                self.reports.committed(id);
                if self.holds_now() {
                    pending::<()>().await;
                }
                self.reports.say(&Report::HandedOn(id));
            }
            (Kind::Other, Ok(_)) => {}
            (_, Err(_)) => self.reports.say(&Report::Refused(id)),
        }
        // A caller that doesn't wait any more misses nothing: the write stands.
        let _ = caller.send(answer);
    }

    fn holds_now(&self) -> bool {
        self.until_hold.as_ref().is_some_and(|left| left.fetch_sub(1, Ordering::Relaxed) == 1)
    }
}

impl Store for Observed {
    fn submit(&self, write: Arc<Write>, pace: Pace) -> Answer<'_, Ticket> {
        Box::pin(async move {
            let id = self.reports.id();
            // Before it is handed over: a store may write on this thread.
            let kind = self.offered(id, &write);
            let offer = self.inner.submit(write, pace).await;
            let ticket = offer.inspect_err(|_| self.reports.say(&Report::Refused(id)))?;
            let (caller, outer) = Ticket::new();
            tokio::spawn(self.clone().hand_on((id, kind), ticket, caller));
            Ok(outer)
        })
    }

    fn create(&self, run: NewRun) -> Answer<'_, Created> {
        self.inner.create(run)
    }
    fn claim(&self, run: RunKey, by: Claimant) -> Answer<'_, Lease> {
        self.inner.claim(run, by)
    }
    fn claim_ready(&self, filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>> {
        self.inner.claim_ready(filter, by)
    }
    fn renew(&self, leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>> {
        self.inner.renew(leases, by)
    }
    fn cancels(&self, owner: Arc<str>) -> Answer<'_, Vec<RunKey>> {
        self.inner.cancels(owner)
    }
    fn post(&self, run: RunKey, letter: NewLetter) -> Answer<'_, Posted> {
        self.inner.post(run, letter)
    }
    fn letter(&self, run: RunKey, subject: Arc<str>, after: u64) -> Answer<'_, Option<Letter>> {
        self.inner.letter(run, subject, after)
    }
    fn outlook(&self, filter: ReadyFilter) -> Answer<'_, Outlook> {
        self.inner.outlook(filter)
    }
    fn fleet(&self, namespace: Namespace) -> Answer<'_, Fleet> {
        self.inner.fleet(namespace)
    }
    fn census(&self, filter: CensusFilter) -> Answer<'_, Census> {
        self.inner.census(filter)
    }
    fn settle(&self, write: Arc<Write>) -> Answer<'_, Written> {
        self.inner.settle(write)
    }
    fn load(&self, run: RunKey) -> Answer<'_, Loaded> {
        self.inner.load(run)
    }
    fn checkpoint(&self, run: RunKey, step: u64) -> Answer<'_, Option<Checkpoint>> {
        self.inner.checkpoint(run, step)
    }
    fn checkpoints(&self, run: RunKey, from_step: u64, limit: usize) -> Answer<'_, Vec<Checkpoint>> {
        self.inner.checkpoints(run, from_step, limit)
    }
    fn frontier_page(&self, run: RunKey, step: u64, page: u32) -> Answer<'_, Vec<WorkItem>> {
        self.inner.frontier_page(run, step, page)
    }
    fn journal(&self, run: RunKey, from_seq: u64, limit: usize) -> Answer<'_, Vec<JournalRow>> {
        self.inner.journal(run, from_seq, limit)
    }
    fn run(&self, run: RunKey) -> Answer<'_, Option<RunRecord>> {
        self.inner.run(run)
    }
    fn list(&self, filter: ListFilter) -> Answer<'_, Vec<RunRecord>> {
        self.inner.list(filter)
    }
    fn request_cancel(&self, run: RunKey) -> Answer<'_, ()> {
        self.inner.request_cancel(run)
    }
    fn retry(&self, run: RunKey) -> Answer<'_, ()> {
        self.inner.retry(run)
    }
    fn delete(&self, run: RunKey) -> Answer<'_, ()> {
        self.inner.delete(run)
    }
    fn recode(&self, from: recode::From) -> Answer<'_, Recoded> {
        self.inner.recode(from)
    }
    fn rest(&self, from: depot::From) -> Answer<'_, Rested> {
        self.inner.rest(from)
    }
    fn payload_keys(&self) -> Answer<'_, PayloadKeys> {
        self.inner.payload_keys()
    }
    fn gc(&self, policy: GcPolicy) -> Answer<'_, GcReport> {
        self.inner.gc(policy)
    }
    fn outbox(&self) -> &dyn Outbox {
        self.inner.outbox()
    }
    fn house(&self) -> &dyn House {
        self.inner.house()
    }

    fn schedules(&self) -> &dyn Schedules {
        self.inner.schedules()
    }

    fn flow(&self) -> &dyn Flow {
        self.inner.flow()
    }
    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}
