//! Schedules kept by the stock program, and fired by a worker that has their graph.

use crate::common::{
    Shop,
    desk::Desk,
    steady_json,
    tool::{Worker, tool_on},
};
use std::time::Duration;

/// A time that stays in the future for as long as these tests are read.
const ADD: [&str; 12] = [
    "schedule",
    "add",
    "opening",
    "--cron",
    "0 0 9 * 1 MON 2099",
    "--zone",
    "Europe/Berlin",
    "--graph",
    "notes",
    "--input",
    r#"{"text":null}"#,
    "--overlap=queue",
];

#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_added_listed_paused_resumed_and_removed() {
    let desk = Desk::open().await;
    assert_eq!(desk.hapax(&["schedule", "list"]).ok(), "no schedules\n");
    assert_eq!(desk.hapax(&ADD).ok(), "opening fires next at 2099-01-05T09:00:00+01:00\n");
    assert_eq!(desk.hapax(&ADD).ok(), "opening fires next at 2099-01-05T09:00:00+01:00\n", "the same again");
    insta::assert_snapshot!("schedule_list", desk.hapax(&["schedule", "list"]).ok());
    insta::assert_snapshot!("schedule_json", steady_json(desk.hapax(&["schedule", "list", "--json"]).json()));
    let next = desk.hapax(&["schedule", "next", "opening", "-n", "2"]).ok();
    assert_eq!(
        next,
        "2099-01-05T09:00:00+01:00  2099-01-05T08:00:00Z\n2099-01-12T09:00:00+01:00  2099-01-12T08:00:00Z\n"
    );
    let endless = desk.hapax(&["schedule", "next", "opening", "-n", "99999999999"]).fails(2);
    assert!(endless.contains("HX0060") && endless.contains("1..=10000"), "{endless}");
    assert_eq!(desk.hapax(&["schedule", "pause", "opening"]).ok(), "opening is paused\n");
    let listed = desk.hapax(&["schedule", "list", "--json"]).json();
    assert_eq!(
        (&listed["schedules"][0]["state"], &listed["schedules"][0]["paused"]),
        (&"paused".into(), &true.into())
    );
    let paused = desk.hapax(&["schedule", "next", "opening"]);
    assert!(paused.err.contains("it is paused: these come if it is resumed now"), "{}", paused.err);
    let times = desk.hapax(&["schedule", "next", "opening", "--json"]).json();
    assert_eq!(times["times"].as_array().unwrap().len(), 4, "January has four Mondays then");
    assert!(
        desk.hapax(&["schedule", "resume", "opening"]).ok().starts_with("opening fires next at 2099-01-05")
    );
    assert_eq!(desk.hapax(&["schedule", "remove", "opening"]).ok(), "1 schedule removed\n");
    assert_eq!(desk.hapax(&["schedule", "list"]).ok(), "no schedules\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_schedule_is_refused_with_a_cure() {
    let desk = Desk::open().await;
    let add = |cron: &str, more: &[&str]| {
        let args = [&["schedule", "add", "s", "--graph", "notes", "--cron", cron], more].concat();
        desk.hapax(&args)
    };
    insta::assert_snapshot!("schedule_bad_cron", add("61 * * * *", &[]).fails(2));
    insta::assert_snapshot!("schedule_bad_zone", add("@daily", &["--zone", "Berlin"]).fails(2));
    assert!(add("0 0 30 2 *", &[]).fails(2).starts_with("error[HX0160]: `0 0 30 2 *` never comes true"));
    assert!(add("@daily", &["--catch-up", "0"]).fails(2).starts_with("error[HX0060]"));
    assert!(add("@daily", &["--overlap", "maybe"]).fails(2).starts_with("error[HX0060]"));
    assert!(add("@daily", &["--input", "{"]).fails(2).contains("is not JSON"));
    add("@daily", &[]).ok();
    assert!(add("@hourly", &[]).fails(1).starts_with("error[HX0162]: schedule `s` exists already"));
    for verb in ["pause", "resume", "remove", "next"] {
        let error = desk.hapax(&["schedule", verb, "nope"]).fails(1);
        assert!(error.starts_with("error[HX0163]: there is no schedule `nope`"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_fires_the_schedules_of_its_graphs() {
    let shop = Shop::open().await;
    let input = r#"{"sku":"anvil","cents":4200,"tax":0,"log":[],"card":"","receipt":null}"#;
    // Words of the tool are split at blanks.
    let refused =
        tool_on(&shop, "schedule add odd --cron @daily --graph orders --input {\"sku\":7}").fails(1);
    assert!(
        refused.starts_with("error[HX0165]: the input does not fit the state of graph `orders`"),
        "{refused}"
    );
    let add = ["schedule", "add", "tick", "--cron", "* * * * * *", "--graph", "orders", "--input", input];
    shop.hapax(&add).ok();
    shop.engine.shutdown(Duration::from_secs(5)).await;
    let mut worker = Worker::start(&shop.url(), "worker");
    let left = worker.until("left     tick@");
    assert!(left.ends_with("Z  succeeded"), "{left}");
    assert_eq!(worker.stop(), 0);
    let listed = shop.hapax(&["schedule", "list", "--json"]).json();
    assert!(listed["schedules"][0]["started"].as_u64() >= Some(1), "{listed}");
    let runs = shop.hapax(&["list", "--tag", "schedule=tick", "--json"]).json();
    assert!(!runs["runs"].as_array().unwrap().is_empty(), "{runs}");
}
