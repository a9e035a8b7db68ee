//! Runs are found by what is known of them, and only in their own namespace.

use super::{
    Fixture,
    sample::{Holder, Sample, failed, key, submit},
};
use crate::store::{Census, CensusFilter, ListFilter, Store, Tally};
use hapax_core::{
    commit::Write,
    id::{Namespace, RunId, RunKey},
};
use std::{collections::BTreeMap, sync::Arc};

async fn names(store: &Arc<dyn Store>, filter: ListFilter) -> Vec<String> {
    let runs = store.list(filter).await.unwrap();
    runs.into_iter().map(|record| record.key.run.to_string()).collect()
}

/// By their creation, up to the limit.
pub async fn runs_are_listed_newest_first(fixture: Fixture) {
    let store = &fixture.store;
    for name in ["b", "a", "c"] {
        Sample::run(name).create(store).await;
    }
    // A change doesn't make a run newer.
    Holder::claim(store, &key("b"), "a").await.unwrap();
    assert_eq!(names(store, ListFilter::default()).await, ["c", "a", "b"]);
    assert_eq!(names(store, ListFilter { limit: 2, ..ListFilter::default() }).await, ["c", "a"]);
    let listed = store.list(ListFilter::default()).await.unwrap();
    assert_eq!(listed.last().cloned(), store.run(key("b")).await.unwrap());
}

/// All of the tags, one of the status words, the graph; without those that are excepted.
pub async fn tags_status_and_graph_filter_the_list(fixture: Fixture) {
    let store = &fixture.store;
    Sample::run("both").tag("k", "v").tag("l", "w").create(store).await;
    Sample::run("one").tag("k", "v").graph("another").create(store).await;
    Sample::run("other").tag("k", "w").create(store).await;
    let holder = Sample::run("none").hold(store).await;
    submit(store, Write::Status(holder.status(failed(), true))).await.unwrap();
    let tags = |pairs: &[(&str, &str)]| ListFilter {
        tags: pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>(),
        ..ListFilter::default()
    };
    assert_eq!(names(store, tags(&[("k", "v")])).await, ["one", "both"]);
    assert_eq!(names(store, tags(&[("k", "v"), ("l", "w")])).await, ["both"]);
    assert_eq!(names(store, tags(&[("k", "v"), ("l", "v")])).await, [""; 0]);
    let statuses = |words: &[&str]| ListFilter {
        statuses: words.iter().map(|word| (*word).to_owned()).collect(),
        ..ListFilter::default()
    };
    assert_eq!(names(store, statuses(&["failed"])).await, ["none"]);
    assert_eq!(names(store, statuses(&["failed", "pending"])).await, ["none", "other", "one", "both"]);
    assert_eq!(names(store, statuses(&["running"])).await, [""; 0]);
    let graph = ListFilter { graph: Some("another".into()), ..tags(&[("k", "v")]) };
    assert_eq!(names(store, graph).await, ["one"]);
    let except = ["one", "nobody"].map(|name| key(name).run).to_vec();
    let rest = ListFilter { except, limit: 2, ..ListFilter::default() };
    assert_eq!(names(store, rest).await, ["none", "other"]);
    let listed = store.list(tags(&[("l", "w")])).await.unwrap();
    assert_eq!(listed[0].tags.len(), 2, "a listed run has all of its tags");
}

/// The same id in two namespaces is two runs.
pub async fn namespaces_are_separate(fixture: Fixture) {
    let store = &fixture.store;
    let mut here = Sample::run("r").tag("k", "v").hold(store).await;
    let there = Sample::run("r").tag("k", "v").namespace("there").hold(store).await;
    here.commit(here.next_with("here", 1, 2, vec![])).await.unwrap();
    let untouched = there.record().await;
    assert_eq!((untouched.step, untouched.next_seq), (0, 0));
    let namespace = Namespace::new("there").expect("a fine name");
    let tags = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let filter = ListFilter { namespace, tags, ..ListFilter::default() };
    let listed = store.list(filter).await.unwrap();
    assert_eq!(listed, [untouched]);
    here.finish().await;
    store.delete(key("r")).await.unwrap();
    assert_eq!(store.run(key("r")).await.unwrap(), None);
    store.load(there.key.clone()).await.expect("the other one is still there");
    let elsewhere = Namespace::new("elsewhere").expect("a fine name");
    let missing = RunKey { namespace: elsewhere, run: RunId::new("r").expect("a fine name") };
    assert_eq!(store.run(missing).await.unwrap(), None);
}

/// By status, with those that are new and those that are followed; of another tenant there is nothing.
pub async fn where_runs_stand_is_counted(fixture: Fixture) {
    let store = &fixture.store;
    let first = store.census(CensusFilter::default()).await.unwrap();
    assert!(first.statuses.values().all(|tally| tally.is_none()) && first.runs.is_empty(), "{first:?}");
    Sample::run("elsewhere").namespace("another").create(store).await;
    for run in ["p1", "p2"] {
        Sample::run(run).tag("k", "v").create(store).await;
    }
    let mut held = Sample::run("held").hold(store).await;
    held.commit(held.next("one")).await.unwrap();
    Sample::run("done").hold(store).await.finish().await;
    let filter = CensusFilter { since_us: first.at_us - 1, limit: 1, ..CensusFilter::default() };
    let census = store.census(filter.clone()).await.unwrap();
    let stand = |word: &str| (census.standing(word).count, census.standing(word).or_more);
    assert_eq!(
        ["pending", "running", "succeeded", "failed"].map(stand),
        [(2, false), (1, false), (1, false), (0, false)]
    );
    assert_eq!((census.created, census.created_steps), (Tally::exactly(4), 2));
    assert!(census.at_us >= first.at_us);
    let names = |census: &Census| {
        let mut names: Vec<String> = census.runs.iter().map(|run| run.key.run.to_string()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&census), ["held", "p1"], "one of each that isn't over, the oldest");
    let follow = ["done", "held", "gone"].map(|run| key(run).run).to_vec();
    let later = CensusFilter { since_us: i64::MAX, follow, limit: 9, ..filter };
    let census = store.census(later).await.unwrap();
    assert_eq!(names(&census), ["done", "held", "p1", "p2"], "each once");
    assert_eq!((census.created, census.created_steps), (Tally::default(), 0));
    let held = census.runs.iter().find(|run| run.key == key("held")).unwrap();
    assert_eq!((held.step, held.status.word(), held.owner.is_some()), (1, "running", true));
    assert!(census.runs.iter().all(|run| run.tags.is_empty()));
}
