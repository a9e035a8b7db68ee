//! Stores that are encrypted, rotated and decrypted by hand, with keys from the environment.

use crate::common::{Order, Said, Shop, World, said, shop, stock, url};
use hapax::{
    Engine,
    store::{SqliteOptions, SqliteStore},
};
use std::{sync::Arc, time::Duration};

const A: &str = "a:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const B: &str = "b:HxQTEhEQDw4NDAsKCQgHBgUEAwIBAB8eHRwbGhkYFxY=";

/// The program with these keys. No byte of theirs is ever shown.
fn hapax(shop: &Shop, keys: &str, args: &[&str]) -> Said {
    let mut command = shop.command(args);
    command.env("HAPAX_KEYS", keys);
    let said = said(command);
    for secret in keys.split([' ', ',']).filter_map(|key| key.split_once(':')).map(|(_, secret)| secret) {
        assert!(!said.out.contains(secret) && !said.err.contains(secret), "{} {}", said.out, said.err);
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_encrypted_rotated_and_decrypted_in_place() {
    let shop = Shop::open().await;
    shop.finish("order-1", "anvil").await;
    let shown = shop.hapax(&["show", "order-1", "--json"]).json();
    let counted = hapax(&shop, A, &["rotate", "--dry-run", "--json"]).json();
    assert_eq!((&counted["rewritten"], &counted["plain"]), (&0.into(), &counted["payloads"]));
    assert!(hapax(&shop, A, &["rotate"]).fails(3).contains("HX0192"));
    assert_eq!(hapax(&shop, A, &["rotate", "--dry-run", "--json"]).json(), counted, "nothing was encrypted");
    let done = hapax(&shop, &format!("{A} plain"), &["rotate", "--json"]).json();
    assert_eq!((&done["left"], &done["keys"]["a"]), (&0.into(), &counted["payloads"]), "{done}");

    let locked = shop.hapax(&["show", "order-1"]).fails(3);
    assert!(locked.contains("HX0190") && locked.contains("`a`") && locked.contains("HAPAX_KEYS"), "{locked}");
    let missing = hapax(&shop, B, &["show", "order-1"]).fails(3);
    assert!(missing.contains("HX0190") && missing.contains("`a`"), "{missing}");
    let other = B.replacen('b', "a", 1);
    assert!(hapax(&shop, &other, &["show", "order-1"]).fails(3).contains("HX0191"));
    assert_eq!(hapax(&shop, A, &["show", "order-1", "--json"]).json(), shown);

    let rotated = hapax(&shop, &format!("{B}, {A}"), &["rotate"]).ok();
    let payloads = &counted["payloads"];
    let expected =
        format!("rewrote {payloads} payloads\nkey b: {payloads} payloads\nkey a is not in use any more\n");
    assert_eq!(rotated, expected);
    assert_eq!(hapax(&shop, &format!("{B}, {A}"), &["rotate", "--to", "a", "--json"]).json()["left"], 0);
    assert_eq!(hapax(&shop, A, &["show", "order-1", "--json"]).json(), shown);

    let plain = hapax(&shop, A, &["rotate", "--decrypt", "--json"]).json();
    assert_eq!((&plain["plain"], &plain["left"]), (payloads, &0.into()), "{plain}");
    assert_eq!(shop.hapax(&["show", "order-1", "--json"]).json(), shown);
    assert!(hapax(&shop, A, &["show", "order-1"]).fails(3).contains("HX0192"));
    assert_eq!(hapax(&shop, &format!("{A} plain"), &["show", "order-1", "--json"]).json(), shown);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_that_leaves_damage_behind_is_no_success() {
    let shop = Shop::open().await;
    shop.finish("order-1", "anvil").await;
    hapax(&shop, &format!("{A} plain"), &["rotate"]).ok();
    let file = rusqlite::Connection::open(shop.path()).unwrap();
    let cut = "UPDATE hapax_checkpoints SET state = substr(state, 1, length(state) - 1) WHERE step_id = 0";
    assert_eq!(file.execute(cut, ()).unwrap(), 1);
    let rotated = hapax(&shop, &format!("{B}, {A}"), &["rotate"]);
    assert_eq!(rotated.code, 3, "{rotated:?}");
    for part in ["key a: 1 payload\n", "damaged, left as it is: hapax_checkpoints default/order-1"] {
        assert!(rotated.out.contains(part), "{}", rotated.out);
    }
    assert!(!rotated.out.contains("meanwhile"), "{}", rotated.out);
    for part in ["HX0044", "1 payload can't be read", "hapax_checkpoints default/order-1", "keep the keys"] {
        assert!(rotated.err.contains(part), "{}", rotated.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_forged_in_plain_is_refused_and_never_sealed() {
    let shop = Shop::open().await;
    shop.finish("order-1", "anvil").await;
    hapax(&shop, &format!("{A} plain"), &["rotate"]).ok();
    let file = rusqlite::Connection::open(shop.path()).unwrap();
    let forge = "UPDATE hapax_checkpoints SET state = CAST('{\"forged\":1}' AS BLOB) WHERE step_id = 0";
    assert_eq!(file.execute(forge, ()).unwrap(), 1);
    for keys in [A.to_owned(), format!("{B}, {A}")] {
        let refused = hapax(&shop, &keys, &["rotate"]).fails(3);
        for part in ["HX0192", "order-1", "not encrypted", "find out who wrote it"] {
            assert!(refused.contains(part), "{refused}");
        }
        assert_eq!(hapax(&shop, &keys, &["rotate", "--dry-run", "--json"]).json()["plain"], 1);
    }
    let count = "SELECT count(*) FROM hapax_checkpoints WHERE state = CAST('{\"forged\":1}' AS BLOB)";
    assert_eq!(file.query_row(count, (), |row| row.get::<_, u32>(0)).unwrap(), 1, "it is as it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lay_beside_its_row_lies_there_after_a_rotation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let store = SqliteStore::open(&path, SqliteOptions::default().blobs_over(1)).await.unwrap();
    let engine = Engine::builder().with_store(store);
    let orders = engine.register(shop(), Arc::new(World::default())).await.unwrap();
    let order = Order { sku: "anvil".into(), cents: 4200, ..Order::default() };
    orders.start("order-1", order).await.unwrap().wait().await.unwrap();
    engine.shutdown(Duration::from_secs(5)).await;
    let file = rusqlite::Connection::open(&path).unwrap();
    let aside = || {
        let count = "SELECT count(*) FROM hapax_checkpoints WHERE substr(state, 1, 8) = x'0268617061786201'";
        file.query_row(count, (), |row| row.get::<_, u32>(0)).unwrap()
    };
    let before = aside();
    assert!(before > 1, "{before}");
    for keys in [format!("{A} plain"), format!("{B}, {A}")] {
        let mut rotate = stock(&["rotate"]);
        rotate.env("HAPAX_STORE", url(&path)).env("HAPAX_KEYS", keys);
        said(rotate).ok();
        assert_eq!(aside(), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_cannot_be_used_are_refused_without_being_shown() {
    let shop = Shop::open().await;
    for (keys, args, says, cure) in [
        ("a:s3cretbutnokey", &["list"][..], "entry 1", "cure: mend the entry"),
        (&format!("{A} {A}"), &["list"], "two keys are called `a`", "cure: give each key a name of its own"),
        (A, &["rotate", "--to", "c"], "no key `c`", "cure: name a key that is in HAPAX_KEYS"),
        ("", &["rotate"], "there is no key", "cure: set HAPAX_KEYS"),
        ("plain", &["list"], "there is no key", "cure: give a key"),
    ] {
        let refused = hapax(&shop, keys, args).fails(2);
        assert!(refused.contains("HX0193") && refused.contains(says) && refused.contains(cure), "{refused}");
    }
    let mut both = shop.command(&["list"]);
    both.env("HAPAX_KEYS", A).env("HAPAX_KEYS_FILE", "/nowhere");
    let refused = said(both).fails(2);
    assert!(refused.contains("are both set") && refused.contains("cure: unset"), "{refused}");
    let mut file = shop.command(&["list"]);
    file.env("HAPAX_KEYS_FILE", "/nowhere");
    let refused = said(file).fails(2);
    assert!(refused.contains("/nowhere") && refused.contains("cure: name a file"), "{refused}");
}
