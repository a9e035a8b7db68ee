//! Deaths on either side, at every point: the work counts once, and no file is half of anything.

use super::*;
use hapax::{
    core::{commit::Write as StoreWrite, journal::Entry},
    store::Store,
};
use serde_json::json;

fn command() -> Command {
    Command::new("work", "T-1")
        .inputs(&json!({"goal": "x", "n": 9_007_199_254_740_993_u64}))
        .output("out/x.txt")
}

fn working() -> Value {
    json!([{"do": "note", "text": "work"}, {"do": "write", "path": "out/x.txt", "text": "new"}, {"do": "answer"}])
}

#[tokio::test]
async fn a_killed_agent_leaves_no_half_edited_workspace_and_its_work_is_done_again() {
    let site = Site::new();
    site.put("out/x.txt", "old");
    let steps = json!([
        {"do": "note", "text": "work"},
        {"do": "write", "path": "out/half.txt", "text": "ha"},
        {"do": "once", "name": "die", "steps": [{"do": "note", "text": "dies"}, {"do": "crash"}]},
        {"do": "write", "path": "out/x.txt", "text": "new"},
        {"do": "answer"}
    ]);
    let agent = site.agent(&json!({"actions": {"work": steps}}));
    let reply = site.ask(&agent, command()).await.unwrap();
    assert_eq!(site.text("out/x.txt").as_deref(), Some("new"));
    let notes = site.notes();
    assert_eq!(notes.iter().map(|note| note[0].as_str()).collect::<Vec<_>>(), ["work", "dies", "work"]);
    assert!(notes.iter().all(|note| note[1] == reply.key), "one key: {notes:?}");
    assert_eq!(site.staged(), 0);
}

#[tokio::test]
async fn an_agent_that_dies_between_its_work_and_its_answer_does_not_work_again() {
    let site = Site::new();
    let steps = json!([
        {"do": "note", "text": "work"},
        {"do": "write", "path": "out/x.txt", "text": "new"},
        {"do": "remember"},
        {"do": "crash"}
    ]);
    let agent = site.agent(&json!({"actions": {"work": steps}}));
    assert!(site.ask(&agent, command()).await.unwrap().is("success"));
    assert_eq!((site.notes().len(), agent.stats().starts), (1, 2));
    assert_eq!(site.text("out/x.txt").as_deref(), Some("new"));
}

#[tokio::test]
async fn an_answer_of_an_agent_that_ends_right_behind_it_is_heard() {
    let site = Site::new();
    let agent = site.agent(&json!({"actions": {"work": [{"do": "answer"}, {"do": "exit", "code": 0}]}}));
    assert!(site.ask(&agent, Command::new("work", "T-1")).await.unwrap().is("success"));
    assert_eq!(agent.stats().starts, 1);
}

/// Executes the run in a process that dies instead of its n-th write; `false`: it had fewer.
fn die_at(site: &Site, store: &Arc<dyn Store>, fatal: usize, script: &Value) -> bool {
    let writes = AtomicUsize::new(0);
    let doomed = Process::dying_before(store, move |_| writes.fetch_add(1, Ordering::SeqCst) + 1 == fatal);
    let agent = site.agent(script);
    let (graph, _) = one(&agent, &command());
    let engine = doomed.engine(options());
    let died = doomed.run(async {
        let flow = engine.register(graph, ()).await.unwrap();
        let run = flow.start("run", Board::default()).await.unwrap();
        tokio::select! {
            () = doomed.died() => true,
            ended = run.wait() => { ended.unwrap(); false }
        }
    });
    doomed.crash();
    died
}

fn go_on(site: &Site, store: &Arc<dyn Store>, script: &Value) -> Board {
    let process = Process::healthy(store);
    let agent = site.agent(script);
    let (graph, _) = one(&agent, &command());
    let engine = process.engine(options());
    process.run(async {
        let flow = engine.register(graph, ()).await.unwrap();
        let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
        engine.shutdown(PATIENCE).await;
        // The runtime of the process that crashed ends in its own time, and its agent with it.
        site.until_no_process().await;
        board
    })
}

#[test]
fn an_engine_that_dies_before_any_write_has_the_work_done_once() {
    let script = json!({"actions": {"work": working()}});
    for fatal in 1.. {
        let (site, store) = (Site::new(), memory());
        site.put("out/x.txt", "old");
        let died = die_at(&site, &store, fatal, &script);
        assert!(
            ["old", "new"].contains(&&*site.text("out/x.txt").unwrap()),
            "half of anything, at write {fatal}"
        );
        let before = site.receipts();
        assert_eq!(go_on(&site, &store, &script).log, ["success"], "write {fatal}");
        assert_eq!(site.text("out/x.txt").as_deref(), Some("new"), "write {fatal}");
        let (notes, after) = (site.notes(), site.receipts());
        assert_eq!(notes.len(), 1, "write {fatal}: {notes:?}");
        assert_eq!(after.len(), 1, "write {fatal}");
        assert!(before.is_empty() || before == after, "a receipt is never overwritten");
        assert_eq!(after[0].snapshot_after, site.workspace.snapshot().unwrap().id);
        assert_eq!(site.staged(), 0, "write {fatal}");
        if !died {
            assert!(fatal > 4, "an intent and a result each, and the step: {fatal}");
            return;
        }
    }
}

#[test]
fn a_re_run_never_puts_an_old_file_over_a_newer_one() {
    let (site, store) = (Site::new(), memory());
    let script = json!({"actions": {
        "first": [{"do": "write", "path": "x", "text": "1"}, {"do": "answer"}],
        "second": [{"do": "write", "path": "x", "text": "2"}, {"do": "answer"}],
    }});
    let graph = |agent: Agent| {
        let both = node!(
            [agent] | ctx | {
                ctx.command(&agent, Command::new("first", "T-1").output("x")).await?;
                let reply = ctx.command(&agent, Command::new("second", "T-1").output("x")).await?;
                Ok::<_, NodeError>(Board::delta().log(reply.snapshot_id))
            }
        );
        Graph::new("both", 1, WORK).node(WORK, both)
    };
    let doomed =
        Process::dying_before(&store, |write| matches!(write, StoreWrite::Step(step) if step.follows == 0));
    let (first, engine) = (graph(site.agent(&script)), doomed.engine(options()));
    doomed.run(async {
        engine.register(first, ()).await.unwrap().start("run", Board::default()).await.unwrap();
        doomed.died().await;
    });
    doomed.crash();
    assert_eq!(site.text("x").as_deref(), Some("2"));
    // Somebody goes on with the file before the run does.
    site.put("x", "3");
    let process = Process::healthy(&store);
    let (agent, engine) = (site.agent(&script), process.engine(options()));
    let again = graph(agent.clone());
    process.run(async {
        let run = engine.register(again, ()).await.unwrap().start("run", Board::default()).await.unwrap();
        run.wait().await.unwrap();
    });
    assert_eq!(site.text("x").as_deref(), Some("3"));
    assert_eq!((site.receipts().len(), agent.stats().sent), (2, 0), "what is recorded isn't sent again");
}

#[tokio::test]
async fn a_replay_starts_no_process_and_touches_no_file() {
    let (site, store) = (Site::new(), memory());
    let agent = site.agent(&json!({"actions": {"work": working()}}));
    let live = Engine::builder().options(options()).with_store(store.clone());
    let flow = live.register(one(&agent, &command()).0, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    live.shutdown(PATIENCE).await;
    fs::remove_dir_all(site.root()).unwrap();
    fs::create_dir(site.root()).unwrap();
    let looks = Engine::builder().options(options().finds_work(false)).with_store(store);
    looks.register(one(&agent, &command()).0, ()).await.unwrap();
    let replay = looks.replay("run").await.unwrap();
    assert_eq!((replay.divergence, replay.calls), (None, 3));
    assert_eq!(agent.stats().starts, 1);
    assert_eq!(fs::read_dir(site.root()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_failure_that_may_pass_is_tried_again_with_the_same_key() {
    let site = Site::new();
    let busy =
        json!({"do": "answer", "failure": {"code": "busy", "message": "try later", "retryable": true}});
    let steps = json!([
        {"do": "note", "text": "work"},
        {"do": "once", "name": "busy", "steps": [busy, {"do": "hang"}]},
        {"do": "answer"}
    ]);
    let agent = site.agent(&json!({"actions": {"work": steps}}));
    let (graph, _) = one(&agent, &Command::new("work", "T-1"));
    let twice = NodePolicy::default().retry(Retry::standard().attempts(2).backoff(|_| Duration::ZERO));
    let engine = engine(options());
    let flow = engine.register(graph.policy(WORK, twice), ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(board.log, ["success"]);
    let notes = site.notes();
    assert_eq!((notes.len(), &notes[0][1]), (2, &notes[1][1]), "the same key");
    assert_eq!((&*notes[0][2], &*notes[1][2]), ("1", "2"));
}

#[tokio::test]
async fn a_final_failure_is_not_tried_again_until_a_person_asks_for_it() {
    let site = Site::new();
    let no = json!({"do": "answer", "failure": {"code": "no_model", "message": "which model?", "retryable": false}});
    let steps = json!([
        {"do": "note", "text": "work"},
        {"do": "once", "name": "no", "steps": [no, {"do": "hang"}]},
        {"do": "answer"}
    ]);
    let agent = site.agent(&json!({"actions": {"work": steps}}));
    let (graph, _) = one(&agent, &Command::new("work", "T-1"));
    let often = NodePolicy::default().retry(Retry::standard().attempts(5).backoff(|_| Duration::ZERO));
    let engine = engine(options());
    let flow = engine.register(graph.policy(WORK, often), ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(failure(&error).code, "HX0122");
    assert!(failure(&error).message.contains("no_model") && failure(&error).message.contains("which model?"));
    assert_eq!(site.notes().len(), 1);
    engine.retry("run").await.unwrap();
    assert_eq!(
        engine.wait("run").await.unwrap().word(),
        "succeeded",
        "the agent was told to forget the failure"
    );
    assert_eq!(site.notes().len(), 2);
}

#[tokio::test]
async fn a_final_failure_is_forgotten_before_it_is_tried_again_though_the_agent_was_never_told() {
    let (site, store) = (Site::new(), memory());
    let no = json!({"do": "answer", "failure": {"code": "no_model", "message": "which model?", "retryable": false}});
    let steps = json!([
        {"do": "note", "text": "work"},
        // Gone right behind its answer, it hears no acknowledgement; and that is all that its engine has in memory.
        {"do": "once", "name": "no", "steps": [no, {"do": "crash"}]},
        {"do": "answer"}
    ]);
    let script = json!({"actions": {"work": steps}});
    let command = Command::new("work", "T-1");
    let first = Engine::builder().options(options()).with_store(store.clone());
    let flow = first.register(one(&site.agent(&script), &command).0, ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(failure(&error).code, "HX0122");
    first.shutdown(PATIENCE).await;
    let second = Engine::builder().options(options()).with_store(store);
    second.register(one(&site.agent(&script), &command).0, ()).await.unwrap();
    second.retry("run").await.unwrap();
    assert_eq!(second.wait("run").await.unwrap().word(), "succeeded", "it isn't the old failure once more");
    assert_eq!(site.notes().len(), 2);
}

#[tokio::test]
async fn the_journal_has_an_intent_and_a_result_under_the_commands_own_key() {
    let (site, store) = (Site::new(), memory());
    let agent = site.agent(&json!({"actions": {"work": working()}}));
    let engine = Engine::builder().options(options()).with_store(store.clone());
    let (graph, replies) = one(&agent, &command());
    let own_way = NodePolicy::default().idempotency(|_| "another key".into());
    let flow = engine.register(graph.policy(WORK, own_way), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let rows = store.journal(key("run"), 0, 100).await.unwrap();
    let entries = rows.into_iter().flat_map(|row| match row.entry {
        Entry::Several(entries) => entries,
        entry => vec![entry],
    });
    let keys = entries.filter_map(|entry| match entry {
        Entry::Intent(intent) => Some((intent.name, intent.key)),
        _ => None,
    });
    let keys: Vec<_> = keys.collect();
    let own = replies.lock().unwrap()[0].key.clone();
    assert!(own.starts_with("ik:"));
    assert_eq!(keys[0], ("work".to_owned(), own), "no policy overrides it");
    assert_eq!(keys[1].0, "work.install");
}
