//! The demo, end to end: real processes, real kills, and nothing left behind.
//!
//! Children inherit the demo's standard error. So the end of that pipe, which `output` waits for, is the end of every
//! one of them.

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Output, Stdio},
};
use tempfile::TempDir;

/// What `kill` and the shell say of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

fn demo(args: &str, folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command.arg("demo").args(args.split_whitespace()).env("TMPDIR", folder);
    // Somebody else's orders: the demo must leave them alone.
    command.env("HAPAX_STORE", "sqlite:/nowhere/at/all.db").env_remove("NO_COLOR");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A store on a real disk, where a write takes its time.
fn on_disk() -> (TempDir, String) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let url = format!("sqlite:{}", folder.path().join("demo.db").display());
    (folder, url)
}

fn json(output: &Output) -> Value {
    let stdout = text(&output.stdout);
    assert_eq!(stdout.lines().count(), 1, "not one line: {stdout}{}", text(&output.stderr));
    serde_json::from_str(&stdout).unwrap()
}

/// So many kills that one of them meets what is planted: on a quick disk few of them do.
#[test]
fn killed_orders_are_charged_exactly_once() {
    let (temp, (_disk, store)) = (tempfile::tempdir().unwrap(), on_disk());
    let args = "--orders 60 --kills 40 --seed 1 --json --store";
    let output = demo(args, temp.path()).arg(store).output().unwrap();
    let answer = json(&output);
    let number = |name: &str| answer[name].as_u64().unwrap_or_else(|| panic!("{name} in {answer}"));
    assert_eq!([number("duplicates"), number("lost")], [0, 0], "{answer}");
    assert_eq!(["v", "orders", "steps", "kills", "charges"].map(number), [1, 60, 240, 40, 60]);
    assert!(number("raw_calls") > 60, "{answer}");
    assert!(answer["seconds"].as_f64().unwrap() > 0.0, "{answer}");
    let stdout = text(&output.stdout);
    let names: Vec<_> = stdout.split('"').skip(1).step_by(2).collect();
    let expected = ["v", "orders", "steps", "kills", "charges", "raw_calls", "duplicates", "lost", "seconds"];
    assert_eq!(names, expected);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
}

/// Mistakes that are planted in the shipped code: the demo shows those that a stranger could notice.
#[cfg(feature = "canary")]
#[test]
fn a_demo_of_broken_code_reports_duplicates() {
    for canary in ["gate_open", "result_early"] {
        let (temp, (_disk, store)) = (tempfile::tempdir().unwrap(), on_disk());
        let mut demo = demo("--orders 60 --kills 40 --seed 1 --json --store", temp.path());
        let output = demo.arg(store).env("HAPAX_CANARY", canary).output().unwrap();
        let answer = json(&output);
        assert!(answer["duplicates"].as_u64().unwrap() > 0, "{canary}: {answer}");
        assert_eq!(output.status.code(), Some(1), "{canary}");
    }
}

#[test]
fn a_pipe_gets_lines_and_a_table_and_no_file_stays() {
    let temp = tempfile::tempdir().unwrap();
    let output = demo("--orders 20 --kills 5 --seed 2", temp.path()).output().unwrap();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.contains("SIGKILL  ")).count(), 5, "{stderr}");
    assert!(stdout.contains("raw calls   duplicates   lost"), "{stdout}");
    assert!(stdout.contains("charged exactly once"), "{stdout}");
    assert!(!stdout.contains('\u{1b}') && !stderr.contains('\u{1b}'), "colours in a pipe");
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0, "a file stayed");
}

/// What a person at a terminal of eighty columns sees.
fn on_a_terminal(temp: &Path, no_color: &str) -> String {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    tcsetwinsize(&screen, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&screen, vec![]).unwrap().into_string().unwrap();
    let terminal = File::options().read(true).write(true).open(name).unwrap();
    let mut command = demo("--orders 10 --kills 3 --seed 7", temp);
    command.env("TERM", "xterm").env("NO_COLOR", no_color);
    command.stdin(terminal.try_clone().unwrap()).stderr(terminal.try_clone().unwrap()).stdout(terminal);
    let mut child = command.spawn().unwrap();
    // The command holds the terminal too: without it, the end of the program is the end of what can be read.
    drop(command);
    let mut seen = vec![];
    // A terminal that nobody holds any more answers with an error.
    let _ = File::from(screen).read_to_end(&mut seen);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", text(&seen));
    text(&seen)
}

#[test]
fn a_terminal_gets_a_live_picture() {
    let temp = tempfile::tempdir().unwrap();
    let seen = on_a_terminal(temp.path(), "");
    for part in
        ["Paying 10 orders", "█", "◆", "SIGKILL", "10/10 shipped", "\u{1b}[32m", "charged exactly once"]
    {
        assert!(seen.contains(part), "{part} in {seen}");
    }
    let plain = on_a_terminal(temp.path(), "1");
    assert!(plain.contains("◆") && !plain.contains("\u{1b}[32m") && !plain.contains("\u{1b}[1m"), "{plain}");
}

#[test]
fn more_kills_than_orders_all_strike() {
    let temp = tempfile::tempdir().unwrap();
    let answer = json(&demo("--orders 1 --kills 9 --seed 3 --json", temp.path()).output().unwrap());
    assert_eq!((&answer["kills"], &answer["charges"], &answer["lost"]), (&9.into(), &1.into(), &0.into()));
}

#[test]
fn a_store_that_is_named_is_kept_and_holds_one_demo_after_the_other() {
    let (temp, (disk, store)) = (tempfile::tempdir().unwrap(), on_disk());
    let hapax = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
        command.args(args).args(["--json", "--store", &store, "--namespace", "shop"]);
        json(&command.output().unwrap())
    };
    for seed in ["4", "5"] {
        let mut demo = demo("--orders 3 --kills 2 --json", temp.path());
        let output = demo.args(["--seed", seed, "--store", &store, "--namespace", "shop"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(json(&output)["charges"], 3, "the fork of an earlier demo is none of this one's orders");
        let listed = hapax(&["list"]);
        let order = listed["runs"][0]["run"].as_str().unwrap();
        hapax(&["fork", &format!("{order}@0")]);
    }
    assert!(disk.path().join("demo.db").exists());
    assert_eq!(hapax(&["list"])["runs"].as_array().unwrap().len(), 8);
}

#[test]
fn two_demos_on_one_store_leave_each_other_alone() {
    let (temp, (_disk, store)) = (tempfile::tempdir().unwrap(), on_disk());
    let start = |seed: &str| {
        let mut demo = demo("--orders 8 --kills 6 --json", temp.path());
        demo.args(["--seed", seed, "--store", &store]).stdout(Stdio::piped()).spawn().unwrap()
    };
    for demo in [start("1"), start("2")] {
        let output = demo.wait_with_output().unwrap();
        let answer = json(&output);
        assert_eq!((&answer["charges"], &answer["lost"]), (&8.into(), &0.into()), "{answer}");
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn a_path_need_not_be_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let temp = tempfile::tempdir().unwrap();
    let odd = temp.path().join(std::ffi::OsStr::from_bytes(b"odd \xff"));
    std::fs::create_dir(&odd).unwrap();
    let output = demo("--orders 2 --kills 1 --seed 1 --json", &odd).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut store = std::ffi::OsString::from("sqlite:");
    store.push(odd.join("demo.db"));
    let output = demo("--orders 2 --kills 1 --seed 1 --store", &odd).arg(store).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_demo_that_cannot_go_on_says_why_with_its_code() {
    let (temp, (_disk, store)) = (tempfile::tempdir().unwrap(), on_disk());
    demo("--orders 1 --kills 1 --seed 1 --store", temp.path()).arg(&store).output().unwrap();
    let file = rusqlite::Connection::open(store.trim_start_matches("sqlite:")).unwrap();
    // Its first look at the store is allowed, its worker's first write isn't.
    file.execute_batch(
        "CREATE TRIGGER stop BEFORE INSERT ON hapax_runs BEGIN SELECT raise(ABORT, 'no'); END",
    )
    .unwrap();
    drop(file);
    let output = demo("--orders 1 --kills 1 --seed 1 --store", temp.path()).arg(&store).output().unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{error}");
    assert!(error.contains("error[HX0040]: the demo broke off: ") && error.contains("cure: "), "{error}");
}

#[cfg(not(feature = "canary"))]
#[test]
fn a_canary_that_is_not_built_in_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    let output = demo("--orders 1 --kills 1", temp.path()).env("HAPAX_CANARY", "gate_open").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--features canary"), "{}", text(&output.stderr));
}

#[test]
fn what_is_only_in_memory_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    for store in ["memory:", "sqlite::memory:"] {
        let output = demo("--store", temp.path()).arg(store).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("dies with the worker"), "{}", text(&output.stderr));
    }
}

/// Starts a demo, and waits until it is in full swing.
fn in_full_swing(temp: &Path) -> (Child, impl Read) {
    let mut demo = demo("--orders 500 --kills 100 --seed 6", temp);
    let mut child = demo.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("kill   2/100") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "the demo ended early");
    }
    (child, said)
}

#[test]
fn an_interrupted_demo_cleans_up() {
    let temp = tempfile::tempdir().unwrap();
    let (mut child, mut said) = in_full_swing(temp.path());
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(INTERRUPTED));
    let mut last_words = String::new();
    said.read_to_string(&mut last_words).unwrap();
    assert!(
        last_words.contains("error[HX0064]: interrupted; the demo's processes are ended\n"),
        "{last_words}"
    );
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0, "a file stayed");
}

#[test]
fn not_even_a_killed_demo_leaves_a_process_behind() {
    let temp = tempfile::tempdir().unwrap();
    let (mut child, mut said) = in_full_swing(temp.path());
    child.kill().unwrap();
    child.wait().unwrap();
    said.read_to_end(&mut vec![]).unwrap();
}
