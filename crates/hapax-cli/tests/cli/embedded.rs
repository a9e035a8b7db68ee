//! A user's own binary: every subcommand, with the code of its graphs behind it.

use crate::common::{
    Shop, World,
    tool::{tool_on, tool_with},
};
use hapax::{Engine, Options, Status};
use std::{sync::Arc, time::Duration};

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

/// Every command that shows a state, what changed of it, or what the journal has of it.
const SHOWING: [&str; 6] = [
    "show order-1",
    "show order-1 --step 1 --json",
    "history order-1",
    "history order-1 --json",
    "history order-1 --html -",
    "ledger order-1 --json --dir",
];

#[tokio::test]
async fn a_run_is_shown_with_the_secrets_of_its_own_graph_among_several_of_its_name() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let shown = |args: &str, env: &[(&str, &str)]| {
        let mut args = args.to_owned();
        if args.starts_with("ledger") {
            args = format!("{args} {}", folder.path().display());
        }
        let mut text = tool_with(&shop, &args, env).ok();
        if args.starts_with("ledger") {
            text = std::fs::read_to_string(folder.path().join("events/order-1.ndjson")).unwrap();
            text += &std::fs::read_to_string(folder.path().join("state/run.json")).unwrap();
        }
        text
    };
    for args in SHOWING {
        let text = shown(args, &[("HAPAX_TOOL_EARLIER", "1")]);
        assert!(!text.contains("4111") && !text.contains("4242"), "{args}: {text}");
        assert!(args == "history order-1" || text.contains("anvil"), "{args}: {text}");
        let gone = shown(args, &[("HAPAX_TOOL_EARLIER", "1"), ("HAPAX_TOOL_HOLDS_NOTHING", "1")]);
        let receipt = [r#"receipt":"5040"#, r#"receipt": "5040"#, "receipt&quot;: &quot;5040"];
        assert!(!receipt.iter().any(|receipt| gone.contains(receipt)), "{args}: no graph knows it: {gone}");
        let stock = shown(args, &[("HAPAX_TOOL_HOLDS_NOTHING", "1")]);
        assert!(args == "history order-1" || stock.contains("4242"), "{args}: {stock}");
    }
    let drawn = tool_with(&shop, "graph --run order-1", &[("HAPAX_TOOL_EARLIER", "1")]).ok();
    assert!(drawn.contains("sold out"), "the graph of the run's own shape is drawn: {drawn}");
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
    let orders = engine.register(crate::common::shop(), Arc::new(World::default())).await.unwrap();
    for run in ["order-5", "order-6"] {
        orders
            .start(run, crate::common::Order { sku: "slow".into(), cents: 0, ..Default::default() })
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
