//! Whoever lost a run can't write to it any more, whatever it writes and whenever it lost it.

use super::{
    Fixture,
    sample::{Holder, LONG, Picture, Sample, claim_when_free, claimant, failed, message, step, submit},
};
use crate::{error::StoreError, store::Renewal};
use hapax_core::commit::{Epoch, Status, Write};
use std::time::Duration;

/// Every kind of write of an earlier epoch is refused, names the owner, and leaves nothing.
pub async fn a_stale_worker_cannot_write_anything(fixture: Fixture) {
    let mut stale = Sample::run("r").claimed_by("a", Duration::ZERO).hold(&fixture.store).await;
    stale.commit(stale.next("one")).await.expect("nobody else has claimed it yet");
    let owner = take_over(&fixture, &stale).await;
    let before = Picture::of(&fixture.store, &stale.key).await;
    for write in every_kind(&stale) {
        let refused = submit(&fixture.store, write.clone()).await.unwrap_err();
        assert_fenced(&refused, Some(owner.epoch));
        let refused = fixture.store.settle(write.into()).await.unwrap_err();
        assert_fenced(&refused, Some(owner.epoch));
    }
    assert_eq!(Picture::of(&fixture.store, &stale.key).await, before);
    let renewed = fixture.store.renew(vec![(stale.key.clone(), stale.epoch)], claimant("a", LONG)).await;
    assert_eq!(renewed.unwrap(), [(stale.key.clone(), Renewal::Lost)]);
}

fn every_kind(holder: &Holder) -> Vec<Write> {
    vec![
        step(holder.next_with("two", 1100, 2, vec![message("m")])),
        step(holder.last("end")),
        Write::Append(holder.append(2)),
        Write::Append(hapax_core::commit::Append { unless_cancelled: true, ..holder.append(1) }),
        Write::Status(holder.status(failed(), true)),
        Write::Status(holder.status(Status::Running, true)),
        Write::Status(holder.status(Status::InDoubt, false)),
    ]
}

/// Claims a run whose lease has ended, for another worker.
async fn take_over(fixture: &Fixture, from: &Holder) -> Holder {
    let store = fixture.other_handle();
    let lease = claim_when_free(&store, &from.key, "b").await;
    Holder::load(&store, &from.key, lease).await.expect("an intact run")
}

fn assert_fenced(error: &StoreError, expected: Option<Epoch>) {
    let StoreError::Fenced { owner, .. } = error else { panic!("not fenced, but: {error}") };
    assert_eq!(*owner, expected);
}

/// Another worker claims the run before the first write of a scripted worker, before its second, and so on: every
/// later write is fenced, every earlier one is kept, and the new owner can end the run.
pub async fn a_takeover_between_any_two_calls_fences_the_worker(fixture: Fixture) {
    for boundary in 0..=SCRIPT {
        let name = format!("r{boundary}");
        let mut stale = Sample::run(&name).claimed_by("a", Duration::ZERO).hold(&fixture.store).await;
        let mut owner = None;
        for call in 0..SCRIPT {
            if call == boundary {
                owner = Some(take_over(&fixture, &stale).await);
            }
            let outcome = stale.write(scripted(&stale, call)).await;
            match &owner {
                None => assert!(outcome.is_ok(), "{boundary}/{call}: {outcome:?}"),
                Some(owner) => assert_fenced(&outcome.unwrap_err(), Some(owner.epoch)),
            }
        }
        let owner = match owner {
            Some(owner) => owner,
            None => take_over(&fixture, &stale).await,
        };
        assert_eq!((owner.step, owner.next_seq), (stale.step, stale.next_seq), "what came before is kept");
        owner.finish().await;
    }
}

const SCRIPT: usize = 6;

fn scripted(holder: &Holder, call: usize) -> Write {
    match call {
        0 | 3 => Write::Append(holder.append(2)),
        1 | 4 => step(holder.next_with("state", 2, 1, vec![])),
        2 => Write::Append(hapax_core::commit::Append { unless_cancelled: true, ..holder.append(1) }),
        _ => Write::Status(holder.status(Status::Running, false)),
    }
}

/// After a restored backup a counter repeats; the nonce doesn't.
pub async fn a_writer_without_its_nonce_is_fenced(fixture: Fixture) {
    let holder = Sample::run("r").hold(&fixture.store).await;
    let mut forged = holder.clone();
    forged.epoch.nonce ^= 1;
    for write in every_kind(&forged) {
        assert_fenced(&submit(&fixture.store, write).await.unwrap_err(), Some(holder.epoch));
    }
    let leases = vec![(holder.key.clone(), forged.epoch)];
    let renewed = fixture.store.renew(leases, claimant("a", LONG)).await.unwrap();
    assert_eq!(renewed, [(holder.key.clone(), Renewal::Lost)]);
}

/// Nobody owns it, so the refusal names nobody.
pub async fn a_write_to_a_run_that_is_gone_is_fenced(fixture: Fixture) {
    let holder = Sample::run("r").hold(&fixture.store).await;
    let last = holder.clone();
    holder.finish().await;
    fixture.store.delete(last.key.clone()).await.expect("a finished run");
    for write in every_kind(&last) {
        assert_fenced(&submit(&fixture.store, write.clone()).await.unwrap_err(), None);
        assert_fenced(&fixture.store.settle(write.into()).await.unwrap_err(), None);
    }
}
