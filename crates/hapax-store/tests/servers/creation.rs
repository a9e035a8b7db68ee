//! Runs that are created at the same time share transactions; each is created once, whoever comes first. So with letters.

use crate::both::{Kind, address, on_both, sql};
use futures::future::join_all;
use hapax_core::mailbox::{NewLetter, Posted};
use hapax_servers::Proxy;
use hapax_store::{
    Created, StoreError,
    conformance::{Sample, sample::json},
};
use std::collections::BTreeMap;

on_both! {
    of_many_who_create_at_once_each_run_has_one_creator,
    a_lost_answer_leaves_all_who_waited_for_it_in_the_dark,
    letters_that_come_at_once_are_each_there_once_whatever_transactions_see,
}

fn name(number: usize) -> String {
    format!("run-{number:03}")
}

/// Half of the names are asked for three times, and some are there already.
async fn of_many_who_create_at_once_each_run_has_one_creator(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    for number in 0..10 {
        Sample::run(&name(number)).create(&store).await;
    }
    let asked: Vec<usize> = (0..100).chain(0..50).chain(0..50).collect();
    let create = |number: &usize| store.create(Sample::run(&name(*number)).build());
    let created = join_all(asked.iter().map(create)).await;
    let mut creators = BTreeMap::<usize, usize>::new();
    for (number, created) in asked.iter().zip(created) {
        let is_new = matches!(created.expect("it is created or there"), Created::New(_));
        *creators.entry(*number).or_default() += usize::from(is_new);
    }
    for (number, creators) in creators {
        assert_eq!(creators, usize::from(number >= 10), "{}", name(number));
    }
    for table in ["hapax_runs", "hapax_keys", "hapax_checkpoints"] {
        assert_eq!(sql(&url, &format!("SELECT count(*) FROM {table}")), "100", "{table}");
    }
}

/// The first of them travels alone, the others together: of none is anything claimed that isn't known, whether a COMMIT
/// never arrived or its answer didn't.
async fn a_lost_answer_leaves_all_who_waited_for_it_in_the_dark(kind: Kind) {
    each_loss(kind, Proxy::swallow_replies).await;
    each_loss(kind, Proxy::swallow_requests).await;
}

/// Eight runs at once, of whose messages one after the other is lost.
async fn each_loss(kind: Kind, lose: fn(&Proxy, u64)) {
    let url = kind.database();
    let proxy = Proxy::start(address(&url)).expect("a proxy");
    let (near, far) = (kind.store(&url).await, kind.one_session(&proxy.url(&url).expect("a URL")).await);
    for lost in 1.. {
        let names: Vec<String> = (0..8).map(|number| format!("{lost}-{number}")).collect();
        lose(&proxy, lost);
        let before = proxy.counts().bytes_lost;
        let creating = tokio::spawn({
            let (far, names) = (far.clone(), names.clone());
            async move { join_all(names.iter().map(|name| far.create(Sample::run(name).build()))).await }
        });
        while !creating.is_finished() && proxy.counts().bytes_lost == before {
            tokio::task::yield_now().await;
        }
        let is_lost = proxy.counts().bytes_lost > before;
        proxy.pass();
        if is_lost {
            proxy.cut();
        }
        let created = creating.await.expect("no panic");
        for (name, created) in names.iter().zip(&created) {
            let key = Sample::run(name).build().key;
            let is_there = near.run(key).await.expect("the store answers").is_some();
            match created {
                Ok(_) => assert!(is_there, "{name} is lost: {lost}"),
                Err(StoreError::Retry(_)) => assert!(!is_there, "{name} is there: {lost}"),
                Err(StoreError::Unknown(_)) => {}
                Err(error) => panic!("{name}: {error}"),
            }
        }
        if !is_lost {
            // MySQL is told of all rows of a transaction in one message, and to commit it in another.
            let messages = kind.pick(9, 3);
            assert!(created.iter().all(Result::is_ok) && lost >= messages, "{lost} messages and no more");
            return;
        }
    }
}

async fn letters_that_come_at_once_are_each_there_once_whatever_transactions_see(kind: Kind) {
    let url = kind.database();
    let stores = [kind.serializable(&url).await, kind.serializable(&url).await];
    Sample::run("r").create(&stores[0]).await;
    let key = Sample::run("r").build().key;
    let letters = (0..40).map(|n| {
        let letter = NewLetter { id: format!("{}", n / 4), subject: "go".into(), payload: json("hello") };
        stores[n % 2].post(key.clone(), letter)
    });
    let posted: Vec<Posted> =
        join_all(letters).await.into_iter().map(|posted| posted.expect("it is there")).collect();
    assert_eq!(posted.iter().filter(|posted| **posted == Posted::New).count(), 10);
    assert_eq!(sql(&url, "SELECT count(*), max(number) FROM hapax_letters"), "10|10");
}
