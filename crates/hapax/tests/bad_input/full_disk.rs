//! A full disk: the test runs itself again under a limit on the size of files, which SQLite meets as a full disk.

use crate::common::*;
use hapax::{
    Coded, Options,
    core::error::{Code, code},
    prelude::*,
};
use std::{path::Path, process::Command, time::Duration};

const WORK: Node = Node::new("work");
const FOLDER: &str = "HAPAX_TEST_FULL_DISK";
const STEPS: usize = 40;

/// Every step adds some 100 KB that don't compress well.
fn growing() -> Graph<Board> {
    let work = node!(
        [] | ctx | {
            let noise: String = (0..6_000).map(|_| format!("{:016x}", ctx.rng().next_u64())).collect();
            Board::delta().log(noise)
        }
    );
    Graph::new("growing", 1, WORK)
        .node(WORK, work)
        .edge_if(WORK, WORK, "again", |board: &Board| board.log.len() < STEPS)
        .end(WORK)
}

/// Lets files of this process grow again.
fn make_room() {
    let own = std::process::id().to_string();
    let raised = Command::new("prlimit").args(["--pid", &own, "--fsize=unlimited"]).status().unwrap();
    assert!(raised.success());
}

async fn inside_the_limit(folder: &Path) {
    let options =
        Options::default().store_patience(Duration::from_millis(300)).lease_ttl(Duration::from_secs(1));
    let url = format!("sqlite:{}", folder.join("runs.db").display());
    let engine = Engine::builder().options(options).open(&url).await.unwrap();
    let flow = engine.register(growing(), ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    println!("seen: {}", error.code());
    assert!(error.to_string().contains("nothing was written"), "{error}");
    let reached = engine.record("run").await.unwrap().step;
    assert!((1..STEPS as u64).contains(&reached), "stopped after {reached} steps");
    make_room();
    let board = flow.resume("run").await.unwrap().wait().await.unwrap();
    assert_eq!(board.log.len(), STEPS);
    engine.shutdown(Duration::from_secs(60)).await;
}

/// Runs the test below in a process whose files may not grow beyond 2 MB, and gives the code that it saw.
pub(crate) fn in_a_small_world() -> Code {
    let folder = tempfile::tempdir().unwrap();
    // Without the trap the limit would kill the process instead of failing its write.
    let limited = "trap '' XFSZ; ulimit -S -f 2048; exec \"$0\" \"$@\"";
    let name = "full_disk::a_full_disk_stops_the_run_cleanly_and_it_finishes_once_there_is_room";
    let mut again = Command::new("bash");
    again.args(["-c", limited]).arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]);
    let output = again.env(FOLDER, folder.path()).output().unwrap();
    let (said, wept) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{wept}");
    let seen = code::ALL.iter().find(|code| said.contains(&format!("seen: {code}")));
    seen.unwrap_or_else(|| panic!("it saw nothing: {said}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_the_run_cleanly_and_it_finishes_once_there_is_room() {
    match std::env::var_os(FOLDER) {
        Some(folder) => inside_the_limit(Path::new(&folder)).await,
        None => assert_eq!(in_a_small_world(), code::STORE_FULL),
    }
}
