//! The review loop: what it does, and that it goes on where it was, whenever its engine dies.
//!
//! Tests that are named after a mistake hold what broke the program that agents were first written for.

use super::*;
use hapax::{
    agent::flows::{self, Task, Team, Verdict, Work},
    core::trace::traceparent,
    store::Store,
    watch::{Span, Watch, What},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

/// Notes what reaches an agent's standard input, line by line.
const RECORDED: &str = r#"tee -a "$1" | exec "$2" "$3""#;

impl Site {
    /// An agent whose commands are kept in a file that has its name.
    fn recorded(&self, kind: &str, actions: &Value) -> Agent {
        let (script, heard) = (json!({"actions": actions}), self.file(kind));
        Agent::builder(kind, "sh")
            .args(["-c", RECORDED, "sh"])
            .args([heard.into_os_string(), env!("CARGO_BIN_EXE_hapax-mock-agent").into()])
            .arg(script.to_string())
            .workspace(&self.workspace)
            .grace(Duration::from_millis(50))
            .lock_patience(PATIENCE)
            .start_timeout(PATIENCE)
            .build()
            .unwrap()
    }

    /// The commands that the agents got, each resend too, in the order in which each agent got them.
    fn commands(&self) -> Vec<Value> {
        let agents = ["builder", "reviewer", "spec_keeper"];
        let lines = agents.map(|kind| fs::read_to_string(self.file(kind)).unwrap_or_default());
        let all = lines.iter().flat_map(|lines| lines.lines());
        let messages = all.map(|line| serde_json::from_str::<Value>(line).unwrap());
        messages.filter(|message| message["kind"] == "command").collect()
    }

    /// What each agent worked on.
    fn worked(&self) -> Vec<String> {
        let notes = ["builder", "reviewer", "spec_keeper"].map(|kind| {
            let file = self.root().join(format!(".hapax/agents/{kind}/state/notes"));
            fs::read_to_string(file).unwrap_or_default()
        });
        notes.concat().lines().map(str::to_owned).collect()
    }
}

/// Builds `x`, and changes it once for each task.
fn builder() -> Value {
    let make = |text: &str| json!([{"do": "note", "text": text}, {"do": "write", "path": "x", "text": text}, {"do": "answer"}]);
    json!({"implement": make("first"), "change": make("better")})
}

/// Its words for one review after the other.
fn reviewer(words: &[&str]) -> Value {
    let answer = json!({"do": "answer", "statuses": words, "payload": {"findings": ["name it", {"message": "test it"}]}});
    json!({"review": [{"do": "note", "text": "review"}, answer]})
}

fn spec_keeper() -> Value {
    json!({"update_spec": [{"do": "note", "text": "spec"}, {"do": "write", "path": "SPEC.md", "text": "true"}, {"do": "answer"}]})
}

fn team(site: &Site, builder: &Value, words: &[&str]) -> Team {
    Team {
        builder: site.recorded("builder", builder),
        reviewer: site.recorded("reviewer", &reviewer(words)),
        spec_keeper: site.recorded("spec_keeper", &spec_keeper()),
    }
}

const WORDS: [&str; 5] =
    ["changes_requested", "changes_requested", "approved", "changes_requested", "approved"];

/// Two tasks: one of three rounds, one of two.
fn work() -> Work {
    Work::new([Task::new("T-1", "first goal").file("x"), Task::new("T-2", "second goal").file("x")])
}

fn usual(site: &Site) -> Team {
    team(site, &builder(), &WORDS)
}

/// Every stage of `work`, in order.
const STAGES: [&str; 12] = [
    "T-1 round 1: build: success",
    "T-1 round 1: review: changes_requested",
    "T-1 round 1: change: success",
    "T-1 round 2: review: changes_requested",
    "T-1 round 2: change: success",
    "T-1 round 3: review: approved",
    "T-1 round 3: update_spec: success",
    "T-2 round 1: build: success",
    "T-2 round 1: review: changes_requested",
    "T-2 round 1: change: success",
    "T-2 round 2: review: approved",
    "T-2 round 2: update_spec: success",
];

async fn done(engine: &Engine, team: Team, work: Work) -> Result<Work, Error> {
    let flow = engine.register(flows::review_loop(), team).await?;
    let work = flow.start("run", work).await?.wait().await;
    engine.shutdown(PATIENCE).await;
    work
}

#[tokio::test]
async fn tasks_are_built_reviewed_changed_and_written_down_one_after_the_other() {
    let site = Site::new();
    let end = done(&engine(options()), usual(&site), work()).await.unwrap();
    assert_eq!((end.done, end.round), (2, 1));
    assert_eq!(end.log, STAGES);
    let rounds: Vec<_> = end.verdicts.iter().map(|verdict| (&*verdict.task, verdict.round)).collect();
    assert_eq!(rounds, [("T-1", 1), ("T-1", 2), ("T-1", 3), ("T-2", 1), ("T-2", 2)]);
    assert_eq!(end.verdicts.iter().filter(|verdict| verdict.is_content()).count(), 2);
    assert_eq!((site.text("x").as_deref(), site.text("SPEC.md").as_deref()), (Some("better"), Some("true")));
    let keys: BTreeSet<_> =
        site.commands().iter().map(|command| command["idempotency_key"].to_string()).collect();
    assert_eq!(keys.len(), STAGES.len(), "each stage is work of its own, though the files are the same");
}

/// Keeps the headers that lead to commands.
#[derive(Default)]
struct Commands(Mutex<BTreeSet<String>>);

impl Watch for Commands {
    fn over(&self, span: Span) {
        if let What::Call { command: true, .. } = span.what {
            self.0.lock().unwrap().insert(traceparent(span.trace, span.id, true));
        }
    }
}

#[tokio::test]
async fn a_command_names_its_span_when_it_is_traced_and_is_the_same_work_when_it_is_not() {
    let (site, other, told) = (Site::new(), Site::new(), Arc::<Commands>::default());
    let traced = engine(options());
    traced.watch(told.clone()).unwrap();
    done(&traced, usual(&site), work()).await.unwrap();
    done(&engine(options()), usual(&other), work()).await.unwrap();
    let headers = |site: &Site| -> Vec<Value> {
        site.commands().iter().map(|command| command["traceparent"].clone()).collect()
    };
    let named: BTreeSet<_> =
        headers(&site).iter().map(|header| header.as_str().unwrap().to_owned()).collect();
    assert_eq!((named.len(), &named), (STAGES.len(), &*told.0.lock().unwrap()));
    assert!(headers(&other).iter().all(Value::is_null), "{:?}", headers(&other));
    let keys = |site: &Site| -> Vec<Value> {
        site.commands().iter().map(|command| command["idempotency_key"].clone()).collect()
    };
    assert_eq!(keys(&site), keys(&other));
}

#[tokio::test]
async fn a_change_and_the_next_review_are_told_what_was_found() {
    let site = Site::new();
    done(&engine(options()), usual(&site), work()).await.unwrap();
    let found = json!(["name it", {"message": "test it"}]);
    for command in site.commands() {
        let inputs = &command["inputs"];
        let is_told = command["action"] == "change" || inputs["round"] != 1;
        let wanted = if is_told { &found } else { &json!([]) };
        // The keeper of the specification is told what the approving review said.
        if command["action"] != "update_spec" {
            assert_eq!(&inputs["findings"], wanted, "{command}");
        }
        let goal = if command["task_id"] == "T-1" { "first goal" } else { "second goal" };
        assert_eq!(inputs["goal"], goal);
    }
}

#[tokio::test]
async fn a_review_that_is_never_content_fails_after_its_rounds_and_says_what_was_found() {
    let site = Site::new();
    let team = team(&site, &builder(), &["changes_requested"]);
    let error = done(&engine(options()), team, work().max_rounds(2)).await.unwrap_err();
    let failure = failure(&error);
    assert_eq!(failure.code, "HX0132");
    assert!(failure.message.contains("`T-1` isn't content after 2 rounds"), "{}", failure.message);
    assert!(failure.message.contains("name it; test it"), "{}", failure.message);
    let reviews = site.commands().iter().filter(|command| command["action"] == "review").count();
    assert_eq!(reviews, 2);
}

#[tokio::test]
async fn a_word_that_is_no_verdict_and_a_question_without_words_fail_the_run() {
    for (builder, word) in [
        (builder(), "success"),
        (json!({"implement": [{"do": "answer", "status": "clarification"}]}), "approved"),
        (
            json!({"implement": [{"do": "answer", "status": "clarification", "payload": {"questions": []}}]}),
            "approved",
        ),
    ] {
        let site = Site::new();
        let error = done(&engine(options()), team(&site, &builder, &[word]), work()).await.unwrap_err();
        assert_eq!(failure(&error).code, "HX0125", "{word}");
    }
    let nothing = done(&engine(options()), usual(&Site::new()), Work::new([])).await.unwrap_err();
    assert_eq!(failure(&nothing).code, "HX0120");
}

/// Executes the run in a process that dies instead of its n-th write, and goes on in another.
struct Resumed {
    site: Site,
    end: Work,
    /// The receipts when it died.
    receipts: Vec<Receipt>,
    died: bool,
}

impl Resumed {
    fn at(fatal: usize) -> Self {
        let (site, store) = (Site::new(), memory());
        let writes = AtomicUsize::new(0);
        let doomed =
            Process::dying_before(&store, move |_| writes.fetch_add(1, Ordering::SeqCst) + 1 == fatal);
        let (team, engine) = (usual(&site), doomed.engine(options()));
        let died = doomed.run(async {
            let flow = engine.register(flows::review_loop(), team).await.unwrap();
            let run = flow.start("run", work()).await.unwrap();
            tokio::select! {
                () = doomed.died() => true,
                ended = run.wait() => { ended.unwrap(); false }
            }
        });
        doomed.crash();
        let receipts = site.receipts();
        let end = Self::go_on(&site, &store);
        Self { site, end, receipts, died }
    }

    fn go_on(site: &Site, store: &Arc<dyn Store>) -> Work {
        let process = Process::healthy(store);
        let (team, engine) = (usual(site), process.engine(options()));
        process.run(async { done(&engine, team, work()).await.unwrap() })
    }

    /// From the n-th write, each fourth until there is none.
    fn each(first: usize, check: impl Fn(&Self)) {
        for fatal in (first..).step_by(4) {
            let resumed = Self::at(fatal);
            println!("died at write {fatal}");
            check(&resumed);
            if !resumed.died {
                assert!(fatal > 30, "a run of twelve commands has more writes");
                return;
            }
        }
    }
}

#[test]
fn resume_sent_no_inputs_and_so_another_key() {
    Resumed::each(1, |resumed| {
        let mut sent = BTreeMap::<String, (Value, Value)>::new();
        for command in resumed.site.commands() {
            assert!(command["inputs"]["goal"].is_string(), "{command}");
            let stage =
                format!("{} {} {}", command["task_id"], command["action"], command["inputs"]["round"]);
            let (key, inputs) = (command["idempotency_key"].clone(), command["inputs"].clone());
            let before = sent.entry(stage).or_insert((key.clone(), inputs.clone()));
            assert_eq!(*before, (key, inputs), "what is sent again is the same");
        }
        assert_eq!(sent.len(), STAGES.len());
    });
}

#[test]
fn remaining_tasks_lost_on_resume() {
    Resumed::each(2, |resumed| {
        assert_eq!((resumed.end.done, &resumed.end.log[..]), (2, &STAGES.map(str::to_owned)[..]));
    });
}

#[test]
fn pending_change_command_not_resent() {
    Resumed::each(3, |resumed| {
        let worked = resumed.site.worked();
        let changes: BTreeSet<_> = worked.iter().filter(|line| line.starts_with("better")).collect();
        assert_eq!(changes.len(), 3, "{worked:?}");
        assert_eq!(worked.len(), STAGES.len(), "each was worked on once: {worked:?}");
        assert_eq!(resumed.site.receipts().len(), STAGES.len());
    });
}

#[test]
fn only_the_first_review_inspected_and_receipts_overwritten_after_resume() {
    Resumed::each(4, |resumed| {
        let now = resumed.site.receipts();
        assert!(resumed.receipts.iter().all(|receipt| now.contains(receipt)), "each stays as it was");
        let words: Vec<_> = resumed.end.verdicts.iter().map(|verdict: &Verdict| &*verdict.status).collect();
        assert_eq!(words, WORDS, "each round has a verdict of its own, and the last decides");
    });
}

#[tokio::test]
async fn a_run_with_nothing_pending_declared_complete_though_its_stages_were_not() {
    for steps in [1, 4, 7, 11] {
        let (site, store) = (Site::new(), memory());
        let stopped = Engine::builder().options(options().max_steps(Some(steps))).with_store(store.clone());
        let error = done(&stopped, usual(&site), work()).await.unwrap_err();
        assert_eq!(failure(&error).code, "HX0024", "between two stages, with no command under way");
        assert_eq!(site.receipts().len() as u64, steps);
        let engine = Engine::builder().options(options()).with_store(store);
        let flow = engine.register(flows::review_loop(), usual(&site)).await.unwrap();
        let end = flow.retry("run").await.unwrap().wait().await.unwrap();
        assert_eq!(end.log, STAGES, "stopped after {steps}");
        engine.shutdown(PATIENCE).await;
    }
}

/// Asks two things before it builds.
fn curious() -> Value {
    let asks = json!({"do": "answer", "statuses": ["clarification", "success"], "payload": {"questions": ["Which base?", "Which sign?"]}});
    let mut builder = builder();
    builder["implement"][2] = asks;
    builder
}

async fn asked(engine: &Engine) -> hapax::OpenQuestion {
    loop {
        if let [question] = &engine.inbox().await.unwrap()[..] {
            return question.clone();
        }
        tokio::task::yield_now().await;
    }
}

/// Answers what the run asks, each in another engine.
#[tokio::test]
async fn clarification_re_sent_other_inputs_under_the_same_key() {
    let (site, store) = (Site::new(), memory());
    let work = Work::new([Task::new("T-1", "first goal").file("x")]);
    for (question, answer) in [("T-1: Which base?", "ten"), ("T-1: Which sign?", "none")] {
        let engine = Engine::builder().options(options()).with_store(store.clone());
        let team = team(&site, &curious(), &["approved"]);
        let flow = engine.register(flows::review_loop(), team).await.unwrap();
        flow.start("run", work.clone()).await.unwrap();
        let open = asked(&engine).await;
        assert_eq!((&*open.name, &*open.text), ("builder", question));
        engine.shutdown(PATIENCE).await;
        let person = Engine::builder().options(options().finds_work(false)).with_store(store.clone());
        assert!(person.answer("run", "builder", &7).await.is_err(), "a text is asked for");
        person.answer("run", "builder", answer).await.unwrap();
    }
    let engine = Engine::builder().options(options()).with_store(store);
    let end = done(&engine, team(&site, &curious(), &["approved"]), work).await.unwrap();
    let told: Vec<_> = end.answers.iter().map(|told| (&*told.question, &*told.answer)).collect();
    assert_eq!(told, [("Which base?", "ten"), ("Which sign?", "none")]);
    let commands = site.commands();
    let [first, second] = &commands[..2] else { panic!("{commands:?}") };
    assert_eq!((&first["action"], &second["action"]), (&json!("implement"), &json!("implement")));
    assert_ne!(first["idempotency_key"], second["idempotency_key"]);
    assert_eq!(first["inputs"]["answers"], json!([]));
    let answers =
        json!([{"question": "Which base?", "answer": "ten"}, {"question": "Which sign?", "answer": "none"}]);
    for command in &commands[1..] {
        assert_eq!(command["inputs"]["answers"], answers, "whoever comes later knows it, too: {command}");
    }
    assert_eq!(site.worked().iter().filter(|line| line.starts_with("first")).count(), 2);
}
