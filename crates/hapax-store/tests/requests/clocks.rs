//! The application's clock is never asked.

use crate::kit::{Kind, on_both, open};
use hapax_core::request::Completion;
use hapax_store::{
    conformance::requests::{claim, dying, execute, fleeting},
    requests::{Begun, Finished, RequestStore},
};
use std::{process::Command, time::Duration};

/// Where a process whose clock is wrong finds the database.
const URL: &str = "HAPAX_TEST_REQUESTS";

on_both! {
    a_service_whose_clock_is_off_by_an_hour_goes_by_the_servers,
}

async fn a_service_whose_clock_is_off_by_an_hour_goes_by_the_servers(kind: Kind) {
    if let Ok(url) = std::env::var(URL) {
        return off_by_an_hour(&*open(&url).await).await;
    }
    for shift in ["-3600s", "+3600s"] {
        let url = kind.database();
        let store = open(&url).await;
        execute(&*store, &claim("held")).await;
        execute(&*store, &dying("dead")).await;
        let lease = execute(&*store, &fleeting("old")).await;
        assert_eq!(store.finish(&lease, &Completion::succeeded(200, "old")).await.unwrap(), Finished::Done);
        let module = kind.pick("postgres", "mysql");
        let name = format!("clocks::{module}::a_service_whose_clock_is_off_by_an_hour_goes_by_the_servers");
        let mut again = Command::new(std::env::current_exe().expect("this program"));
        again.args(["--exact", &name, "--nocapture"]).env(URL, &url);
        again.envs(hapax_servers::clock_off_by(shift).expect("libfaketime"));
        let ran = tokio::task::block_in_place(|| again.output()).expect("it runs");
        assert!(ran.status.success(), "{shift}: {}", String::from_utf8_lossy(&ran.stderr));
        for key in ["dead", "old", "new"] {
            assert_in_progress(&*store, key).await;
        }
    }
}

/// Somebody executes it for 30 seconds at the most.
async fn assert_in_progress(store: &dyn RequestStore, key: &str) {
    let begun = store.begin(&claim(key)).await.unwrap();
    let Begun::InProgress { retry_after } = begun else { panic!("{key}: {begun:?}") };
    assert!(retry_after <= Duration::from_secs(30), "{key}: {retry_after:?}");
}

async fn off_by_an_hour(store: &dyn RequestStore) {
    assert_in_progress(store, "held").await;
    assert_eq!(execute(store, &claim("dead")).await.attempt, 2);
    assert_eq!(execute(store, &claim("old")).await.attempt, 1);
    let lease = execute(store, &dying("new")).await;
    assert_eq!(store.heartbeat(&lease, Duration::from_secs(30)).await.unwrap(), Finished::Done);
}
