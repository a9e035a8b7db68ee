//! Files that can't be what they should be, and files that two engines share.

use crate::common::*;
use hapax::{Coded, core::error::code, prelude::*};
use rusqlite::Connection;
use std::{path::Path, time::Duration};
use tempfile::TempDir;

const WORK: Node = Node::new("work");

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn url(folder: &TempDir) -> String {
    format!("sqlite:{}", folder.path().join("runs.db").display())
}

/// How an engine refuses to open a file.
pub(crate) async fn refusal(path: &Path) -> (hapax::core::error::Code, String) {
    let error = Engine::open(&format!("sqlite:{}", path.display())).await.unwrap_err();
    (error.code(), error.to_string())
}

fn waiting(reached: &Signal, signal: &Signal) -> Graph<Board> {
    let work = node!(
        [reached, signal] | ctx | {
            reached.give();
            signal.take().await;
            Board::delta().total(1u64)
        }
    );
    Graph::new("waiting", 1, WORK).node(WORK, work)
}

/// A run that nobody holds, in the file of the folder.
async fn leave_a_run(folder: &TempDir) {
    let (reached, signal) = (Signal::default(), Signal::default());
    let engine = Engine::open(&url(folder)).await.unwrap();
    let work = node!([] | ctx | { Board::delta().total(1u64).goto(WORK) });
    let flow = engine.register(Graph::new("waiting", 1, WORK).node(WORK, work), ()).await.unwrap();
    let mut events = engine.events();
    flow.start("run", Board::default()).await.unwrap();
    hear(&mut events, |event| matches!(event, hapax::Event::StepCommitted { step: 3.., .. })).await;
    engine.shutdown(Duration::from_secs(60)).await;
    drop((reached, signal));
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_alone() {
    let folder = folder();
    let path = folder.path().join("runs.db");
    let garbage = b"neither a database nor a poem ".repeat(200);
    std::fs::write(&path, &garbage).unwrap();
    let (code, text) = refusal(&path).await;
    assert_eq!(code, code::CORRUPT);
    assert!(text.contains("runs.db") && text.contains("restore a backup"), "{text}");
    assert_eq!(std::fs::read(&path).unwrap(), garbage);
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_refused_with_its_cure() {
    // Nobody may create a folder there, not even root.
    let (code, text) = refusal(Path::new("/sys/runs.db")).await;
    assert_eq!(code, code::READ_ONLY);
    assert!(text.contains("write permission"), "{text}");
}

#[tokio::test]
async fn a_path_that_leads_through_a_file_is_refused() {
    let folder = folder();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let (code, text) = refusal(&folder.path().join("file").join("runs.db")).await;
    assert_eq!(code, code::CANNOT_OPEN);
    assert!(text.contains("create it first"), "{text}");
}

#[tokio::test]
async fn an_old_program_leaves_a_newer_file_alone() {
    let folder = folder();
    leave_a_run(&folder).await;
    let path = folder.path().join("runs.db");
    let outside = Connection::open(&path).unwrap();
    outside.execute("UPDATE hapax_schema SET version = 99, program = 'hapax 9.0.0'", ()).unwrap();
    let (code, text) = refusal(&path).await;
    assert_eq!(code, code::SCHEMA_TOO_NEW);
    assert!(text.contains("hapax 9.0.0"), "{text}");
}

#[tokio::test]
async fn a_damaged_checkpoint_is_reported_with_run_and_step_and_never_executed() {
    let folder = folder();
    leave_a_run(&folder).await;
    let outside = Connection::open(folder.path().join("runs.db")).unwrap();
    // The first byte of the key lies beneath the digest.
    let damage = "UPDATE hapax_checkpoints SET key = zeroblob(length(key))";
    assert!(outside.execute(damage, ()).unwrap() >= 3);
    let (reached, signal) = (Signal::default(), Signal::default());
    let engine = Engine::open(&url(&folder)).await.unwrap();
    let mut events = engine.events();
    let flow = engine.register(waiting(&reached, &signal), ()).await.unwrap();
    hear(&mut events, |event| matches!(event, hapax::Event::RunEnded { .. })).await;
    // Whoever asks after it was given up hears of it too, and not only when it is tried again.
    let run = flow.attach("run").await.unwrap();
    let error = tokio::time::timeout(Duration::from_secs(10), run.wait()).await.unwrap().unwrap_err();
    assert_eq!(error.code(), code::CORRUPT);
    assert!(error.to_string().contains("run `run`, step "), "{error}");
    engine.shutdown(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn two_engines_share_a_file_and_neither_takes_what_the_other_holds() {
    let folder = folder();
    let (reached, signal) = (Signal::default(), Signal::default());
    let first = Engine::open(&url(&folder)).await.unwrap();
    let second = Engine::open(&url(&folder)).await.unwrap();
    let ours = first.register(waiting(&reached, &signal), ()).await.unwrap();
    let theirs = second.register(waiting(&reached, &signal), ()).await.unwrap();
    let run = ours.start("ours", Board::default()).await.unwrap();
    theirs.start("theirs", Board::default()).await.unwrap();
    reached.take().await;
    reached.take().await;
    assert_eq!(theirs.resume("ours").await.unwrap_err().code(), code::RUN_HELD);
    assert_eq!(ours.resume("theirs").await.unwrap_err().code(), code::RUN_HELD);
    signal.give();
    signal.give();
    assert_eq!(theirs.attach("ours").await.unwrap().wait().await.unwrap(), run.wait().await.unwrap());
    assert_eq!(ours.attach("theirs").await.unwrap().wait().await.unwrap().total, 1);
    first.shutdown(Duration::from_secs(60)).await;
    second.shutdown(Duration::from_secs(60)).await;
}
