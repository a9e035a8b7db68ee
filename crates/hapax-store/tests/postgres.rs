//! The PostgreSQL store keeps every promise of a store, on a real server.

use hapax_core::id::RunKey;
use hapax_store::{
    Store,
    conformance::{Damage, Fired, Fixture},
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
    let (again, damaged) = (url.clone(), url.clone());
    Fixture::new(store)
        .reopen(move || -> Arc<dyn Store> { open(&again) })
        .corrupt(move |run, damage| corrupt(&damaged, run, damage))
        .fail_at(move |n| fail_at(&url, n))
}

store_conformance!(postgres, postgres);

/// Counts the changes to every table, also those that one statement makes, and fails at the chosen one.
const TRIGGERS: &str = "
CREATE SEQUENCE IF NOT EXISTS changes;
CREATE TABLE IF NOT EXISTS fails (at BIGINT NOT NULL);
CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('changes') = (SELECT at FROM fails) THEN RAISE EXCEPTION 'a fault of the test'; END IF;
    RETURN NULL;
END $$;
DO $$
DECLARE t TEXT;
BEGIN
    FOREACH t IN ARRAY ARRAY['runs', 'keys', 'checkpoints', 'frontier', 'journal', 'outbox', 'channels', 'letters'] LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER fail AFTER INSERT OR UPDATE OR DELETE ON hapax_%s EXECUTE FUNCTION fail()', t);
    END LOOP;
END $$;
";

/// Makes the server fail at the n-th change from now.
fn fail_at(url: &str, n: u64) -> Fired {
    let sql = |sql: &str| hapax_servers::sql(url, sql).expect("a statement");
    sql(&format!(
        "{TRIGGERS} DELETE FROM fails; INSERT INTO fails VALUES ({}); SELECT setval('changes', 1, false)",
        n + 1
    ));
    let url = url.to_owned();
    Box::new(move || {
        let sql = "DELETE FROM fails; SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM changes";
        let changes = hapax_servers::sql(&url, sql).expect("a statement");
        changes.lines().last().and_then(|line| line.parse::<u64>().ok()).is_some_and(|changes| changes > n)
    })
}

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
