//! A user's own binary: every subcommand, with the code of its graphs behind it.
//!
//! The test binary plays that program itself: started again with `HAPAX_TOOL` set, it runs the commands of its
//! environment over the shop's graph.

mod common;

use common::{Said, Shop, World, clean_env, said, shop};
use hapax::{Engine, Graph, Node, Options, Status};
use std::{
    process::{Command, ExitCode},
    sync::Arc,
    time::Duration,
};

/// Separates the test harness's own words from the program's.
const MARK: &str = "=== the program's own words ===\n";

/// Not a test of its own: the program that the others start.
#[test]
fn tool() {
    let Ok(args) = std::env::var("HAPAX_TOOL") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let code = runtime.block_on(async {
        let options = Options::default().finds_work(false);
        let url = std::env::var("HAPAX_TOOL_STORE").unwrap();
        let engine = Engine::builder().options(options).open(&url).await.unwrap();
        engine.register(shop(), Arc::new(World::default())).await.unwrap();
        if std::env::var_os("HAPAX_TOOL_SWEEPS").is_some() {
            let only = Node::new("only");
            engine.register(Graph::new("sweep", 1, only).node(only, only_node), ()).await.unwrap();
        }
        print!("{MARK}");
        hapax_cli::run_from(engine, ["shop"].into_iter().chain(args.split_whitespace())).await
    });
    // An exit code can only be printed or returned by `main`, and that is the harness's.
    let code = (0..=u8::MAX).find(|n| format!("{:?}", ExitCode::from(*n)) == format!("{code:?}"));
    std::process::exit(code.expect("a code of a byte").into());
}

async fn only_node(_: hapax::Ctx<common::Order>) {}

fn tool_on(shop: &Shop, args: &str) -> Said {
    tool_with(shop, args, &[])
}

fn tool_with(shop: &Shop, args: &str, env: &[(&str, &str)]) -> Said {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["tool", "--exact", "--nocapture", "--test-threads=1"]);
    clean_env(&mut command);
    command.env("HAPAX_TOOL", args).env("HAPAX_TOOL_STORE", format!("sqlite:{}", shop.path().display()));
    command.envs(env.iter().copied());
    let mut said = said(command);
    said.out = said.out.split_once(MARK).expect("the program began").1.to_owned();
    said
}

#[tokio::test]
async fn a_registered_graph_is_drawn_whole_with_the_path_of_a_run() {
    let shop = Shop::with_history().await;
    insta::assert_snapshot!("embedded_graph", tool_on(&shop, "graph").ok());
    insta::assert_snapshot!("embedded_graph_run", tool_on(&shop, "graph --run order-1").ok());
    insta::assert_snapshot!("embedded_graph_failed", tool_on(&shop, "graph --run order-2 --format dot").ok());
    let svg = tool_on(&shop, "graph orders --format svg").ok();
    assert!(svg.contains(">in stock</text>") && svg.contains(">hold</text>"));
    let graph = tool_on(&shop, "graph --run order-1 --json").json();
    assert_eq!(graph["nodes"].as_array().unwrap().len(), 6);
    assert!(tool_on(&shop, "graph nope").fails(1).starts_with("error[HX0034]"));
}

#[tokio::test]
async fn secret_fields_are_hidden() {
    let shop = Shop::with_history().await;
    for args in ["show order-1", "show order-1 --step 0", "show order-1 --step 1", "show order-1 --json"] {
        let text = tool_on(&shop, args).ok();
        assert!(text.contains("[secret]"), "{args}");
        assert!(!text.contains("\"4111\"") && !text.contains("\"4242\""), "{args}: {text}");
    }
}

#[tokio::test]
async fn a_failed_run_is_retried_to_its_end() {
    let shop = Shop::with_history().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    let answer = tool_on(&shop, "retry order-2 --json").json();
    assert_eq!(answer["runs"], serde_json::json!([{ "run": "order-2", "status": "succeeded" }]));
}

#[tokio::test]
async fn looking_at_runs_does_not_execute_them() {
    let shop = Shop::with_history().await;
    // As a crash: its step is not finished, and its lock is free.
    for run in ["order-3", "order-4"] {
        shop.in_flight(run).await;
    }
    shop.engine.shutdown(Duration::ZERO).await;
    assert!(shop.hapax(&["list", "--status", "running"]).ok().contains("order-4"));
    let error = shop.hapax(&["resume", "--all"]).fails(1);
    assert!(error.starts_with("error[HX0034]"), "{error}");
    shop.hapax(&["cancel", "order-4"]).ok();
    let listed = tool_on(&shop, "list --status running").ok();
    assert!(listed.contains("order-3"), "looking doesn't execute: {listed}");
}

#[tokio::test]
async fn a_resumed_run_goes_on_from_its_last_step() {
    let shop = Shop::open().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    let url = format!("sqlite:{}", shop.path().display());
    // An engine that is gone before its run began: the run waits for whoever holds the code.
    let engine = Engine::builder().options(Options::default().finds_work(false)).open(&url).await.unwrap();
    let orders = engine.register(common::shop(), Arc::new(World::default())).await.unwrap();
    for run in ["order-5", "order-6"] {
        orders
            .start(run, common::Order { sku: "slow".into(), cents: 0, ..Default::default() })
            .await
            .unwrap();
    }
    engine.shutdown(Duration::ZERO).await;
    let one = tool_on(&shop, "resume order-5 --json").json();
    assert_eq!(one["runs"][0]["status"], "succeeded");
    let all = tool_on(&shop, "resume --all").ok();
    assert!(all.contains("order-6") && !all.contains("order-5"), "{all}");
    assert_eq!(tool_on(&shop, "resume --all").ok(), "nothing to resume\n");
    assert_eq!(tool_on(&shop, "resume --run order-6").code, 0, "a finished run just tells how it ended");
}

#[tokio::test]
async fn a_run_in_other_hands_is_left_there() {
    let shop = Shop::open().await;
    let run = shop.in_flight("order-7").await;
    let error = tool_on(&shop, "resume order-7").fails(4);
    assert!(error.starts_with("error[HX0030]: run `order-7` is held by another engine"), "{error}");
    let all = tool_on(&shop, "resume --all");
    assert_eq!((all.code, all.out.contains("is held by another engine")), (0, true), "{all:?}");
    shop.world.parcel.notify_one();
    run.wait().await.unwrap();
    assert_eq!(run.status().await.unwrap(), Status::Succeeded);
}

#[tokio::test]
async fn the_store_is_the_programs_own() {
    let shop = Shop::with_history().await;
    assert!(tool_on(&shop, "list --store memory:").fails(2).contains("opens its own store"));
    assert!(
        tool_on(
            &shop,
            "key effect --namespace x --run-id r --step 0 --path-hash 0 --index 0 --name n --request 1"
        )
        .code
            == 0
    );
    assert_eq!(tool_on(&shop, "doctor --json").json()["safe"], true);
    assert!(tool_on(&shop, "help").ok().contains("Usage: shop"));
}

#[tokio::test]
async fn among_several_graphs_one_must_be_named() {
    let shop = Shop::open().await;
    let sweeps = [("HAPAX_TOOL_SWEEPS", "1")];
    let error = tool_with(&shop, "graph", &sweeps).fails(2);
    assert!(error.contains("which graph? there are orders, sweep"), "{error}");
    assert!(tool_with(&shop, "graph sweep", &sweeps).ok().contains("only"));
}
