//! Flow control in a database that was made before there was any.

use crate::both::{Kind, on_both, sql};
use hapax_core::commit::Status;
use hapax_store::conformance::{
    Sample,
    flow::{keys, on},
    sample::key,
};

on_both! {
    a_database_of_an_older_program_gets_flow_control,
}

/// Makes a database one of a program that knew no flow control.
pub(crate) fn without_flow(kind: Kind, url: &str) {
    let before = kind.pick(5, 4);
    sql(
        url,
        &format!(
            "DROP TABLE hapax_objects; DROP TABLE hapax_shards; DROP TABLE hapax_flow_slots; DROP TABLE hapax_flow_queue; DROP TABLE hapax_flow_names; \
             ALTER TABLE hapax_runs DROP COLUMN terms; ALTER TABLE hapax_runs DROP COLUMN head_start; \
             UPDATE hapax_schema SET version = {before}"
        ),
    );
}

/// Its runs stay as they are.
async fn a_database_of_an_older_program_gets_flow_control(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    Sample::run("old").create(&store).await;
    store.close().await;
    without_flow(kind, &url);
    let store = kind.store(&url).await;
    for run in ["a", "b"] {
        store.create(on(run, &keys(&[("k", 1)]))).await.expect("it is created");
    }
    let status = async |run| store.run(key(run)).await.expect("a read").expect("it is there").status;
    assert_eq!((status("old").await, status("a").await), (Status::Pending, Status::Pending));
    assert_eq!(status("b").await.word(), "waiting");
    assert_eq!(sql(&url, "SELECT version FROM hapax_schema"), kind.pick("8", "7"));
}
