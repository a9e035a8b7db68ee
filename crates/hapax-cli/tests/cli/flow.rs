//! Who holds concurrency keys and names, as the stock program shows it.

use crate::common::desk::{Desk, Note, NoteDelta, WORK};
use hapax::{
    Engine, Flow, Graph, Options, StartOptions,
    control::{Debounce, Rate},
};
use std::time::Duration;

async fn work(_: hapax::Ctx<Note>) -> NoteDelta {
    NoteDelta::default()
}

/// A graph whose runs are started, and executed by nobody.
async fn notes(desk: &Desk) -> Flow<Note> {
    let engine = Engine::builder().options(Options::default().finds_work(false));
    let engine = engine.open(&format!("sqlite:{}", desk.path().display())).await.unwrap();
    engine.register(Graph::new("notes", 1, WORK).node(WORK, work), ()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_rates_and_names_are_listed_with_who_holds_them() {
    let desk = Desk::open().await;
    assert_eq!(desk.hapax(&["flow", "list"]).ok(), "no keys, rates or names\n");
    assert_eq!(desk.hapax(&["flow", "show", "k"]).ok(), "nobody holds k or waits for it\n");
    let (notes, on) = (notes(&desk).await, |options: StartOptions| options.unheld());
    for run in ["a", "b", "c"] {
        notes.start_with(run, Note::default(), on(StartOptions::default().key("k", 1))).await.unwrap();
    }
    let rate = Rate::new("mail", 1, Duration::from_secs(60));
    notes.start_with("d", Note::default(), on(StartOptions::default().rate(rate))).await.unwrap();
    let named = on(StartOptions::default().singleton("nightly"));
    notes.start_with("e", Note::default(), named).await.unwrap();
    let calm = Debounce::new("index", Duration::from_secs(3600));
    notes.start_with("f", Note::default(), on(StartOptions::default().debounce(calm))).await.unwrap();

    let listed = desk.hapax(&["flow", "list", "--json"]).json();
    let key = &listed["keys"][0];
    assert_eq!(
        (&key["name"], &key["held"], &key["most"], &key["waiting"]),
        (&"k".into(), &1.into(), &1.into(), &2.into())
    );
    let names: Vec<_> =
        listed["names"].as_array().unwrap().iter().map(|name| (&name["kind"], &name["run"])).collect();
    assert_eq!(
        names,
        [
            (&"debounce".into(), &"f".into()),
            (&"rate".into(), &serde_json::Value::Null),
            (&"singleton".into(), &"e".into())
        ]
    );
    let text = desk.hapax(&["flow", "list"]).ok();
    assert!(text.starts_with("KIND"), "{text}");
    for words in ["key", "nightly", "index", "mail"] {
        assert!(text.contains(words), "{text}");
    }
    let shown = desk.hapax(&["flow", "show", "k", "--json"]).json();
    assert_eq!((&shown["held"][0]["run"], &shown["waiting"]), (&"a".into(), &serde_json::json!(["b", "c"])));
    assert!(desk.hapax(&["flow", "show", "k"]).ok().ends_with("2 wait: b, c\n"));
    let waits = desk.hapax(&["show", "b"]).ok();
    assert!(waits.contains("waiting (key)") && waits.contains("for a slot of k"), "{waits}");
    assert_eq!(desk.hapax(&["show", "b", "--json"]).json()["waits_for"], "k");
}
