//! Workers that are frozen with SIGSTOP at each point of a transaction, and go on when another has taken their run over.
//!
//! Where a worker stands is known: inside its code it is told to stand still, and elsewhere a message of it is held between it
//! and its database.

use crate::bank::{Bank, Booker, Kind, Shown, on_each};
use hapax::{
    Engine, Flow, Options,
    core::journal::{Entry, JournalRow},
    store::db,
};
use hapax_core::id::{Namespace, RunId, RunKey};
use hapax_servers::Proxy;
use hapax_sim::{
    kills::Waits,
    transfers::{self, Teller, Transfer},
};
use std::{fs, net::SocketAddr, time::Duration};

/// Long enough for a busy machine, and no longer: it has to pass before a run is taken over.
const TTL_MS: &str = "4000";
const PATIENCE: Duration = Duration::from_secs(120);

/// What all of them are about: the first transaction of the only run.
const WHAT: &str = "transfer-0000/move";
const RUN: &str = "transfer-0000";

on_each! {
    row_11_frozen_before_begin,
    row_11_frozen_amid_the_statements,
    row_11_frozen_after_the_last_statement,
    row_11_frozen_with_its_commit_on_its_way,
    row_11_frozen_before_its_end_is_recorded,
}

macro_rules! on_servers {
    ($($test:ident: $($name:ident = $kind:ident),*;)*) => {
        mod on_servers {
            $(mod $test {
                $(#[test]
                fn $name() {
                    super::super::$test(&crate::bank::Bank::open(crate::bank::Kind::$kind));
                })*
            })*
        }
    };
}

on_servers! {
    row_11_frozen_after_its_marker: postgres = Postgres, mysql = MySql;
    row_11_frozen_before_the_note_of_its_number: postgres_by_introspection = Introspection;
    row_11_frozen_with_the_answer_to_its_commit_on_its_way:
        postgres = Postgres, postgres_by_introspection = Introspection, mysql = MySql;
}

/// Who submits the run and looks after it.
struct Desk {
    store: String,
    runtime: tokio::runtime::Runtime,
    engine: Engine,
    flow: Flow<Transfer, Teller>,
}

impl Desk {
    fn open() -> Self {
        let store = hapax_servers::postgres().expect("a server");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (engine, flow) = runtime.block_on(async {
            let options = Options::default().finds_work(false);
            let engine = Engine::builder().options(options).open(&store).await.expect("the store opens");
            let flow = engine.register(transfers::graph(), Teller::default()).await.expect("a graph");
            flow.submit(RUN, Transfer::default()).await.expect("it is submitted");
            (engine, flow)
        });
        Self { store, runtime, engine, flow }
    }

    /// A worker that finds the run when it may, by way of this address of the database.
    fn worker(&self, bank: &Bank, url: &str, stands_at: &[&str]) -> Booker {
        bank.teller(&self.store, url, &[&["works", TTL_MS], stands_at].concat())
    }

    /// Waits for the end of the run, whoever brings it there.
    fn wait(&self) -> Transfer {
        let ended = async { self.flow.attach(RUN).await.expect("it is there").wait().await };
        self.runtime.block_on(ended).expect("it succeeded")
    }

    /// Waits until a transaction of the run may begin: its intent is durable.
    fn until_intended(&self) {
        let run = RunKey { namespace: Namespace::default(), run: RunId::new(RUN).expect("a short name") };
        let (store, waits) = (self.engine.store(), Waits::begin(PATIENCE));
        loop {
            let rows = self.runtime.block_on(store.journal(run.clone(), 0, 100)).expect("the store answers");
            if rows.iter().flat_map(JournalRow::entries).any(|entry| matches!(entry, Entry::Intent(_))) {
                return;
            }
            waits.check("an intent is written");
        }
    }
}

/// Who must have the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wins {
    Zombie,
    Successor,
    Either,
}

/// A frozen worker, and what is needed to go on.
struct Scene<'b> {
    bank: &'b Bank,
    desk: Desk,
    zombie: Booker,
}

impl<'b> Scene<'b> {
    /// A worker that was frozen at a point of its code, and goes on from there when it wakes.
    fn at(bank: &'b Bank, point: &str) -> Self {
        let desk = Desk::open();
        let zombie = desk.worker(bank, &bank.url, &[point]);
        zombie.until("stands");
        zombie.process.freeze();
        zombie.process.tell("go on");
        Self { bank, desk, zombie }
    }

    /// A worker that was frozen while a message is held.
    fn held(bank: &'b Bank, proxy: &Proxy) -> Self {
        let desk = Desk::open();
        let zombie = desk.worker(bank, &proxy.url(&bank.url).expect("an address"), &[]);
        proxy.wait_for_hold();
        zombie.process.freeze();
        Self { bank, desk, zombie }
    }

    fn successor(&self) -> Booker {
        self.desk.worker(self.bank, &self.bank.url, &[])
    }

    /// The successor ends while the zombie stands still; then that goes on.
    fn zombie_wakes_late(self, wake: impl FnOnce(), wins: Wins) {
        let successor = self.successor();
        let ended = self.desk.wait();
        wake();
        self.zombie.process.thaw();
        self.end(&successor, &ended, wins);
    }

    /// The zombie goes on as soon as the successor has the run: it may hold what that needs.
    fn zombie_wakes_amid(self, wake: impl FnOnce(), wins: Wins) {
        let successor = self.successor();
        successor.until(&format!("asked {WHAT}"));
        wake();
        self.zombie.process.thaw();
        let ended = self.desk.wait();
        self.end(&successor, &ended, wins);
    }

    /// The zombie has noticed what it lost, and all is as it must be.
    fn end(self, successor: &Booker, ended: &Transfer, wins: Wins) {
        self.zombie.until(&format!("left {RUN} "));
        self.zombie.stop();
        successor.stop();
        let first = format!("receipt {}-0", self.zombie.process.id());
        match wins {
            Wins::Zombie => assert_eq!(ended.receipts[0], first),
            Wins::Successor => assert_ne!(ended.receipts[0], first),
            Wins::Either => {}
        }
        self.bank.check(&self.desk.store, 0..1, &Shown::default());
    }
}

/// What stands between a worker and its database.
fn proxy(bank: &Bank) -> Proxy {
    let (_, rest) = bank.url.rsplit_once('@').expect("a user");
    let address: SocketAddr = rest.split('/').next().expect("an address").parse().expect("an address");
    Proxy::start(address).expect("a proxy")
}

/// By what a message is known.
fn words(kind: Kind, message: &str) -> &'static str {
    match (message, kind) {
        ("begin", Kind::MySql) => "START TRANSACTION",
        ("begin", _) => "BEGIN ISOLATION",
        // Alone in its packet: isolation levels have names that begin like it.
        ("commit", Kind::MySql) => "\u{3}COMMIT",
        ("commit", Kind::Introspection) => "TO DEFAULT; COMMIT",
        ("commit", _) => "\u{b}COMMIT",
        // The result is in no statement of the closure.
        ("marker", _) => "receipt ",
        ("number", _) => "SELECT pg_current_xact_id",
        _ => unreachable!("no message is called {message}"),
    }
}

fn row_11_frozen_before_begin(bank: &Bank) {
    if bank.kind != Kind::Sqlite {
        let proxy = proxy(bank);
        proxy.hold_request(words(bank.kind, "begin"));
        let scene = Scene::held(bank, &proxy);
        return scene.zombie_wakes_late(|| proxy.release(), Wins::Successor);
    }
    // Nobody can begin while another writes.
    bank.sql(db::marker_table(db::Kind::Sqlite));
    let writer = bank.file();
    writer.execute_batch("BEGIN IMMEDIATE").expect("nobody else writes");
    let desk = Desk::open();
    let zombie = desk.worker(bank, &bank.url, &[]);
    desk.until_intended();
    zombie.process.freeze();
    writer.execute_batch("COMMIT").expect("nothing was written");
    Scene { bank, desk, zombie }.zombie_wakes_late(|| (), Wins::Successor);
}

fn row_11_frozen_amid_the_statements(bank: &Bank) {
    let scene = Scene::at(bank, "amid");
    if bank.kind == Kind::Sqlite {
        // It holds the only lock.
        return scene.zombie_wakes_amid(|| (), Wins::Successor);
    }
    scene.zombie_wakes_late(|| (), Wins::Successor);
}

/// It holds locks on accounts. When it goes on, its lease is over: it doesn't commit.
fn row_11_frozen_after_the_last_statement(bank: &Bank) {
    Scene::at(bank, "last").zombie_wakes_amid(|| (), Wins::Successor);
}

fn row_11_frozen_after_its_marker(bank: &Bank) {
    let proxy = proxy(bank);
    proxy.hold_reply(words(bank.kind, "marker"));
    Scene::held(bank, &proxy).zombie_wakes_amid(|| proxy.release(), Wins::Successor);
}

fn row_11_frozen_before_the_note_of_its_number(bank: &Bank) {
    let proxy = proxy(bank);
    proxy.hold_reply(words(bank.kind, "number"));
    Scene::held(bank, &proxy).zombie_wakes_amid(|| proxy.release(), Wins::Successor);
}

/// The server commits it while it is frozen, and its successor waits for that.
fn row_11_frozen_with_its_commit_on_its_way(bank: &Bank) {
    if bank.kind == Kind::Sqlite {
        return frozen_while_its_commit_meets_a_reader(bank);
    }
    let proxy = proxy(bank);
    proxy.hold_request(words(bank.kind, "commit"));
    let scene = Scene::held(bank, &proxy);
    let successor = scene.successor();
    successor.until(&format!("asked {WHAT}"));
    proxy.release();
    let ended = scene.desk.wait();
    scene.zombie.process.thaw();
    scene.end(&successor, &ended, Wins::Zombie);
}

/// Its COMMIT is tried again when it goes on, unless it is told first that its run is another's.
fn frozen_while_its_commit_meets_a_reader(bank: &Bank) {
    bank.sql(db::marker_table(db::Kind::Sqlite));
    let reader = bank.file();
    reader.execute_batch("BEGIN; SELECT * FROM effects").expect("nobody commits yet");
    let desk = Desk::open();
    let zombie = desk.worker(bank, &bank.url, &[]);
    let waits = Waits::begin(PATIENCE);
    while !keeps_readers_out(zombie.process.id()) {
        waits.check("a COMMIT meets a reader");
    }
    zombie.process.freeze();
    reader.execute_batch("COMMIT").expect("nothing was written");
    Scene { bank, desk, zombie }.zombie_wakes_amid(|| (), Wins::Either);
}

/// Whether the process holds the lock by which SQLite keeps new readers out: it wants to commit, and old ones are there.
fn keeps_readers_out(process: u32) -> bool {
    const PENDING_BYTE: &str = "1073741824";
    let (locks, process) = (fs::read_to_string("/proc/locks"), process.to_string());
    locks.expect("Linux tells who holds locks").lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, kind, holder, _, from, ..] = words[..] else { return false };
        (kind, holder, from) == ("WRITE", &*process, PENDING_BYTE)
    })
}

fn row_11_frozen_with_the_answer_to_its_commit_on_its_way(bank: &Bank) {
    let proxy = proxy(bank);
    proxy.hold_reply(words(bank.kind, "commit"));
    let scene = Scene::held(bank, &proxy);
    let waits = Waits::begin(PATIENCE);
    while bank.sql("SELECT line FROM effects").is_empty() {
        waits.check("it is committed");
    }
    scene.zombie_wakes_late(|| proxy.release(), Wins::Zombie);
}

/// The node has the result, and the record doesn't.
fn row_11_frozen_before_its_end_is_recorded(bank: &Bank) {
    Scene::at(bank, "known").zombie_wakes_late(|| (), Wins::Zombie);
}
