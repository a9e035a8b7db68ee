//! Replays and forks from the command line: in the program that holds the code, and as a gate before an upgrade.

use crate::common::{
    Said, Shop, said, steady_json,
    tool::{installed, script, tool_on, tool_with},
};
use serde_json::{Value, json};
use std::{path::Path, time::Duration};

const CHANGED: &[(&str, &str)] = &[("HAPAX_TOOL_CHANGED", "1")];

/// A run that went well, one that failed, and one that a crash left in its last node.
async fn left_by_a_crash() -> Shop {
    let shop = Shop::with_history().await;
    shop.in_flight("order-3").await;
    shop.engine.shutdown(Duration::ZERO).await;
    shop
}

/// What was found, of a command that found something.
#[track_caller]
fn finds(said: Said) -> String {
    assert_eq!((said.code, said.err.as_str()), (1, ""), "{}", said.out);
    said.out
}

#[track_caller]
fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn against(shop: &Shop, program: &Path, args: &[&str]) -> Said {
    let mut command = shop.command(&["replay"]);
    command.args(args).arg("--against").arg(program);
    said(command)
}

#[tokio::test]
async fn unchanged_code_does_what_is_recorded() {
    let shop = left_by_a_crash().await;
    let one = tool_on(&shop, "replay order-1").ok();
    assert_eq!(one, "order-1: no divergence in 4 steps, 5 items, 1 call\n");
    let all = tool_on(&shop, "replay --all").ok();
    assert_eq!(all, "2 runs in flight: no divergence in 5 steps, 7 items, 1 call\n");
    insta::assert_snapshot!("replay_json", steady_json(tool_on(&shop, "replay order-1 --json").json()));
    let painted = tool_on(&shop, "replay order-1 --color always").ok();
    assert!(painted.contains("\u{1b}[32mno divergence\u{1b}[0m"), "{painted}");
    let listed = shop.hapax(&["list", "--json"]).json();
    assert_eq!((&listed["runs"][0]["status"], &listed["runs"][0]["step"]), (&"running".into(), &3.into()));
}

#[tokio::test]
async fn changed_code_is_shown_where_it_parts_from_the_record() {
    let shop = left_by_a_crash().await;
    insta::assert_snapshot!("replay_diverges", finds(tool_with(&shop, "replay order-1", CHANGED)));
    insta::assert_snapshot!("replay_all_diverges", finds(tool_with(&shop, "replay --all", CHANGED)));
    let answer = json_of(&finds(tool_with(&shop, "replay order-1 --json", CHANGED)));
    insta::assert_snapshot!("replay_diverges_json", steady_json(answer));
    let narrow = [("HAPAX_TOOL_CHANGED", "1"), ("COLUMNS", "24")];
    let narrow = finds(tool_with(&shop, "replay order-1", &narrow));
    assert!(
        narrow.lines().filter(|line| line.starts_with("  ")).all(|line| line.chars().count() <= 24),
        "{narrow}"
    );
}

#[tokio::test]
async fn nothing_in_flight_is_no_divergence() {
    let shop = Shop::open().await;
    shop.finish("order-1", "anvil").await;
    assert_eq!(tool_on(&shop, "replay --all").ok(), "no runs are in flight\n");
    let answer = tool_on(&shop, "replay --all --json").json();
    assert_eq!(answer, json!({ "v": 1, "runs": [], "diverged": 0, "damaged": [] }));
    let program = installed(shop.path().parent().unwrap(), "new", CHANGED);
    assert_eq!(against(&shop, &program, &["--all"]).ok(), "no runs are in flight\n");
    assert_eq!(shop.hapax(&["replay", "--all"]).ok(), "no runs are in flight\n");
}

#[tokio::test]
async fn only_a_program_that_holds_the_code_can_replay() {
    let shop = Shop::with_history().await;
    insta::assert_snapshot!("replay_no_code", shop.hapax(&["replay", "order-1"]).fails(1));
    assert!(shop.hapax(&["replay", "--all"]).fails(1).contains("--against PROGRAM"));
    let nothing = [("HAPAX_TOOL_HOLDS_NOTHING", "1")];
    let error = tool_with(&shop, "replay order-1", &nothing).fails(1);
    assert!(error.starts_with("error[HX0034]") && error.contains("before `hapax_cli::run`"), "{error}");
    for said in [shop.hapax(&["replay", "nope"]), tool_on(&shop, "replay nope")] {
        assert!(said.fails(1).starts_with("error[HX0028]: there is no run `nope`\n"));
    }
    for args in [&["replay"][..], &["replay", "order-1", "--all"], &["replay", "--all", "--against"]] {
        assert!(shop.hapax(args).fails(2).starts_with("error[HX0060]"), "{args:?}");
    }
}

#[tokio::test]
async fn a_run_of_a_graph_that_is_gone_diverges_beside_the_others() {
    let shop = left_by_a_crash().await;
    let other = [("HAPAX_TOOL_HOLDS_NOTHING", "1"), ("HAPAX_TOOL_SWEEPS", "1")];
    let found = json_of(&finds(tool_with(&shop, "replay --all --json", &other)));
    assert_eq!(found["diverged"], 2);
    assert_eq!(found["runs"][0]["divergence"]["field"], "graph");
    assert_eq!(found["runs"][0]["divergence"]["got"], "no graph of that name");
}

#[tokio::test]
async fn a_damaged_run_does_not_hide_the_others() {
    let shop = left_by_a_crash().await;
    let file = rusqlite::Connection::open(shop.path()).unwrap();
    file.execute("UPDATE hapax_runs SET status_json = '{' WHERE run_id = 'order-2'", ()).unwrap();
    let found = finds(tool_on(&shop, "replay --all"));
    assert!(found.starts_with("order-2 cannot be replayed: run `order-2` is damaged: its status"), "{found}");
    assert!(
        found.ends_with("2 runs in flight: 1 can't go on; compared 3 steps, 4 items, 1 call\n"),
        "{found}"
    );
    let program = installed(shop.path().parent().unwrap(), "new", &[]);
    let found = json_of(&finds(against(&shop, &program, &["--all", "--json"])));
    assert_eq!((&found["diverged"], &found["damaged"][0]["run"]), (&0.into(), &"order-2".into()));
    assert_eq!(found["runs"][0]["run"], "order-3");
    let seed = "UPDATE hapax_checkpoints SET seed = 1 WHERE run_id = 'order-3' AND step_id = 1";
    file.execute(seed, ()).unwrap();
    let found = json_of(&finds(tool_on(&shop, "replay --all --json")));
    assert_eq!(found["damaged"][1]["run"], "order-3", "{found}");
    assert!(tool_on(&shop, "replay order-3").fails(3).starts_with("error[HX0044]: run `order-3`, step 1"));
}

#[tokio::test]
async fn the_gate_lets_unchanged_code_pass_and_stops_changed_code() {
    let shop = left_by_a_crash().await;
    let folder = shop.path().parent().unwrap().to_owned();
    let (same, changed) = (installed(&folder, "same", &[]), installed(&folder, "changed", CHANGED));
    let passed = against(&shop, &same, &["--all"]).ok();
    assert_eq!(passed, tool_on(&shop, "replay --all").ok());
    assert_eq!(against(&shop, &same, &["order-1"]).ok(), tool_on(&shop, "replay order-1").ok());
    let stopped = finds(against(&shop, &changed, &["--all"]));
    assert_eq!(stopped, tool_with(&shop, "replay --all", CHANGED).out);
    let stopped = json_of(&finds(against(&shop, &changed, &["--all", "--json"])));
    assert_eq!(stopped, json_of(&tool_with(&shop, "replay --all --json", CHANGED).out));
    assert!(against(&shop, &same, &["nope"]).fails(1).starts_with("error[HX0028]"));
    // The store of a flag reaches the program as well as that of the environment.
    let mut flag = crate::common::stock(&["replay", "--all", "--store"]);
    flag.arg(crate::common::url(&shop.path())).arg("--against").arg(&changed);
    assert_eq!(said(flag).code, 1);
}

/// A program with an address of its own is as good, when it leads to the same runs.
#[tokio::test]
async fn a_report_counts_only_for_the_runs_of_this_store() {
    let (shop, elsewhere) = (left_by_a_crash().await, left_by_a_crash().await);
    let folder = shop.path().parent().unwrap().to_owned();
    let fixed = |name: &str, at: &Shop| {
        installed(&folder, name, &[("HAPAX_TOOL_STORE", &format!("sqlite:{}", at.path().display()))])
    };
    let (own, other) = (fixed("own", &shop), fixed("other", &elsewhere));
    assert_eq!(against(&shop, &own, &["--all"]).code, 0);
    // The runs there have the same names.
    for args in [["--all"], ["order-1"]] {
        let error = against(&shop, &other, &args).fails(1);
        assert!(
            error.starts_with("error[HX0062]: `") && error.contains("looked into another store"),
            "{error}"
        );
        assert!(error.contains("\n  cure: let it open the store that HAPAX_STORE names"), "{error}");
    }
    let empty = Shop::open().await;
    let blind = fixed("blind", &empty);
    for args in [["--all"], ["order-1"]] {
        let error = against(&shop, &blind, &args).fails(1);
        assert!(error.contains("looked into another store"), "{error}");
    }
    assert!(against(&empty, &other, &["--all"]).fails(1).contains("is not in this store"));
    // A program in whose hands the gate is itself asks as well.
    let asked = format!("replay --all --against {}", installed(&folder, "same", &[]).display());
    let told = format!("sqlite:{}", shop.path().display());
    assert_eq!(tool_with(&shop, &asked, &[("HAPAX_STORE", told.as_str())]).code, 0);
}

#[tokio::test]
async fn a_program_that_takes_up_runs_is_refused_before_it_sees_any() {
    let shop = left_by_a_crash().await;
    let epoch = |shop: &Shop| shop.hapax(&["show", "order-3", "--json"]).json()["epoch"].clone();
    let before = epoch(&shop);
    let finds_work = [("HAPAX_TOOL_FINDS_WORK", "1")];
    let program = installed(shop.path().parent().unwrap(), "service", &finds_work);
    for args in [["--all"], ["order-1"]] {
        let error = against(&shop, &program, &args).fails(1);
        assert!(error.starts_with("error[HX0063]: `") && error.contains("finds_work(false)"), "{error}");
    }
    assert_eq!(epoch(&shop), before, "nobody has taken it up");
    let error = tool_with(&Shop::open().await, "replay --all", &finds_work).fails(1);
    assert!(error.starts_with("error[HX0063]: this program takes up runs by itself"), "{error}");
}

#[tokio::test]
async fn a_program_that_cannot_replay_is_told_from_code_that_diverges() {
    let shop = left_by_a_crash().await;
    let folder = shop.path().parent().unwrap().to_owned();
    let refused = |name: &str, text: &str| against(&shop, &script(&folder, name, text), &["--all"]).fails(1);
    let hide = |error: String| error.replace(&folder.display().to_string(), "[folder]");
    insta::assert_snapshot!("against_garbage", hide(refused("garbage", "echo hello\n")));
    insta::assert_snapshot!(
        "against_crash",
        hide(refused("crash", "echo >&2 'no such table: orders'\nexit 101\n"))
    );
    insta::assert_snapshot!("against_newer", hide(refused("newer", "echo '{\"v\":2,\"runs\":[]}'\n")));
    let killed =
        refused("killed", "echo '{\"v\":1,\"runs\":[],\"diverged\":0,\"damaged\":[]}'\nkill -9 $$\n");
    assert!(killed.contains("it gave no report and ended with signal: 9"), "{killed}");
    let older = "echo >&2 '{\"v\":1,\"error\":{\"code\":\"HX0060\",\"message\":\"unrecognized subcommand replay\"}}'\nexit 2\n";
    insta::assert_snapshot!("against_older", hide(refused("older", older)));
    let json = script(&folder, "json", "echo 1\n");
    let error = json_of(&against(&shop, &json, &["--all", "--json"]).fails(1));
    assert_eq!(error["error"]["code"], "HX0062");
    let missing = against(&shop, &folder.join("missing"), &["--all"]).fails(1);
    assert!(missing.starts_with("error[HX0061]: cannot start `") && missing.contains("execute"), "{missing}");
    std::fs::write(folder.join("plain"), "text").unwrap();
    assert!(against(&shop, &folder.join("plain"), &["--all"]).fails(1).starts_with("error[HX0061]"));
    let nothing = installed(&folder, "nothing", &[("HAPAX_TOOL_HOLDS_NOTHING", "1")]);
    let error = against(&shop, &nothing, &["--all"]).fails(1);
    assert!(
        error.starts_with("error[HX0034]: `") && error.contains("register the graph in that program"),
        "{error}"
    );
}

#[tokio::test]
async fn a_fork_goes_on_from_a_step_of_another_run() {
    let shop = Shop::with_history().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    insta::assert_snapshot!("fork", shop.hapax(&["fork", "order-1@2"]).ok());
    assert_eq!(
        shop.hapax(&["fork", "order-1@2", "--json"]).json(),
        json!({ "v": 1, "run": "order-1@2", "from": "order-1", "step": 2 })
    );
    let ended = tool_on(&shop, "resume order-1@2 --json").json();
    assert_eq!(ended["runs"], json!([{ "run": "order-1@2", "status": "succeeded" }]));
    assert_eq!(tool_on(&shop, "replay order-1@2").code, 0);
    // The last `@` parts the step from a name that holds one itself.
    let set = ["fork", "order-1@2@2", "--as", "what-if", "--set", "tax=1", "--set", "sku=\"feather\""];
    shop.hapax(&set).ok();
    tool_on(&shop, "resume what-if").ok();
    let state = shop.hapax(&["show", "what-if", "--json"]).json()["checkpoint"]["state"].clone();
    assert_eq!((&state["receipt"], &state["sku"]), (&"4201 cents".into(), &"feather".into()));
    let listed = shop.hapax(&["list", "--tag", "forked_from=order-1@2@2", "--json"]).json();
    assert_eq!(listed["runs"][0]["run"], "what-if");
}

#[tokio::test]
async fn a_fork_that_cannot_be_is_refused_with_its_cure() {
    let shop = Shop::with_history().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    insta::assert_snapshot!(
        "fork_no_json",
        shop.hapax(&["fork", "order-1@2", "--set", "sku=anvil"]).fails(2)
    );
    insta::assert_snapshot!("fork_no_step", shop.hapax(&["fork", "order-1@9"]).fails(1));
    insta::assert_snapshot!(
        "fork_no_path",
        shop.hapax(&["fork", "order-1@2", "--set", "log.9.x=1"]).fails(1)
    );
    insta::assert_snapshot!("fork_wrong_shape", tool_on(&shop, "fork order-1@2 --set cents=true").fails(1));
    for args in [&["fork", "order-1"][..], &["fork", "order-1@x"], &["fork", "order-1@2", "--set", "sku"]] {
        assert!(shop.hapax(args).fails(2).starts_with("error[HX0060]"), "{args:?}");
    }
    assert!(shop.hapax(&["fork", "nope@0"]).fails(1).starts_with("error[HX0028]"));
    assert!(shop.hapax(&["fork", "order-1@2", "--as", ""]).fails(2).starts_with("error[HX0001]"));
    let taken = shop.hapax(&["fork", "order-1@2", "--as", "order-2"]).fails(1);
    assert!(taken.starts_with("error[HX0027]"), "{taken}");
    let listed = shop.hapax(&["list", "--json"]).json();
    assert_eq!(listed["runs"].as_array().unwrap().len(), 2, "nothing was created");
}
