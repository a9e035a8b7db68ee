//! Services that are killed with SIGKILL at each phase of a request, and at random.

use crate::shop::{KEY, Kind, PATIENCE, Reply, Service, Shop, Terms, on_each};
use hapax::core::{order::PathHash, rng::Rng};
use hapax_servers::Proxy;
use hapax_sim::{
    charges::{Answer, CHARGES, FEES},
    kills::Waits,
};
use std::{
    collections::BTreeSet,
    env,
    hash::{BuildHasher, Hasher, RandomState},
    hint,
    net::SocketAddr,
};
use tokio::task::JoinHandle;

on_each! {
    row_04_killed_before_its_claim,
    row_04_killed_after_its_claim,
    row_04_killed_amid_its_handler,
    row_05_killed_after_its_effect_before_the_finish,
    row_05_killed_after_the_commit_of_finish_in_before_its_answer,
    row_06_killed_behind_its_recovery_point,
    row_06_killed_after_its_call_to_the_outside,
    services_are_killed_at_random_and_each_request_takes_effect_once,
}

/// One service is killed where it stands, and another gets the same request; what that one says first.
fn killed_at(shop: &Shop, point: &str) -> (Service, Answer) {
    let dies = shop.service(&Terms::quick().stands_at(point));
    let lives = shop.service(&Terms::quick());
    let asked = shop.asked(&dies, CHARGES, KEY);
    dies.until("stands");
    dies.process.kill();
    dies.process.wait();
    shop.outcome(asked).expect_err("who was killed answers nobody");
    let (first, again) = (shop.ask(&lives, CHARGES, KEY), shop.ask(&lives, CHARGES, KEY));
    assert!(again.is_replayed && again.body == first.body, "{again:?} after {first:?}");
    let answer = first.answer();
    shop.check_one(CHARGES, &[answer.clone(), again.answer()]);
    (lives, answer)
}

/// It was taken over by the other as this attempt, behind this point.
fn assert_taken_over(shop: &Shop, dies_at: &str, attempt: u32, behind: &str) {
    let (lives, answer) = killed_at(shop, dies_at);
    let said = lives.lines_until(&format!("out {KEY}"));
    let begun: Vec<String> = said.into_iter().filter(|line| line.starts_with("executes ")).collect();
    assert_eq!(begun, [format!("executes {KEY} {attempt} {behind}")]);
    assert!(answer.token.starts_with(&format!("{}-", lives.process.id())), "{answer:?}");
    assert_eq!(shop.record(CHARGES, KEY).expect("a record").attempt, attempt);
}

fn row_04_killed_before_its_claim(shop: &Shop) {
    assert_taken_over(shop, "asked", 1, "-");
}

fn row_04_killed_after_its_claim(shop: &Shop) {
    assert_taken_over(shop, "claimed", 2, "-");
}

fn row_04_killed_amid_its_handler(shop: &Shop) {
    assert_taken_over(shop, "reserving", 2, "-");
}

fn row_06_killed_behind_its_recovery_point(shop: &Shop) {
    assert_taken_over(shop, "reserved", 2, "reserved");
}

/// The outside has done it, and nobody here knows.
fn row_06_killed_after_its_call_to_the_outside(shop: &Shop) {
    assert_taken_over(shop, "called", 2, "reserved");
}

/// The effect was undone with its transaction.
fn row_05_killed_after_its_effect_before_the_finish(shop: &Shop) {
    assert_taken_over(shop, "charging", 2, "reserved");
}

fn row_05_killed_after_the_commit_of_finish_in_before_its_answer(shop: &Shop) {
    let (lives, answer) = killed_at(shop, "charged");
    assert_eq!(lives.said(), Vec::<String>::new(), "it is given again, not executed");
    assert!(!answer.token.starts_with(&format!("{}-", lives.process.id())), "{answer:?}");
    assert_eq!(shop.record(CHARGES, KEY).expect("a record").attempt, 1);
}

mod on_servers {
    use super::{Kind, Shop};

    #[test]
    fn row_05_killed_with_its_commit_on_its_way_on_postgres() {
        super::row_05_killed_with_its_commit_on_its_way(&Shop::open(Kind::Postgres));
    }

    #[test]
    fn row_05_killed_with_its_commit_on_its_way_on_mysql() {
        super::row_05_killed_with_its_commit_on_its_way(&Shop::open(Kind::MySql));
    }

    #[test]
    fn row_05_killed_with_the_answer_to_its_commit_on_its_way_on_postgres() {
        super::row_05_killed_with_the_answer_to_its_commit_on_its_way(&Shop::open(Kind::Postgres));
    }

    #[test]
    fn row_05_killed_with_the_answer_to_its_commit_on_its_way_on_mysql() {
        super::row_05_killed_with_the_answer_to_its_commit_on_its_way(&Shop::open(Kind::MySql));
    }
}

/// What stands between a service and its database.
pub(crate) fn proxy(shop: &Shop) -> Proxy {
    let (_, rest) = shop.url.rsplit_once('@').expect("a user");
    let address: SocketAddr = rest.split('/').next().expect("an address").parse().expect("an address");
    Proxy::start(address).expect("a proxy")
}

/// By what the COMMIT of a caller's transaction is known, alone in its message: isolation levels have names that begin like it.
fn commit(shop: &Shop) -> &'static str {
    if shop.kind == Kind::MySql { "\u{3}COMMIT" } else { "COMMIT\0" }
}

/// A service behind a proxy that is about to end a transaction, and whoever asked it to. Its lease is over as soon as
/// anybody asks; no heartbeat comes for a while.
pub(crate) fn about_to_commit(
    shop: &Shop,
    proxy: &Proxy,
    hold: fn(&Proxy, &str),
) -> (Service, JoinHandle<reqwest::Result<Reply>>) {
    let url = proxy.url(&shop.url).expect("an address");
    let terms = Terms { lease_ms: 60_000, url: Some(&url), ..Terms::default() };
    let service = shop.service(&terms.stands_at("charging"));
    let asked = shop.asked(&service, FEES, KEY);
    service.until("stands");
    shop.sql("UPDATE hapax_requests SET lease_until = 0");
    hold(proxy, commit(shop));
    service.process.tell("go on");
    proxy.wait_for_hold();
    (service, asked)
}

/// It never arrives: nothing was charged, and another does it.
fn row_05_killed_with_its_commit_on_its_way(shop: &Shop) {
    let (proxy, lives) = (proxy(shop), shop.service(&Terms::quick()));
    let (dies, asked) = about_to_commit(shop, &proxy, Proxy::hold_request);
    dies.process.kill();
    proxy.cut();
    shop.outcome(asked).expect_err("who was killed answers nobody");
    let first = shop.ask(&lives, FEES, KEY);
    assert_eq!(lives.until("executes "), format!("{KEY} 2 -"));
    shop.check_one(FEES, &[first.answer()]);
}

/// It has arrived: it was charged, and another gives the answer that nobody got.
fn row_05_killed_with_the_answer_to_its_commit_on_its_way(shop: &Shop) {
    let (proxy, lives) = (proxy(shop), shop.service(&Terms::quick()));
    let (dies, asked) = about_to_commit(shop, &proxy, Proxy::hold_reply);
    let waits = Waits::begin(PATIENCE);
    while shop.sql("SELECT line FROM effects").is_empty() {
        waits.check("it is committed");
    }
    dies.process.kill();
    proxy.cut();
    shop.outcome(asked).expect_err("who was killed answers nobody");
    let first = shop.ask(&lives, FEES, KEY);
    assert!(first.is_replayed, "{first:?}");
    shop.check_one(FEES, &[first.answer()]);
}

/// Requests that are under way at the same time.
const BATCH: u64 = 4;
/// A kill follows one of so many first lines of a life.
const LINES: u64 = BATCH * 2;
/// And comes up to so many turns of a loop later: some milliseconds.
const TURNS: u64 = 100_000;

/// Random numbers whose seed is printed, and may be given.
fn rng(test: &str) -> Rng {
    let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("{test}: HAPAX_SEED={seed}");
    Rng::for_item(seed, 0, PathHash::ROOT, test)
}

/// Each batch goes to a service that is killed, and then to one that lives on. Leases are so short that even those who live
/// may lose them.
fn services_are_killed_at_random_and_each_request_takes_effect_once(shop: &Shop) {
    let kills = if env::var_os("HAPAX_LONG").is_some() { 300 } else { 15 };
    let terms = || Terms { lease_ms: 300, ..Terms::default() };
    let (mut rng, lives) = (rng("requests"), shop.service(&terms()));
    let (mut keys, mut answers, mut cut_off) = (BTreeSet::new(), vec![], 0);
    for kill in 0..kills {
        let dies = shop.service(&terms());
        let (nth, turns) = (1 + rng.below(LINES), rng.below(TURNS));
        let batch: Vec<String> = (0..BATCH).map(|number| format!("k{kill}-{number}")).collect();
        let asked: Vec<_> = batch.iter().map(|key| shop.asked(&dies, CHARGES, key)).collect();
        for _ in 0..nth {
            dies.line().expect("each request has two lines at least");
        }
        (0..turns).for_each(|_| hint::spin_loop());
        dies.process.kill();
        for (key, asked) in batch.iter().zip(asked) {
            match shop.outcome(asked) {
                Ok(reply) => answers.push(reply.answer()),
                Err(_) => cut_off += 1,
            }
            answers.push(until_charged(shop, &lives, key));
        }
        keys.extend(batch);
    }
    println!("{kills} kills, {} requests, {cut_off} of them cut off", keys.len());
    assert!(cut_off > 0, "every request was answered before its service died");
    shop.check(CHARGES, &keys, &answers);
}

/// Asks until it is charged: a lease that was lost, or a file that was busy, is a passing matter.
fn until_charged(shop: &Shop, service: &Service, key: &str) -> Answer {
    let waits = Waits::begin(PATIENCE);
    loop {
        let reply = shop.ask(service, CHARGES, key);
        if reply.status == 201 {
            return reply.answer();
        }
        assert!(matches!(reply.status, 409 | 503), "{key}: {reply:?}");
        waits.check("it is charged");
    }
}
