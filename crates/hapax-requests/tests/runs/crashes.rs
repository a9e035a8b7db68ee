//! A service that is killed with SIGKILL at each point between claim and result: there is one run, and each of its steps is
//! made once.

use crate::{
    life::{Life, Stop},
    shop::{engine, runs, send},
};

const SHIPPED: &str = r#"{"shelf":7,"shipped":true,"sku":"anvil"}"#;

async fn one_run_survives(url: &str, stop: Stop) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let first = Life::begin(url, &log, stop);
    // For the client it makes no difference whether its connection breaks or it gives up.
    let asked = tokio::spawn(send(first.client.order("k", "anvil").header("prefer", "wait=30")));
    first.killed().await;
    assert!(asked.await.expect("it was asked").is_err(), "nobody answers");
    let second = Life::begin(url, &log, Stop::Never);
    let other = second.client.ordered("k", "bomb").await;
    assert_eq!(other.status, 422, "the key is taken: {other:?}");
    for _ in 0..2 {
        let reply = second.client.ordered("k", "anvil").await;
        assert_eq!((reply.status, &*reply.body), (200, SHIPPED.as_bytes()));
    }
    second.end();
    assert_eq!(std::fs::read_to_string(&log).expect("a log"), "reserve\nship\n", "each step was made once");
    assert_eq!(runs(&engine(url).await).await, 1);
}

pub(crate) async fn a_service_killed_between_claim_and_start_starts_one_run(url: &str) {
    one_run_survives(url, Stop::Claimed).await;
}

pub(crate) async fn a_service_killed_between_start_and_finish_starts_one_run(url: &str) {
    one_run_survives(url, Stop::Started).await;
}

pub(crate) async fn a_service_killed_after_finish_starts_one_run(url: &str) {
    one_run_survives(url, Stop::Finished).await;
}

pub(crate) async fn a_service_killed_between_two_steps_repeats_none(url: &str) {
    one_run_survives(url, Stop::Running).await;
}
