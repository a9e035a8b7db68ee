//! Keeps what is held: renews leases, and hears of cancels that were asked for elsewhere.

use crate::{
    clock,
    gate::Halt,
    worker::{Shared, next_hint},
};
use hapax_store::{Hint, Renewal};
use std::{sync::Arc, time::Duration};
use tokio::sync::broadcast::Receiver;

/// A cancel is seen within a second, also when another process asked for it.
const HEAR_CANCELS: Duration = Duration::from_millis(500);

/// Renews the leases of all runs in this engine's hands. A lost one stops its run at once; every write of it is
/// refused anyway.
pub(crate) async fn renew(shared: Arc<Shared>) {
    // However short the lease, two renewals may be lost.
    let often = shared.options.lease_renewal.min(shared.options.lease_ttl / 3).max(Duration::from_millis(1));
    let mut ticks = clock::ticks(often);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.over() => return,
        }
        let held: Vec<_> = shared.holding().into_iter().map(|(run, lease)| (run, lease.epoch)).collect();
        if held.is_empty() {
            continue;
        }
        let asked = clock::since_boot();
        match shared.store.renew(held, shared.claimant()).await {
            Ok(renewals) => {
                for (run, renewal) in renewals {
                    match renewal {
                        Renewal::Lost => drop(shared.stop(&run, Halt::Fenced)),
                        _ => shared.renewed(&run, asked),
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "cannot renew leases; trying again"),
        }
    }
}

/// Resolves when a hint says that a run in this engine's hands is to be cancelled.
async fn of_cancel(hints: &mut Option<Receiver<Hint>>, shared: &Shared) {
    loop {
        match next_hint(hints).await {
            Some(Hint::Cancel(run)) if shared.watch(&run).is_some() => return,
            None => return,
            Some(_) => {}
        }
    }
}

/// Stops the runs for which a cancel was requested.
pub(crate) async fn hear_cancels(shared: Arc<Shared>) {
    let mut ticks = clock::ticks(HEAR_CANCELS);
    let mut hints = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = of_cancel(&mut hints, &shared) => {}
            () = shared.cancelled_one() => {}
            () = shared.over() => return,
        }
        if hints.is_none() && !shared.holding().is_empty() {
            hints = shared.store.hints();
        }
        if shared.holding().is_empty() {
            continue;
        }
        match shared.store.cancels(shared.owner.clone()).await {
            Ok(runs) => {
                for run in runs {
                    shared.stop(&run, Halt::Cancelled);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot hear of cancels; trying again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Engine, Options};
    use hapax_store::{
        MemoryStore, Store,
        conformance::sample::{Sample, claim_when_free, key},
        faulty::Faulty,
    };
    use std::{sync::Arc, time::Duration};

    #[tokio::test]
    async fn a_lease_lasts_from_when_it_was_asked_for() {
        let store: Arc<dyn Store> = MemoryStore::shared();
        Sample::run("r").create(&store).await;
        let other = store.clone();
        let slow = Faulty::slow(store, 0, async move {
            claim_when_free(&other, &key("r"), "another").await;
        });
        let options = Options::default().finds_work(false).lease_ttl(Duration::from_millis(20));
        let engine = Engine::builder().options(options).with_store(slow.clone());
        let taken = engine.shared.claim_back(key("r")).await.unwrap().expect("it was free");
        assert!(slow.fired());
        assert!(!taken.claim.gate.is_leased(), "when it hears of its lease, another has the run");
    }
}
