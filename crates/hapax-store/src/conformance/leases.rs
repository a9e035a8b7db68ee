//! A run has one holder at a time: until its lease ends, and no longer.

use super::{
    Fixture,
    sample::{Holder, LONG, Sample, claim_when_free, claimant, key, ready, shape, submit},
};
use crate::{
    error::StoreError,
    store::{Fleet, Holding, Lease, Outlook, ReadyFilter, Renewal},
};
use hapax_core::{
    commit::{PausedBy, Status, WaitsOn, Write},
    id::{Namespace, RunKey},
};
use std::time::Duration;

/// Neither another worker nor the holder itself gets it.
pub async fn a_lease_is_held_while_it_is_alive(fixture: Fixture) {
    let holder = Sample::run("r").hold(&fixture.store).await;
    for owner in ["b", "a"] {
        let refused = fixture.store.claim(holder.key.clone(), claimant(owner, LONG)).await.unwrap_err();
        let StoreError::Held { run, owner, left_ms } = refused else { panic!("{refused}") };
        assert_eq!((run, owner.as_str()), (holder.key.clone(), "a"));
        assert!(0 < left_ms && left_ms <= 600_000, "{left_ms}");
    }
    assert!(ready(&fixture.store, "b", 10).await.is_empty());
    let missing = fixture.store.claim(key("nobody"), claimant("a", LONG)).await.unwrap_err();
    assert!(matches!(missing, StoreError::NotFound { .. }), "{missing}");
}

/// The counter goes up, the nonce is another one, and the takeover is told.
pub async fn an_expired_lease_is_taken_over(fixture: Fixture) {
    let first = Sample::run("r").claimed_by("a", Duration::from_millis(20)).hold(&fixture.store).await;
    let lease = claim_when_free(&fixture.store, &first.key, "b").await;
    assert!(lease.taken_over);
    assert_eq!(lease.epoch.counter, first.epoch.counter + 1);
    assert_ne!(lease.epoch.nonce, first.epoch.nonce);
    let record = first.record().await;
    assert_eq!((record.epoch, record.owner.as_deref()), (lease.epoch, Some("b")));
}

/// A short lease that is renewed for long stays; a lost one and a missing one are reported.
pub async fn a_renewed_lease_is_kept_and_a_lost_one_reported(fixture: Fixture) {
    let kept = Sample::run("kept").claimed_by("a", Duration::ZERO).hold(&fixture.store).await;
    let lost = Sample::run("lost").claimed_by("a", Duration::ZERO).hold(&fixture.store).await;
    let taken = claim_when_free(&fixture.store, &lost.key, "b").await;
    let leases =
        vec![(kept.key.clone(), kept.epoch), (lost.key.clone(), lost.epoch), (key("nobody"), kept.epoch)];
    let renewed = fixture.store.renew(leases, claimant("a", LONG)).await.unwrap();
    let expected = [
        (kept.key.clone(), Renewal::Kept),
        (lost.key.clone(), Renewal::Lost),
        (key("nobody"), Renewal::Lost),
    ];
    assert_eq!(renewed, expected);
    let refused = fixture.store.claim(kept.key.clone(), claimant("b", LONG)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Held { .. }), "{refused}");
    assert_eq!(lost.record().await.epoch, taken.epoch);
}

/// No takeover: the holder gave it back. It can't be renewed any more.
pub async fn a_released_run_is_free_at_once(fixture: Fixture) {
    let mut holder = Sample::run("r").hold(&fixture.store).await;
    holder.write(Write::Status(holder.status(Status::Running, true))).await.unwrap();
    assert_eq!(holder.record().await.owner, None);
    let leases = vec![(holder.key.clone(), holder.epoch)];
    let renewed = fixture.store.renew(leases, claimant("a", LONG)).await.unwrap();
    assert_eq!(renewed, [(holder.key.clone(), Renewal::Lost)]);
    let lease = fixture.store.claim(holder.key.clone(), claimant("b", LONG)).await.unwrap();
    assert!(!lease.taken_over);
    assert_eq!(lease.epoch.counter, holder.epoch.counter + 1);
}

/// Only of the graphs, shapes and namespace that were asked for, and none twice.
pub async fn ready_runs_are_claimed_oldest_first_and_once(fixture: Fixture) {
    let store = &fixture.store;
    for name in ["r/3", "r/1", "r/2"] {
        Sample::run(name).create(store).await;
    }
    Sample::run("r0").graph("another").create(store).await;
    Sample::run("r0").namespace("elsewhere").create(store).await;
    let mut other_shape = Sample::run("old").build();
    other_shape.fingerprint = shape("an older shape");
    store.create(other_shape).await.unwrap();
    Sample::run("held").hold(store).await;
    let names = |claimed: Vec<(RunKey, Lease)>| -> Vec<String> {
        claimed.into_iter().map(|(key, _)| key.run.to_string()).collect()
    };
    assert_eq!(names(ready(store, "a", 2).await), ["r/3", "r/1"]);
    assert_eq!(names(ready(store, "b", 10).await), ["r/2"]);
    assert!(ready(store, "c", 10).await.is_empty());
    let record = store.run(key("r/3")).await.unwrap().unwrap();
    assert_eq!((record.owner.as_deref(), record.status), (Some("a"), Status::Running));
}

/// Parked and finished runs stay where they are; one that only waits for room doesn't.
pub async fn a_run_that_is_not_runnable_is_not_claimed(fixture: Fixture) {
    let parked = [
        Status::Waiting { on: WaitsOn::Signal },
        Status::Paused { by: PausedBy::Operator },
        Status::InDoubt,
        Status::Succeeded,
        super::sample::failed(),
        Status::Cancelled,
    ];
    for (n, status) in parked.into_iter().enumerate() {
        let holder = Sample::run(&format!("r{n}")).hold(&fixture.store).await;
        park(&holder, status.clone()).await;
        let refused = fixture.store.claim(holder.key.clone(), claimant("b", LONG)).await.unwrap_err();
        let StoreError::WrongStatus { status: stands, .. } = refused else { panic!("{refused}") };
        assert_eq!(*stands, status);
    }
    assert!(ready(&fixture.store, "b", 10).await.is_empty());
    let holder = Sample::run("crowded").hold(&fixture.store).await;
    park(&holder, Status::Paused { by: PausedBy::Backpressure }).await;
    assert_eq!(ready(&fixture.store, "b", 10).await.len(), 1);
}

async fn park(holder: &Holder, status: Status) {
    submit(&holder.store, Write::Status(holder.status(status, true))).await.unwrap();
}

/// Twenty workers ask for one run and for whatever is ready: each run gets one holder.
pub async fn of_many_concurrent_claims_one_wins(fixture: Fixture) {
    for name in ["one", "two"] {
        Sample::run(name).create(&fixture.store).await;
    }
    let handles = [fixture.store.clone(), fixture.other_handle()];
    let mut racers = tokio::task::JoinSet::new();
    for n in 0..20 {
        let store = handles[n % 2].clone();
        racers.spawn(async move {
            let owner = format!("worker {n}");
            let one = store.claim(key("one"), claimant(&owner, LONG)).await;
            usize::from(one.is_ok()) + ready(&store, &owner, 1).await.len()
        });
    }
    assert_eq!(racers.join_all().await.into_iter().sum::<usize>(), 2);
}

/// Before it is claimed, and no longer; of a holder that is dead, once its lease is over.
pub async fn what_can_be_claimed_is_in_the_outlook(fixture: Fixture) {
    let store = &fixture.store;
    assert_eq!(store.outlook(all()).await.unwrap(), Outlook::default());
    Sample::run("new").create(store).await;
    assert!(store.outlook(all()).await.unwrap().ready);
    assert!(store.outlook(all()).await.unwrap().ready, "asking takes nothing");
    assert_eq!(ready(store, "a", 10).await.len(), 1);
    assert!(!store.outlook(all()).await.unwrap().ready, "it is held");
    store.request_cancel(key("new")).await.unwrap();
    assert!(!store.outlook(all()).await.unwrap().ready, "its holder cancels it");
    Sample::run("left").claimed_by("dead", Duration::from_millis(20)).hold(store).await;
    while !store.outlook(all()).await.unwrap().ready {
        tokio::task::yield_now().await;
    }
    let claimed = ready(store, "b", 10).await;
    assert_eq!((claimed.len(), claimed[0].0.clone(), claimed[0].1.taken_over), (1, key("left"), true));
    assert!(!store.outlook(all()).await.unwrap().ready);
}

/// By name, with what waits for a worker; the finished, the parked and those of other tenants don't count.
pub async fn what_each_worker_holds_is_told(fixture: Fixture) {
    let store = &fixture.store;
    assert_eq!(store.fleet(Namespace::default()).await.unwrap(), Fleet::default());
    for (run, owner) in [("r1", "b"), ("r2", "a"), ("r3", "b")] {
        Sample::run(run).claimed_by(owner, LONG).hold(store).await;
    }
    Sample::run("done").hold(store).await.finish().await;
    let mut parked = Sample::run("parked").hold(store).await;
    parked.write(Write::Status(parked.status(Status::Waiting { on: WaitsOn::Signal }, true))).await.unwrap();
    Sample::run("waits").create(store).await;
    Sample::run("left").claimed_by("dead", Duration::ZERO).hold(store).await;
    let fleet = store.fleet(Namespace::default()).await.unwrap();
    let holders: Vec<_> =
        fleet.holders.iter().map(|held| (held.owner.as_str(), held.runs, held.epoch)).collect();
    assert_eq!(holders, [("a", 1, 1), ("b", 2, 1), ("dead", 1, 1)]);
    let alive = |holding: &Holding| !holding.lease_left.is_zero() && holding.lease_left <= LONG;
    assert_eq!(fleet.holders.iter().map(alive).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(fleet.waiting, 2, "a new run, and that of a dead worker");
    assert_eq!(store.fleet(Namespace::new("another").unwrap()).await.unwrap(), Fleet::default());
}

fn all() -> ReadyFilter {
    let graphs = vec![("sample".into(), shape("sample"))];
    ReadyFilter { namespace: Namespace::default(), graphs, limit: 10 }
}
