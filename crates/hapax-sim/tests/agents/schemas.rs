//! The schemas of docs/schemas hold in both directions: whatever is said is as they say, and what isn't is not understood.

use hapax::{
    agent::{
        Agent, Command, Workspace, flows,
        protocol::{read_from_agent, read_to_agent},
    },
    core::{order::PathHash, rng::Rng},
    prelude::*,
};
use hapax_sim::crafts;
use jsonschema::{ValidationError, Validator, error::ValidationErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
    time::Duration,
};

const SCHEMAS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas");
const KIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents");
const KINDS: [&str; 5] = ["command", "ack", "event", "heartbeat", "log"];
const PATIENCE: Duration = Duration::from_secs(120);

/// Notes what is said to an agent and by it.
const RECORDED: &str = r#"tee -a "$0.in" | "$@" | tee -a "$0.out""#;

fn schema(kind: &str) -> Value {
    let text = fs::read_to_string(format!("{SCHEMAS}/{kind}.json")).expect("a schema for each kind");
    serde_json::from_str(&text).expect("a schema is JSON")
}

fn validators() -> BTreeMap<&'static str, Validator> {
    let options = jsonschema::options().should_validate_formats(true);
    KINDS.map(|kind| (kind, options.build(&schema(kind)).expect("a schema"))).into()
}

/// What was said in one direction.
struct Heard(Vec<String>);

impl Heard {
    fn read(folder: &Path, suffix: &str) -> Self {
        let files = fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path());
        let of_it = files.filter(|file| file.extension().is_some_and(|extension| extension == suffix));
        let lines = of_it.flat_map(|file| {
            let text = fs::read_to_string(file).expect("UTF-8");
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        Self(lines.collect())
    }

    /// All of it is as the schemas say, and the reader understands it. Answers the kinds, and the names of events.
    fn must_be_valid(&self, understands: impl Fn(&[u8]) -> bool) -> BTreeSet<String> {
        let validators = validators();
        let mut said = BTreeSet::new();
        for line in &self.0 {
            let message: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            let kind = message["kind"].as_str().expect("a kind");
            let wrong: Vec<_> =
                validators[kind].iter_errors(&message).map(|error| error.to_string()).collect();
            assert!(wrong.is_empty(), "{line}: {wrong:?}");
            assert!(understands(line.as_bytes()), "{line}");
            said.insert(kind.to_owned());
            said.extend(message["event"].as_str().map(|name| format!("event {name}")));
        }
        said
    }
}

fn is_read_by_agents(line: &[u8]) -> bool {
    read_to_agent(line).is_ok()
}

fn is_read_by_engines(line: &[u8]) -> bool {
    read_from_agent(line).is_ok()
}

/// A place where everything that is said is noted.
struct Recording(tempfile::TempDir);

impl Recording {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("work")).expect("a folder");
        Self(folder)
    }

    fn workspace(&self) -> Workspace {
        Workspace::open(self.0.path().join("work")).expect("a folder")
    }

    /// The program with its arguments, between two pipes that are noted.
    fn command(&self, program: &[&str]) -> Vec<String> {
        let prefix = format!("{}/{{kind}}", self.0.path().display());
        let words = ["sh", "-c", RECORDED, &prefix].into_iter().chain(program.iter().copied());
        words.map(str::to_owned).collect()
    }

    async fn review_loop(&self, program: &[&str], work: flows::Work) {
        let command = self.command(program);
        let team = crafts::team(&self.workspace(), |kind| crafts::program(kind, &command)).expect("a team");
        let engine = Engine::open("memory:").await.expect("a store");
        let flow = engine.register(flows::review_loop(), team).await.expect("a graph");
        flow.start("run", work).await.expect("it starts").wait().await.expect("it succeeds");
        engine.shutdown(PATIENCE).await;
    }

    /// What was said to agents and by them: all valid.
    fn said(&self) -> [BTreeSet<String>; 2] {
        let to_agents = Heard::read(self.0.path(), "in").must_be_valid(is_read_by_agents);
        [to_agents, Heard::read(self.0.path(), "out").must_be_valid(is_read_by_engines)]
    }
}

fn holds(said: &BTreeSet<String>, wanted: &[&str]) {
    for word in wanted {
        assert!(said.contains(*word), "no {word} among {said:?}");
    }
}

#[tokio::test]
async fn what_engine_and_rust_agents_say_is_as_the_schemas_say() {
    let recording = Recording::new();
    recording.review_loop(&[env!("CARGO_BIN_EXE_hapax-hand")], crafts::work(2)).await;
    let [to_agents, from_agents] = recording.said();
    holds(&to_agents, &["command", "ack"]);
    holds(
        &from_agents,
        &["heartbeat", "event progress", "event implement.completed", "event update_spec.completed"],
    );
}

#[tokio::test]
async fn what_engine_and_python_agents_say_is_as_the_schemas_say() {
    let recording = Recording::new();
    let agent = format!("{KIT}/agents/{{kind}}.py");
    let work = flows::Work::new([flows::Task::new("T-1", "Roman numerals").file("src/roman.py")]);
    recording.review_loop(&["python3", "-B", &agent], work).await;
    let [to_agents, from_agents] = recording.said();
    holds(&to_agents, &["command", "ack"]);
    holds(&from_agents, &["heartbeat", "event progress", "event"]);
}

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Nothing {}
const WORK: Node = Node::new("work");

/// Commands of which some fail.
async fn work(mut ctx: hapax::Ctx<Nothing, Agent>) {
    let agent: Arc<Agent> = ctx.app();
    for action in ["plain", "passing", "final", "curious"] {
        let command = Command::new(action, "T-1").inputs(&json!({"n": u64::MAX})).optional_output("x");
        // What came of it is seen at the pipe.
        let _ = ctx.command(&agent, command).await;
    }
}

#[tokio::test]
async fn what_engine_and_mock_agents_say_is_as_the_schemas_say() {
    let failure = |retryable: bool| json!({"do": "answer", "failure": {"code": "c", "message": "m", "retryable": retryable}});
    let script = json!({"actions": {
        "plain": [
            {"do": "progress", "percent": 50.0}, {"do": "token", "text": "fn"}, {"do": "logs", "count": 3},
            {"do": "write", "path": "x", "text": "x"}, {"do": "answer"}
        ],
        "passing": [failure(true)],
        "final": [failure(false)],
        "curious": [{"do": "answer", "status": "clarification", "payload": {"questions": ["Which?"]}}],
    }});
    let recording = Recording::new();
    let command = recording.command(&[env!("CARGO_BIN_EXE_hapax-hand"), &script.to_string()]);
    let agent =
        crafts::program("mock", &command).workspace(&recording.workspace()).build().expect("an agent");
    let engine = Engine::open("memory:").await.expect("a store");
    let flow = engine.register(Graph::new("work", 1, WORK).node(WORK, work), agent).await.expect("a graph");
    flow.start("run", Nothing {}).await.expect("it starts").wait().await.expect("it succeeds");
    engine.shutdown(PATIENCE).await;
    let [to_agents, from_agents] = recording.said();
    holds(&to_agents, &["command", "ack"]);
    holds(
        &from_agents,
        &["heartbeat", "log", "event progress", "event token", "event error", "event mock.done"],
    );
}

/// Whether a reader must refuse it: something is missing, or is of another kind. (What a text may hold is stricter in the
/// schemas than in the readers, so that writers agree and readers are patient; payloads are the agents' own.)
fn is_misshapen(error: &ValidationError<'_>) -> bool {
    let place = error.instance_path().to_string();
    let is_own =
        place.starts_with("/payload/") || place.starts_with("/stats") || place.starts_with("/fields");
    match error.kind() {
        ValidationErrorKind::Required { .. } => !is_own && place != "/payload",
        ValidationErrorKind::Type { .. } => !is_own,
        _ => false,
    }
}

/// All places in a message, as pointers.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    let inside: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(values) => values.iter().enumerate().map(|(n, value)| (n.to_string(), value)).collect(),
        _ => vec![],
    };
    for (name, value) in inside {
        let place = format!("{at}/{name}");
        places(value, &place, all);
        all.push(place);
    }
}

/// Takes something away, puts something else in its place, or adds something.
fn mutate(message: &mut Value, rng: &mut Rng) {
    let mut all = vec![];
    places(message, "", &mut all);
    let place = &all[rng.below(all.len() as u64) as usize];
    let (parent, name) = place.rsplit_once('/').expect("a pointer");
    let others = [json!(true), json!(7), json!(-1), json!(1.5), json!("x"), json!(""), json!([]), json!({})];
    let other = others[rng.below(others.len() as u64) as usize].clone();
    match (rng.below(3), message.pointer_mut(parent)) {
        (0, Some(Value::Object(fields))) => drop(fields.remove(name)),
        (1, Some(Value::Object(fields))) => drop(fields.insert("unheard_of".into(), other)),
        _ => *message.pointer_mut(place).expect("it is there") = other,
    }
}

#[test]
fn what_is_not_as_the_schemas_say_is_not_understood() {
    let (validators, mut rng) = (validators(), Rng::for_item(7, 0, PathHash::ROOT, "schemas"));
    let (mut valid, mut misshapen) = (0, 0);
    for round in 0..4000 {
        let kind = KINDS[round % KINDS.len()];
        let examples = schema(kind)["examples"].as_array().expect("examples").clone();
        let mut message = examples[rng.below(examples.len() as u64) as usize].clone();
        (0..=rng.below(2)).for_each(|_| mutate(&mut message, &mut rng));
        let line = message.to_string();
        let is_read = is_read_by_agents(line.as_bytes()) || is_read_by_engines(line.as_bytes());
        if validators[kind].is_valid(&message) {
            valid += 1;
            assert!(is_read, "what is valid is read: {line}");
        } else if validators[kind].iter_errors(&message).any(|error| is_misshapen(&error)) {
            misshapen += 1;
            assert!(!is_read, "what is misshapen is refused: {line}");
        }
    }
    println!("{valid} valid, {misshapen} misshapen");
    assert!(valid > 500 && misshapen > 500, "{valid}, {misshapen}");
}
