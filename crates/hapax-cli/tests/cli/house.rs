//! Runs that move: exported, imported, migrated.

use crate::common::{Said, Shop, said, stock};
use hapax::{
    Engine, Error, Options,
    core::{commit::Epoch, error::Coded as _, id::RunKey, json::Json, key::sha256},
};
use hapax_store::conformance::Sample;
use serde_json::{Value, json};
use std::{
    fs::File,
    path::Path,
    process::{Command, Stdio},
};

fn at(path: &Path, args: &[&str]) -> Said {
    let mut command = stock(args);
    command.env("HAPAX_STORE", crate::common::url(path));
    said(command)
}

fn exported(path: &Path) -> String {
    let said = at(path, &["export"]);
    assert_eq!(said.code, 0, "{}", said.err);
    said.out
}

fn migrate(shop: &Shop, to: &Path, more: &[&str]) -> Said {
    let (from, to) = (shop.url(), format!("sqlite:{}", to.display()));
    said(stock(&[&["migrate", "--from", &from, "--to", &to], more].concat()))
}

#[tokio::test]
async fn what_is_exported_and_imported_is_exported_as_the_same_bytes() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("runs.ndjson"), folder.path().join("copy.db"));
    let first = exported(&shop.path());
    assert!(first.starts_with("{\"hapax_export\":1}\n{\"run\":{"), "{first}");
    std::fs::write(&file, &first).unwrap();
    let file = file.to_str().unwrap();
    assert!(at(&copy, &["import", file]).fails(3).contains("HX0047"), "a store is not made by mistake");
    let told = at(&copy, &["import", file, "--create"]).ok();
    assert!(told.starts_with("imported 2 runs, with 8 steps: "), "{told}");
    assert_eq!(exported(&copy), first);
    let again = at(&copy, &["import", file]).fails(1);
    assert!(again.contains("HX0183"), "{again}");
    let one = at(&copy, &["export", "--run", "order-1"]).out;
    assert_eq!(one.matches("{\"run\":").count(), 1);
    assert!(at(&copy, &["export", "--run", "nope"]).fails(1).contains("HX0028"));
    assert_eq!(at(&copy, &["export", "--status", "failed"]).out.matches("{\"run\":").count(), 1);
}

#[tokio::test]
async fn a_damaged_file_is_refused_with_its_line_and_changes_nothing() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let (file, whole) = (folder.path().join("runs.ndjson"), exported(&shop.path()));
    let name = file.to_str().unwrap();
    let cut = &whole[..whole.len() / 2];
    let changed = whole.replace("anvil", "anvils");
    for (text, says) in [(cut, "it was cut"), (&*changed, "HX0184"), ("{}\n", "line 1: this is no export")] {
        std::fs::write(&file, text).unwrap();
        let refused = at(&folder.path().join("new.db"), &["import", name, "--create"]).fails(1);
        assert!(refused.contains("HX0184") && refused.contains(says), "{refused}");
        assert!(!folder.path().join("new.db").exists(), "no store is made for it");
    }
    assert!(at(&shop.path(), &["import", "no-such-file"]).fails(1).contains("HX0061"));
}

#[tokio::test]
async fn a_run_that_is_not_over_is_imported_only_when_that_is_asked_for() {
    let shop = Shop::open().await;
    let run = shop.in_flight("order-3").await;
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("runs.ndjson"), folder.path().join("copy.db"));
    std::fs::write(&file, exported(&shop.path())).unwrap();
    let file = file.to_str().unwrap();
    let refused = at(&copy, &["import", file, "--create"]).fails(2);
    assert!(refused.contains("--live") && refused.contains("order-3"), "{refused}");
    assert_eq!(at(&copy, &["import", file, "--dry-run", "--create", "--json"]).json()["live"], 1);
    assert!(!copy.exists(), "neither makes a store");
    at(&copy, &["import", file, "--live", "--create"]).ok();
    assert!(at(&copy, &["list", "--status", "running"]).ok().contains("order-3"));
    shop.world.parcel.notify_one();
    run.wait().await.unwrap();
}

#[tokio::test]
async fn runs_move_to_another_store_which_the_old_one_names() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.db");
    assert!(migrate(&shop, &new, &[]).fails(3).contains("HX0047"), "a store is not made by mistake");
    assert!(migrate(&shop, &new, &["--dry-run"]).fails(3).contains("HX0047"));
    let dry = migrate(&shop, &new, &["--dry-run", "--create", "--json"]).json();
    assert_eq!((&dry["runs"], &dry["steps"]), (&2.into(), &8.into()));
    assert!(!new.exists(), "a dry run makes nothing");

    let told = migrate(&shop, &new, &["--run", "order-2", "--create"]).ok();
    assert!(told.starts_with("moved 1 run with 3 steps: "), "{told}");
    let told = migrate(&shop, &new, &["--json"]).json();
    assert_eq!((&told["runs"], &told["held"]), (&1.into(), &serde_json::json!([])));
    assert_eq!(migrate(&shop, &new, &["--json"]).json()["runs"], 0, "all are there");
    let listed = at(&new, &["list"]).ok();
    assert!(listed.contains("order-1  succeeded") && listed.contains("order-2  failed"), "{listed}");
    assert_eq!(shop.hapax(&["list", "--status", "moved"]).ok().lines().count(), 3);

    let refused = shop.orders.start("order-1", crate::common::Order::default()).await;
    let refused = refused.err().map(|error: Error| (error.code(), error.to_string())).unwrap();
    assert_eq!(refused.0, "HX0181");
    assert!(refused.1.contains("new.db"), "{refused:?}");
    let answered = shop.engine.answer("order-1", "approved", "yes").await;
    assert_eq!(answered.map_err(|error| error.code()), Err(hapax::core::error::code::RUN_MOVED));
    let retried = shop.hapax(&["retry", "order-2"]).fails(1);
    assert!(retried.contains("HX0181"), "{retried}");
    assert!(migrate(&shop, &shop.path(), &[]).fails(2).contains("the same store"));
}

#[tokio::test]
async fn a_run_that_moved_is_not_taken_for_a_damaged_one() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let (new, ledger) = (folder.path().join("new.db"), folder.path().join("ledger"));
    migrate(&shop, &new, &["--create", "--run", "order-1"]).ok();
    for args in [
        &["show", "order-1"][..],
        &["history", "order-1"],
        &["graph", "--run", "order-1"],
        &["fork", "order-1@0"],
        &["ledger", "order-1", "--dir", ledger.to_str().unwrap()],
        &["export", "--run", "order-1"],
        &["transactions", "show", "order-1"],
        &["tail", "order-1"],
        &["outbox", "list", "--run", "order-1"],
    ] {
        let refused = shop.hapax(args).fails(1);
        assert!(refused.contains("HX0181") && refused.contains("new.db"), "{args:?}: {refused}");
    }
    let whole = exported(&shop.path());
    assert!(!whole.contains("order-1") && whole.contains("order-2"), "the others are exported without it");
    let health = shop.hapax(&["doctor", "--json"]).out;
    assert!(health.contains("checkpoints in 1 runs") && !health.contains("order-1"), "{health}");
}

#[tokio::test]
async fn a_run_that_is_arriving_is_not_taken_for_one_that_is_there() {
    let (old, shop) = (Shop::with_history().await, Shop::open().await);
    let key = old.engine.record("order-1").await.unwrap().key;
    let head = old.engine.store().house().image(key).await.unwrap().head;
    let epoch = Epoch { counter: head.epoch, nonce: 7 };
    shop.engine.store().house().arrive(head, epoch).await.unwrap();
    for args in [&["show", "order-1"][..], &["export", "--run", "order-1"], &["fork", "order-1@0"]] {
        let refused = shop.hapax(args).fails(1);
        assert!(refused.contains("HX0180"), "{args:?}: {refused}");
    }
    assert!(!exported(&shop.path()).contains("order-1"));
}

#[tokio::test]
async fn what_comes_through_a_pipe_is_imported_like_a_file() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let (file, whole) = (folder.path().join("runs.ndjson"), exported(&shop.path()));
    std::fs::write(&file, &whole).unwrap();
    for name in ["-", "/dev/stdin"] {
        let copy = folder.path().join(format!("{}.db", name.replace('/', "_")));
        let mut cat = Command::new("cat").arg(&file).stdout(Stdio::piped()).spawn().unwrap();
        let mut import = stock(&["import", name, "--create"]);
        import.env("HAPAX_STORE", crate::common::url(&copy)).stdin(cat.stdout.take().unwrap());
        assert!(said(import).ok().starts_with("imported 2 runs"), "{name}");
        cat.wait().unwrap();
        assert_eq!(exported(&copy), whole);
    }
    let mut import = stock(&["import", "-", "--dry-run"]);
    import.stdin(File::open(&file).unwrap());
    assert!(said(import).ok().starts_with("would import 2 runs"), "it needs no store");
}

/// An export whose first run is another than it was, with a checksum that is right.
fn forged(whole: &str, change: impl FnOnce(&mut Value)) -> String {
    sealed_anew(whole, |lines| {
        let mut run: Value = serde_json::from_str(&lines[1]).unwrap();
        change(&mut run["run"]);
        lines[1] = Json::of(&run).unwrap().as_str().to_owned();
    })
}

/// An export whose lines are others than they were, with a checksum that is right.
fn sealed_anew(whole: &str, change: impl FnOnce(&mut Vec<String>)) -> String {
    let mut lines: Vec<String> = whole.lines().map(str::to_owned).collect();
    lines.pop();
    change(&mut lines);
    let runs = lines.iter().filter(|line| line.starts_with("{\"run\":")).count();
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let (count, sum) = (lines.len(), sha256(text.as_bytes()));
    format!("{text}{{\"end\":{{\"lines\":{count},\"runs\":{runs},\"sha256\":\"{sum}\"}}}}\n")
}

#[tokio::test]
async fn a_file_that_no_store_can_have_written_is_refused_although_its_checksum_is_right() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let (file, new, whole) =
        (folder.path().join("runs.ndjson"), folder.path().join("new.db"), exported(&shop.path()));
    let import = |text: &str| {
        std::fs::write(&file, text).unwrap();
        at(&new, &["import", file.to_str().unwrap(), "--create", "--live"])
    };
    let was = json!({ "status": { "status": "pending" }, "cancel_requested": false, "wake": {} });
    let forgeries = [
        ("/tags/customer", json!("4\u{0}2"), "tag value"),
        ("/tags", json!({ "a\u{0}b": "42" }), "tag key"),
        ("/graph", json!(""), "graph name"),
        ("/graph", json!("or\u{0}ders"), "graph name"),
        ("/status", json!({ "status": "moved", "to": "sqlite:x.db" }), "`moved`"),
        ("/status", json!({ "status": "leaving", "to": "sqlite:x.db", "was": was }), "`leaving`"),
        ("/status", json!({ "status": "arriving", "was": was }), "`arriving`"),
        ("/next_seq", json!(0), "isn't before 0"),
        ("/epoch", json!(1_u64 << 63), "`epoch`"),
        ("/epoch", json!(u64::MAX), "`epoch`"),
        ("/used_us", json!(1_u64 << 63), "`used_us`"),
        ("/created_at_us", json!(i64::MIN), "`created_at_us`"),
        ("/created_at_us", json!(0), "`created_at_us` is 0"),
        ("/step", json!(3), "goes beyond its run"),
        ("/digest", json!(sha256(b"another")), "lacks its latest step"),
    ];
    for (place, value, says) in forgeries {
        let refused = import(&forged(&whole, |run| *run.pointer_mut(place).unwrap() = value)).fails(1);
        assert!(refused.contains("HX0184") && refused.contains(says), "{place}: {refused}");
        assert!(!new.exists(), "{place}: nothing is written for it");
    }
    let twice = sealed_anew(&whole, |lines| lines.insert(2, lines[2].clone()));
    let refused = import(&twice).fails(1);
    assert!(refused.contains("HX0184") && refused.contains("line 4: a piece comes twice"), "{refused}");
    import(&forged(&whole, |_| {})).ok();
}

#[tokio::test]
async fn a_run_that_is_held_stays_and_is_told_of() {
    let shop = Shop::open().await;
    let run = shop.in_flight("order-3").await;
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.db");
    let held = migrate(&shop, &new, &["--create"]);
    assert_eq!(held.code, 4, "{}", held.err);
    assert!(held.out.contains("1 run held, such as order-3") && held.err.contains("HX0030"), "{held:?}");
    shop.world.parcel.notify_one();
    run.wait().await.unwrap();
    assert_eq!(migrate(&shop, &new, &["--json", "--wait", "30s"]).json()["runs"], 1);
}

#[tokio::test]
async fn what_is_on_its_way_can_be_called_back() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let new = folder.path().join("new.db");
    migrate(&shop, &new, &["--create", "--run", "order-2"]).ok();
    let there = format!("sqlite:{}", new.canonicalize().unwrap().display());
    let key = shop.engine.record("order-1").await.unwrap().key;
    shop.engine.store().house().leave(key, there.clone().into()).await.unwrap();
    let signalled = shop.hapax(&["signal", "order-1", "go"]).fails(1);
    assert!(signalled.contains("HX0180") && signalled.contains(&*there), "{signalled}");
    assert!(shop.hapax(&["show", "order-1"]).ok().contains(&format!("leaving (to {there})")));
    assert_eq!(migrate(&shop, &new, &["--undo"]).ok(), "called back 1 run\n");
    assert!(shop.hapax(&["list"]).ok().contains("order-1  succeeded"));
    let options = Options::default().finds_work(false);
    let new = Engine::builder().options(options).open(&format!("sqlite:{}", new.display())).await.unwrap();
    assert!(new.record("order-1").await.is_err());
}

/// The old store has closed `order-1`, and the new one doesn't have it: only a person knows why.
async fn closed_and_gone(shop: &Shop, new: &Path) -> RunKey {
    migrate(shop, new, &["--create", "--run", "order-2"]).ok();
    let there = format!("sqlite:{}", new.canonicalize().unwrap().display());
    let (store, key) = (shop.engine.store(), shop.engine.record("order-1").await.unwrap().key);
    let left = store.house().leave(key.clone(), there.clone().into()).await.unwrap();
    store.house().close(left, there.into()).await.unwrap();
    let refused = migrate(shop, new, &[]);
    assert!(refused.code == 1 && refused.out.contains("HX0182"), "{refused:?}");
    assert!(!refused.err.contains("nothing is lost"), "{refused:?}");
    key
}

#[tokio::test]
async fn what_was_swept_in_its_new_home_needs_a_word() {
    let (shop, folder) = (Shop::with_history().await, tempfile::tempdir().unwrap());
    let new = folder.path().join("new.db");
    let (store, key) = (shop.engine.store(), closed_and_gone(&shop, &new).await);
    assert!(migrate(&shop, &new, &["--swept"]).fails(2).contains("--run"), "they must be named");
    assert_eq!(store.checkpoints(key.clone(), 0, 9).await.unwrap().len(), 5, "they are kept so far");
    migrate(&shop, &new, &["--swept", "--run", "order-1"]).ok();
    assert!(store.checkpoints(key, 0, 9).await.unwrap().is_empty());
    assert!(shop.hapax(&["show", "order-1"]).fails(1).contains("HX0181"));
}

#[tokio::test]
async fn what_its_new_home_has_lost_arrives_anew_on_demand() {
    let (shop, folder) = (Shop::with_history().await, tempfile::tempdir().unwrap());
    let new = folder.path().join("new.db");
    let (store, key) = (shop.engine.store(), closed_and_gone(&shop, &new).await);
    assert!(migrate(&shop, &new, &["--lost"]).fails(2).contains("--run"), "they must be named");
    let told = migrate(&shop, &new, &["--lost", "--run", "order-1"]).ok();
    assert!(told.starts_with("moved 1 run with 5 steps: "), "{told}");
    assert!(at(&new, &["list"]).ok().contains("order-1  succeeded"));
    assert!(store.checkpoints(key, 0, 9).await.unwrap().is_empty());
    assert!(shop.hapax(&["show", "order-1"]).fails(1).contains("HX0181"));
}

#[tokio::test]
async fn runs_that_went_elsewhere_hold_no_later_move_back() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["first.db", "second.db"].map(|name| folder.path().join(name));
    migrate(&shop, &first, &["--create", "--run", "order-1"]).ok();
    let told = migrate(&shop, &second, &["--create", "--json"]).json();
    assert_eq!((&told["runs"], &told["elsewhere"], &told["refused"]), (&json!(1), &json!(1), &json!({})));
    assert!(migrate(&shop, &second, &[]).ok().contains("1 run moved elsewhere before"));

    // One whose move isn't over is nowhere open: that must be told.
    let halfway = Shop::with_history().await;
    let (store, key) = (halfway.engine.store(), halfway.engine.record("order-1").await.unwrap().key);
    let left = store.house().leave(key, "sqlite:/third.db".into()).await.unwrap();
    store.house().close(left, "sqlite:/third.db".into()).await.unwrap();
    let refused = migrate(&halfway, &folder.path().join("fourth.db"), &["--create"]);
    assert!(refused.code == 1 && refused.out.contains("HX0181"), "{refused:?}");
    assert!(refused.out.contains("sqlite:/third.db"), "{refused:?}");
}

#[tokio::test]
async fn a_family_that_no_map_keeps_together_holds_no_other_back() {
    let (shop, folder) = (Shop::open().await, tempfile::tempdir().unwrap());
    let store = shop.engine.store();
    for n in 0..12 {
        let order = Sample::run(&format!("order-{n}")).build();
        let payment = Sample::run(&format!("payment-{n}")).child_of(&order.key).build();
        store.create(order).await.unwrap();
        store.create(payment).await.unwrap();
    }
    let files = ["one.db", "other.db"].map(|name| format!("sqlite:{}", folder.path().join(name).display()));
    let all = format!("sharded:{},{}", files[0], files[1]);
    let told = said(stock(&["migrate", "--from", &shop.url(), "--to", &all, "--create", "--json"]));
    assert_eq!(told.code, 1, "{told:?}");
    let answer: Value = serde_json::from_str(&told.out).unwrap();
    let refused = answer["refused"].as_object().unwrap();
    assert!(!refused.is_empty() && refused.len() < 12, "{answer}");
    assert!(refused.values().all(|why| why.as_str().unwrap().starts_with("HX0186")), "{answer}");
    assert_eq!(answer["runs"], 2 * (12 - refused.len()), "the others are there");
    assert_eq!(shop.hapax(&["list", "--status", "pending"]).ok().lines().count(), 1 + 2 * refused.len());
}

#[tokio::test]
async fn nothing_is_called_back_from_another_place_than_it_goes_to() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let [new, other] = ["new.db", "other.db"].map(|name| folder.path().join(name));
    for path in [&new, &other] {
        migrate(&Shop::open().await, path, &["--create"]).ok();
    }
    let key = shop.engine.record("order-1").await.unwrap().key;
    let there = format!("sqlite:{}", new.canonicalize().unwrap().display());
    shop.engine.store().house().leave(key, there.clone().into()).await.unwrap();
    let refused = migrate(&shop, &other, &["--undo"]);
    assert!(
        refused.code == 1 && refused.err.contains("HX0180") && refused.err.contains(&there),
        "{refused:?}"
    );
    assert!(shop.hapax(&["show", "order-1"]).ok().contains("leaving"));
}

#[tokio::test]
async fn what_a_call_back_left_in_the_new_store_is_given_up() {
    let (shop, new) = (Shop::with_history().await, Shop::open().await);
    let [from, to] = [&shop, &new].map(|shop| shop.engine.store());
    let key = shop.engine.record("order-1").await.unwrap().key;
    let there = format!("sqlite:{}", new.path().canonicalize().unwrap().display());
    let left = from.house().leave(key.clone(), there.into()).await.unwrap();
    let head = from.house().image(key.clone()).await.unwrap().head;
    to.house().arrive(head, left[0].1).await.unwrap();
    // Whoever calls it back is killed here.
    from.house().stay(key.clone()).await.unwrap();
    let undo = || migrate(&shop, &new.path(), &["--undo", "--json"]).json();
    assert_eq!(undo()["given_up"], 1);
    assert!(to.run(key.clone()).await.unwrap().is_none(), "its name is free");
    // What arrives of a run that is shut may be all of it.
    let left = from.house().leave(key.clone(), "sqlite:/elsewhere.db".into()).await.unwrap();
    let head = from.house().image(key.clone()).await.unwrap().head;
    to.house().arrive(head, left[0].1).await.unwrap();
    from.house().close(left, "sqlite:/elsewhere.db".into()).await.unwrap();
    assert_eq!(undo()["given_up"], 0);
    assert_eq!(to.run(key).await.unwrap().unwrap().status.word(), "arriving");
}

#[tokio::test]
async fn what_cannot_be_moved_goes_on_where_it_is() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let [new, file] = ["new.db", "runs.ndjson"].map(|name| folder.path().join(name));
    std::fs::write(&file, exported(&shop.path())).unwrap();
    at(&new, &["import", file.to_str().unwrap(), "--create", "--live"]).ok();
    let refused = migrate(&shop, &new, &[]);
    assert!(refused.code == 1 && refused.out.contains("HX0183"), "{refused:?}");
    let listed = shop.hapax(&["list"]).ok();
    assert!(listed.contains("order-1  succeeded") && !listed.contains("leaving"), "{listed}");
}

#[tokio::test]
async fn a_store_that_ends_with_the_command_takes_no_runs() {
    let shop = Shop::with_history().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, exported(&shop.path())).unwrap();
    let import = ["--store", "memory:", "import", "--live", file.path().to_str().unwrap()];
    assert!(said(stock(&import)).fails(2).contains("is gone when this command ends"));
    for to in ["memory:", "sharded:memory:,memory:"] {
        let command = stock(&["migrate", "--from", &shop.url(), "--to", to]);
        assert!(said(command).fails(2).contains("is gone when this command ends"));
    }
    assert!(shop.hapax(&["list"]).ok().contains("order-1  succeeded"));
}

#[tokio::test]
async fn a_database_of_several_is_not_another_store() {
    let shop = Shop::with_history().await;
    let folder = tempfile::tempdir().unwrap();
    let [one, other] =
        ["one.db", "other.db"].map(|name| format!("sqlite:{}", folder.path().join(name).display()));
    let all = format!("sharded:{one},{other}");
    said(stock(&["migrate", "--from", &shop.url(), "--to", &all, "--create"])).ok();
    for (from, to) in [(&all, &all), (&all, &one), (&other, &all)] {
        let refused = said(stock(&["migrate", "--from", from, "--to", to])).fails(2);
        assert!(refused.contains("the same store"), "{refused}");
    }
    assert!(!said(stock(&["--store", &all, "list"])).ok().contains("leaving"));
}
