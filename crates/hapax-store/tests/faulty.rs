//! The faulty store fails where it was told to, and nowhere else.

use hapax_core::commit::{Write, Written};
use hapax_store::{
    MemoryStore, Store, StoreError,
    conformance::{Fixture, Holder, Sample, sample},
    faulty::{Applied, Fault, Faulty, Kind},
    store_conformance,
};
use std::sync::Arc;

fn never() -> Fixture {
    Fixture::new(Faulty::new(MemoryStore::shared(), u64::MAX, Fault::Before))
}

// A fault that never comes changes nothing.
store_conformance!(without_a_fault, never);

/// Creates and loads a run, commits twice with rows between, and asks what became of the last write.
async fn work(store: &Arc<dyn Store>) -> Result<Written, StoreError> {
    let mut holder = start(store).await?;
    store.load(holder.key.clone()).await?;
    holder.commit(holder.next("one")).await?;
    holder.write(Write::Append(holder.append(2))).await?;
    let last = sample::step(holder.last("end"));
    holder.write(last.clone()).await?;
    store.settle(last.into()).await
}

async fn start(store: &Arc<dyn Store>) -> Result<Holder, StoreError> {
    store.create(Sample::run("r").build()).await?;
    Holder::claim(store, &sample::key("r"), "a").await
}

/// The kinds of `work`'s calls, in order; `None` reads.
const CALLS: [Option<Kind>; 8] = [
    Some(Kind::Create),
    Some(Kind::Claim),
    None,
    None,
    Some(Kind::Step),
    Some(Kind::Append),
    Some(Kind::Step),
    None,
];

async fn kinds_until(at: usize, fault: Fault) -> (Vec<Kind>, bool, Result<Written, StoreError>) {
    let faulty = Faulty::new(MemoryStore::shared(), at as u64, fault);
    let outcome = work(&(faulty.clone() as Arc<dyn Store>)).await;
    assert_eq!(faulty.fired(), at < CALLS.len());
    (faulty.applied().into_iter().map(|applied| applied.kind).collect(), faulty.is_dead(), outcome)
}

#[tokio::test]
async fn every_call_can_be_the_last_one_before_or_after_it_is_applied() {
    for at in 0..CALLS.len() {
        let kinds = |calls: &[Option<Kind>]| calls.iter().copied().flatten().collect::<Vec<_>>();
        let (applied, dead, outcome) = kinds_until(at, Fault::Before).await;
        assert_eq!((applied, dead), (kinds(&CALLS[..at]), true));
        assert!(matches!(outcome, Err(StoreError::Retry(_))), "{outcome:?}");
        let (applied, dead, outcome) = kinds_until(at, Fault::After).await;
        assert_eq!((applied, dead), (kinds(&CALLS[..=at]), true));
        assert!(matches!(outcome, Err(StoreError::Retry(_))), "{outcome:?}");
        let (applied, dead, outcome) = kinds_until(at, Fault::LoseReply).await;
        assert_eq!((applied, dead), (kinds(&CALLS[..=at]), false));
        assert!(matches!(outcome, Err(StoreError::Unknown(_))), "{outcome:?}");
    }
    let (applied, dead, outcome) = kinds_until(CALLS.len(), Fault::Before).await;
    assert_eq!((applied.len(), dead, outcome.unwrap()), (5, false, Written::AlreadyCommitted));
}

#[tokio::test]
async fn the_dead_answer_nothing_and_change_nothing() {
    let memory = MemoryStore::shared();
    let faulty = Faulty::new(memory.clone(), 2, Fault::After);
    let store: Arc<dyn Store> = faulty.clone();
    let death = tokio::spawn(faulty.dead());
    let refused = start(&store).await.err().expect("it dies while it loads");
    assert!(refused.to_string().contains("the process is dead"), "{refused}");
    death.await.expect("the death is told");
    let run = sample::key("r");
    store.request_cancel(run.clone()).await.unwrap_err();
    store.renew(vec![], sample::claimant("a", sample::LONG)).await.unwrap_err();
    store.run(run.clone()).await.unwrap_err();
    store.create(Sample::run("other").build()).await.unwrap_err();
    assert_eq!(memory.list(hapax_store::ListFilter::default()).await.unwrap().len(), 1);
    assert!(!memory.run(run).await.unwrap().unwrap().cancel_requested);
    assert_eq!(faulty.calls(), 3);
}

#[tokio::test]
async fn a_lost_reply_can_be_settled() {
    let faulty = Faulty::new(MemoryStore::shared(), 1, Fault::LoseReply);
    let store: Arc<dyn Store> = faulty.clone();
    let mut holder = Sample::run("r").hold(&store).await;
    let commit = sample::step(holder.next("one"));
    let lost = holder.write(commit.clone()).await.unwrap_err();
    assert!(matches!(lost, StoreError::Unknown(_)), "{lost}");
    assert_eq!(store.settle(commit.clone().into()).await.unwrap(), Written::AlreadyCommitted);
    holder.passed(&commit);
    assert_eq!(holder.commit(holder.next("two")).await.unwrap(), Written::Committed);
    let steps = faulty.applied().into_iter().filter(|applied| applied.kind == Kind::Step);
    let expected = |step| Applied { run: sample::key("r"), kind: Kind::Step, step: Some(step) };
    assert_eq!(steps.collect::<Vec<_>>(), [expected(1), expected(2)]);
}
