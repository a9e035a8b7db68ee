//! Stores that were damaged, are held by somebody else, or are none at all.

use crate::common::{Shop, said, stock, url};
use std::time::Duration;

/// A shop whose file was changed by hand while nobody had it open.
async fn damaged_by(sql: &str) -> Shop {
    let shop = Shop::with_history().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    rusqlite::Connection::open(shop.path()).unwrap().execute_batch(sql).unwrap();
    shop
}

#[tokio::test]
async fn damage_is_found_and_named() {
    let sql =
        "UPDATE hapax_checkpoints SET seed = 1, key = zeroblob(32) WHERE run_id = 'order-1' AND step_id = 4";
    let shop = damaged_by(sql).await;
    let error = shop.hapax(&["show", "order-1"]).fails(3);
    assert!(error.starts_with("error[HX0044]: run `order-1`, step 4, is damaged"), "{error}");
    let found = shop.hapax(&["doctor"]);
    assert_eq!(found.code, 1);
    assert!(
        found.out.contains("unsafe  checkpoint    [HX0044] run `order-1`, step 4, is damaged"),
        "{}",
        found.out
    );
    assert!(shop.hapax(&["show", "order-2"]).code == 0, "the other runs are of no concern");
}

#[tokio::test]
async fn a_run_that_cannot_be_read_is_named_beside_the_others() {
    let shop = damaged_by("UPDATE hapax_runs SET status_json = '{' WHERE run_id = 'order-2'").await;
    let listed = shop.hapax(&["list"]);
    assert_eq!(listed.code, 3);
    let lines: Vec<&str> = listed.out.lines().collect();
    assert!(lines[1].starts_with("order-1  succeeded"), "{lines:?}");
    assert_eq!(lines[2].trim_end(), "order-2  damaged");
    assert!(listed.err.starts_with("error[HX0044]: run `order-2` is damaged: its status"), "{}", listed.err);
    let listed = shop.hapax(&["list", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    assert_eq!((listed.code, &answer["damaged"][0]["run"]), (3, &"order-2".into()));
    assert_eq!(answer["runs"][0]["run"], "order-1");
    shop.hapax(&["list", "--status", "succeeded"]).ok();
    let found = shop.hapax(&["doctor"]);
    assert_eq!(found.code, 1);
    assert!(found.out.contains("[HX0044] run `order-2` is damaged: its status"), "{}", found.out);
}

#[tokio::test]
async fn a_run_that_cannot_be_read_stays_and_the_others_move() {
    let shop = damaged_by("UPDATE hapax_runs SET status_json = '{' WHERE run_id = 'order-2'").await;
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (shop.url(), url(&folder.path().join("new.db")));
    let to = to.to_str().unwrap();
    let migrate = |more: &[&str]| said(stock(&[&["migrate", "--from", &from, "--to", to], more].concat()));
    let told = migrate(&["--create", "--json"]);
    assert_eq!(told.code, 1, "{}", told.err);
    let answer: serde_json::Value = serde_json::from_str(&told.out).unwrap();
    assert_eq!(answer["runs"], 1);
    let why = answer["refused"]["order-2"].as_str().unwrap();
    assert!(why.starts_with("HX0044: run `order-2` is damaged: its status"), "{why}");
    let moved = said(stock(&["--store", to, "list"])).ok();
    assert!(moved.contains("order-1  succeeded") && !moved.contains("order-2"), "{moved}");
    let named = migrate(&["--run", "order-2"]);
    assert!(named.code == 1 && named.err.contains("HX0044"), "{named:?}");
    migrate(&["--run", "order-1"]).ok();
}

#[tokio::test]
async fn a_file_that_is_no_store_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let run = |path: &std::path::Path, command: &str| {
        let mut process = stock(&[command]);
        process.env("HAPAX_STORE", url(path));
        said(process)
    };
    std::fs::write(at("text.db"), "this is not a database, whatever its name says").unwrap();
    assert!(run(&at("text.db"), "list").fails(3).starts_with("error[HX0044]: cannot open"));
    assert!(!at("text.db-locks").exists());
    let doctor = run(&at("text.db"), "doctor");
    assert!(doctor.code == 3 && doctor.err.starts_with("error[HX0044]: cannot open"), "{}", doctor.err);
    assert!(doctor.out.starts_with("unsafe  opening"), "{}", doctor.out);
    assert!(run(&at("missing.db"), "list").fails(3).starts_with("error[HX0047]: cannot open"));
    assert!(!at("missing.db").exists(), "looking at a store must not create one");
    rusqlite::Connection::open(at("other.db")).unwrap().execute("CREATE TABLE theirs (a)", ()).unwrap();
    std::fs::write(at("empty.db"), "").unwrap();
    for name in ["other.db", "empty.db"] {
        let before = std::fs::read(at(name)).unwrap();
        for command in ["list", "doctor", "gc"] {
            let refused = run(&at(name), command);
            assert!(refused.err.contains("it holds no runs of Hapax"), "{command}: {}", refused.err);
        }
        assert_eq!(std::fs::read(at(name)).unwrap(), before, "{name} is somebody else's");
        assert!(!at(&format!("{name}-locks")).exists());
    }
    assert!(said(stock(&["--store", "postgres:x", "list"])).fails(2).starts_with("error[HX0050]"));
    assert!(said(stock(&["--store", "memory:x", "list"])).fails(2).starts_with("error[HX0050]"));
    assert!(said(stock(&["--store", "sqlite:", "list"])).fails(2).starts_with("error[HX0050]"));
    assert!(said(stock(&["list"])).fails(2).contains("no store is named"));
    assert_eq!(said(stock(&["--store", "memory:", "list"])).ok(), "no runs\n");
}

/// What a hand did to the file, and what the doctor says of it.
const DAMAGE: [(&str, &str); 9] = [
    (
        "UPDATE hapax_journal SET entry = x'ff' WHERE run_id = 'order-1' AND seq = 0",
        "row 0 of the journal does not match",
    ),
    (
        "DELETE FROM hapax_journal WHERE run_id = 'order-1' AND seq = 1",
        "`default/order-1` lacks rows of its journal",
    ),
    (
        "DELETE FROM hapax_journal WHERE run_id = 'order-1' AND seq = 0",
        "`default/order-1` lacks rows of its journal",
    ),
    ("DELETE FROM hapax_checkpoints WHERE run_id = 'order-1' AND step_id = 2", "lacks a checkpoint between"),
    (
        "DELETE FROM hapax_checkpoints WHERE run_id = 'order-1' AND step_id = 4",
        "lacks the checkpoint that its row names",
    ),
    (
        "DELETE FROM hapax_keys WHERE run_id = 'order-1' AND step_id = 2",
        "whose key is not there to refuse a duplicate",
    ),
    ("DELETE FROM hapax_runs WHERE run_id = 'order-1'", "`default/order-1` lacks its row"),
    (
        "UPDATE hapax_runs SET status = 'running' WHERE run_id = 'order-1'",
        "it is succeeded and is listed as running",
    ),
    ("UPDATE hapax_runs SET step_id = -5 WHERE run_id = 'order-1'", "-5 can't be a number of steps"),
];

#[tokio::test]
async fn a_doctor_finds_whatever_is_missing_or_changed() {
    for (sql, found) in DAMAGE {
        let shop = damaged_by(sql).await;
        let told = shop.hapax(&["doctor", "--json"]);
        assert_eq!(told.code, 1, "{sql}: {}", told.out);
        let answer: serde_json::Value = serde_json::from_str(&told.out).unwrap();
        let facts = answer["facts"].as_array().unwrap();
        let named = facts.iter().any(|fact| {
            fact["verdict"] == "unsafe" && fact["found"].as_str().is_some_and(|text| text.contains(found))
        });
        assert!(named, "{sql}: {}", told.out);
    }
}

#[tokio::test]
async fn a_missing_step_is_damage_and_not_a_wrong_question() {
    let middle = damaged_by("DELETE FROM hapax_checkpoints WHERE run_id = 'order-1' AND step_id = 2").await;
    for command in [
        &["show", "order-1", "--step", "2"][..],
        &["show", "order-1", "--step", "3"],
        &["graph", "--run", "order-1"],
        &["fork", "order-1@2"],
    ] {
        let error = middle.hapax(command).fails(3);
        assert!(error.starts_with("error[HX0044]: run `order-1`, step 2, is damaged"), "{error}");
    }
    let latest = damaged_by("DELETE FROM hapax_checkpoints WHERE run_id = 'order-1' AND step_id = 4").await;
    let error = latest.hapax(&["show", "order-1"]).fails(3);
    assert!(error.starts_with("error[HX0044]: run `order-1`, step 4, is damaged"), "{error}");
    let row = damaged_by("UPDATE hapax_runs SET step_id = 3 WHERE run_id = 'order-1'").await;
    let error = row.hapax(&["show", "order-1"]).fails(3);
    assert!(error.contains("isn't the one that the run's row names"), "{error}");
}

#[tokio::test]
async fn a_run_without_a_readable_name_hides_no_other() {
    let shop = damaged_by("UPDATE hapax_runs SET run_id = x'ff' WHERE run_id = 'order-2'").await;
    let listed = shop.hapax(&["list"]);
    assert_eq!(listed.code, 3);
    assert!(listed.out.contains("order-1  succeeded"), "{}", listed.out);
    assert!(listed.err.starts_with("error[HX0044]: run `*` is damaged"), "{}", listed.err);
}

#[tokio::test]
async fn a_store_without_one_of_its_tables_is_damaged() {
    for (sql, gone) in [
        ("DROP TABLE hapax_journal", "`hapax_journal` is missing"),
        ("DROP INDEX hapax_letters_id", "`hapax_letters_id` is missing"),
        ("DELETE FROM hapax_schema", "its version is missing"),
        ("UPDATE hapax_schema SET version = -1", "its version can't be"),
    ] {
        let shop = damaged_by(sql).await;
        let error = shop.hapax(&["list"]).fails(3);
        assert!(error.starts_with("error[HX0044]: cannot open") && error.contains(gone), "{sql}: {error}");
        let told = shop.hapax(&["doctor", "--json"]);
        let answer: serde_json::Value = serde_json::from_str(&told.out).unwrap();
        assert_eq!((told.code, &answer["safe"]), (3, &false.into()), "{sql}");
        assert_eq!(answer["facts"][0]["name"], "opening", "{sql}");
    }
}

#[tokio::test]
async fn whoever_looks_waits_for_no_writer() {
    let shop = Shop::with_history().await;
    shop.engine.shutdown(Duration::from_secs(5)).await;
    let writer = rusqlite::Connection::open(shop.path()).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    shop.hapax(&["list"]).ok();
    shop.hapax(&["show", "order-1"]).ok();
}
