//! How it behaves towards people, pipes and shells.

use crate::common::{Shop, new_terminal, said, steady, stock};
use std::{fs::File, io::Read, process::Stdio};
use unicode_width::UnicodeWidthStr;

#[tokio::test]
async fn colours_are_for_terminals_unless_told_otherwise() {
    let shop = Shop::with_history().await;
    let plain = shop.hapax(&["list"]).ok();
    assert!(!plain.contains('\u{1b}'), "a pipe is no terminal");
    assert!(shop.hapax(&["list", "--color", "always"]).ok().contains("\u{1b}[32msucceeded\u{1b}[0m"));
    assert!(!shop.hapax(&["list", "--color", "never"]).ok().contains('\u{1b}'));
    let error = shop.hapax(&["show", "nope", "--color", "always"]).fails(1);
    assert!(error.contains("\u{1b}["), "{error}");
}

/// What the program shows on a terminal of forty columns.
fn on_a_terminal(shop: &Shop, args: &[&str], env: &[(&str, &str)]) -> String {
    let (mut screen, terminal) = new_terminal(24, 40);
    let mut command = shop.command(args);
    command.env("TERM", "xterm").envs(env.iter().copied());
    command.stdin(terminal.try_clone().unwrap()).stderr(terminal.try_clone().unwrap()).stdout(terminal);
    let mut child = command.spawn().unwrap();
    // The command holds the terminal too: without it, the end of the program is the end of what can be read.
    drop(command);
    let mut seen = vec![];
    // A terminal that nobody holds any more answers with an error.
    let _ = screen.read_to_end(&mut seen);
    assert!(child.wait().unwrap().success());
    String::from_utf8(seen).unwrap()
}

#[tokio::test]
async fn a_terminal_gets_colours_and_lines_that_fit() {
    let shop = Shop::with_history().await;
    let seen = on_a_terminal(&shop, &["list"], &[]);
    assert!(seen.contains("\u{1b}[32m"), "{seen:?}");
    let seen = on_a_terminal(&shop, &["list"], &[("NO_COLOR", "1")]);
    assert!(!seen.contains("\u{1b}["), "{seen:?}");
    assert!(seen.lines().all(|line| line.trim_end().width() <= 40), "{seen}");
    let seen = on_a_terminal(&shop, &["list"], &[("TERM", "dumb")]);
    assert!(!seen.contains("\u{1b}["), "{seen:?}");
}

#[tokio::test]
async fn a_narrow_screen_cuts_columns_instead_of_wrapping() {
    let shop = Shop::with_history().await;
    for columns in ["1", "10", "24", "40", "60", "200"] {
        let mut command = shop.command(&["list"]);
        command.env("COLUMNS", columns);
        let text = said(command).ok();
        let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
        assert!(widest <= columns.parse().unwrap(), "{columns}: {text}");
        let mut command = shop.command(&["show", "order-1"]);
        command.env("COLUMNS", columns);
        said(command).ok();
    }
    for columns in ["20", "40", "50"] {
        let mut command = shop.command(&["doctor"]);
        command.env("COLUMNS", columns);
        let text = said(command).ok();
        let widest = text.lines().map(UnicodeWidthStr::width).max().unwrap();
        assert!(widest <= columns.parse().unwrap(), "{columns}: {text}");
    }
    let mut command = shop.command(&["list"]);
    command.env("COLUMNS", "40");
    insta::assert_snapshot!(steady(&said(command).ok()));
}

#[tokio::test]
async fn a_stored_text_cannot_steer_the_terminal() {
    let shop = Shop::with_history().await;
    for args in [&["show", "order-2"][..], &["list"], &["graph", "--run", "order-2"]] {
        assert!(!shop.hapax(args).ok().contains('\u{1b}'), "{args:?}");
    }
    assert!(shop.hapax(&["show", "order-2"]).ok().contains(r"card \u{1b}[31mdeclined"));
}

#[tokio::test]
async fn a_closed_pipe_is_no_failure() {
    let shop = Shop::with_history().await;
    for args in [
        &["list"][..],
        &["show", "order-1"],
        &["doctor"],
        &["fork", "order-1@0"],
        &["graph", "--run", "order-1"],
        &["man"],
        &["--help"],
    ] {
        let mut child = shop.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The reader is gone before anything is written, or soon after.
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn every_command_has_help_with_examples() {
    let help = said(stock(&["--help"])).ok();
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: Vec<_> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for command in [
        "list", "show", "graph", "resume", "retry", "cancel", "replay", "fork", "gc", "doctor", "canon",
        "key", "agent", "snapshot", "ledger",
    ] {
        assert!(commands.contains(&command), "{command}");
    }
    for command in commands.into_iter().filter(|command| *command != "help") {
        let help = said(stock(&[command, "--help"])).ok();
        assert!(help.contains("\nExamples:\n"), "{command}");
        let page = said(stock(&["man", command])).ok();
        assert!(page.starts_with(".ie \\n(.g .ds Aq"), "{page}");
    }
    for code in ["0  ", "1  ", "2  ", "3  ", "4  ", "130"] {
        assert!(help.contains(&format!("\n  {code}  ")), "{code}");
    }
}

#[test]
fn completions_and_man_pages_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = said(stock(&["completions", shell])).ok();
        for word in ["doctor", "dry-run", "replay", "against", "fork", "agent", "patience", "snapshot"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        assert!(!script.contains("life"), "{shell} offers what only the demo itself calls");
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("made/on the way");
    let written = said(stock(&["man", "--json", "--dir", dir.to_str().unwrap()])).json();
    assert_eq!(written["dir"].as_str(), dir.to_str());
    assert!(dir.join("hapax.1").exists() && dir.join("hapax-key-step.1").exists());
    let mut pages = std::fs::read_dir(dir).unwrap().map(|page| page.unwrap().file_name());
    assert!(pages.all(|page| page != "hapax-demo-worker.1" && page != "hapax-demo-ledger.1"));
    let demo = said(stock(&["man", "demo"])).ok();
    assert!(!demo.contains("ledger") && !demo.contains("SUBCOMMANDS"), "{demo}");
    said(stock(&["man", "nope"])).fails(2);
}

#[test]
fn a_mistake_on_the_command_line_is_a_usage_error() {
    for args in [
        &["nope"][..],
        &["show"],
        &["resume"],
        &["resume", "a", "--all"],
        &["list", "--limit", "x"],
        &["list", "--limit", "0"],
        &["outbox", "--limit", "0"],
        &["graph", "--run", "a", "--steps", "0"],
        &["doctor", "--checkpoints", "0"],
        &["relay", "--to", "stdout", "--poll", "0s"],
        &["relay", "--to", "stdout", "--batch", "0"],
        &["relay", "--to", "stdout", "--max-attempts", "0"],
        &["fork", "@1"],
        &[
            "key",
            "command",
            "--action",
            "",
            "--task",
            "",
            "--snapshot",
            "",
            "--inputs",
            "",
            "--expected-outputs",
            "1",
        ],
    ] {
        let error = said(stock(&[args, &["--store", "memory:"]].concat())).fails(2);
        assert!(error.starts_with("error[HX0060]: ") && error.contains("\n  cure: "), "{error}");
    }
    assert_eq!(said(stock(&["--version"])).ok(), format!("hapax {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_and_version_are_given_however_they_are_asked_for() {
    assert_eq!(said(stock(&["--version", "--json"])).json()["version"], env!("CARGO_PKG_VERSION"));
    let help = said(stock(&["list", "--help"])).ok();
    assert_eq!(said(stock(&["help", "list", "--json"])).ok(), help);
    assert_eq!(said(stock(&["list", "--color", "never", "--help"])).ok(), help);
    assert!(said(stock(&["--color", "always", "list", "--help"])).ok().contains("\u{1b}["));
    assert!(said(stock(&["--color", "always", "bogus"])).fails(2).starts_with("\u{1b}["));
    let mut command = stock(&["--help"]);
    command.stdout(File::options().write(true).open("/dev/full").unwrap());
    assert!(said(command).fails(1).starts_with("error[HX0061]: cannot write the answer: "));
}

#[test]
fn a_program_gets_a_usage_error_as_json() {
    for args in [
        &["--json"][..],
        &["nope", "--json"],
        &["--json", "show"],
        &["list", "--json", "--limit", "x"],
        &["key", "--json"],
        &["key", "seed", "--json"],
        &["graph", "--json", "--store", "memory:"],
        &["demo", "--json", "--kills", "0"],
        &["--json", "list"],
    ] {
        let error = said(stock(args)).fails(2);
        let error: serde_json::Value = serde_json::from_str(&error).unwrap();
        assert_eq!((&error["v"], &error["error"]["code"]), (&1.into(), &"HX0060".into()), "{args:?}");
        for field in ["message", "cure", "page"] {
            assert!(error["error"][field].as_str().is_some_and(|text| !text.is_empty()), "{args:?}: {error}");
        }
        assert_eq!(error["error"]["message"].as_str().unwrap().lines().count(), 1, "{error}");
    }
    assert!(said(stock(&["list", "--json", "--help"])).ok().starts_with("List runs"));
}
