//! Flow control in a database that was made before there was any; and the order in which its rows are locked.

use crate::{
    both::{Kind, on_both, sql, until},
    fence::waiting,
    raw::Raw,
};
use hapax_core::{
    commit::Status,
    flow::Terms,
    id::{Namespace, RunId},
    limits::FLOW_PAGE,
};
use hapax_store::{
    Store,
    conformance::{
        Sample,
        flow::{keys, on},
        sample::key,
    },
    flow::{Seen, Spread, SpreadPage},
};
use std::sync::Arc;
use tokio::task::JoinHandle;

on_both! {
    a_database_of_an_older_program_gets_flow_control,
    places_are_swept_page_by_page_and_from_the_beginning_again,
    a_page_of_spread_runs_is_one_of_all_that_wait_however_few_of_them_are_spread,
    a_slot_that_a_run_is_given_while_it_leaves_its_queue_goes_to_the_next,
    whoever_ends_a_singleton_and_whoever_starts_it_again_never_wait_for_each_other,
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

/// Places of runs that aren't there, each in a queue of its own.
fn places(url: &str, token: &str, runs: impl IntoIterator<Item = String>) {
    let row = |run: String| format!("('default', '{run}', '{run}', 1, 1, '{token}', '[]')");
    let rows: Vec<_> = runs.into_iter().map(row).collect();
    let columns = "namespace, flow_key, run_id, position, most, token, rest";
    sql(url, &format!("INSERT INTO hapax_flow_queue ({columns}) VALUES {}", rows.join(", ")));
}

/// A sweep looks at so many, whatever they are; those of runs that are spread aren't its own to free.
async fn places_are_swept_page_by_page_and_from_the_beginning_again(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    let sweep = async || store.flow().sweep(Namespace::default()).await.expect("an answer");
    places(&url, "spread:t", (0..FLOW_PAGE).map(|n| format!("far-{n:05}")));
    places(&url, "t", ["gone".into()]);
    assert_eq!([sweep().await, sweep().await], [0, 1]);
    places(&url, "t", ["early".into()]);
    assert_eq!([sweep().await, sweep().await], [1, 0]);
}

/// What is looked at is bounded, and not what is found: behind a queue of runs that aren't spread it isn't read to its end.
async fn a_page_of_spread_runs_is_one_of_all_that_wait_however_few_of_them_are_spread(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    places(&url, "t", (0..FLOW_PAGE).map(|n| format!("here-{n:05}")));
    places(&url, "spread:t", ["then".into()]);
    let page = async |behind| store.flow().spread(Namespace::default(), Seen::Holding, behind).await;
    let first = page(None).await.expect("an answer");
    assert_eq!((first.runs, first.until.as_ref().map(RunId::as_str)), (vec![], Some("here-00999")));
    let then = Spread { run: key("then").run, token: "spread:t".into() };
    let second = page(first.until).await.expect("an answer");
    assert_eq!(second, SpreadPage { runs: vec![then], until: None });
}

async fn until_so_many_wait(kind: Kind, url: &str, many: u32) {
    until("did so many wait", || waiting(kind, url) >= many).await;
}

/// Gives back what a run holds, beside the test.
async fn give_back(store: &Arc<dyn Store>, run: &str) -> JoinHandle<()> {
    let token = store.run(key(run)).await.expect("a read").expect("it is there").terms.token;
    let (store, run) = (store.clone(), key(run));
    tokio::spawn(async move { drop(store.flow().release(run, token).await.expect("an answer")) })
}

/// A run is cancelled while it waits for the second of its keys. Just then it is given that and the third, for which another
/// run comes; and whoever gives back what it holds has read by then what that was.
async fn a_slot_that_a_run_is_given_while_it_leaves_its_queue_goes_to_the_next(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    for (run, of_it) in [("holds", &[("b", 1)][..]), ("leaves", &[("a", 1), ("b", 1), ("c", 1)])] {
        store.create(on(run, &keys(of_it))).await.expect("it is created");
    }
    let (mut canceller, mut late) = (Raw::connect(kind, &url).await, Raw::connect(kind, &url).await);
    canceller.run("BEGIN").await;
    canceller
        .run(
            "UPDATE hapax_runs SET status = 'cancelled', status_json = '\"cancelled\"' \
             WHERE namespace = 'default' AND run_id = 'leaves'",
        )
        .await;
    late.run("BEGIN").await;
    // Rows by their whole keys: of others, which a range would lock as well, nothing is to be held up.
    late.run("SELECT 1 FROM hapax_flow_slots WHERE namespace = 'default' AND flow_key = 'a' AND slot = 0 FOR UPDATE")
        .await;
    let given = give_back(&store, "holds").await;
    until_so_many_wait(kind, &url, 1).await;
    let left = give_back(&store, "leaves").await;
    until_so_many_wait(kind, &url, 2).await;
    let comes = tokio::spawn({
        let store = store.clone();
        async move { store.create(on("comes", &keys(&[("c", 1)]))).await.expect("it is created") }
    });
    until_so_many_wait(kind, &url, 3).await;
    canceller.run("COMMIT").await;
    given.await.expect("no panic");
    // It has come, or it waits for whoever waits for the slot of `a`: seen twice, since one that was let go just now is still
    // told of.
    let mut seen = 0;
    let has_come = || {
        seen = if waiting(kind, &url) < 2 { 0 } else { seen + 1 };
        comes.is_finished() || seen > 1
    };
    until("did it come", has_come).await;
    late.run("COMMIT").await;
    left.await.expect("no panic");
    comes.await.expect("no panic");
    let view = store.flow().key(Namespace::default(), "c".into()).await.expect("a read");
    assert_eq!(view.held.iter().map(|held| held.run.as_str()).collect::<Vec<_>>(), ["comes"]);
    assert_eq!(store.run(key("comes")).await.expect("a read").expect("it is there").status, Status::Pending);
}

/// Who starts it has its name, and wants its key.
async fn whoever_ends_a_singleton_and_whoever_starts_it_again_never_wait_for_each_other(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    let terms = Terms { singleton: Some("nightly".into()), ..keys(&[("k", 1)]) };
    store.create(on("ends", &terms)).await.expect("it is created");
    let mut starter = Raw::connect(kind, &url).await;
    starter.run("BEGIN").await;
    let lock = |kind: &str| {
        format!("SELECT 1 FROM hapax_flow_names WHERE namespace = 'default' AND kind = '{kind}' FOR UPDATE")
    };
    starter.run(&lock("singleton")).await;
    let left = give_back(&store, "ends").await;
    until_so_many_wait(kind, &url, 1).await;
    starter.run(&format!("{} NOWAIT", lock("key"))).await;
    starter.run("COMMIT").await;
    left.await.expect("no panic");
}
