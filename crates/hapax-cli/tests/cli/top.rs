//! The live view: one frame of it as text, its objects for programs, and a real terminal.

use crate::common::{Said, new_terminal, resize, said, stock};
use hapax_core::commit::{Status, WaitsOn, Write};
use hapax_store::{
    SqliteOptions, SqliteStore, Store,
    clock::now_us,
    conformance::{
        Sample,
        sample::{claimant, failed, message},
    },
    outbox::{ClaimFilter, Failure},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    io::{Read, Write as _},
    process::{Child, Command},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;

/// Its name in hours doesn't change while a test runs.
const LEASE: Duration = Duration::from_secs(47 * 3600 + 1800);
/// How long ago everything happened.
const AGE_US: i64 = (3 * 3600 + 1800) * 1_000_000;

/// A store in its own folder, which is where the program is started.
struct Depot {
    folder: TempDir,
    store: Arc<dyn Store>,
}

impl Depot {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store =
            SqliteStore::open(folder.path().join("depot.db"), SqliteOptions::default()).await.unwrap();
        Self { folder, store }
    }

    /// Runs that stand everywhere, and messages on their way.
    async fn busy() -> Self {
        let depot = Self::open().await;
        let store = &depot.store;
        let mut held = Sample::run("order-1").claimed_by("engine-1", LEASE).hold(store).await;
        held.commit(held.next_with("paid", 1, 0, vec![message("a"), message("b"), message("c")]))
            .await
            .unwrap();
        Sample::run("order-2").claimed_by("engine-2", LEASE).hold(store).await;
        Sample::run("order-3").create(store).await;
        let mut waits = Sample::run("order-4").hold(store).await;
        let on = Status::Waiting { on: WaitsOn::Signal };
        waits.write(Write::Status(waits.status(on, true))).await.unwrap();
        let mut doubts = Sample::run("order-5").hold(store).await;
        doubts.write(Write::Status(doubts.status(Status::InDoubt, true))).await.unwrap();
        let mut fails = Sample::run("order-6").hold(store).await;
        fails.write(Write::Status(fails.status(failed(), true))).await.unwrap();
        Sample::run("order-7").hold(store).await.finish().await;
        let relay = claimant("relay", LEASE);
        let batch = store.outbox().claim(ClaimFilter::default(), relay).await.unwrap().remove(0);
        let (error, again_after) = ("no".to_owned(), Duration::ZERO);
        let refused = Failure { error, again_after, counts: true, dead_after: Some(1) };
        store.outbox().mark_failed(batch.claim, batch.messages[0].place, refused).await.unwrap();
        depot.age();
        depot
    }

    /// Everything happened hours ago.
    fn age(&self) {
        let file = rusqlite::Connection::open(self.folder.path().join("depot.db")).unwrap();
        let then = now_us() - AGE_US;
        file.execute("UPDATE hapax_runs SET updated_at = ?1, created_at = ?1", [then]).unwrap();
        file.execute("UPDATE hapax_outbox SET written_at = ?1", [then]).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = stock(args);
        command.env("HAPAX_STORE", "sqlite:depot.db").current_dir(self.folder.path());
        command
    }

    fn hapax(&self, args: &[&str]) -> Said {
        said(self.command(args))
    }

    fn frame(&self, columns: &str) -> String {
        let mut command = self.command(&["top", "--once"]);
        command.env("COLUMNS", columns);
        said(command).ok()
    }
}

/// A frame with a word for its time, which ends its first line.
fn steady(frame: &str) -> String {
    let (title, rest) = frame.split_once('\n').unwrap();
    let (title, time) = title.rsplit_once(' ').unwrap();
    assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
    format!("{title} [the store's time]\n{rest}")
}

#[tokio::test]
async fn a_frame_shows_runs_workers_and_messages() {
    let depot = Depot::busy().await;
    insta::assert_snapshot!("frame_of_80_columns", steady(&depot.frame("80")));
    insta::assert_snapshot!("frame_of_140_columns", steady(&depot.frame("140")));
}

#[tokio::test]
async fn an_empty_store_has_a_frame_as_well() {
    let depot = Depot::open().await;
    insta::assert_snapshot!("frame_of_an_empty_store", steady(&depot.frame("80")));
}

#[tokio::test]
async fn a_frame_fits_any_screen() {
    let depot = Depot::busy().await;
    for columns in ["1", "7", "20", "40", "60", "110", "300"] {
        let frame = depot.frame(columns);
        let widest = frame.lines().map(unicode_width::UnicodeWidthStr::width).max().unwrap_or(0);
        assert!(widest <= columns.parse().unwrap(), "{columns}: {frame}");
    }
}

#[tokio::test]
async fn a_pipe_gets_one_frame() {
    let depot = Depot::busy().await;
    let frame = depot.hapax(&["top"]).ok();
    assert!(frame.contains("Runs     running 2 ") && !frame.contains('\u{1b}'), "{frame}");
}

#[tokio::test]
async fn a_program_gets_an_object_for_each_look() {
    let depot = Depot::busy().await;
    let look = depot.hapax(&["top", "--json", "--once"]).json();
    for (status, count) in
        [("running", 2), ("pending", 1), ("in_doubt", 1), ("succeeded", 1), ("cancelled", 0)]
    {
        assert_eq!(look["runs"][status], serde_json::json!({ "count": count, "or_more": false }), "{status}");
    }
    assert_eq!(
        (&look["outbox"]["pending"]["count"], &look["outbox"]["dead"]["count"]),
        (&2.into(), &1.into())
    );
    assert!(look["outbox"]["lag_ms"].as_i64().unwrap() >= AGE_US / 1000, "{look}");
    assert_eq!(look["rates"], serde_json::Value::Null, "one look knows no rates");
    assert_eq!(look["workers"][1]["name"], "engine-2");
    assert_eq!(look["shown"].as_array().unwrap().len(), 5, "{look}");
    assert_eq!(
        depot.hapax(&["top", "--json", "--once", "--namespace", "another"]).json()["shown"],
        serde_json::json!([])
    );
}

#[tokio::test]
async fn a_doctor_tells_of_messages_that_nobody_delivers() {
    let depot = Depot::busy().await;
    let said = depot.hapax(&["doctor"]).ok();
    assert!(
        said.contains("dead messages: 1") && said.contains("messages that wait: 2, the oldest for 3h"),
        "{said}"
    );
    let said = Depot::open().await.hapax(&["doctor"]).ok();
    assert!(!said.contains("messages that wait"), "{said}");
}

/// A terminal with the program on it.
struct Terminal {
    screen: File,
    child: Child,
    seen: String,
}

impl Terminal {
    fn start(depot: &Depot) -> Self {
        let (screen, terminal) = new_terminal(24, 80);
        let mut command = depot.command(&["top", "--interval", "100ms"]);
        command.env("TERM", "xterm-256color");
        command.stdin(terminal.try_clone().unwrap()).stderr(terminal.try_clone().unwrap()).stdout(terminal);
        let child = command.spawn().unwrap();
        Self { screen, child, seen: String::new() }
    }

    /// Reads until it shows this; what was seen before doesn't count the next time.
    fn until(&mut self, text: &str) {
        let mut bytes = [0; 4096];
        while !self.seen.contains(text) {
            let count = self.screen.read(&mut bytes).expect("the program is there");
            self.seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        self.seen.clear();
    }

    fn press(&mut self, keys: &str) {
        self.screen.write_all(keys.as_bytes()).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// What it shows until its end, and its exit code.
    fn end(mut self) -> (String, Option<i32>) {
        // Nobody else holds the terminal, so the end of the program is an error here.
        let mut rest = vec![];
        let _ = self.screen.read_to_end(&mut rest);
        (self.seen + &String::from_utf8_lossy(&rest), self.child.wait().unwrap().code())
    }
}

/// Leaves the screen that was only its own.
const LEAVE: &str = "\u{1b}[?1049l";

#[tokio::test]
async fn a_screen_follows_the_store_and_its_user() {
    let depot = Depot::busy().await;
    let mut terminal = Terminal::start(&depot);
    terminal.until("order-1");
    Sample::run("order-8").create(&depot.store).await;
    terminal.until("order-8");
    terminal.press("?");
    terminal.until("Help");
    terminal.press("?p");
    terminal.until("paused");
    Sample::run("order-9").create(&depot.store).await;
    resize(&terminal.screen, 40, 140);
    terminal.signal(Signal::WINCH);
    terminal.until("HELD");
    terminal.press("p");
    terminal.until("order-9");
    terminal.press("q");
    let (last, code) = terminal.end();
    assert_eq!(code, Some(0));
    assert!(last.contains(LEAVE), "{last:?}");
}

#[tokio::test]
async fn a_screen_is_given_back_however_it_ends() {
    let depot = Depot::busy().await;
    for (signal, keys, expected) in
        [(Some(Signal::TERM), "", 130), (Some(Signal::HUP), "", 130), (None, "\u{3}", 0)]
    {
        let mut terminal = Terminal::start(&depot);
        terminal.until("order-1");
        signal.into_iter().for_each(|signal| terminal.signal(signal));
        terminal.press(keys);
        let (last, code) = terminal.end();
        assert_eq!(code, Some(expected), "{signal:?}");
        assert!(last.contains(LEAVE), "{signal:?}: {last:?}");
    }
}
