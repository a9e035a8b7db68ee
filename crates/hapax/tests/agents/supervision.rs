//! Processes: started once, started again, ended for good.

use super::*;
use hapax::{StreamEvent, agent::Progress};
use serde_json::json;

fn command() -> Command {
    Command::new("work", "T-1")
}

#[tokio::test]
async fn an_agent_starts_with_its_first_command_and_is_shared_by_all_runs() {
    let site = Site::new();
    let agent = site.agent(&json!({}));
    let (engine, (graph, _)) = (engine(options()), one(&agent, &command()));
    let flow = engine.register(graph, ()).await.unwrap();
    assert_eq!((agent.stats().starts, site.processes().len()), (0, 0));
    for run in ["a", "b", "c"] {
        flow.start(run, Board::default()).await.unwrap().wait().await.unwrap();
    }
    assert_eq!(agent.stats().starts, 1);
    assert_eq!(site.processes().len(), 1);
    engine.shutdown(PATIENCE).await;
    assert_eq!(site.processes(), [0u32; 0], "it ends with its engine");
}

#[tokio::test]
async fn an_agent_that_ignores_every_request_ends_with_its_engine() {
    let site = Site::new();
    let agent = site.agent(&json!({"start": [{"do": "ignore_sigterm"}], "ignores_eof": true}));
    let (engine, (graph, _)) = (engine(options()), one(&agent, &command()));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(site.processes().len(), 1);
    engine.shutdown(PATIENCE).await;
    assert_eq!(site.processes(), [0u32; 0]);
}

#[tokio::test]
async fn an_agent_that_was_stopped_starts_again_with_its_next_command() {
    let site = Site::new();
    let agent = site.agent(&json!({}));
    site.ask(&agent, command()).await.unwrap();
    agent.stop().await;
    assert_eq!(site.processes(), [0u32; 0]);
    agent.stop().await;
    assert!(site.ask(&agent, command()).await.unwrap().is("success"));
    assert_eq!(agent.stats().starts, 2);
}

#[tokio::test]
async fn an_agent_ends_when_its_engine_is_dropped() {
    let site = Site::new();
    let agent = site.agent(&json!({}));
    let (engine, (graph, _)) = (engine(options()), one(&agent, &command()));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    drop((flow, engine));
    site.until_no_process().await;
    assert!(site.ask(&agent, command()).await.unwrap().is("success"), "and another engine can use it");
    assert_eq!(agent.stats().starts, 2);
}

#[tokio::test]
async fn an_agent_whose_heart_stops_is_ended_and_its_command_sent_to_the_next_one() {
    let site = Site::new();
    let stops = json!({"do": "once", "name": "stop", "steps": [{"do": "stop_heartbeats"}, {"do": "hang"}]});
    let steps = json!([{"do": "note", "text": "work"}, stops, {"do": "answer"}]);
    let script = json!({"actions": {"work": steps}});
    let agent = site.patient(&script).heartbeat(Duration::from_millis(60)).build().unwrap();
    assert!(site.ask(&agent, command()).await.unwrap().is("success"));
    let notes = site.notes();
    assert_eq!(notes.len(), 2);
    assert_eq!(notes[0][1], notes[1][1], "the same key");
    assert_eq!((notes[0][2].as_str(), notes[1][2].as_str()), ("1", "2"), "another attempt");
}

#[tokio::test]
async fn several_commands_are_under_way_at_once_and_each_has_its_own_answer() {
    let site = Site::new();
    let agent = site.agent(&json!({"actions": {
        "first": [{"do": "await", "path": "go"}, {"do": "answer", "status": "one"}],
        "second": [{"do": "answer", "status": "two"}],
    }}));
    let second = async {
        let reply = site.ask(&agent, Command::new("second", "T-1")).await.unwrap();
        site.put("go", "");
        reply
    };
    let (first, second) = tokio::join!(site.ask(&agent, Command::new("first", "T-1")), second);
    assert_eq!((first.unwrap().status.as_str(), second.status.as_str()), ("one", "two"));
    assert_eq!(agent.stats().starts, 1);
}

#[tokio::test]
async fn progress_and_tokens_come_into_the_runs_stream_in_order() {
    let site = Site::new();
    let tokens: Vec<_> = (0..600).map(|n| json!({"do": "token", "text": format!("{n} ")})).collect();
    let mut steps = vec![json!({"do": "progress", "percent": 50.0})];
    steps.extend(tokens);
    steps.push(json!({"do": "answer"}));
    let agent = site.agent(&json!({"actions": {"work": steps}}));
    let (engine, (graph, _)) = (engine(options()), one(&agent, &command()));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let (mut tail, mut seen) = (engine.tail("run"), vec![]);
    while let Some(event) = tail.next().await.unwrap() {
        let StreamEvent::Chunk(chunk) = event else { panic!("it was made once") };
        seen.push(chunk.payload.read::<Progress>().unwrap());
    }
    assert_eq!((seen[0].agent.as_str(), seen[0].event.as_str()), ("mock", "progress"));
    let text: Vec<String> =
        seen[1..].iter().map(|p| p.payload.read::<Value>().unwrap()["text"].to_string()).collect();
    let expected: Vec<String> = (0..600).map(|n| format!("\"{n} \"")).collect();
    assert_eq!(text, expected);
    assert_eq!(agent.stats().dropped_progress, 0);
}

#[tokio::test]
async fn a_second_engine_does_not_run_the_same_agent() {
    let site = Site::new();
    let agent = site.agent(&json!({}));
    let (engine, (graph, _)) = (engine(options()), one(&agent, &command()));
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let other = site.patient(&json!({})).lock_patience(Duration::from_millis(100)).build().unwrap();
    assert_eq!(site.fails(&other, command()).await.0, "HX0129");
    engine.shutdown(PATIENCE).await;
    assert!(site.ask(&other, command()).await.unwrap().is("success"));
}

#[tokio::test]
async fn a_command_that_timed_out_is_answered_at_the_next_attempt_without_being_done_again() {
    let site = Site::new();
    let steps = json!([{"do": "note", "text": "work"}, {"do": "await", "path": "go"}, {"do": "answer"}]);
    let agent = site.agent(&json!({"actions": {"work": steps}}));
    let command = command().timeout(Duration::from_millis(200));
    let (engine, (graph, _)) = (engine(options()), one(&agent, &command));
    let flow = engine.register(graph, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(failure(&error).code, "HX0124");
    site.put("go", "");
    while agent.stats().unknown_events == 0 {
        tokio::task::yield_now().await;
    }
    engine.retry("run").await.unwrap();
    assert_eq!(engine.wait("run").await.unwrap().word(), "succeeded");
    assert_eq!(site.notes().len(), 1, "the late answer was remembered");
}
