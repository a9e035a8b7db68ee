//! A run whose process is killed, and that another goes on with: its trace is one.

use crate::collector::Collector;
use std::{path::Path, process::Stdio};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

/// A process that executes the run; it dies with the test.
fn victim(db: &Path, collector: &Collector, service: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_hapax-traced-victim"))
        .args([db.as_os_str(), collector.url().as_ref(), service.as_ref()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Waits until it says this.
async fn hear(victim: &mut Child, word: &str) {
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line == word {
            return;
        }
    }
    panic!("it never said {word}");
}

#[tokio::test]
async fn the_trace_of_a_run_holds_together_across_a_kill() {
    let (collector, folder) = (Collector::grpc().await, tempfile::tempdir().unwrap());
    let db = folder.path().join("runs.db");
    let mut first = victim(&db, &collector, "first");
    hear(&mut first, "inside").await;
    collector.wait_for("effect pay").await;
    collector.wait_for("step").await;
    first.kill().await.unwrap();
    let mut second = victim(&db, &collector, "second");
    hear(&mut second, "done").await;
    let one = |name: &str| {
        let spans = collector.named(name);
        assert_eq!(spans.len(), 1, "{name}: {spans:#?}");
        spans.into_iter().next().unwrap()
    };
    let (run, pay, charge) = (one("run orders"), one("effect pay"), one("node charge"));
    let steps = collector.named("step");
    let service_of = |step: &str| {
        let found: Vec<_> =
            steps.iter().filter(|s| s.attribute("hapax.step_id").as_deref() == Some(step)).collect();
        assert_eq!(found.len(), 1, "each step is told of once");
        assert_eq!(found[0].span.parent_span_id, run.span.span_id);
        found[0].service.clone()
    };
    assert_eq!((service_of("0"), service_of("1")), ("first".into(), "second".into()));
    assert_eq!((&*run.service, &*pay.service, &*charge.service), ("second", "first", "second"));
    assert!(run.span.start_time_unix_nano <= pay.span.start_time_unix_nano, "from its creation on");
    // The attempt that was killed was never exported, but its call was, and names it.
    assert_eq!(charge.links(), [("resume".to_owned(), pay.span.parent_span_id.clone())]);
    assert_ne!(charge.span.span_id, pay.span.parent_span_id);
    assert!(collector.all().iter().all(|received| received.span.trace_id == run.span.trace_id));
}
