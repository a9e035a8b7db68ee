//! Schedules in a database that was made before there were any.

use crate::{
    both::{Kind, on_both, sql},
    flow::without_flow,
};
use hapax_store::{
    conformance::{
        Sample,
        sample::key,
        schedules::{added, nightly},
    },
    schedules::{Fire, Fired},
};

on_both! {
    a_database_of_an_older_program_gets_schedules,
}

/// Its runs stay as they are.
async fn a_database_of_an_older_program_gets_schedules(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    Sample::run("old").create(&store).await;
    store.close().await;
    let before = kind.pick(3, 2);
    without_flow(kind, &url);
    sql(&url, "DROP TABLE hapax_schedules; DROP TABLE hapax_blobs");
    sql(&url, &format!("UPDATE hapax_schema SET version = {before}"));
    let store = kind.store(&url).await;
    let due = added(&*store, nightly("s")).await;
    let fire = Fire { run: Some(Sample::run("new").build()), ..Fire::of(&due, 1) };
    assert_eq!(store.schedules().fire(fire).await.expect("an answer"), Fired::Started);
    for run in ["old", "new"] {
        assert!(store.run(key(run)).await.expect("a read").is_some(), "{run}");
    }
    assert_eq!(sql(&url, "SELECT version FROM hapax_schema"), (before + 5).to_string());
}
