//! A run that begins anew while it is read is whole: what it has forgotten is no damage, and is told in no part.

use crate::common::desk::{Note, WORK};
use futures::future::BoxFuture;
use hapax::{
    EffectKind::Write as Sends, Engine, Flow as Runs, Graph, Node, NodeError, Options, Outcome,
    RouteExt as _, State, Status,
};
use hapax_core::{
    checkpoint::Checkpoint,
    commit::{Epoch, Write, Written},
    frontier::WorkItem,
    id::{Namespace, RunKey},
    journal::JournalRow,
    mailbox::{Letter, NewLetter, Posted},
};
use hapax_store::{
    Answer, Census, CensusFilter, Claimant, Clock, Created, Fleet, GcPolicy, GcReport, Lease, ListFilter,
    Loaded, MemoryStore, NewRun, Outlook, Pace, ReadyFilter, Renewal, RunRecord, Store, StoreStats, Ticket,
    flow::Flow, house::House, outbox::Outbox, schedules::Schedules,
};
use std::{
    fs,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A store of which a run's history is read; something happens before one of those reads.
struct Read {
    inner: Arc<dyn Store>,
    reads: AtomicUsize,
    /// Before the read of this number, counted from 0.
    at: usize,
    meanwhile: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

macro_rules! look_at {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> Answer<'_, $answer> {
            Box::pin(async move {
                if self.reads.fetch_add(1, Ordering::SeqCst) == self.at {
                    (self.meanwhile)().await;
                }
                self.inner.$name($($arg),*).await
            })
        })*
    };
}

macro_rules! pass_on {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> $answer {
            self.inner.$name($($arg),*)
        })*
    };
}

impl Store for Read {
    look_at! {
        run(run: RunKey) -> Option<RunRecord>;
        checkpoint(run: RunKey, step: u64) -> Option<Checkpoint>;
        checkpoints(run: RunKey, from_step: u64, limit: usize) -> Vec<Checkpoint>;
        frontier_page(run: RunKey, step: u64, page: u32) -> Vec<WorkItem>;
        journal(run: RunKey, from_seq: u64, limit: usize) -> Vec<JournalRow>;
    }

    pass_on! {
        create(run: NewRun) -> Answer<'_, Created>;
        claim(run: RunKey, by: Claimant) -> Answer<'_, Lease>;
        claim_ready(filter: ReadyFilter, by: Claimant) -> Answer<'_, Vec<(RunKey, Lease)>>;
        renew(leases: Vec<(RunKey, Epoch)>, by: Claimant) -> Answer<'_, Vec<(RunKey, Renewal)>>;
        cancels(owner: Arc<str>) -> Answer<'_, Vec<RunKey>>;
        submit(write: Arc<Write>, pace: Pace) -> Answer<'_, Ticket>;
        settle(write: Arc<Write>) -> Answer<'_, Written>;
        load(run: RunKey) -> Answer<'_, Loaded>;
        list(filter: ListFilter) -> Answer<'_, Vec<RunRecord>>;
        request_cancel(run: RunKey) -> Answer<'_, ()>;
        post(run: RunKey, letter: NewLetter) -> Answer<'_, Posted>;
        letter(run: RunKey, subject: Arc<str>, after: u64) -> Answer<'_, Option<Letter>>;
        outlook(filter: ReadyFilter) -> Answer<'_, Outlook>;
        fleet(namespace: Namespace) -> Answer<'_, Fleet>;
        census(filter: CensusFilter) -> Answer<'_, Census>;
        retry(run: RunKey) -> Answer<'_, ()>;
        delete(run: RunKey) -> Answer<'_, ()>;
        gc(policy: GcPolicy) -> Answer<'_, GcReport>;
        outbox() -> &dyn Outbox;
        schedules() -> &dyn Schedules;
        house() -> &dyn House;
        flow() -> &dyn Flow;
        clock() -> Clock;
        stats() -> StoreStats;
    }

    /// The run's own engine works on.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

const RING: Node = Node::new("ring");

/// Rings, waits until it is told to, and begins anew.
async fn rings(engine: &Engine) -> Runs<Note> {
    async fn ring(mut ctx: hapax::Ctx<Note>) -> Result<Outcome<Note>, NodeError> {
        let heard: String = ctx
            .effect("knell", Sends, &1, async |_: hapax::Call| Ok::<_, NodeError>("ding-dong".to_owned()))
            .await?;
        Ok(Note::delta().text(heard).goto(WORK))
    }
    async fn work(mut ctx: hapax::Ctx<Note>) -> Result<Outcome<Note>, NodeError> {
        ctx.signal::<()>("again").await?;
        Ok(Outcome::continue_as(&Note::default()))
    }
    let graph = Graph::new("rings", 1, RING).node(RING, ring).node(WORK, work);
    engine.register(graph, ()).await.unwrap()
}

/// Waits until the run waits in a later step than this.
async fn waits_behind(engine: &Engine, step: Option<u64>) -> u64 {
    loop {
        let record = engine.record("bell").await.unwrap();
        if Some(record.step) > step && matches!(record.status, Status::Waiting { .. }) {
            return record.step;
        }
        tokio::task::yield_now().await;
    }
}

/// A command that reads the run, which begins anew before the read of this number. Answers also whether there was such a read.
async fn told_meanwhile(args: &[&str], at: usize) -> (ExitCode, bool) {
    let store = MemoryStore::shared();
    let worker = Engine::builder().with_store(store.clone());
    let run = rings(&worker).await.submit("bell", Note::default()).await.unwrap();
    let waits_in = waits_behind(&worker, None).await;
    let again = worker.clone();
    let meanwhile = move || -> BoxFuture<'static, ()> {
        let engine = again.clone();
        Box::pin(async move {
            engine.signal("bell", "again", &()).await.unwrap();
            waits_behind(&engine, Some(waits_in)).await;
        })
    };
    let read =
        Arc::new(Read { inner: store, reads: AtomicUsize::new(0), at, meanwhile: Box::new(meanwhile) });
    let tool = Engine::builder().options(Options::default().finds_work(false)).with_store(read.clone());
    let done = hapax_cli::run_from(tool, [&["rings"], args].concat()).await;
    run.cancel().await.unwrap();
    (done, read.reads.load(Ordering::SeqCst) > at)
}

#[tokio::test]
async fn a_run_that_begins_anew_while_it_is_read_is_told_whole() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("bell.html");
    let page = page.to_str().unwrap();
    for args in [&["history", "bell", "--html", page][..], &["show", "bell"], &["graph", "--run", "bell"]] {
        for at in 0.. {
            let (done, began_anew) = told_meanwhile(args, at).await;
            assert_eq!(done, ExitCode::SUCCESS, "{args:?}, before read {at}");
            if args[0] == "history" {
                let told = fs::read_to_string(page).unwrap();
                assert!(told.contains("knell"), "its call is told, before read {at}: {told}");
                fs::remove_file(page).unwrap();
            }
            if !began_anew {
                assert!(at > 4, "{args:?} takes more than {at} reads");
                break;
            }
        }
    }
}
