//! A store as a process sees it that is going to die: once dead, none of its calls ever answers.

use super::Signal;
use hapax::{
    core::{
        checkpoint::Checkpoint,
        commit::{Append, Epoch, Write, Written},
        flow::{Rate, Reservation, Terms},
        frontier::WorkItem,
        id::{Namespace, RunId, RunKey},
        journal::JournalRow,
        mailbox::{Letter, NewLetter, Posted},
    },
    store::{
        Answer, BoxFuture, Census, CensusFilter, Claimant, Clock, Created, Fleet, GcPolicy, GcReport, Lease,
        ListFilter, Loaded, NewRun, Outlook, Pace, ReadyFilter, Renewal, RunRecord, Store, StoreError,
        StoreStats, Ticket,
        db::Statement,
        flow::{Flow, KeyRecord, KeyView, NameKind, NameRecord, Replaced, Seen, Spread, SpreadPage, Stands},
        house::House,
        outbox::Outbox,
        schedules::Schedules,
    },
};
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

type Meanwhile = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;
type Before = Box<dyn Fn() -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;
type Fatal = Box<dyn Fn(&Write) -> bool + Send + Sync>;

/// Passes everything on while it lives. Its leases end at once, so a successor never waits for them; in return it
/// takes up no work by itself.
pub(crate) struct Mortal {
    inner: Arc<dyn Store>,
    dead: CancellationToken,
    fatal: Fatal,
    slow: Option<(Fatal, Signal)>,
    late: Option<mpsc::UnboundedSender<(Arc<Write>, Reply)>>,
    meanwhile: Meanwhile,
    before_post: Meanwhile,
    before_turn: Before,
    takes_up: bool,
    gives_back: bool,
}

type Reply = oneshot::Sender<Result<Written, StoreError>>;

impl Mortal {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        Self::dying_before(inner, |_| false)
    }

    /// Dies instead of making the first write that satisfies the predicate.
    pub(crate) fn dying_before(
        inner: Arc<dyn Store>,
        fatal: impl Fn(&Write) -> bool + Send + Sync + 'static,
    ) -> Self {
        let (dead, fatal) = (CancellationToken::new(), Box::new(fatal));
        let nothing = || -> Meanwhile { Box::new(|| Box::pin(async {})) };
        let (meanwhile, before_post) = (nothing(), nothing());
        let before_turn: Before = Box::new(|| Box::pin(async { Ok(()) }));
        let (slow, late, takes_up, gives_back) = (None, None, false, true);
        Self { inner, dead, fatal, slow, late, meanwhile, before_post, before_turn, takes_up, gives_back }
    }

    /// The writes that satisfy the predicate are made at once, but nobody hears of it before the signal.
    pub(crate) fn slow_to_answer(
        inner: Arc<dyn Store>,
        write: impl Fn(&Write) -> bool + Send + Sync + 'static,
        signal: &Signal,
    ) -> Self {
        Self { slow: Some((Box::new(write), signal.clone())), ..Self::new(inner) }
    }

    /// Writes are accepted at once, and made one after the other, each at a signal.
    pub(crate) fn late(inner: Arc<dyn Store>, signal: &Signal) -> Self {
        let (late, mut accepted) = mpsc::unbounded_channel::<(Arc<Write>, Reply)>();
        let (signal, store) = (signal.clone(), inner.clone());
        tokio::spawn(async move {
            while let Some((write, reply)) = accepted.recv().await {
                signal.take().await;
                let made = match store.submit(write, Pace::Ahead).await {
                    Ok(ticket) => ticket.await,
                    Err(error) => Err(error),
                };
                // Whoever asked may be gone.
                let _ = reply.send(made);
            }
        });
        Self { late: Some(late), ..Self::new(inner) }
    }

    /// Something happens before each look at a run's history.
    pub(crate) fn reading_while(
        inner: Arc<dyn Store>,
        meanwhile: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self { meanwhile: Box::new(meanwhile), ..Self::new(inner) }
    }

    /// Something happens before each letter is posted.
    pub(crate) fn posting_while(
        inner: Arc<dyn Store>,
        before_post: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self { before_post: Box::new(before_post), ..Self::new(inner) }
    }

    /// Something happens before each turn that is taken in a bucket, which may not be given.
    pub(crate) fn reserving_after(
        inner: Arc<dyn Store>,
        before: impl Fn() -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync + 'static,
    ) -> Self {
        Self { before_turn: Box::new(before), ..Self::new(inner) }
    }

    /// It takes up work all the same.
    pub(crate) fn that_takes_up_work(self) -> Self {
        Self { takes_up: true, ..self }
    }

    /// Nothing that is given back ever gets an answer.
    pub(crate) fn that_takes_nothing_back(self) -> Self {
        Self { gives_back: false, ..self }
    }

    async fn slowly(&self, write: Arc<Write>, pace: Pace) -> Result<Ticket, StoreError> {
        if let Some(late) = &self.late {
            let (reply, ticket) = Ticket::new();
            late.send((write, reply)).expect("it makes writes as long as there are any");
            return Ok(ticket);
        }
        let made = self.inner.submit(write.clone(), pace).await?;
        let Some((_, signal)) = self.slow.as_ref().filter(|(slow, _)| slow(&write)) else { return Ok(made) };
        let (answer, ticket) = Ticket::new();
        let signal = signal.clone();
        tokio::spawn(async move {
            signal.take().await;
            // Whoever asked may be gone.
            let _ = answer.send(made.await);
        });
        Ok(ticket)
    }

    pub(crate) fn dead(&self) -> CancellationToken {
        self.dead.clone()
    }

    fn alive<'a, T: Send + 'a>(&'a self, work: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        Box::pin(async move {
            if self.dead.is_cancelled() {
                std::future::pending::<()>().await;
            }
            let answer = work.await;
            if self.dead.is_cancelled() {
                std::future::pending::<()>().await;
            }
            answer
        })
    }
}

fn briefly(by: Claimant) -> Claimant {
    Claimant { ttl: Duration::ZERO, ..by }
}

macro_rules! pass_on_flow {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> Answer<'_, $answer> {
            self.inner.flow().$name($($arg),*)
        })*
    };
}

impl Flow for Mortal {
    pass_on_flow! {
        enrol(run: RunKey, terms: Terms) -> Vec<RunKey>;
        replace(run: NewRun) -> Replaced;
        sweep(namespace: Namespace) -> u64;
        keys(namespace: Namespace) -> Vec<KeyRecord>;
        key(namespace: Namespace, name: String) -> KeyView;
        names(namespace: Namespace) -> Vec<NameRecord>;
        holder(namespace: Namespace, kind: NameKind, name: String) -> Option<RunId>;
        let_go(run: RunKey, token: String) -> bool;
        spread(namespace: Namespace, seen: Seen, behind: Option<RunId>) -> SpreadPage;
        standing(namespace: Namespace, runs: Vec<RunId>) -> Vec<(Spread, Stands)>;
    }

    fn reserve(&self, namespace: Namespace, rate: Rate) -> Answer<'_, Reservation> {
        Box::pin(async move {
            (self.before_turn)().await?;
            self.inner.flow().reserve(namespace, rate).await
        })
    }

    fn clock(&self, bucket: &str) -> Clock {
        self.inner.flow().clock(bucket)
    }

    fn release(&self, run: RunKey, token: String) -> Answer<'_, Vec<RunKey>> {
        if self.gives_back { self.inner.flow().release(run, token) } else { Box::pin(std::future::pending()) }
    }
}

macro_rules! look_at {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> Answer<'_, $answer> {
            self.alive(Box::pin(async move {
                (self.meanwhile)().await;
                self.inner.$name($($arg),*).await
            }))
        })*
    };
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> Answer<'_, $answer> {
            self.alive(self.inner.$name($($arg),*))
        })*
    };
}

impl Store for Mortal {
    fn create(&self, run: NewRun) -> Answer<'_, Created> {
        self.alive(self.inner.create(NewRun { claim: run.claim.map(briefly), ..run }))
    }

    fn post(&self, run: RunKey, letter: NewLetter) -> Answer<'_, Posted> {
        self.alive(Box::pin(async move {
            (self.before_post)().await;
            self.inner.post(run, letter).await
        }))
    }

    fn claim(&self, run: RunKey, by: Claimant) -> Answer<'_, Lease> {
        self.alive(self.inner.claim(run, briefly(by)))
    }

    fn claim_ready(&self, filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>> {
        if self.takes_up { self.inner.claim_ready(filter, by) } else { Box::pin(async { Ok(vec![]) }) }
    }

    fn renew(&self, leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>> {
        self.alive(self.inner.renew(leases, briefly(by)))
    }

    fn submit(&self, write: Arc<Write>, pace: Pace) -> Answer<'_, Ticket> {
        if (self.fatal)(&write) {
            self.dead.cancel();
        }
        // Not asked at all once it is dead: a store may accept a write as soon as it is called.
        if self.dead.is_cancelled() {
            Box::pin(std::future::pending())
        } else {
            Box::pin(self.slowly(write, pace))
        }
    }

    look_at! {
        run(run: RunKey) -> Option<RunRecord>;
        checkpoints(run: RunKey, from_step: u64, limit: usize) -> Vec<Checkpoint>;
        frontier_page(run: RunKey, step: u64, page: u32) -> Vec<WorkItem>;
        journal(run: RunKey, from_seq: u64, limit: usize) -> Vec<JournalRow>;
    }

    pass_on! {
        cancels(owner: Arc<str>) -> Vec<RunKey>;
        settle(write: Arc<Write>) -> Written;
        load(run: RunKey) -> Loaded;
        checkpoint(run: RunKey, step: u64) -> Option<Checkpoint>;
        list(filter: ListFilter) -> Vec<RunRecord>;
        request_cancel(run: RunKey) -> ();
        letter(run: RunKey, subject: Arc<str>, after: u64) -> Option<Letter>;
        outlook(filter: ReadyFilter) -> Outlook;
        fleet(namespace: Namespace) -> Fleet;
        census(filter: CensusFilter) -> Census;
        retry(run: RunKey) -> ();
        delete(run: RunKey) -> ();
        gc(policy: GcPolicy) -> GcReport;
    }

    fn identity(&self) -> Answer<'_, Option<String>> {
        self.inner.identity()
    }

    /// Nothing of it reaches the store.
    fn within<'a>(&'a self, append: &'a Append) -> Answer<'a, Vec<Statement>> {
        self.inner.within(append)
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
        self
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}
