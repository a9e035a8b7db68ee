//! The PostgreSQL store keeps every promise of a store, on a real server.

use hapax_core::id::RunKey;
use hapax_store::{
    Store,
    conformance::{Damage, Fixture},
    postgres::{PostgresOptions, PostgresStore},
    store_conformance,
};
use std::sync::Arc;

/// Opens a database from a test's own thread.
fn open(url: &str) -> Arc<PostgresStore> {
    let open = PostgresStore::open(url, PostgresOptions::default());
    tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(open)).expect("it opens")
}

fn postgres() -> Fixture {
    let url = hapax_servers::postgres().expect("a server");
    let store = open(&url);
    let (again, damaged, faulty) = (url.clone(), url, store.clone());
    Fixture::new(store)
        .reopen(move || -> Arc<dyn Store> { open(&again) })
        .corrupt(move |run, damage| corrupt(&damaged, run, damage))
        .fail_at(move |n| Box::new(faulty.fail_at(n)))
}

store_conformance!(postgres, postgres);

/// Damages a run through a connection of its own.
fn corrupt(url: &str, run: &RunKey, damage: Damage) -> bool {
    let of_run = format!("namespace = '{}' AND run_id = '{}'", run.namespace, run.run);
    let latest = format!("{of_run} AND step_id = (SELECT step_id FROM hapax_runs WHERE {of_run})");
    let flip = |table: &str, column: &str, which: &str, mask: u8| {
        let sql = format!(
            "UPDATE {table} SET {column} = set_byte({column}, length({column}) / 2, \
             get_byte({column}, length({column}) / 2) # {mask}) WHERE {which} RETURNING 1"
        );
        hapax_servers::sql(url, &sql).expect("an update").lines().any(|line| line == "1")
    };
    let last_page = format!("{latest} AND page = (SELECT max(page) FROM hapax_frontier WHERE {latest})");
    let last_row = format!("{of_run} AND seq = (SELECT max(seq) FROM hapax_journal WHERE {of_run})");
    match damage {
        Damage::State => flip("hapax_checkpoints", "state", &latest, 1),
        Damage::Frontier => flip("hapax_checkpoints", "frontier", &latest, 1),
        Damage::LastPage => flip("hapax_frontier", "items", &last_page, 1),
        Damage::Row => flip("hapax_runs", "digest", &of_run, 1),
        Damage::Digest => flip("hapax_checkpoints", "digest", &latest, 1),
        // No byte of a JSON text has its highest bit alone.
        Damage::Journal => flip("hapax_journal", "entry", &last_row, 0x80),
    }
}
