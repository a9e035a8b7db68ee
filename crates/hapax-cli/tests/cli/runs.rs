//! The stock binary on a store that an engine works on: it reads all, and files durable requests.

use crate::common::{Shop, elsewhere, said, steady, steady_json, stock, url};
use hapax::{Engine, Status};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, time::Duration};

#[tokio::test]
async fn runs_are_listed_newest_first() {
    let shop = Shop::with_history().await;
    let lines: Vec<String> = shop.hapax(&["list"]).ok().lines().map(str::to_owned).collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["RUN", "STATUS", "GRAPH", "STEP", "CHANGED", "TAGS"]
    );
    assert!(lines[1].starts_with("order-2  failed (HX0020)  orders  2 "), "{lines:?}");
    assert!(lines[2].starts_with("order-1  succeeded        orders  4 "), "{lines:?}");
    assert!(lines[2].ends_with("customer=42"));
    insta::assert_snapshot!(steady_json(shop.hapax(&["list", "--json"]).json()));
}

#[tokio::test]
async fn a_list_is_filtered_by_tag_status_graph_and_count() {
    let shop = Shop::with_history().await;
    let runs = |args: &[&str]| {
        let answer = shop.hapax(&[&["list", "--json"], args].concat());
        let answer: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
        let runs = answer["runs"].as_array().unwrap().iter();
        runs.map(|run| run["run"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(runs(&["--status", "failed"]), ["order-2"]);
    assert_eq!(runs(&["--status", "failed", "--status", "succeeded"]), ["order-2", "order-1"]);
    assert_eq!(runs(&["--status", "in-doubt"]), [""; 0]);
    assert_eq!(runs(&["--tag", "customer=42", "--limit", "1"]), ["order-2"]);
    assert_eq!(runs(&["--tag", "customer=43"]), [""; 0]);
    assert_eq!(runs(&["--graph", "orders"]), ["order-2", "order-1"]);
    assert_eq!(runs(&["--graph", "other"]), [""; 0]);
    assert_eq!(runs(&["--namespace", "elsewhere"]), [""; 0]);
    assert_eq!(shop.hapax(&["list", "--graph", "other"]).ok(), "no runs\n");
    shop.hapax(&["list", "--tag", "customer"]).fails(2);
    shop.hapax(&["list", "--status", "good"]).fails(2);
}

#[tokio::test]
async fn a_run_is_shown_with_all_that_is_stored_of_it() {
    let shop = Shop::with_history().await;
    insta::assert_snapshot!("show_succeeded", steady(&shop.hapax(&["show", "order-1"]).ok()));
    insta::assert_snapshot!("show_failed", steady(&shop.hapax(&["show", "order-2"]).ok()));
    insta::assert_snapshot!("show_step", steady(&shop.hapax(&["show", "order-1", "--step", "1"]).ok()));
    insta::assert_snapshot!("show_json", steady_json(shop.hapax(&["show", "order-1", "--json"]).json()));
}

#[tokio::test]
async fn what_is_not_there_is_said_with_its_cure() {
    let shop = Shop::with_history().await;
    insta::assert_snapshot!("unknown_run", shop.hapax(&["show", "nope"]).fails(1));
    insta::assert_snapshot!("unknown_step", shop.hapax(&["show", "order-1", "--step", "99"]).fails(1));
    for args in [
        &["retry", "nope"][..],
        &["cancel", "nope"],
        &["resume", "nope"],
        &["resume", "--run", "nope"],
        &["graph", "--run", "nope"],
    ] {
        assert!(shop.hapax(args).fails(1).starts_with("error[HX0028]: there is no run `nope`\n"), "{args:?}");
    }
    assert!(shop.hapax(&["show", ""]).fails(2).starts_with("error[HX0001]"));
    let error: serde_json::Value =
        serde_json::from_str(&shop.hapax(&["show", "nope", "--json"]).fails(1)).unwrap();
    assert_eq!((&error["v"], &error["error"]["code"]), (&1.into(), &"HX0028".into()));
    assert!(error["error"]["page"].as_str().unwrap().ends_with("docs/errors/HX0028.md"));
}

#[tokio::test]
async fn a_run_of_a_foreign_graph_is_drawn_as_far_as_it_went() {
    let shop = Shop::with_history().await;
    insta::assert_snapshot!("graph_run_mermaid", shop.hapax(&["graph", "--run", "order-1"]).ok());
    insta::assert_snapshot!(
        "graph_run_dot",
        shop.hapax(&["graph", "--run", "order-2", "--format", "dot"]).ok()
    );
    let svg = shop.hapax(&["graph", "--run", "order-1", "--format", "svg"]).ok();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains(">charge</text>"));
    assert!(svg.contains("stroke-dasharray=\"2 4\"") && svg.contains(">perhaps</text>"), "{svg}");
    let drawing = shop.hapax(&["graph", "--run", "order-1", "--json"]).json();
    let into_charge = drawing["edges"].as_array().unwrap().iter().filter(|edge| edge["to"] == 3);
    let kinds: Vec<_> = into_charge.map(|edge| edge["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["routed", "presumed"]);
    let error = shop.hapax(&["graph", "orders"]).fails(1);
    assert!(error.starts_with("error[HX0034]: graph `orders` is not registered"), "{error}");
    shop.hapax(&["graph"]).fails(2);
}

#[tokio::test]
async fn a_cancel_is_seen_by_the_engine_that_holds_the_run() {
    let shop = Shop::open().await;
    let run = shop.in_flight("order-3").await;
    assert!(shop.hapax(&["show", "order-3"]).ok().contains("held by"));
    let error = shop.hapax(&["resume", "order-3"]).fails(1);
    assert!(error.starts_with("error[HX0034]"), "{error}");
    assert!(shop.hapax(&["cancel", "order-3"]).ok().starts_with("order-3 is "));
    assert!(matches!(run.wait().await, Err(hapax::Error::Cancelled { .. })));
    assert_eq!(run.status().await.unwrap(), Status::Cancelled);
    let error = shop.hapax(&["cancel", "order-3"]).fails(1);
    assert!(error.starts_with("error[HX0026]: run `order-3` is cancelled already"), "{error}");
}

#[tokio::test]
async fn a_retry_is_durable_and_taken_up_by_an_engine_with_the_code() {
    let shop = Shop::with_history().await;
    shop.world.declined.store(false, std::sync::atomic::Ordering::SeqCst);
    assert!(shop.hapax(&["retry", "order-2"]).ok().starts_with("order-2 is pending again"));
    assert_eq!(shop.engine.wait("order-2").await.unwrap(), Status::Succeeded);
    let error = shop.hapax(&["retry", "order-2"]).fails(1);
    assert!(error.starts_with("error[HX0026]"), "{error}");
}

#[tokio::test]
async fn finished_runs_are_deleted_by_age_and_count() {
    let shop = Shop::with_history().await;
    let _live = shop.in_flight("order-3").await;
    assert_eq!(shop.hapax(&["gc"]).ok(), "deleted 0 finished runs older than 1w\n");
    let would = shop.hapax(&["gc", "--older-than", "0s", "--keep", "1", "--dry-run"]).ok();
    assert_eq!(would, "order-1\nwould delete 1 finished run older than 0s\n");
    assert_eq!(shop.hapax(&["list", "--json"]).json()["runs"].as_array().unwrap().len(), 3);
    let deleted = shop.hapax(&["gc", "--older-than", "0s", "--json"]).json();
    assert_eq!(deleted["deleted"], serde_json::json!(["order-1", "order-2"]));
    assert_eq!(shop.hapax(&["list", "--json"]).json()["runs"][0]["run"], "order-3");
    assert!(shop.hapax(&["gc", "--older-than", "soon"]).fails(2).contains("is not an age"));
}

#[tokio::test]
async fn a_doctor_finds_a_healthy_store_safe() {
    let shop = Shop::with_history().await;
    let answer = shop.hapax(&["doctor", "--json"]).json();
    assert_eq!(answer["safe"], true);
    let facts = answer["facts"].as_array().unwrap();
    let found = |name: &str| facts.iter().find(|fact| fact["name"] == name).map(|fact| &fact["found"]);
    assert_eq!(found("journal mode").unwrap(), "wal");
    assert_eq!(found("synchronous").unwrap(), "full");
    assert_eq!(found("pages").unwrap(), "ok");
    assert_eq!(found("digests").unwrap(), "8 checkpoints in 2 runs");
    assert!(shop.hapax(&["doctor"]).ok().ends_with("\nthe store is safe to use\n"));
    assert_eq!(said(stock(&["--store", "memory:", "doctor"])).code, 1);
}

#[tokio::test]
async fn a_path_may_be_anything_that_the_system_allows() {
    let shop = Shop::with_history().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    let odd = shop.path().with_file_name(OsStr::from_bytes(b"odd \xff name.db"));
    std::fs::rename(shop.path(), &odd).unwrap();
    let mut command = stock(&["list", "--store"]);
    command.arg(url(&odd));
    assert!(said(command).ok().contains("order-1"));
    let mut command = stock(&["show", "nope", "--store"]);
    command.arg(url(&odd));
    said(command).fails(1);
}

#[tokio::test]
async fn a_namespace_sees_only_its_own_runs() {
    let shop = Shop::with_history().await;
    let url = format!("sqlite:{}", shop.path().display());
    let engine = Engine::builder().options(elsewhere()).open(&url).await.unwrap();
    let orders = engine.register(crate::common::shop(), Default::default()).await.unwrap();
    orders
        .start("order-9", crate::common::Order { cents: 1, ..Default::default() })
        .await
        .unwrap()
        .wait()
        .await
        .unwrap();
    let answer = shop.hapax(&["list", "--json", "--namespace", "elsewhere"]).json();
    assert_eq!(answer["runs"].as_array().unwrap().len(), 1);
    assert_eq!(answer["runs"][0]["run"], "order-9");
    assert!(shop.hapax(&["show", "order-9"]).fails(1).contains("there is no run `order-9`"));
    // An unset variable of a script must not stand for the default tenant.
    assert!(shop.hapax(&["--namespace", "", "list"]).fails(2).starts_with("error[HX0001]"));
    engine.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_namespace_that_cannot_be_read_is_never_taken_for_the_default_one() {
    let shop = Shop::with_history().await;
    for args in [&["list"][..], &["gc", "--older-than", "0s"], &["demo", "--orders", "1", "--kills", "1"]] {
        let mut command = shop.command(args);
        command.env("HAPAX_NAMESPACE", OsStr::from_bytes(b"shop\xff"));
        let error = said(command).fails(2);
        assert!(
            error.starts_with("error[HX0001]: the namespace \"shop\\xFF\" in HAPAX_NAMESPACE"),
            "{error}"
        );
    }
    let mut command = shop.command(&["list", "--json"]);
    command.env("HAPAX_NAMESPACE", "");
    assert_eq!(
        said(command).json()["runs"].as_array().unwrap().len(),
        2,
        "an empty variable is an unset one"
    );
}

#[tokio::test]
async fn a_field_that_is_new_is_told_from_one_that_was_null() {
    let shop = Shop::with_history().await;
    let answer = shop.hapax(&["show", "order-1", "--step", "3", "--json"]).json();
    let change = |path: &str| {
        let changes = answer["changes"].as_array().unwrap().iter();
        changes.clone().find(|change| change["path"] == path).cloned().unwrap_or_else(|| panic!("{answer}"))
    };
    let receipt = change("/receipt");
    assert_eq!(receipt.get("before"), Some(&serde_json::Value::Null), "{receipt}");
    let answer = shop.hapax(&["show", "order-1", "--json"]).json();
    let added = &answer["changes"][0];
    assert_eq!((added["path"].as_str(), added.get("before")), (Some("/log/2"), None), "{added}");
    assert_eq!(answer["checkpoint"]["state"]["cents"], 4200, "the help's example looks there");
}

#[tokio::test]
async fn a_hint_is_quoted_for_the_shell() {
    let shop = Shop::with_history().await;
    let forked = shop.hapax(&["fork", "order-1@0", "--as", "what if"]).ok();
    assert!(
        forked.starts_with("what if goes on from step 0") && forked.contains("`resume 'what if'`"),
        "{forked}"
    );
    let refused = shop.hapax(&["fork", "order-1@0", "--set", "sku=it's \"new\""]).fails(2);
    assert!(refused.contains(r#"cure: quote a text: --set 'sku="it'\''s \"new\""'"#), "{refused}");
}
