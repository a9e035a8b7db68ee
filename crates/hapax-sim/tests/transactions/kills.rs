//! Workers and servers that are killed at random moments.

use crate::bank::{Bank, Kind, Shown, on_each};
use hapax::core::{order::PathHash, rng::Rng};
use hapax_servers::{MariaDb, Postgres, Server, fresh_database};
use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher, Hasher, RandomState},
    hint,
    ops::Range,
};

/// Transfers that a worker makes at the same time.
const BATCH: u32 = 6;
/// A kill follows one of so many first lines.
const LINES: u64 = 40;
/// And comes up to so many turns of a loop later: some milliseconds.
const TURNS: u64 = 100_000;
/// Transfers that are under way when a server is killed, and the lines that they have at least.
const CROWD: u32 = 12;
const CROWD_LINES: u64 = CROWD as u64 * 2 * 4;

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

on_each! {
    workers_are_killed_at_random_and_each_transaction_takes_effect_once,
}

/// How far each transaction of a life has come, by the last word on it.
#[derive(Debug, Default)]
struct Life {
    last: BTreeMap<String, String>,
    done: bool,
}

impl Life {
    fn hear(&mut self, line: &str, shown: &mut Shown) {
        shown.hear(line);
        self.done |= line == "done";
        let mut words = line.split(' ');
        if let (Some(word), Some(what)) = (words.next(), words.next()) {
            self.last.insert(what.to_owned(), word.to_owned());
        }
    }
}

fn numbers(numbers: &Range<u32>) -> [String; 2] {
    [numbers.start.to_string(), numbers.end.to_string()]
}

fn workers_are_killed_at_random_and_each_transaction_takes_effect_once(bank: &Bank) {
    let (wanted, store) = (if is_long() { 1000 } else { 60 }, bank.store());
    let (mut rng, mut shown) = (rng("kills"), Shown::default());
    let (mut batch, mut kills, mut struck) = (0..BATCH, 0, BTreeMap::<String, u32>::new());
    while kills < wanted {
        let [from, to] = numbers(&batch);
        let teller = bank.teller(&store, &bank.url, &["transfers", &from, &to]);
        let (nth, turns) = (1 + rng.below(LINES), rng.below(TURNS));
        let (mut life, mut heard) = (Life::default(), 0);
        while let Some(line) = teller.line() {
            life.hear(&line, &mut shown);
            heard += 1;
            if heard == nth {
                (0..turns).for_each(|_| hint::spin_loop());
                teller.process.kill();
            }
        }
        let status = teller.process.wait();
        if life.done {
            batch = batch.end..batch.end + BATCH;
            continue;
        }
        assert!(heard >= nth, "the worker failed by itself: {status}");
        kills += 1;
        for word in life.last.into_values() {
            *struck.entry(word).or_default() += 1;
        }
    }
    let [from, to] = numbers(&batch);
    let last = bank.teller(&store, &bank.url, &["transfers", &from, &to]);
    while let Some(line) = last.line() {
        shown.hear(&line);
    }
    assert!(last.process.wait().success(), "the last worker fails");
    println!("{kills} kills, {} transfers; the last word on their transactions: {struck:?}", batch.end);
    bank.check(&store, 0..batch.end, &shown);
}

/// Kills and restarts a server again and again under transfers.
fn a_server_is_killed_again_and_again(kind: Kind, server: &mut Server) {
    let bank = Bank::at(kind, fresh_database(&server.url()).expect("a database"));
    let (kills, store) = (if is_long() { 50 } else { 8 }, bank.store());
    let (mut rng, mut shown) = (rng("servers"), Shown::default());
    let mut executed = 0;
    for kill in 0..kills {
        let [from, to] = numbers(&(kill * CROWD..(kill + 1) * CROWD));
        let teller = bank.teller(&store, &bank.url, &["transfers", &from, &to]);
        // Now and then before there is a session.
        let within = if rng.below(3) == 0 { u64::from(CROWD) } else { CROWD_LINES };
        let (nth, turns) = (1 + rng.below(within), rng.below(TURNS));
        let mut heard = 0;
        while let Some(line) = teller.line() {
            shown.hear(&line);
            executed += u32::from(line.starts_with("in "));
            heard += 1;
            if heard == nth {
                (0..turns).for_each(|_| hint::spin_loop());
                server.restart().expect("the server starts again");
            }
        }
        assert!(heard >= nth && teller.process.wait().success(), "the worker fails");
    }
    println!("{kills} kills, {} transactions, executed {executed} times", kills * CROWD * 2);
    bank.check(&store, 0..kills * CROWD, &shown);
}

#[test]
fn a_postgres_that_is_killed_again_and_again_has_each_effect_once() {
    a_server_is_killed_again_and_again(Kind::Postgres, &mut Postgres::start().expect("PostgreSQL starts"));
}

#[test]
fn a_postgres_that_is_killed_again_and_again_knows_what_became_of_each_transaction() {
    let mut server = Postgres::start().expect("PostgreSQL starts");
    a_server_is_killed_again_and_again(Kind::Introspection, &mut server);
}

#[test]
fn a_mariadb_that_is_killed_again_and_again_has_each_effect_once() {
    a_server_is_killed_again_and_again(Kind::MySql, &mut MariaDb::start().expect("MariaDB starts"));
}
