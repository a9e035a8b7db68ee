//! Agents that don't keep to the protocol: each is a typed error or does no harm; nothing hangs, nothing grows.

use super::*;
use hapax::core::key::sha256;
use serde_json::json;
use std::os::unix::fs::symlink;

fn command() -> Command {
    Command::new("work", "T-1")
}

fn script(steps: &Value) -> Value {
    json!({"actions": {"work": steps}})
}

/// How one action with these steps fails.
async fn code_of(steps: Value) -> String {
    let site = Site::new();
    site.fails(&site.agent(&script(&steps)), command()).await.0
}

#[tokio::test]
async fn a_line_that_is_no_message_is_a_typed_error() {
    for steps in [
        json!([{"do": "oversize", "about": true}, {"do": "hang"}]),
        json!([{"do": "oversize"}, {"do": "hang"}]),
        json!([{"do": "oversize", "bytes": 30_000_000}, {"do": "hang"}]),
        json!([{"do": "invalid_utf8"}, {"do": "hang"}]),
        json!([{"do": "raw", "line": "Loading the model..."}, {"do": "hang"}]),
        json!([{"do": "raw", "line": "{\"kind\":\"event\"}"}, {"do": "hang"}]),
        json!([{"do": "raw", "line": "null"}, {"do": "hang"}]),
        json!([{"do": "answer", "payload": [1]}, {"do": "hang"}]),
    ] {
        assert_eq!(code_of(steps.clone()).await, "HX0125", "{steps}");
    }
}

#[tokio::test]
async fn a_broken_line_amid_the_work_takes_no_file_away_from_it() {
    let site = Site::new();
    let steps = json!([
        {"do": "write", "path": "x", "text": "1"},
        {"do": "raw", "line": "Loading the model..."},
        {"do": "hang"}
    ]);
    assert_eq!(site.fails(&site.agent(&script(&steps)), command()).await.0, "HX0125");
    assert_eq!(site.staged(), 1, "the work goes on");
}

#[tokio::test]
async fn after_an_oversize_line_the_next_one_is_read() {
    let site = Site::new();
    let agent = site
        .agent(&json!({"actions": {"bad": [{"do": "oversize", "about": true}], "good": [{"do": "answer"}]}}));
    assert_eq!(site.fails(&agent, Command::new("bad", "T-1")).await.0, "HX0125");
    assert!(site.ask(&agent, Command::new("good", "T-1")).await.unwrap().is("success"));
    assert_eq!(agent.stats().broken_lines, 1);
}

#[tokio::test]
async fn a_broken_line_about_one_command_fails_no_other() {
    let site = Site::new();
    let agent = site.agent(&json!({"actions": {
        "slow": [{"do": "await", "path": "go"}, {"do": "answer"}],
        "bad": [{"do": "oversize", "about": true}],
    }}));
    let slow = site.ask(&agent, Command::new("slow", "T-1"));
    let bad = async {
        assert_eq!(site.fails(&agent, Command::new("bad", "T-1")).await.0, "HX0125");
        site.put("go", "");
    };
    assert!(tokio::join!(slow, bad).0.unwrap().is("success"));
}

#[tokio::test]
async fn half_a_line_and_silence_is_a_dead_agent() {
    let site = Site::new();
    let steps =
        json!([{"do": "stop_heartbeats"}, {"do": "half_line", "text": "{\"kind\":\"ev"}, {"do": "hang"}]);
    let agent = site.patient(&script(&steps)).heartbeat(Duration::from_millis(60)).build().unwrap();
    let (code, message) = site.fails(&agent, command()).await;
    assert_eq!(code, "HX0123", "{message}");
    assert!(message.contains("3 times in a row") && message.contains("heart"), "{message}");
}

#[tokio::test]
async fn ten_thousand_log_lines_do_not_stall_a_run() {
    let site = Site::new();
    let agent = site.agent(&script(&json!([{"do": "logs", "count": 10_000}, {"do": "answer"}])));
    assert!(site.ask(&agent, command()).await.unwrap().is("success"));
}

fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[tokio::test]
async fn a_million_log_lines_do_not_grow_the_memory() {
    let site = Site::new();
    let agent = site.agent(&script(&json!([{"do": "logs", "count": 1_000_000}, {"do": "answer"}])));
    let before = resident_bytes();
    assert!(site.ask(&agent, command()).await.unwrap().is("success"));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes for some 100 MB of logs");
    assert!(agent.stats().dropped_logs > 500_000, "{:?}", agent.stats());
}

#[tokio::test]
async fn an_answer_with_another_correlation_id_is_no_answer() {
    let site = Site::new();
    let stray = json!({"do": "answer", "correlation_id": "corr-of-another", "status": "stolen"});
    let agent = site.agent(&script(&json!([stray, {"do": "answer"}])));
    assert!(site.ask(&agent, command()).await.unwrap().is("success"));
    assert_eq!(agent.stats().unknown_events, 1);
    let site = Site::new();
    let agent = site.agent(&script(&json!([stray])));
    assert_eq!(site.fails(&agent, command().timeout(Duration::from_millis(300))).await.0, "HX0124");
}

#[tokio::test]
async fn a_second_answer_to_a_finished_command_is_counted_and_nothing_else() {
    let site = Site::new();
    let agent = site.agent(&json!({"actions": {
        "work": [{"do": "answer"}, {"do": "answer", "status": "failed", "fleeting": true}],
        "next": [{"do": "answer", "status": "approved"}],
    }}));
    assert!(site.ask(&agent, command()).await.unwrap().is("success"));
    assert!(site.ask(&agent, Command::new("next", "T-1")).await.unwrap().is("approved"));
    assert_eq!(agent.stats().unknown_events, 1);
}

#[tokio::test]
async fn an_artifact_that_leads_out_of_the_workspace_is_refused() {
    let hooks = [".git/hooks/pre-commit", ".hapax/evil"];
    for path in ["../evil", "a/../../evil", "/tmp/evil", "a//b", ".", "a\\b"].into_iter().chain(hooks) {
        let steps = json!([{"do": "write", "path": path, "text": "evil"}, {"do": "answer"}]);
        assert_eq!(code_of(steps).await, "HX0127", "{path}");
    }
}

#[tokio::test]
async fn an_artifact_behind_a_symlink_is_refused() {
    let (site, outside) = (Site::new(), tempfile::tempdir().unwrap());
    fs::create_dir(site.root().join("inside")).unwrap();
    symlink("inside", site.root().join("parent")).unwrap();
    let steps = json!([{"do": "write", "path": "parent/new.txt", "text": "evil"}, {"do": "answer"}]);
    assert_eq!(site.fails(&site.agent(&script(&steps)), command()).await.0, "HX0127");
    assert_eq!(site.text("inside/new.txt"), None);
    // The agent puts a link where its own file should be: the engine must not fetch what it points to.
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let link = json!({"do": "symlink", "path": "x", "target": secret});
    let steps = json!([link, {"do": "list", "path": "x", "text": "secret"}, {"do": "answer"}]);
    assert_eq!(code_of(steps).await, "HX0127");
    let link = json!({"do": "symlink", "path": "folder", "target": outside.path()});
    let steps = json!([link, {"do": "list", "path": "folder/secret", "text": "secret"}, {"do": "answer"}]);
    assert_eq!(code_of(steps).await, "HX0127");
}

#[tokio::test]
async fn an_artifact_that_is_not_what_it_is_said_to_be_is_refused_and_nothing_is_installed() {
    let wrong = sha256(b"something else").to_string();
    for (unlisted, listed) in [
        (false, json!({"do": "list", "path": "b", "text": "2"})),
        (false, json!({"do": "list", "path": "a", "text": "1"})),
        (true, json!({"do": "list", "path": "a", "text": "1", "sha256": wrong})),
        (true, json!({"do": "list", "path": "a", "text": "1", "size": 7})),
    ] {
        let site = Site::new();
        let write = json!({"do": "write", "path": "a", "text": "1", "unlisted": unlisted});
        let steps = json!([write, listed, {"do": "answer"}]);
        let code = site.fails(&site.agent(&script(&steps)), command()).await.0;
        assert_eq!((code.as_str(), site.text("a")), ("HX0127", None), "{listed}");
        assert!(site.receipts().is_empty());
    }
}

#[tokio::test]
async fn an_answer_without_a_required_output_is_refused_unless_it_asks_back() {
    let site = Site::new();
    let agent = site.agent(&json!({"actions": {
        "work": [{"do": "write", "path": "a", "text": "1"}, {"do": "answer"}],
        "ask": [{"do": "answer", "status": "clarification", "payload": {"questions": ["Which?"]}}],
    }}));
    assert_eq!(site.fails(&agent, command().output("a").output("b")).await.0, "HX0128");
    assert_eq!(site.text("a"), None, "all of it or nothing");
    assert!(site.ask(&agent, command().output("a").optional_output("c")).await.unwrap().is("success"));
    let asked = site.ask(&agent, Command::new("ask", "T-1").output("b")).await.unwrap();
    assert_eq!(asked.questions(), ["Which?"]);
}

#[tokio::test]
async fn an_answer_about_another_snapshot_is_refused() {
    assert_eq!(code_of(json!([{"do": "answer", "observed": "snap-000000000000"}])).await, "HX0126");
}

#[tokio::test]
async fn an_agent_that_ends_at_once_is_given_up_with_its_last_words() {
    let site = Site::new();
    let agent =
        site.agent(&json!({"start": [{"do": "stderr", "text": "no licence"}, {"do": "exit", "code": 3}]}));
    let (code, message) = site.fails(&agent, command()).await;
    assert_eq!(code, "HX0123");
    assert!(message.contains("exit status: 3") && message.contains("no licence"), "{message}");
    assert_eq!(agent.stats().starts, 3, "the first, and two more");
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error_at_once() {
    let site = Site::new();
    let agent = Agent::builder("mock", "no-such-program").workspace(&site.workspace).build().unwrap();
    assert_eq!(site.fails(&agent, command()).await.0, "HX0120");
}

#[tokio::test]
async fn a_command_that_is_larger_than_a_line_is_refused_before_its_intent() {
    let site = Site::new();
    let agent = site.agent(&json!({}));
    let large = command().inputs(&json!({"text": "x".repeat(300_000)}));
    assert_eq!(site.fails(&agent, large).await.0, "HX0121");
    assert_eq!(agent.stats().starts, 0);
    for bad in [
        Command::new("a\nb", "T-1"),
        Command::new("a", "T\n1"),
        command().inputs(&7),
        command().output("../x"),
    ] {
        let code = site.fails(&agent, bad).await.0;
        assert!(["HX0120", "HX0001"].contains(&code.as_str()), "{code}");
    }
}

#[tokio::test]
async fn a_workspace_that_leads_out_is_an_error_before_anything_is_sent() {
    let site = Site::new();
    symlink("/etc", site.root().join("etc")).unwrap();
    let agent = site.agent(&json!({}));
    assert_eq!(site.fails(&agent, command()).await.0, "HX0130");
    assert_eq!(agent.stats().starts, 0);
}

#[tokio::test]
async fn a_receipt_that_cannot_be_written_is_an_error_and_written_at_the_next_attempt() {
    let site = Site::new();
    let agent = site.agent(&script(&json!([{"do": "note", "text": "work"}, {"do": "answer"}])));
    fs::create_dir_all(site.workspace.state_folder()).unwrap();
    fs::write(site.workspace.receipts(), "in the way").unwrap();
    let (engine, (graph, _)) = (engine(options()), one(&agent, &command()));
    let flow = engine.register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(failure(&error).code, "HX0131");
    fs::remove_file(site.workspace.receipts()).unwrap();
    engine.retry("run").await.unwrap();
    assert_eq!(engine.wait("run").await.unwrap().word(), "succeeded");
    assert_eq!((site.receipts().len(), site.notes().len()), (1, 1), "what is recorded isn't done again");
    assert_eq!(engine.replay("run").await.unwrap().divergence, None);
}
