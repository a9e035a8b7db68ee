//! What is told of the transactions that a program made in a database of its user's, and was killed in.

use crate::common::{
    Said, steady, steady_json,
    till::{OPEN, PAID, Till},
};
use serde_json::Value;

fn transactions(till: &Till, args: &[&str]) -> Said {
    till.hapax(&[&["transactions"], args].concat())
}

/// The run and the state of each that a list names.
fn listed(till: &Till, args: &[&str]) -> Vec<(String, String)> {
    let answer = transactions(till, &[&["list", "--json"], args].concat()).json();
    let word = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let all = answer["transactions"].as_array().unwrap();
    all.iter().map(|one| (word(one, "run"), word(one, "state"))).collect()
}

fn shown(till: &Till, run: &str) -> Value {
    transactions(till, &["show", run, "--json"]).json()["transactions"].take()
}

#[test]
fn transactions_are_listed_with_what_is_not_settled_first() {
    let till = Till::with_history();
    let list = transactions(&till, &["list"]).ok();
    insta::assert_snapshot!("transactions_list", till.anywhere(&steady(&list)));
    let of = |args: &[&str]| -> Vec<String> { listed(&till, args).into_iter().map(|(run, _)| run).collect() };
    assert_eq!(of(&["--open"]), ["sale-6", "sale-5", "sale-4"]);
    assert_eq!(of(&["--in-doubt"]), ["sale-6"]);
    assert_eq!(of(&["--in-doubt", "--database", "shop"]), ["sale-6"]);
    assert_eq!(of(&["--database", "elsewhere"]), [""; 0]);
    assert_eq!(of(&["--graph", "returns"]), [""; 0]);
    assert_eq!(of(&["--limit", "2"]), ["sale-6", "sale-5"]);
    let more = transactions(&till, &["list", "--limit", "5"]);
    assert_eq!((more.code, &*more.err), (0, "--limit 5 is reached: there are more\n"));
    let answer = transactions(&till, &["list", "--json", "--limit", "5"]).json();
    assert_eq!((answer["more"].as_bool(), answer["damaged"].as_array().unwrap().len()), (Some(true), 0));
}

#[test]
fn a_transaction_is_shown_with_all_that_is_known_of_it() {
    let till = Till::with_history();
    for run in ["sale-2", "sale-3", "sale-4", "sale-5", "sale-6"] {
        let text = transactions(&till, &["show", run]).ok();
        insta::assert_snapshot!(format!("transactions_show_{run}"), till.anywhere(&steady(&text)));
    }
    let json = transactions(&till, &["show", "sale-3", "--json"]).json();
    insta::assert_snapshot!("transactions_show_json", steady_json(json));
}

#[test]
fn a_marker_is_in_the_database_under_the_id_that_is_shown() {
    let till = Till::with_history();
    for run in ["sale-1", "sale-3", "sale-6"] {
        let all = shown(&till, run);
        let id = all.as_array().unwrap().last().unwrap()["marker"].as_str().unwrap().to_owned();
        let ask = "SELECT count(*) FROM hapax_transactions WHERE id = ?";
        let found: i64 = till.shop().query_row(ask, [&id], |row| row.get(0)).unwrap();
        assert_eq!(found, 1, "{run}: {id}");
    }
}

#[test]
fn one_in_doubt_is_settled_as_the_list_advises() {
    let till = Till::with_history();
    let list = transactions(&till, &["list", "--in-doubt"]).ok();
    let advice = list.lines().find_map(|line| line.trim().strip_prefix("hapax "));
    let words: Vec<&str> =
        advice.expect("advice").split(' ').take_while(|word| !word.starts_with('(')).collect();
    assert_eq!(words, ["resolve", "sale-6", "pay"]);
    till.hapax(&[&words[..], &["--result", "3"]].concat()).ok();
    till.go_on("sale-6", "shop.db");
    assert_eq!(transactions(&till, &["list", "--in-doubt"]).ok(), "no transaction is in doubt\n");
    let settled = &shown(&till, "sale-6")[0];
    assert_eq!((&settled["state"], &settled["result"]), (&"committed".into(), &3.into()));
    assert_eq!(settled["settled_by_person"], true);
}

#[test]
fn one_that_waits_is_settled_when_its_database_is_back() {
    let till = Till::open();
    till.killed("sale-1", OPEN, "paying");
    till.go_on("sale-1", "missing.db");
    let waits = &shown(&till, "sale-1")[0];
    assert_eq!((&waits["state"], &waits["database"]), (&"waiting".into(), &"shop".into()));
    assert!(waits["why"].as_str().unwrap().contains("missing.db"), "{waits}");
    till.work("sale-1");
    let settled = &shown(&till, "sale-1")[0];
    assert_eq!((&settled["state"], &settled["result"]), (&"committed".into(), &1.into()));
    assert_eq!((settled.get("why"), &settled["settled_by_person"]), (None, &false.into()));
}

#[test]
fn one_whose_run_is_cancelled_is_abandoned() {
    let till = Till::open();
    till.killed("sale-1", OPEN, "paying");
    till.hapax(&["cancel", "sale-1"]).ok();
    assert_eq!(listed(&till, &[]), [("sale-1".to_owned(), "abandoned".to_owned())]);
    assert_eq!(transactions(&till, &["list", "--open"]).ok(), "no transaction is open\n");
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let till = Till::open();
    till.sell("sale-1", PAID);
    assert!(transactions(&till, &["show", "nope"]).fails(1).starts_with("error[HX0028]: there is no run"));
    let error = transactions(&till, &["show", "sale-1", "refund"]).fails(1);
    assert!(error.starts_with("error[HX0028]: run `sale-1` has made no transaction `refund`\n"), "{error}");
    assert!(error.contains("cure: ask for one that it has made: pay\n"), "{error}");
    for call in ["pay", "fx:"] {
        assert!(transactions(&till, &["show", "sale-1", call]).ok().contains("committed"), "{call}");
    }
    let elsewhere = transactions(&till, &["list", "--namespace", "elsewhere"]).ok();
    assert_eq!(elsewhere, "no transactions\n");
    transactions(&till, &["list", "--open", "--in-doubt"]).fails(2);
}

/// Its calls are carried with their answers, but they were the other run's.
#[test]
fn a_fork_has_not_made_the_transactions_of_the_other_run() {
    let till = Till::open();
    till.sell("sale-1", PAID);
    till.hapax(&["fork", "sale-1@0", "--as", "copy"]).ok();
    assert_eq!(transactions(&till, &["show", "copy"]).ok(), "copy has made no transactions\n");
}

#[test]
fn a_run_that_cannot_be_read_is_named_beside_the_transactions_of_others() {
    let till = Till::open();
    till.sell("sale-1", PAID);
    till.sell("sale-2", PAID);
    let damage = "UPDATE hapax_runs SET status_json = '{' WHERE run_id = 'sale-1'";
    assert_eq!(rusqlite::Connection::open(till.store()).unwrap().execute(damage, ()).unwrap(), 1);
    let listed = transactions(&till, &["list"]);
    assert_eq!(listed.code, 3, "{}", listed.err);
    assert!(listed.err.starts_with("error[HX0044]: run `sale-1` is damaged"), "{}", listed.err);
    let lines: Vec<&str> = listed.out.lines().collect();
    assert!(lines[1].starts_with("sale-2  committed"), "{lines:?}");
    assert_eq!(lines[2].trim_end(), "sale-1  damaged");
}
