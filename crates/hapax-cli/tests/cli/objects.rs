//! Runs whose payloads rest in an object store, looked at from outside: with it, without it, and with an address that is none.

use crate::common::{Order, World, said, shop, stock, url};
use hapax::{
    Engine,
    store::{
        SqliteOptions, SqliteStore, Store,
        depot::{Folder, From, Resting},
    },
};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, sync::Arc, time::Duration};

/// A run that went well, all of whose payloads rest in that folder.
async fn rested(file: &Path, objects: &Path) {
    let resting = Resting::new(Folder::open(objects).unwrap()).after(Duration::ZERO);
    let store =
        SqliteStore::open(file, SqliteOptions::default().blobs_over(1).resting(resting)).await.unwrap();
    let engine = Engine::builder().with_store(store.clone());
    let orders = engine.register(shop(), Arc::new(World::default())).await.unwrap();
    let order = Order { sku: "anvil".into(), cents: 4200, ..Order::default() };
    orders.start("order-1", order).await.unwrap().wait().await.unwrap();
    let mut next = Some(From::default());
    while let Some(from) = next {
        next = store.rest(from).await.unwrap().next;
    }
    engine.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_read_what_rests_where_the_environment_says() {
    let folder = tempfile::tempdir().unwrap();
    let (file, objects) = (folder.path().join("shop.db"), folder.path().join("objects"));
    std::fs::create_dir(&objects).unwrap();
    rested(&file, &objects).await;
    assert!(objects.read_dir().unwrap().count() > 3);
    let hapax = |address: Option<&str>, args: &[&str]| {
        let mut command = stock(args);
        command.env("HAPAX_STORE", url(&file)).envs(address.map(|address| ("HAPAX_OBJECTS", address)));
        said(command)
    };
    let address = format!("file://{}", objects.display());
    let shown = hapax(Some(&address), &["show", "order-1", "--json"]).json();
    assert_eq!(shown["checkpoint"]["state"]["receipt"], "5040 cents", "{shown}");
    assert!(hapax(None, &["list"]).ok().contains("order-1"), "a list reads no payloads");
    let refused = hapax(None, &["show", "order-1"]).fails(3);
    assert!(refused.contains("HX0194") && refused.contains("HAPAX_OBJECTS"), "{refused}");
    let refused = hapax(Some("ftp://archive"), &["show", "order-1"]).fails(2);
    assert!(refused.contains("HX0195") && refused.contains("`ftp://archive`"), "{refused}");
    let refused = hapax(Some(&format!("{address}-typo")), &["show", "order-1"]).fails(2);
    assert!(refused.contains("HX0195") && refused.contains("No such file"), "{refused}");
    let mut unreadable = stock(&["list"]);
    unreadable.env("HAPAX_STORE", url(&file)).env("HAPAX_OBJECTS", OsStr::from_bytes(b"file:///caf\xe9"));
    let refused = said(unreadable).fails(2);
    assert!(refused.contains("HX0195") && refused.contains("not UTF-8"), "{refused}");
    // Deleted while nobody who has the object store is there: what they leave is ended by whoever has it.
    hapax(None, &["gc", "--older-than", "0s"]).ok();
    assert!(hapax(Some(&address), &["list"]).ok().contains("no runs"));
}
