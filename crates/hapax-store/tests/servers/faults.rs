//! Every statement of every operation: it fails, it never arrives, or its answer never does. What is told of it is true,
//! and once it was done again the run is as if nothing had happened.

use crate::{
    both::{Kind, address, on_both},
    operations::{Operation, Subject},
};
use futures::future::join_all;
use hapax_core::commit::Written;
use hapax_servers::Proxy;
use hapax_store::{
    ListFilter, Pace, Store, StoreError,
    conformance::{Sample, sample::step},
};
use std::{sync::Arc, time::Duration};

#[path = "../triggers/mysql.rs"]
mod mysql_triggers;
#[path = "../triggers/postgres.rs"]
mod postgres_triggers;

on_both! {
    a_statement_that_fails_leaves_nothing,
    a_statement_that_never_arrives_leaves_nothing,
    a_statement_whose_answer_is_lost_is_told_from_one_that_took_effect,
    when_all_sessions_are_cut_one_question_fails_at_the_most,
    a_connection_that_stands_still_is_given_up,
}

/// A database with a store that nothing happens to, and one behind a proxy.
struct Rig {
    kind: Kind,
    url: String,
    proxy: Proxy,
    near: Arc<dyn Store>,
    far: Arc<dyn Store>,
}

/// What the proxy loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    Requests,
    Replies,
}

/// What became of an operation that met a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Done,
    Nothing,
    Unknown,
}

impl Told {
    fn by(outcome: &Result<(), StoreError>) -> Self {
        match outcome {
            Ok(()) => Told::Done,
            Err(StoreError::Retry(_)) => Told::Nothing,
            Err(StoreError::Unknown(_)) => Told::Unknown,
            Err(error) => panic!("{error:?}"),
        }
    }
}

impl Rig {
    async fn new(kind: Kind) -> Self {
        let url = kind.database();
        let proxy = Proxy::start(address(&url)).expect("a proxy");
        let near = kind.store(&url).await;
        let far = kind.one_session(&proxy.url(&url).expect("a URL")).await;
        Self { kind, url, proxy, near, far }
    }

    /// What is stored after the operation when nothing goes wrong.
    async fn undisturbed(&self, operation: Operation) -> String {
        let subject = Subject::make(&self.near, operation, "undisturbed").await;
        subject.act(&self.near).await.expect("nothing goes wrong");
        subject.content(self.kind, &self.url)
    }

    /// Does an operation whose n-th message is lost and then the connection; `None`: it has fewer.
    async fn lose(&self, subject: &Arc<Subject>, lost: Lost, n: u64) -> Option<Told> {
        let before = self.proxy.counts().bytes_lost;
        match lost {
            Lost::Requests => self.proxy.swallow_requests(n),
            Lost::Replies => self.proxy.swallow_replies(n),
        }
        let (far, acting) = (self.far.clone(), subject.clone());
        let act = tokio::spawn(async move { acting.act(&far).await });
        while !act.is_finished() && self.proxy.counts().bytes_lost == before {
            tokio::task::yield_now().await;
        }
        let is_lost = self.proxy.counts().bytes_lost > before;
        self.proxy.pass();
        if is_lost {
            self.proxy.cut();
        }
        let outcome = act.await.expect("no panic");
        is_lost.then(|| Told::by(&outcome))
    }

    /// What is told of it, under the lock of its run.
    async fn settle(&self, subject: &Subject, is_done: bool) {
        let Some(write) = &subject.write else { return };
        match self.near.settle(write.clone()).await {
            Ok(Written::AlreadyCommitted) if is_done => {}
            Err(StoreError::Retry(_)) if !is_done => {}
            settled => panic!("done is {is_done}, and it says {settled:?}"),
        }
    }

    /// One operation, one fault, at each of its messages. Answers what was told, message by message.
    async fn each_message(&self, operation: Operation, lost: Lost) -> Vec<(Told, bool)> {
        let after = self.undisturbed(operation).await;
        let mut told = vec![];
        for n in 1.. {
            // Statements of a new session are prepared by doing the same elsewhere.
            let warm = Subject::make(&self.near, operation, &format!("warm {n}")).await;
            warm.act(&self.far).await.expect("nothing goes wrong yet");
            let name = format!("case {n}");
            let subject = Arc::new(Subject::make(&self.near, operation, &name).await);
            let before = subject.content(self.kind, &self.url);
            let Some(outcome) = self.lose(&subject, lost, n).await else { break };
            let found = subject.content(self.kind, &self.url);
            let is_done = found == after;
            let context = format!("{operation:?}, {lost:?} from {n} on: {outcome:?}");
            assert!(is_done || found == before, "{context}: half\n{before}\n{found}\n{after}");
            assert!(outcome != Told::Done || is_done, "{context}: lost");
            assert!(outcome != Told::Nothing || before == found, "{context}: written");
            self.settle(&subject, is_done).await;
            subject.act_again(&self.near).await;
            assert_eq!(subject.content(self.kind, &self.url), after, "{context}: as if once");
            told.push((outcome, is_done));
        }
        told
    }

    /// All operations, each in a database of its own.
    async fn all(kind: Kind, lost: Lost) -> Vec<(Operation, Vec<(Told, bool)>)> {
        let mut all = vec![];
        for operation in Operation::ALL {
            all.push((operation, Self::new(kind).await.each_message(operation, lost).await));
        }
        all
    }
}

async fn a_statement_that_fails_leaves_nothing(kind: Kind) {
    let rig = Rig::new(kind).await;
    if kind == Kind::MySql {
        mysql_triggers::make(&rig.url);
    }
    for operation in Operation::ALL {
        let calm = Subject::make(&rig.near, operation, &format!("{operation:?} calm")).await;
        calm.act(&rig.near).await.expect("nothing goes wrong");
        let after = calm.content(kind, &rig.url);
        let mut fired = 0;
        for n in 0.. {
            let subject = Subject::make(&rig.near, operation, &format!("{operation:?} {n}")).await;
            let before = subject.content(kind, &rig.url);
            let has_fired = match kind {
                Kind::Postgres => postgres_triggers::fail_at(&rig.url, n),
                Kind::MySql => mysql_triggers::fail_at(&rig.url, n),
            };
            let outcome = subject.act(&rig.near).await;
            if !has_fired() {
                outcome.expect("nothing went wrong");
                break;
            }
            fired += 1;
            assert_eq!(Told::by(&outcome), Told::Nothing, "{operation:?} at {n}");
            assert_eq!(subject.content(kind, &rig.url), before, "{operation:?} at {n}");
            rig.settle(&subject, false).await;
            subject.act_again(&rig.near).await;
            assert_eq!(subject.content(kind, &rig.url), after, "{operation:?} at {n}");
        }
        assert!(fired > 0, "{operation:?} changes something");
    }
}

/// Without the hint that follows the commit of some: whatever becomes of it, the operation is done.
fn without_hint(kind: Kind, operation: Operation, mut told: Vec<(Told, bool)>) -> Vec<(Told, bool)> {
    if kind == Kind::Postgres && operation.is_hinted_at() {
        assert_eq!(told.pop(), Some((Told::Done, true)), "{operation:?}: the hint");
    }
    told
}

async fn a_statement_that_never_arrives_leaves_nothing(kind: Kind) {
    for (operation, told) in Rig::all(kind, Lost::Requests).await {
        let told = without_hint(kind, operation, told);
        assert!(!told.is_empty(), "{operation:?} says something");
        assert!(told.iter().all(|(_, is_done)| !is_done), "{operation:?}: {told:?}");
    }
}

async fn a_statement_whose_answer_is_lost_is_told_from_one_that_took_effect(kind: Kind) {
    for (operation, told) in Rig::all(kind, Lost::Replies).await {
        let told = without_hint(kind, operation, told);
        // Whatever comes before COMMIT is undone; of COMMIT itself nothing is known, and it took effect. So it is with a
        // statement that commits by itself, also where its fence refused it.
        let (last, earlier) = told.split_last().expect("it says something");
        assert_eq!(*last, (Told::Unknown, true), "{operation:?}: {told:?}");
        assert!(earlier.iter().all(|(_, is_done)| !is_done), "{operation:?}: {told:?}");
    }
}

/// As a restart of the server does.
async fn when_all_sessions_are_cut_one_question_fails_at_the_most(kind: Kind) {
    let url = kind.database();
    let proxy = Proxy::start(address(&url)).expect("a proxy");
    let store = kind.store(&proxy.url(&url).expect("a URL")).await;
    let list = || store.list(ListFilter::default());
    for listed in join_all((0..8).map(|_| list())).await {
        listed.expect("nothing is wrong yet");
    }
    proxy.cut();
    let mut failed = 0;
    for _ in 0..8 {
        match list().await {
            Ok(_) => {}
            Err(StoreError::Retry(_)) => failed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(failed <= 1, "{failed} of 8 sessions were found broken by their users");
}

/// It stays open, and nothing is heard of it any more: what became of a write is found out over another one.
async fn a_connection_that_stands_still_is_given_up(kind: Kind) {
    let url = kind.database();
    let proxy = Proxy::start(address(&url)).expect("a proxy");
    let store = kind.answering_within(&proxy.url(&url).expect("a URL"), Duration::from_secs(2)).await;
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next("one")).await.expect("a step");
    let write = Arc::new(step(holder.next("two")));
    proxy.swallow_replies(1);
    let ticket = store.submit(write.clone(), Pace::Ahead).await.expect("room");
    tokio::task::block_in_place(|| proxy.wait_for_loss());
    let patience = Duration::from_secs(30);
    let told = tokio::time::timeout(patience, ticket).await.expect("it is given up");
    let told = told.expect_err("no answer came");
    assert!(matches!(told, StoreError::Unknown(_) | StoreError::Retry(_)), "{told}");
    proxy.pass();
    let settled = match store.settle(write.clone()).await {
        Err(StoreError::Retry(_)) => store.submit(write, Pace::Ahead).await.expect("room").await,
        settled => settled,
    };
    assert!(matches!(settled, Ok(Written::Committed | Written::AlreadyCommitted)), "{settled:?}");
}
