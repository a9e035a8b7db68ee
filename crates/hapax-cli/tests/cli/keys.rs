//! `canon` and `key` give every known answer, byte for byte, and nothing on stdout when they fail.

use crate::common::{said, stock};
use serde_json::Value;
use std::{
    ffi::OsStr,
    io::Write,
    os::unix::ffi::OsStrExt,
    process::{Command, Stdio},
};

fn vectors(name: &str) -> Vec<Value> {
    let path = format!("{}/../hapax-core/tests/vectors/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let vectors: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(!vectors.is_empty(), "a file without vectors proves nothing");
    vectors
}

fn key(args: &[&str]) -> String {
    said(stock(&[&["key"], args].concat())).ok()
}

/// A field as it is given on a command line.
fn arg(vector: &Value, field: &str) -> String {
    match &vector[field] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn canon(input: &[u8]) -> crate::common::Said {
    let mut child = stock(&["canon"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    crate::common::Said {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn canonical_json() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(OsStr::from_bytes(b"not \xff utf-8.json"));
    for vector in vectors("canonical_json") {
        let expected = format!("{}\n", arg(&vector, "canonical"));
        assert_eq!(canon(arg(&vector, "json").as_bytes()).ok(), expected);
        std::fs::write(&file, arg(&vector, "json")).unwrap();
        let mut command = stock(&["canon"]);
        command.arg(&file);
        assert_eq!(said(command).ok(), expected);
    }
}

#[test]
fn step_keys() {
    for vector in vectors("step_key") {
        let [run, step, frontier, state] =
            ["run_id", "step_id", "frontier", "state_json"].map(|f| arg(&vector, f));
        let args =
            ["step", "--run-id", &run, "--step", &step, "--frontier", &frontier, "--state-json", &state];
        assert_eq!(key(&args), format!("{}\n", arg(&vector, "key")), "{vector}");
    }
}

#[test]
fn order_keys_and_path_hashes() {
    for path in vectors("order") {
        let mut parent = "0".to_owned();
        for item in path.as_array().unwrap() {
            let (node, edge) = (arg(item, "node_id"), arg(item, "edge_index"));
            let answer = key(&["order", "--parent", &parent, "--node", &node, "--edge", &edge]);
            parent = arg(item, "path_hash");
            assert_eq!(answer, format!("{}\n{parent}\n", arg(item, "order_key")));
        }
    }
}

#[test]
fn an_edge_index_of_any_size_has_an_order_key() {
    let answer = key(&["order", "--parent", "18446744073709551615", "--node", "a", "--edge", "4294967295"]);
    assert_eq!(answer.lines().next(), Some("18446744073709551615"));
    let answer = key(&["order", "--parent", "0", "--node", "", "--edge", "16777216"]);
    assert_eq!(answer.lines().next(), Some("16777216"));
}

#[test]
fn seeds_and_draws() {
    for vector in vectors("run_seed") {
        assert_eq!(
            key(&["seed", "--run-id", &arg(&vector, "run_id")]),
            format!("{}\n", arg(&vector, "seed"))
        );
    }
    for vector in vectors("rng") {
        let [seed, step, path, scope] =
            ["run_seed", "step_id", "path_hash", "scope"].map(|f| arg(&vector, f));
        let draws: Vec<&str> =
            vector["first_u64"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
        let count = draws.len().to_string();
        let args = [
            "rng",
            "--seed",
            &seed,
            "--step",
            &step,
            "--path-hash",
            &path,
            "--scope",
            &scope,
            "--count",
            &count,
        ];
        assert_eq!(key(&args), format!("{}\n", draws.join("\n")));
    }
}

#[test]
fn effect_keys() {
    for vector in vectors("effect_key") {
        let fields =
            ["namespace", "run_id", "step_id", "path_hash", "scope", "index", "name", "request_json"];
        let [namespace, run, step, path, scope, index, name, request] =
            fields.map(|field| arg(&vector, field));
        let args = [
            "effect",
            "--namespace",
            &namespace,
            "--run-id",
            &run,
            "--step",
            &step,
            "--path-hash",
            &path,
            "--scope",
            &scope,
            "--index",
            &index,
            "--name",
            &name,
            "--request",
            &request,
        ];
        assert_eq!(key(&args), format!("{}\n", arg(&vector, "key")));
    }
}

#[test]
fn command_keys() {
    for vector in vectors("command_key") {
        let fields = ["action", "task_id", "snapshot_id", "inputs_json", "expected_outputs_json"];
        let [action, task, snapshot, inputs, outputs] = fields.map(|field| arg(&vector, field));
        let args = [
            "command",
            "--action",
            &action,
            "--task",
            &task,
            "--snapshot",
            &snapshot,
            "--inputs",
            &inputs,
            "--expected-outputs",
            &outputs,
        ];
        assert_eq!(key(&args), format!("{}\n", arg(&vector, "key")));
    }
}

#[test]
fn values_may_begin_with_a_hyphen_or_be_empty() {
    for run in ["", "-", "--", "-x", "--json", "--help", "-1"] {
        let seed = key(&["seed", "--run-id", run]);
        assert_eq!(seed, format!("{}\n", hapax_core::rng::run_seed(run)), "{run:?}");
    }
    let step = ["step", "--run-id", "-r", "--step", "0", "--frontier", "[]", "--state-json", "--state"];
    assert!(key(&step).starts_with("sha256:"));
}

#[test]
fn the_states_bytes_are_hashed_as_they_are() {
    let mut command =
        stock(&["key", "step", "--run-id", "r", "--step", "1", "--frontier", "[]", "--state-json"]);
    command.arg(OsStr::from_bytes(b"\xff { \x80"));
    let expected = hapax_core::key::step_key("r", 1, [], b"\xff { \x80");
    assert_eq!(said(command).ok(), format!("{expected}\n"));
}

#[test]
fn a_failure_leaves_stdout_empty() {
    for (args, code) in [
        (&["key"][..], 2),
        (&["key", "seed"], 2),
        (&["key", "order", "--parent", "-1", "--node", "a", "--edge", "0"], 2),
        (&["key", "order", "--parent", "0", "--node", "a", "--edge", "4294967296"], 2),
        (&["key", "step", "--run-id", "r", "--step", "1", "--frontier", "{}", "--state-json", ""], 2),
        (&["key", "step", "--run-id", "r", "--step", "1", "--frontier", "[{}]", "--state-json", ""], 2),
        (&["canon", "/no/such/file"], 1),
    ] {
        assert!(!said(stock(args)).fails(code).is_empty(), "{args:?}");
    }
    let effect = |request| {
        let args = [
            "key",
            "effect",
            "--run-id",
            "r",
            "--step",
            "0",
            "--path-hash",
            "0",
            "--index",
            "0",
            "--name",
            "n",
            "--request",
            request,
        ];
        said(stock(&args))
    };
    assert!(said(stock(&["canon", "/no/such/file"])).fails(1).starts_with("error[HX0061]: cannot read /no"));
    let frontier = r#"[{"node_id":"a","order_key":"0100"}]"#;
    let step = ["key", "step", "--run-id", "r", "--step", "1", "--state-json", "", "--frontier", frontier];
    assert!(said(stock(&step)).fails(2).contains("an order key is a decimal number below 2^64"));
    assert!(
        effect(r#"{"a":1,"a":2}"#).fails(2).starts_with("error[HX0060]: --request has no canonical form")
    );
    assert!(effect("").fails(2).starts_with("error[HX0060]: --request is not JSON: unexpected end"));
    for input in [&b"{"[..], b"1 2", b"\xff", b"", b"{\"a\":1,\"a\":2}"] {
        assert!(canon(input).fails(1).starts_with("error[HX0013]: the input "), "{input:?}");
    }
    assert!(canon(b"{").fails(1).contains("is not JSON: "));
    assert!(
        canon(b"{\"a\":1,\"a\":2}").fails(1).contains("has no canonical form: the key \"a\" occurs twice")
    );
}

#[test]
fn json_holds_hashes_as_strings() {
    let answer =
        said(stock(&["key", "order", "--parent", "0", "--node", "a", "--edge", "3", "--json"])).json();
    assert_eq!(answer["order_key"], "3");
    assert!(answer["path_hash"].is_string());
    let answer =
        said(stock(&["--json", "key", "rng", "--seed", "1", "--step", "0", "--path-hash", "0"])).json();
    assert!(answer["draws"][0].is_string());
    let rng = ["key", "rng", "--seed", "1", "--step", "0", "--path-hash", "0", "--json", "--count"];
    assert_eq!(said(stock(&[&rng[..], &["0"]].concat())).json()["draws"], serde_json::json!([]));
    let plain = key(&[&rng[1..8], &["--count", "9999"]].concat());
    let draws = said(stock(&[&rng[..], &["9999"]].concat())).json()["draws"].clone();
    assert_eq!(draws, serde_json::json!(plain.lines().collect::<Vec<_>>()));
}

#[test]
fn a_key_follows_from_its_flags_alone() {
    let args = ["key", "effect", "--run-id", "r", "--step", "0", "--path-hash", "7", "--index", "0"];
    let args = [&args[..], &["--name", "charge", "--request", "{}"]].concat();
    let mut elsewhere = stock(&args);
    elsewhere.env("HAPAX_NAMESPACE", "elsewhere").env("HAPAX_STORE", "sqlite:/nowhere.db");
    assert_eq!(said(elsewhere).ok(), said(stock(&args)).ok());
    assert!(said(stock(&["key", "--help"])).ok().contains("$HAPAX_NAMESPACE neither"));
}

/// However many draws are asked for, few are in memory: the program gets no more than this of it.
const LITTLE_MEMORY: &str = "ulimit -v 1000000; exec \"$0\" \"$@\"";

#[test]
fn a_reader_that_went_away_ends_it_quietly() {
    let args = ["key", "rng", "--seed", "1", "--step", "0", "--path-hash", "0"];
    for json in [&[][..], &["--json"]] {
        let mut shell = Command::new("sh");
        shell.args(["-c", LITTLE_MEMORY, env!("CARGO_BIN_EXE_hapax")]);
        shell.args(args).args(["--count", "18446744073709551615"]).args(json);
        let mut child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 8];
        std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr), (Some(0), vec![]));
    }
}
