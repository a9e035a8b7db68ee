//! Fleets: worker processes over one database server, killed, frozen, stopped and cut off from it. Whatever happens to
//! them or to the server, each step is committed once, each call to the outside has one key, and no run is forgotten.
//!
//! What happens is waited for, never timed; how long a takeover took is only printed. With `HAPAX_LONG` the fleet is as
//! large as it is in the guide.

mod crew;

use crew::{Crew, PATIENCE, Terms, Yard, hold_next_call};
use hapax::core::{order::PathHash, rng::Rng};
use hapax_servers::{MariaDb, Postgres, Server, fresh_database};
use hapax_sim::{
    kills::{Waits, ledger::Held},
    naps::Nap,
};
use std::{
    env,
    hash::{BuildHasher, Hasher, RandomState},
};

/// A worker whose leases end soon after its death.
const QUICK: Terms = Terms { ttl_ms: 1500, active: 16, drain_ms: 10_000 };
/// A worker whose runs nobody gets before it gives them back.
const STEADY: Terms = Terms { ttl_ms: 600_000, active: 16, drain_ms: 500 };

fn is_long() -> bool {
    env::var_os("HAPAX_LONG").is_some()
}

/// Random numbers whose seed is printed, and may be given.
fn rng(test: &str) -> Rng {
    let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("{test}: HAPAX_SEED={seed}");
    Rng::for_item(seed, 0, PathHash::ROOT, test)
}

/// Each test on both servers.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod on_postgres {
            $(#[test]
            fn $name() {
                super::$name(hapax_servers::postgres().expect("PostgreSQL starts"));
            })*
        }
        mod on_mysql {
            $(#[test]
            fn $name() {
                super::$name(hapax_servers::mysql().expect("MariaDB starts"));
            })*
        }
    };
}

on_both! {
    workers_are_killed_at_random_and_nothing_is_lost_or_doubled,
    a_killed_workers_run_is_taken_over_when_its_lease_ends,
    a_frozen_worker_that_wakes_up_is_fenced,
    a_worker_that_is_asked_to_stop_hands_its_runs_over_at_once,
    a_worker_whose_clock_is_wrong_goes_by_the_servers,
}

fn workers_are_killed_at_random_and_nothing_is_lost_or_doubled(url: String) {
    let (workers, orders) = if is_long() { (8, 2000) } else { (4, 150) };
    let (mut rng, yard) = (rng("kills"), Yard::new(url));
    let mut crews: Vec<Crew> = (0..workers).map(|_| yard.worker(QUICK)).collect();
    yard.submit(0..orders);
    let (mut kills, started) = (0, Waits::begin(PATIENCE));
    let mut done_at_kill = 0;
    yard.until_done(orders as usize, || {
        // One kill for each part of the work that was done since the last one.
        let done = yard.count("succeeded");
        if done >= done_at_kill + orders as usize / 20 {
            done_at_kill = done;
            kills += 1;
            let victim = rng.below(workers) as usize;
            crews[victim].process.kill();
            crews[victim].process.wait();
            crews[victim] = yard.worker(QUICK);
        }
    });
    println!("{workers} workers, {orders} orders, {kills} kills, {:?}", started.passed());
    assert!(kills >= 5, "only {kills} workers were killed");
    yard.check(0..orders);
    for crew in &crews {
        crew.stop();
    }
}

/// A worker in the middle of a call of its only order, and who can answer that call.
fn in_the_middle_of_a_call(url: String, terms: Terms) -> (Yard, Crew, Held) {
    let yard = Yard::new(url);
    let worker = yard.worker(terms);
    let held = hold_next_call(&yard);
    yard.submit(0..1);
    worker.until("claimed order-0000 new");
    assert!(held.applied(), "the worker is in the middle of a call");
    (yard, worker, held)
}

fn a_killed_workers_run_is_taken_over_when_its_lease_ends(url: String) {
    let (yard, dies, held) = in_the_middle_of_a_call(url, QUICK);
    let lives = yard.worker(QUICK);
    dies.process.kill();
    let killed = Waits::begin(PATIENCE);
    lives.until("claimed order-0000 taken-over");
    println!("taken over {:?} after the kill, with leases of {} ms", killed.passed(), QUICK.ttl_ms);
    lives.until("left order-0000 succeeded");
    drop(held);
    assert_eq!(yard.run(0), (2, true), "claimed twice");
    yard.check(0..1);
    assert_eq!(lives.stop(), [1, 0, 0]);
}

fn a_frozen_worker_that_wakes_up_is_fenced(url: String) {
    let (yard, freezes, held) = in_the_middle_of_a_call(url, QUICK);
    freezes.process.freeze();
    let lives = yard.worker(QUICK);
    lives.until("claimed order-0000 taken-over");
    lives.until("left order-0000 succeeded");
    // It wakes up with the answer to its call: what it would write now is refused.
    drop(held);
    freezes.process.thaw();
    freezes.until("left order-0000 running");
    assert_eq!(freezes.stop(), [0, 0, 1], "it lost its run");
    assert_eq!(yard.run(0), (2, true));
    yard.check(0..1);
    lives.stop();
}

fn a_worker_that_is_asked_to_stop_hands_its_runs_over_at_once(url: String) {
    // The call takes longer than the worker may.
    let (yard, stops, held) = in_the_middle_of_a_call(url, STEADY);
    let goes_on = yard.worker(STEADY);
    assert_eq!(stops.stop(), [0, 1, 0], "it handed its run over");
    // No takeover: nothing had to end before.
    goes_on.until("claimed order-0000 new");
    goes_on.until("left order-0000 succeeded");
    drop(held);
    yard.check(0..1);
    assert_eq!(goes_on.stop(), [1, 0, 0]);
}

/// Of a worker behind, a timer would be over before it began, and its run claimed and parked until that clock has caught up;
/// of one ahead, the run would sleep for an hour.
fn a_worker_whose_clock_is_wrong_goes_by_the_servers(url: String) {
    const HALF_AN_HOUR_US: i64 = 1_800_000_000;
    let yard = Yard::new(url);
    for off_by in ["-3600s", "+3600s"] {
        let worker = yard.worker_off_by(off_by, QUICK);
        let asked_us = hapax_store::clock::now_us();
        yard.submit_nap(off_by);
        worker.until(&format!("left {off_by} succeeded"));
        let (Nap { from_to_us }, claims) = yard.nap(off_by);
        let (from_us, to_us) = from_to_us.expect("it napped");
        assert!((from_us - asked_us).abs() < HALF_AN_HOUR_US, "off by {off_by}: {from_us}, asked {asked_us}");
        assert!(from_us < to_us, "off by {off_by}");
        assert_eq!(claims, 2, "off by {off_by}: once to begin and once to go on");
        worker.stop();
    }
}

/// Kills and restarts a server again and again under 64 runs.
fn a_server_is_killed_again_and_again(server: &mut Server) {
    let url = fresh_database(&server.url()).expect("a database");
    let (orders, restarts) = (64, if is_long() { 10 } else { 3 });
    let yard = Yard::new(url);
    let crews: Vec<Crew> = (0..3).map(|_| yard.worker(QUICK)).collect();
    for restart in 0..restarts {
        yard.submit(restart * orders..(restart + 1) * orders);
        let waits = Waits::begin(PATIENCE);
        while yard.count("succeeded") < (restart * orders + orders / 8) as usize {
            waits.check("the work goes on");
        }
        server.restart().expect("the server starts again");
    }
    yard.until_done((restarts * orders) as usize, || ());
    yard.check(0..restarts * orders);
    for crew in &crews {
        crew.stop();
    }
}

#[test]
fn a_postgres_that_is_killed_again_and_again_loses_nothing() {
    a_server_is_killed_again_and_again(&mut Postgres::start().expect("PostgreSQL starts"));
}

#[test]
fn a_mariadb_that_is_killed_again_and_again_loses_nothing() {
    a_server_is_killed_again_and_again(&mut MariaDb::start().expect("MariaDB starts"));
}

#[test]
fn a_standby_takes_over_from_a_killed_primary_and_nothing_is_lost_or_doubled() {
    let mut primary = Postgres::start().expect("PostgreSQL starts");
    let url = fresh_database(&primary.url()).expect("a database");
    let standby = primary.standby().expect("a synchronous standby");
    let database = url.rsplit('/').next().expect("a name");
    let url = format!(
        "postgres://postgres@{},{}/{database}?target_session_attrs=read-write",
        primary.address(),
        standby.address()
    );
    let orders = if is_long() { 512 } else { 96 };
    let yard = Yard::new(url);
    let crews: Vec<Crew> = (0..3).map(|_| yard.worker(QUICK)).collect();
    yard.submit(0..orders);
    let waits = Waits::begin(PATIENCE);
    while yard.count("succeeded") < orders as usize / 4 {
        waits.check("the primary's part of the work is done");
    }
    primary.kill().expect("the primary dies");
    standby.promote().expect("the standby is promoted");
    yard.until_done(orders as usize, || ());
    yard.check(0..orders);
    for crew in &crews {
        crew.stop();
    }
}
