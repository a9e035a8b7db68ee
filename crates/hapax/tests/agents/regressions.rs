//! What broke the program that agents were first written for: each is named after its mistake.

use super::*;
use hapax::{
    agent::ledger,
    core::journal::{EffectOutcome, Entry},
};
use serde_json::json;

const REVIEW: Node = Node::new("review");
const CHANGE: Node = Node::new("change");
const TASK: Node<u32> = Node::new("task");
const SPLIT: Node = Node::new("split");

/// Review, change, review: until it is approved. The round is part of the inputs.
fn review_loop(agent: &Agent) -> Graph<Board> {
    let agent = agent.clone();
    let review = node!(
        [agent] | ctx | {
            let round = ctx.state().total;
            let command = Command::new("review", "T-1").inputs(&json!({"round": round}));
            let reply = ctx.command(&agent, command).await?;
            let delta = Board::delta().log(format!("{} {}", reply.status, reply.key));
            Ok::<_, NodeError>(if reply.is("approved") { delta.stop() } else { delta.goto(CHANGE) })
        }
    );
    let change = node!(
        [agent] | ctx | {
            let round = ctx.state().total;
            let command = Command::new("change", "T-1").inputs(&json!({"round": round})).output("x");
            ctx.command(&agent, command).await?;
            Ok::<_, NodeError>(Board::delta().total(1u64).goto(REVIEW))
        }
    );
    Graph::new("review", 1, REVIEW).node(REVIEW, review).node(CHANGE, change)
}

fn reviewer() -> Value {
    json!({"actions": {
        "review": [{"do": "note", "text": "review"}, {"do": "answer", "statuses": ["changes_requested", "changes_requested", "approved"]}],
        "change": [{"do": "note", "text": "change"}, {"do": "write", "path": "x", "text": "same"}, {"do": "answer"}],
    }})
}

#[tokio::test]
async fn same_key_for_every_review_round() {
    let site = Site::new();
    // The change leaves the same file each time: not even the snapshot tells the rounds apart.
    site.put("x", "same");
    let engine = engine(options());
    let flow = engine.register(review_loop(&site.agent(&reviewer())), ()).await.unwrap();
    let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let words: Vec<_> = board.log.iter().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(words, ["changes_requested", "changes_requested", "approved"]);
    let keys: std::collections::BTreeSet<_> =
        board.log.iter().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(keys.len(), 3);
}

/// Kills the engine before each write of the loop in turn, and goes on.
#[test]
fn pending_change_command_not_resent_and_only_the_first_review_inspected() {
    for fatal in (1..40).step_by(3) {
        let (site, store) = (Site::new(), memory());
        let writes = AtomicUsize::new(0);
        let doomed =
            Process::dying_before(&store, move |_| writes.fetch_add(1, Ordering::SeqCst) + 1 == fatal);
        let (graph, engine) = (review_loop(&site.agent(&reviewer())), doomed.engine(options()));
        let died = doomed.run(async {
            let run = engine.register(graph, ()).await.unwrap().start("run", Board::default()).await.unwrap();
            tokio::select! {
                () = doomed.died() => true,
                ended = run.wait() => { ended.unwrap(); false }
            }
        });
        doomed.crash();
        let process = Process::healthy(&store);
        let (graph, engine) = (review_loop(&site.agent(&reviewer())), process.engine(options()));
        let board = process.run(async {
            let run = engine.register(graph, ()).await.unwrap().start("run", Board::default()).await.unwrap();
            let board = run.wait().await.unwrap();
            engine.shutdown(PATIENCE).await;
            board
        });
        assert_eq!((board.log.len(), board.total), (3, 2), "write {fatal}: every stage was gone through");
        let mut keys: Vec<_> = site.notes().into_iter().map(|note| note[1].clone()).collect();
        assert_eq!(keys.len(), 5, "write {fatal}: three reviews and two changes");
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 5, "write {fatal}: each once, under a key of its own");
        assert_eq!(site.receipts().len(), 5);
        if !died {
            return;
        }
    }
    panic!("the loop has more writes than were tried");
}

/// Four tasks side by side.
fn tasks(agent: &Agent) -> Graph<Board> {
    let agent = agent.clone();
    let split = node!([] | ctx | { Board::delta().fork((0..4).map(|task| TASK.with(task))) });
    let task = node!([agent] |ctx, task: u32| {
        let name = format!("T-{task}");
        let reply = ctx.command(&agent, Command::new("work", &name).output("out/all")).await?;
        Ok::<_, NodeError>(Board::delta().log(format!("{name} {}", reply.status)))
    });
    Graph::new("tasks", 1, SPLIT).node(SPLIT, split).node(TASK, task)
}

fn task_agent(site: &Site) -> Agent {
    let steps = json!([{"do": "note", "text": "work"}, {"do": "write", "path": "out/all", "text": "x"}, {"do": "answer"}]);
    site.agent(&json!({"actions": {"work": steps}}))
}

#[test]
fn remaining_tasks_lost_on_resume() {
    for fatal in [2, 5, 8, 11] {
        let (site, store) = (Site::new(), memory());
        let writes = AtomicUsize::new(0);
        let doomed =
            Process::dying_before(&store, move |_| writes.fetch_add(1, Ordering::SeqCst) + 1 == fatal);
        let (graph, engine) = (tasks(&task_agent(&site)), doomed.engine(options()));
        doomed.run(async {
            engine.register(graph, ()).await.unwrap().start("run", Board::default()).await.unwrap();
            doomed.died().await;
        });
        doomed.crash();
        let process = Process::healthy(&store);
        let (graph, engine) = (tasks(&task_agent(&site)), process.engine(options()));
        let board = process.run(async {
            let run = engine.register(graph, ()).await.unwrap().start("run", Board::default()).await.unwrap();
            let board = run.wait().await.unwrap();
            engine.shutdown(PATIENCE).await;
            board
        });
        assert_eq!(board.log, ["T-0 success", "T-1 success", "T-2 success", "T-3 success"], "write {fatal}");
    }
}

#[tokio::test]
async fn a_run_with_nothing_pending_declared_complete_though_its_stages_were_not() {
    let (site, store) = (Site::new(), memory());
    let agent = site.agent(&reviewer());
    let refuses = Engine::builder().options(options().max_steps(Some(1))).with_store(store.clone());
    let flow = refuses.register(review_loop(&agent), ()).await.unwrap();
    let stopped = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    assert_eq!(failure(&stopped).code, "HX0024", "between two stages, with no command under way");
    refuses.shutdown(PATIENCE).await;
    let engine = Engine::builder().options(options()).with_store(store);
    let flow = engine.register(review_loop(&agent), ()).await.unwrap();
    engine.retry("run").await.unwrap();
    assert_eq!(engine.wait("run").await.unwrap().word(), "succeeded");
    assert_eq!(flow.start("run", Board::default()).await.unwrap().wait().await.unwrap().total, 2);
}

#[tokio::test]
async fn error_counted_as_success() {
    for answer in [
        json!({"do": "answer", "event": "error", "status": "success", "payload": {"code": "c", "message": "m"}}),
        json!({"do": "answer", "status": "failed"}),
        json!({"do": "answer", "failure": {"code": "c", "message": "m", "retryable": false}}),
    ] {
        let site = Site::new();
        let agent = site.agent(&json!({"actions": {"work": [answer]}}));
        assert_eq!(site.fails(&agent, Command::new("work", "T-1")).await.0, "HX0122", "{answer}");
        assert!(site.receipts().is_empty());
    }
}

#[tokio::test]
async fn the_agents_death_wrote_null_into_the_ledger() {
    let (site, store) = (Site::new(), memory());
    let agent = site.agent(&json!({"start": [{"do": "crash"}]}));
    let engine = Engine::builder().options(options()).with_store(store.clone());
    let flow = engine.register(one(&agent, &Command::new("work", "T-1")).0, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    let files = ledger::export(&engine, "run", &site.file("export")).await.unwrap();
    let lines = ledger::read(&files.events).unwrap().lines;
    let entries = lines.into_iter().flat_map(|line| match line.entry {
        Entry::Several(entries) => entries,
        entry => vec![entry],
    });
    let results: Vec<_> = entries
        .filter_map(|entry| match entry {
            Entry::Result { outcome, .. } => Some(outcome),
            _ => None,
        })
        .collect();
    assert!(matches!(&results[..], [EffectOutcome::Err { code, .. }] if code == "HX0123"), "{results:?}");
}

#[tokio::test]
async fn a_torn_last_line_made_the_ledger_unreadable() {
    let (site, store) = (Site::new(), memory());
    let agent = site
        .agent(&json!({"actions": {"work": [{"do": "write", "path": "x", "text": "1"}, {"do": "answer"}]}}));
    let engine = Engine::builder().options(options()).with_store(store.clone());
    let flow = engine.register(one(&agent, &Command::new("work", "T-1")).0, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    let files = ledger::export(&engine, "run", &site.file("export")).await.unwrap();
    let whole = ledger::read(&files.events).unwrap();
    assert_eq!((whole.lines.len() as u64, whole.is_torn), (files.lines, false));
    let bytes = fs::read(&files.events).unwrap();
    for cut in 1..200.min(bytes.len()) {
        fs::write(&files.events, &bytes[..bytes.len() - cut]).unwrap();
        let torn = ledger::read(&files.events).unwrap();
        assert_eq!(torn.lines[..], whole.lines[..torn.lines.len()], "{cut} bytes short");
        assert!(torn.lines.len() < whole.lines.len());
    }
    let state: ledger::RunState = serde_json::from_slice(&fs::read(&files.state).unwrap()).unwrap();
    assert_eq!((state.run.as_str(), state.status.word()), ("run", "succeeded"));
}

#[tokio::test]
async fn clarification_re_sent_other_inputs_under_the_same_key() {
    let site = Site::new();
    let agent = site.agent(&json!({"actions": {"plan": [
        {"do": "note", "text": "plan"},
        {"do": "answer", "statuses": ["clarification", "success"], "payload": {"questions": ["Which base?"]}}
    ]}}));
    let work = node!(
        [agent] | ctx | {
            let first =
                ctx.command(&agent, Command::new("plan", "T-1").inputs(&json!({"goal": "g"}))).await?;
            assert_eq!(first.questions(), ["Which base?"]);
            let answers = json!({"goal": "g", "answers": ["ten"]});
            let second = ctx.command(&agent, Command::new("plan", "T-1").inputs(&answers)).await?;
            assert!(second.is("success") && second.key != first.key);
            Ok::<_, NodeError>(())
        }
    );
    let engine = engine(options());
    let flow = engine.register(Graph::new("plan", 1, WORK).node(WORK, work), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(site.notes().len(), 2);
}

#[tokio::test]
async fn integers_over_2_to_the_53_changed_on_reload() {
    let site = Site::new();
    let payload = json!({"n": 9_007_199_254_740_993_u64, "m": u64::MAX});
    let agent = site.agent(&json!({"actions": {"work": [{"do": "answer", "payload": payload}]}}));
    let one = Command::new("work", "T-1").inputs(&json!({"n": 9_007_199_254_740_993_u64}));
    let other = Command::new("work", "T-1").inputs(&json!({"n": 9_007_199_254_740_992_u64}));
    let (one, other) = (site.ask(&agent, one).await.unwrap(), site.ask(&agent, other).await.unwrap());
    assert_ne!(one.key, other.key, "as floats they would be one");
    assert_eq!(one.payload::<Value>().unwrap(), payload);
    let receipts = site.receipts();
    assert!(receipts.iter().all(|receipt| receipt.event.payload.as_str().contains("9007199254740993")));
}

#[tokio::test]
async fn the_snapshot_id_changed_with_mtime() {
    let site = Site::new();
    site.put("x", "1");
    let agent = site.agent(&json!({"actions": {"work": [{"do": "note", "text": "work"}, {"do": "answer"}]}}));
    let first = site.ask(&agent, Command::new("work", "T-1")).await.unwrap();
    let file = fs::File::options().append(true).open(site.root().join("x")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
    let second = site.ask(&agent, Command::new("work", "T-1")).await.unwrap();
    assert_eq!(first.key, second.key);
    assert_eq!(site.notes().len(), 1, "the same work, answered from memory");
}
