//! On a server, too, a head start is a time: those without one have their turn.

use super::{Parcel, mysql, postgres, submitter};
use hapax::{
    StartOptions,
    store::{Claimant, ReadyFilter, Store},
};
use std::{sync::Arc, time::Duration};

/// A second passes: whatever waits has waited for a second more.
fn a_second_passes(url: &str) {
    let sql = "UPDATE hapax_runs SET ready_at = ready_at - 1000000 WHERE owner IS NULL";
    hapax_servers::sql(url, sql).expect("a statement");
}

/// Two urgent runs come each second, and one run is taken up: they pile up, and none of the others would ever go if it
/// weren't older.
async fn nothing_starves(url: &str, store: Arc<dyn Store>) {
    let flow = submitter(store.clone()).await;
    let graphs = vec![("parcels".into(), flow.fingerprint())];
    let filter = ReadyFilter { namespace: Default::default(), graphs, limit: 1 };
    let by = Claimant { owner: "a".into(), ttl: Duration::from_secs(100_000) };
    flow.submit("patient", Parcel::default()).await.unwrap();
    // A head start of 50 seconds: the patient one waits behind those of the first 50 seconds, and for nobody else.
    for second in 0..=120_u32 {
        tokio::task::block_in_place(|| a_second_passes(url));
        for n in 0..2 {
            let urgent = StartOptions::default().priority(5).unheld();
            flow.start_with(&format!("urgent-{second}-{n}"), Parcel::default(), urgent).await.unwrap();
        }
        let claimed = store.claim_ready(filter.clone(), by.clone()).await.unwrap();
        if claimed[0].0.run.as_str() == "patient" {
            assert!(second > 0, "those with a head start go first");
            return;
        }
    }
    panic!("it starved");
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_flood_of_urgent_runs_the_others_have_their_turn_on_postgres() {
    let url = hapax_servers::postgres().unwrap();
    nothing_starves(&url, postgres(&url).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_a_flood_of_urgent_runs_the_others_have_their_turn_on_mysql() {
    let url = hapax_servers::mysql().unwrap();
    nothing_starves(&url, mysql(&url).await).await;
}
