//! The reference model keeps every promise that it is the reference for.

use hapax_store::{MemoryStore, conformance::Fixture, store_conformance};

fn memory() -> Fixture {
    let store = MemoryStore::shared();
    let (same, damaged) = (store.clone(), store.clone());
    Fixture::new(store).reopen(move || same.clone()).corrupt(move |run, damage| damaged.damage(run, damage))
}

store_conformance!(memory, memory);
