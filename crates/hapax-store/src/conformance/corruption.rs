//! Damaged content is never handed out: it is `Corrupt`, with run and step.

use super::{
    Damage, Fixture,
    sample::{Sample, key},
};
use crate::error::StoreError;
use hapax_core::commit::Write;

/// State, frontier, digest, row and journal, each in a run of its own.
pub async fn damage_is_detected_and_named(fixture: Fixture) {
    let Some(corrupt) = &fixture.corrupt else { return };
    for damage in [Damage::State, Damage::Frontier, Damage::Digest, Damage::Row, Damage::Journal] {
        let name = format!("{damage:?}");
        let mut holder = Sample::run(&name).hold(&fixture.store).await;
        holder.commit(holder.next_with("one", 3, 1, vec![])).await.unwrap();
        holder.write(Write::Append(holder.append(1))).await.unwrap();
        fixture.store.load(key(&name)).await.expect("intact so far");
        if !corrupt(&key(&name), damage) {
            assert_eq!(damage, Damage::Journal, "every store can be damaged there");
            continue;
        }
        let store = fixture.other_handle();
        assert_named(store.load(key(&name)).await.map(|_| ()), &name);
        match damage {
            Damage::Row => {}
            Damage::Journal => {
                assert_named(store.journal(key(&name), 0, 100).await.map(|_| ()), &name);
            }
            _ => assert_named(store.checkpoint(key(&name), 1).await.map(|_| ()), &name),
        }
        store.checkpoint(key(&name), 0).await.expect("the step before it is intact");
    }
}

fn assert_named(outcome: Result<(), StoreError>, name: &str) {
    let error = outcome.expect_err("damage must not pass");
    let StoreError::Corrupt { run, step, .. } = &error else { panic!("{error}") };
    assert_eq!((run, *step), (&key(name), Some(1)), "{error}");
}
