//! Agents on the command line: checked, talked to, played; snapshots and ledgers.

use crate::common::{Said, Shop, said, stock};
use hapax::agent::ledger;
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};
use tempfile::TempDir;

const HAPAX: &str = env!("CARGO_BIN_EXE_hapax");

/// A script for the mock, as a file.
fn script(folder: &TempDir, script: &Value) -> String {
    let file = folder.path().join("script.json");
    fs::write(&file, script.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

fn check(flags: &[&str], agent: &[&str]) -> Said {
    said(stock(&[&["agent", "check", "--json"], flags, &["--"], agent].concat()))
}

/// The rows of a check as `name verdict`.
fn verdicts(said: &Said) -> Vec<String> {
    let answer: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"));
    assert_eq!(answer["v"], 1);
    let word = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    let rows = answer["rows"].as_array().unwrap().iter();
    rows.map(|row| format!("{} {}", word(row, "id"), word(row, "verdict"))).collect()
}

fn row(said: &Said, id: &str) -> Value {
    let answer: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{said:?}"));
    answer["rows"].as_array().unwrap().iter().find(|row| row["id"] == id).unwrap().clone()
}

/// What the mock does for the kits' own action, with these steps before its answer.
fn checked(first: &[Value], more: &Value) -> Value {
    let work = [json!({"do": "write", "path": "hapax-check.txt", "text": "x"}), json!({"do": "answer"})];
    let steps: Vec<Value> = first.iter().cloned().chain(work).collect();
    let mut script = json!({"actions": {"hapax.check": steps}});
    for (name, value) in more.as_object().unwrap() {
        script[name] = value.clone();
    }
    script
}

#[test]
fn an_agent_of_the_kit_keeps_the_protocol() {
    let said = said(stock(&["agent", "check", "--", HAPAX, "agent", "mock"]));
    assert_eq!(said.code, 0, "{said:?}");
    insta::assert_snapshot!("check_kit", said.out);
}

#[test]
fn an_action_of_the_agents_own_is_checked_on_files_that_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "a").unwrap();
    let flags = ["--action", "echo", "--inputs", "{\"n\":1}", "--output", "src/n.json", "--workspace"];
    let flags = [&flags[..], &[folder.path().to_str().unwrap()]].concat();
    let said = check(&flags, &[HAPAX, "agent", "mock"]);
    assert_eq!(said.code, 0, "{said:?}");
    let verdicts = verdicts(&said);
    assert!(verdicts.contains(&"command.artifacts pass".into()), "{verdicts:#?}");
    assert!(verdicts.contains(&"heartbeat.busy skip".into()), "{verdicts:#?}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["a.txt"]);
}

#[test]
fn an_agent_that_forgets_fails_where_it_does_work_again() {
    let folder = tempfile::tempdir().unwrap();
    let script = script(&folder, &checked(&[], &json!({"forgetful": true})));
    let said = check(&[], &[HAPAX, "agent", "mock", "--script", &script]);
    assert_eq!(said.code, 1, "{said:?}");
    for id in ["memory.duplicate", "memory.killed_after"] {
        let row = row(&said, id);
        assert_eq!(row["verdict"], "fail", "{row}");
        assert!(row["came"].as_str().unwrap().contains("`hapax-check.txt` was written again"), "{row}");
        assert!(row["document"].as_str().unwrap().starts_with("docs/protocol.md#"), "{row}");
    }
    assert_eq!(row(&said, "memory.acked")["verdict"], "warn", "it may forget what is acknowledged");
    assert_eq!(row(&said, "command.answered")["verdict"], "pass");
}

#[test]
fn what_an_agent_breaks_is_named() {
    let wrong_hash = json!({"do": "list", "path": "other.txt", "text": "y"});
    let cases = [
        ("line.only_messages", json!({"do": "raw", "line": "Loading the model..."}), "Loading the model"),
        ("command.artifacts", wrong_hash, "artifact `other.txt` is refused"),
        ("command.one_answer", json!({"do": "answer", "fleeting": true}), "more than one for"),
    ];
    for (id, step, came) in cases {
        let folder = tempfile::tempdir().unwrap();
        let script = script(&folder, &checked(&[step], &json!({})));
        let said = check(&[], &[HAPAX, "agent", "mock", "--script", &script]);
        assert_eq!(said.code, 1, "{said:?}");
        let row = row(&said, id);
        assert_eq!(row["verdict"], "fail", "{row}");
        assert!(row["came"].as_str().unwrap().contains(came), "{row}");
    }
}

#[test]
fn an_agent_that_does_not_end_is_told_so_and_ended() {
    let folder = tempfile::tempdir().unwrap();
    let stubborn = checked(&[], &json!({"ignores_eof": true, "start": [{"do": "ignore_sigterm"}]}));
    let script = script(&folder, &stubborn);
    let said = check(&["--patience", "1s"], &[HAPAX, "agent", "mock", "--script", &script]);
    for id in ["end.input", "end.sigterm"] {
        assert_eq!(row(&said, id)["verdict"], "fail", "{said:?}");
    }
}

#[test]
fn lies_that_no_answer_shows_are_found() {
    let kit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents");
    let liar = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/liar.py");
    let mut command = stock(&["agent", "check", "--json", "--", "python3", liar]);
    command.env("PYTHONPATH", kit).env("PYTHONDONTWRITEBYTECODE", "1");
    let said = said(command);
    assert_eq!(said.code, 1, "{said:?}");
    let lies = [
        ("memory.acked", "fail", "`error`"),
        ("memory.killed_during", "fail", "what was left in it"),
        ("memory.second_process", "fail", "a heartbeat of the second one"),
        ("command.wrong_key", "warn", "the code `sorry`"),
        ("end.input", "fail", "it was done"),
        ("command.workspace", "fail", "the snapshot was"),
        ("line.only_messages", "fail", "`yesterday`"),
        ("command.one_answer", "fail", "`progress`"),
    ];
    for (id, verdict, came) in lies {
        let row = row(&said, id);
        assert_eq!(row["verdict"], verdict, "{row}");
        assert!(row["came"].as_str().unwrap().contains(came), "{row}");
    }
    let found = verdicts(&said).iter().filter(|row| !row.ends_with(" pass")).count();
    assert_eq!(found, lies.len(), "{said:?}");
}

#[test]
fn an_agent_that_never_stops_talking_is_not_waited_for() {
    let said = check(&["--patience", "1s"], &["sh", "-c", "yes ''"]);
    assert_eq!(row(&said, "heartbeat.first")["verdict"], "fail", "{said:?}");
}

#[test]
fn whether_an_action_without_files_is_done_again_is_not_claimed() {
    let folder = tempfile::tempdir().unwrap();
    let script = script(&folder, &json!({"forgetful": true, "actions": {"mail": [{"do": "answer"}]}}));
    let said = check(&["--action", "mail"], &[HAPAX, "agent", "mock", "--script", &script]);
    for id in ["duplicate", "acked", "forgotten", "killed_after"] {
        let row = row(&said, &format!("memory.{id}"));
        assert_eq!(row["verdict"], "skip", "{row}");
        assert!(row["came"].as_str().unwrap().contains("nobody can tell"), "{row}");
    }
}

#[test]
fn a_workspace_is_checked_on_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("src/a.txt"), "a").unwrap();
    let vandal = "touch \"$HAPAX_WORKSPACE/junk\"; test -f \"$HAPAX_WORKSPACE/src/a.txt\" && exit 7";
    let flags = ["--workspace", folder.path().to_str().unwrap()];
    let said = check(&flags, &["sh", "-c", vandal]);
    assert!(row(&said, "heartbeat.first")["came"].as_str().unwrap().contains("exit status: 7"), "{said:?}");
    assert!(!folder.path().join("junk").exists());
}

/// As many a first attempt at an agent: it prints, it answers whatever comes, and it knows nothing of keys.
const FIRST_ATTEMPT: &str = r#"
echo "agent ready"
beat() { echo '{"kind":"heartbeat","agent":{"agent_type":"a"},"seq":1,"status":"idle","pid":1,"uptime_s":0,"last_activity_at":"now"}'; }
beat
while read -r line; do
    id=$(printf %s "$line" | sed -n 's/.*"correlation_id":"\([^"]*\)".*/\1/p')
    task=$(printf %s "$line" | sed -n 's/.*"task_id":"\([^"]*\)".*/\1/p')
    now=$(date +%N)
    printf '{"kind":"event","message_id":"m","correlation_id":"%s","task_id":"%s","from":{"agent_type":"a"},"event":"done","status":"success","payload":{"now":"%s"},"artifacts":[],"occurred_at":"now"}\n' "$id" "$task" "$now"
done
"#;

#[test]
fn a_first_attempt_at_an_agent_is_told_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("agent.sh"), FIRST_ATTEMPT).unwrap();
    let mut command =
        stock(&["agent", "check", "--patience", "1s", "--action", "greet", "--", "sh", "agent.sh"]);
    command.current_dir(folder.path()).env("LC_ALL", "C");
    let said = said(command);
    assert_eq!(said.code, 1, "{said:?}");
    insta::assert_snapshot!("check_first_attempt", said.out);
}

#[test]
fn a_program_that_is_no_agent_fails_at_once() {
    let said = check(&["--patience", "1s"], &["true"]);
    assert_eq!(said.code, 1);
    let verdicts = verdicts(&said);
    assert_eq!(verdicts[0], "heartbeat.first fail");
    assert!(verdicts.iter().filter(|row| row.ends_with(" skip")).count() > 20, "{verdicts:#?}");
    assert!(!verdicts.iter().any(|row| row.ends_with(" pass") && row.starts_with("memory.")));
    let missing = said_of_missing();
    assert!(missing.starts_with("error[HX0120]: there is no program `no-such-program`"), "{missing}");
}

fn said_of_missing() -> String {
    said(stock(&["agent", "check", "--", "no-such-program"])).err
}

#[test]
fn an_action_that_the_agent_does_not_know_is_blamed_on_the_flag() {
    let said = check(&["--action", "fly"], &[HAPAX, "agent", "mock"]);
    assert_eq!(said.code, 1);
    let row = row(&said, "command.answered");
    assert!(row["came"].as_str().unwrap().contains("doesn't know `fly`"), "{row}");
}

/// The mock, talked to in a folder of its own.
fn talk(folder: &Path, flags: &[&str], lines: impl AsRef<[u8]>) -> Said {
    talk_to(folder, flags, lines, &[HAPAX, "agent", "mock"])
}

fn talk_to(folder: &Path, flags: &[&str], lines: impl AsRef<[u8]>, agent: &[&str]) -> Said {
    let mut command = stock(&[&["agent", "run"], flags, &["--"], agent].concat());
    command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_ref()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn a_command_by_hand_is_answered_and_its_files_installed() {
    let folder = tempfile::tempdir().unwrap();
    let said = talk(folder.path(), &[], "echo T-1 {\"n\": 1} src/n.json\n\nfly T-2\necho\n");
    assert_eq!((said.code, said.err.as_str()), (0, ""), "{said:?}");
    insta::assert_snapshot!("talk", said.out);
    let receipts = talk_of_receipts(folder.path());
    assert_eq!(receipts, [json!(["echo", "T-1", "success"]), json!(["echo", "T-1", "success"])]);
    assert_eq!(fs::read_to_string(folder.path().join("src/n.json")).unwrap(), "{\"n\":1}\n");
}

/// Action, task and status of each receipt.
fn talk_of_receipts(folder: &Path) -> Vec<Value> {
    let answer = said(stock(&["receipts", folder.to_str().unwrap(), "--json"])).json();
    let parts = |receipt: &Value| json!([receipt["action"], receipt["task_id"], receipt["event"]["status"]]);
    answer["receipts"].as_array().unwrap().iter().map(parts).collect()
}

#[test]
fn receipts_are_listed_and_one_that_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    assert_eq!(said(stock(&["receipts", dir])).ok(), "no receipts\n");
    talk(folder.path(), &["--command", "echo T-7"], "").ok();
    let listed = said(stock(&["receipts", dir])).ok();
    assert!(
        listed.lines().nth(1).unwrap().starts_with("command-1  agent  echo    T-7   success  snap-"),
        "{listed}"
    );
    fs::write(folder.path().join(".hapax/receipts/00.json"), "{").unwrap();
    let error = said(stock(&["receipts", dir])).fails(1);
    assert!(error.starts_with("error[HX0131]: ") && error.contains("00.json: EOF"), "{error}");
}

#[test]
fn one_command_ends_with_its_answer_and_programs_read_lines() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--json", "--action", "echo", "--inputs", "{\"n\":9007199254740993}", "--output", "n"];
    let out = talk(folder.path(), &flags, "").ok();
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["v"] == 1));
    assert_eq!(lines[0]["event"], "sent");
    let answer = lines.last().unwrap();
    assert_eq!((&answer["event"], &answer["status"]), (&json!("answered"), &json!("success")));
    assert_eq!(answer["artifacts"][0]["path"], "n");
    assert!(out.contains("{\"n\":9007199254740993}"), "with all its digits: {out}");
    let failed = talk(folder.path(), &["--command", "fly T-1"], "");
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.out.contains("failed   HX0122: "), "{failed:?}");
}

#[test]
fn what_an_agent_says_on_the_way_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let steps = json!({"actions": {"work": [
        {"do": "stderr", "text": "warming up"},
        {"do": "progress", "percent": 50.0},
        {"do": "token", "text": "once"},
        {"do": "logs", "count": 1},
        {"do": "once", "name": "death", "steps": [{"do": "exit", "code": 3}]},
        {"do": "answer", "status": "approved"}
    ]}});
    let script = script(&folder, &steps);
    let agent = [HAPAX, "agent", "mock", "--script", &script];
    let said = talk_to(folder.path(), &["--command", "work"], "", &agent);
    assert_eq!(said.code, 0, "{said:?}");
    let shown = [
        "stderr   warming up",
        "progress 50 %",
        "token    once",
        "info     line 0",
        "an agent died",
        "approved mock.done {}",
    ];
    for words in shown {
        assert!(said.out.contains(words), "{words}: {said:?}");
    }
}

#[test]
fn a_line_that_is_no_command_is_told_and_the_next_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let said = talk(folder.path(), &[], "echo T-1 {\"n\":\n");
    assert_eq!(said.code, 1, "the last one failed");
    assert!(said.out.contains("HX0060: the inputs aren't JSON"), "{said:?}");
    assert_eq!(talk(folder.path(), &[], "echo {\necho T-1\n").code, 0);
    assert_eq!(talk(folder.path(), &[], b"echo \xff\necho T-1\n").code, 0, "nor what isn't UTF-8");
    let deep = format!("echo T-1 {{\"n\":{}{}}}\necho T-1\n", "[".repeat(126), "]".repeat(126));
    assert_eq!(talk(folder.path(), &[], deep).code, 0, "nor what can't be stored");
    assert!(talk(folder.path(), &["--command", "{}"], "").fails(2).contains("missing field `action`"));
}

#[test]
fn what_cannot_be_asked_by_hand_is_refused_as_a_mistake_of_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let mistakes: [(&[&str], &str); 5] = [
        (&["--action", ""], "there is no action"),
        (&["--action", "echo", "--inputs", "[]"], "an object"),
        (&["--action", "echo", "--timeout", "0s"], "no time to answer in"),
        (&["--command", "echo", "--output", "n.json"], "cannot be used with"),
        (&["--command", "echo", "--task", "T-2"], "cannot be used with"),
    ];
    for (flags, why) in mistakes {
        let error = talk(folder.path(), flags, "").fails(2);
        assert!(error.contains(why), "{flags:?}: {error}");
    }
}

#[test]
fn a_mock_that_nobody_started_says_who_should() {
    let error = said(stock(&["agent", "mock"])).fails(1);
    assert!(error.starts_with("error[HX0120]: ") && error.contains("`hapax agent run`"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let script = script(&folder, &json!({"actionz": {}}));
    assert!(said(stock(&["agent", "mock", "--script", &script])).fails(2).contains("is no script: "));
}

#[test]
fn a_snapshot_is_of_contents_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("src")).unwrap();
    fs::create_dir_all(folder.path().join(".git")).unwrap();
    for (path, text) in [("src/a.txt", "one"), ("b.txt", "two"), (".git/HEAD", "main"), ("target", "big")] {
        fs::write(folder.path().join(path), text).unwrap();
    }
    let dir = folder.path().to_str().unwrap();
    let id = said(stock(&["snapshot", dir, "--ignore", "target"])).ok();
    let listed = said(stock(&["snapshot", dir, "--ignore", "target", "--files"]));
    assert_eq!(listed.err, "2 files, 6 bytes\n");
    insta::assert_snapshot!("snapshot_files", listed.out);
    assert!(listed.out.ends_with(&id));
    let answer = said(stock(&["snapshot", dir, "--files", "--json"])).json();
    assert_eq!((&answer["files"], &answer["bytes"]), (&json!(3), &json!(9)));
    assert_eq!(answer["listing"][1]["path"], "src/a.txt");
    for odd in ["", "src/a.txt"] {
        assert!(said(stock(&["snapshot", dir, "--ignore", odd])).fails(2).contains("by its name"));
    }
    let missing = said(stock(&["snapshot", "/no/such/folder"])).fails(1);
    assert!(missing.starts_with("error[HX0130]: workspace: `/no/such/folder`: "), "{missing}");
}

#[tokio::test]
async fn a_ledger_is_written_and_read_after_a_torn_line() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("out");
    let answer = shop.hapax(&["ledger", "order-1", "--dir", dir.to_str().unwrap(), "--json"]).json();
    let events = dir.join("events/order-1.ndjson");
    assert_eq!(answer["events"], events.to_str().unwrap());
    let state: Value = serde_json::from_slice(&fs::read(dir.join("state/run.json")).unwrap()).unwrap();
    assert_eq!((&state["run"], &state["state"]["sku"]), (&json!("order-1"), &json!("anvil")));
    let lines = answer["lines"].as_u64().unwrap();
    let whole = fs::read(&events).unwrap();
    fs::write(&events, &whole[..whole.len() - 5]).unwrap();
    let read = ledger::read(&events).unwrap();
    assert!(read.is_torn && read.lines.len() as u64 == lines - 1, "{}", read.lines.len());
    let human = shop.hapax(&["ledger", "order-1", "--dir", dir.to_str().unwrap()]).ok();
    assert!(human.contains(&format!("order-1.ndjson  {lines} lines\n")), "{human}");
    assert_eq!(fs::read(&events).unwrap(), whole, "it is written anew");
    let none = folder.path().join("none");
    assert!(shop.hapax(&["ledger", "order-9", "--dir", none.to_str().unwrap()]).fails(1).contains("HX0028"));
    assert!(!none.exists(), "of a run that isn't there nothing is made");
}

#[test]
fn an_interrupted_talk_leaves_no_agent_behind() {
    let folder = tempfile::tempdir().unwrap();
    let steps = json!({"actions": {"work": [{"do": "progress", "percent": 1.0}, {"do": "hang"}]}});
    let script = script(&folder, &steps);
    let args =
        ["agent", "run", "--json", "--command", "work", "--", HAPAX, "agent", "mock", "--script", &script];
    let mut child = stock(&args)
        .current_dir(folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    lines.find(|line| line.as_ref().unwrap().contains("\"told\"")).unwrap().unwrap();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let lock = fs::read_to_string(folder.path().join(".hapax/agents/agent/lock")).unwrap();
    assert_eq!(lock, "", "whoever looks there finds no agent that runs");
}
