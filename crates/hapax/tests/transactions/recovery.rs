//! What a crash left is settled: wherever it struck, whatever is in the way, and whoever else is at it.

use crate::{
    common::*,
    crash_at,
    shop::{
        INTROSPECTION, Kind, MARKER, PAY, Runs, SHOP, Shop, Way, elsewhere, finish, in_place, on_servers,
        paying,
    },
};
use hapax::{
    Db, Event, Graph, NodeError, State, Status,
    core::{
        commit::Write,
        journal::{Entry, JournalRow},
    },
    store::db::Strategy,
};
use hapax_servers::{MariaDb, Postgres, Server, fresh_database};
use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

elsewhere! {
    row_01_a_crash_before_begin_leaves_nothing_behind,
    row_10_a_crash_after_rollback_runs_it_again,
    row_26_a_recovery_that_crashes_at_each_write_twice_converges,
}

in_place! {
    row_10_a_crash_after_rollback_runs_it_again,
    row_26_a_recovery_that_crashes_at_each_write_twice_converges,
}

on_servers! {
    row_13_a_lock_that_is_not_given_in_time_parks_the_run,
    row_27_two_recoverers_and_a_zombie_have_one_effect,
}

fn one_effect(shop: &Shop, board: &Board) {
    assert_eq!((board.total, shop.effects()), (1, vec!["run".to_owned()]));
}

fn holds_intent(row: &JournalRow) -> bool {
    row.entries().iter().any(|entry| matches!(entry, Entry::Intent(_)))
}

/// Dies instead of writing the intent: BEGIN was never sent. By introspection the intent comes with the note before COMMIT, and
/// nothing else is written before it.
fn row_01_a_crash_before_begin_leaves_nothing_behind(shop: &Shop) {
    let is_intent =
        |write: &Write| matches!(write, Write::Append(append) if append.rows.iter().any(holds_intent));
    let (runs, way, again) = (shop.runs(), Way::default(), Way::default());
    let process = Process::dying_before(&runs.open(), is_intent);
    let flow = process.run(process.build(shop.builder()).register(paying(shop, &way), ())).unwrap();
    process.run_to_death(async move {
        flow.start("run", Board::default()).await.unwrap();
    });
    shop.until_over();
    let executed = usize::from(shop.options().strategy == Some(Strategy::Introspection));
    assert_eq!((way.executed.len(), shop.effects().len()), (executed, 0));
    shop.sql("ALTER TABLE effects DROP COLUMN over_at");
    one_effect(shop, &finish(&runs, shop, &again));
    assert_eq!(again.executed.len(), 1);
}

/// The closure fails, is rolled back, and nothing of that is written. Of a failure that isn't recorded nobody has heard.
fn row_10_a_crash_after_rollback_runs_it_again(shop: &Shop) {
    let (runs, way) = (shop.runs(), Way { fails: true, ..Way::default() });
    let executed = way.executed.clone();
    let process = Process::dying_before(&runs.open(), move |_| executed.len() > 0);
    let flow = process.run(process.build(shop.builder()).register(paying(shop, &way), ())).unwrap();
    process.run_to_death(async move {
        flow.start("run", Board::default()).await.unwrap();
    });
    assert_eq!(way.executed.len(), 1);
    one_effect(shop, &finish(&runs, shop, &Way::default()));
}

/// Takes the run up in a process that dies instead of making a certain write; whether it did.
fn recover_and_die(runs: &Runs, shop: &Shop, fatal: usize) -> bool {
    let writes = AtomicUsize::new(0);
    let process =
        Process::dying_before(&runs.open(), move |_| writes.fetch_add(1, Ordering::SeqCst) + 1 == fatal);
    let died = process.run(async {
        let flow = process.build(shop.builder()).register(paying(shop, &Way::default()), ()).await.unwrap();
        // The one before may have brought it to its end.
        let Ok(run) = flow.resume("run").await else { return false };
        tokio::select! {
            () = process.died() => true,
            ended = run.wait() => {
                ended.unwrap();
                false
            }
        }
    });
    process.crash();
    died
}

/// From a crash amid the statements, and from one after COMMIT.
fn row_26_a_recovery_that_crashes_at_each_write_twice_converges(like: &Shop) {
    for is_committed in [false, true] {
        for fatal in 1.. {
            let shop = Shop::open(like.kind, like.strategy);
            let runs = shop.runs();
            let stuck = Some(Signal::default());
            let way = match is_committed {
                false => Way { may_end: stuck, ..Way::default() },
                true => Way { may_go: stuck, ..Way::default() },
            };
            crash_at(&runs, &shop, &way, if is_committed { &way.known } else { &way.paid });
            let died = [(); 2].map(|()| recover_and_die(&runs, &shop, fatal));
            one_effect(&shop, &finish(&runs, &shop, &Way::default()));
            if died == [false; 2] {
                assert!(fatal > 1, "recovery writes something");
                break;
            }
        }
    }
}

/// Takes the run up in a healthy process. Once it is parked, `meanwhile` lets it go on.
fn parked(runs: &Runs, shop: &Shop, way: &Way, meanwhile: impl FnOnce()) -> Board {
    let process = Process::healthy(&runs.open());
    process.run(async {
        let engine = process.build(shop.builder());
        let mut events = engine.events();
        let flow = engine.register(paying(shop, way), ()).await.unwrap();
        let run = flow.attach("run").await.unwrap();
        let is_parked =
            |event: &Event| matches!(event, Event::RunEnded { status: Status::Waiting { .. }, .. });
        tokio::select! {
            _ = hear(&mut events, is_parked) => {}
            ended = run.wait() => panic!("it ended instead of being parked: {ended:?}"),
        }
        meanwhile();
        let board = run.wait().await.unwrap();
        engine.shutdown(Duration::from_secs(60)).await;
        board
    })
}

/// The COMMIT of a zombie is on its way, and comes when its successor has given up waiting for now.
fn row_13_a_lock_that_is_not_given_in_time_parks_the_run(kind: Kind, strategy: Strategy) {
    let shop = Shop::open(kind, strategy);
    let (proxy, url) = shop.proxy();
    proxy.hold_request(match (kind, strategy) {
        (Kind::MySql, _) => "\u{3}COMMIT",
        (_, MARKER) => "\u{b}COMMIT",
        _ => "TO DEFAULT; COMMIT",
    });
    let (runs, zombie_way, way) = (Runs::In(memory()), Way::default(), Way::default());
    let zombie = Process::doomed(&runs.open());
    zombie.run(async {
        let engine = zombie.build(crate::shop::known_by(&url));
        let flow = engine.register(paying(&shop, &zombie_way), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        tokio::task::block_in_place(|| proxy.wait_for_hold());
    });
    zombie.cut_off();
    one_effect(&shop, &parked(&runs, &shop, &way, || proxy.release()));
    // By introspection it isn't executed before the first one's fate is known.
    assert_eq!(way.executed.len(), usize::from(strategy == MARKER));
    zombie.crash();
}

/// The same on SQLite, where a zombie holds the only lock until it dies.
#[test]
fn row_13_a_lock_that_is_not_given_in_time_parks_the_run_on_sqlite() {
    let (runs, shop) = (Runs::In(memory()), Shop::open(Kind::Sqlite, MARKER));
    let way = Way { may_end: Some(Signal::default()), ..Way::default() };
    let zombie = cut_off(&runs, &shop, &way);
    one_effect(&shop, &parked(&runs, &shop, &Way::default(), || zombie.crash()));
}

fn row_14_a_database_that_is_down_parks_the_run(kind: Kind, strategy: Strategy, server: &mut Server) {
    let shop = Shop::at(kind, strategy, fresh_database(&server.url()).expect("a database"));
    let (runs, way) = (Runs::In(memory()), Way { may_go: Some(Signal::default()), ..Way::default() });
    crash_at(&runs, &shop, &way, &way.known);
    server.kill().expect("the server dies");
    let again = Way::default();
    let board = parked(&runs, &shop, &again, || server.restart().expect("the server starts again"));
    one_effect(&shop, &board);
    assert_eq!(again.executed.len(), 0, "its outcome was there to be asked for");
}

#[test]
fn row_14_a_database_that_is_down_parks_the_run_on_postgres() {
    let mut server = Postgres::start().expect("PostgreSQL starts");
    row_14_a_database_that_is_down_parks_the_run(Kind::Postgres, MARKER, &mut server);
    row_14_a_database_that_is_down_parks_the_run(Kind::Postgres, INTROSPECTION, &mut server);
}

#[test]
fn row_14_a_database_that_is_down_parks_the_run_on_mysql() {
    let mut server = MariaDb::start().expect("MariaDB starts");
    row_14_a_database_that_is_down_parks_the_run(Kind::MySql, MARKER, &mut server);
}

#[test]
fn row_14_a_file_that_is_away_parks_the_run() {
    let (runs, shop) = (Runs::In(memory()), Shop::open(Kind::Sqlite, MARKER));
    let way = Way { may_go: Some(Signal::default()), ..Way::default() };
    crash_at(&runs, &shop, &way, &way.known);
    let file = &shop.url["sqlite:".len()..];
    let away = format!("{file}.away");
    fs::rename(file, &away).unwrap();
    let again = Way::default();
    let board = parked(&runs, &shop, &again, || fs::rename(&away, file).unwrap());
    one_effect(&shop, &board);
    assert_eq!(again.executed.len(), 0);
}

/// The standby was down when the transaction was committed.
#[test]
fn row_17_what_a_failover_has_lost_runs_once_on_the_promoted_standby() {
    let mut primary = Postgres::start().expect("a server");
    let mut standby = primary.standby().expect("a standby");
    let shop = Shop::at(Kind::Postgres, MARKER, primary.url());
    let runs = shop.runs();
    standby.kill().expect("it dies");
    for statement in ["ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()"] {
        shop.sql(statement);
    }
    while !shop.sql("SHOW synchronous_standby_names").is_empty() {
        thread::yield_now();
    }
    let way = Way { may_go: Some(Signal::default()), ..Way::default() };
    crash_at(&runs, &shop, &way, &way.known);
    assert_eq!(shop.effects(), ["run"]);
    primary.kill().expect("it dies");
    standby.restart().expect("it comes back");
    standby.promote().expect("it takes over");
    let (there, again) = (Shop::found_at(Kind::Postgres, MARKER, standby.url()), Way::default());
    assert!(there.effects().is_empty(), "the failover lost it");
    one_effect(&there, &finish(&runs, &there, &again));
    assert_eq!(again.executed.len(), 1);
}

/// A standby that lagged has neither the effect nor the marker, since they are of one log.
#[test]
fn row_17_what_a_failover_lost_is_made_once_on_the_new_primary() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::MySql] {
        let (runs, old, new) = (Runs::In(memory()), Shop::open(kind, MARKER), Shop::open(kind, MARKER));
        let (way, again) = (Way { may_go: Some(Signal::default()), ..Way::default() }, Way::default());
        crash_at(&runs, &old, &way, &way.known);
        let twice = Way { may_go: Some(Signal::default()), ..Way::default() };
        let process = Process::doomed(&runs.open());
        process.run(async {
            let flow = process.build(new.builder()).register(paying(&new, &twice), ()).await.unwrap();
            flow.resume("run").await.unwrap();
            twice.known.take().await;
        });
        process.crash();
        one_effect(&new, &finish(&runs, &new, &again));
        assert_eq!((twice.executed.len(), again.executed.len()), (1, 0));
    }
}

/// A process that is cut off from its store with its transaction open.
fn cut_off(runs: &Runs, shop: &Shop, way: &Way) -> Process {
    let process = Process::doomed(&runs.open());
    process.run(async {
        let flow = process.build(shop.builder()).register(paying(shop, way), ()).await.unwrap();
        if flow.resume("run").await.is_err() {
            flow.start("run", Board::default()).await.unwrap();
        }
        way.paid.take().await;
    });
    process.cut_off();
    process
}

/// All of them go on at the same time.
fn row_27_two_recoverers_and_a_zombie_have_one_effect(kind: Kind, strategy: Strategy) {
    let (runs, shop, may_end) = (Runs::In(memory()), Shop::open(kind, strategy), Signal::default());
    let way = Way { may_end: Some(may_end.clone()), ..Way::default() };
    let zombies = [(); 2].map(|()| cut_off(&runs, &shop, &way));
    let board = thread::scope(|scope| {
        let last = scope.spawn(|| finish(&runs, &shop, &Way::default()));
        zombies.iter().for_each(|_| may_end.give());
        last.join().unwrap()
    });
    // Those by introspection stand still before COMMIT, since their notes can't be written.
    if strategy == MARKER {
        shop.until_over();
    }
    zombies.into_iter().for_each(Process::crash);
    one_effect(&shop, &board);
}

const BANK: Db = Db("bank");

/// Two lanes of one node, each with a transaction in a database of its own.
fn twice(databases: [(&Db, &Shop, &Way); 2]) -> Graph<Board> {
    let [(_, shop, first), (_, bank, second)] = databases;
    let (options, first, second) = ([shop.options(), bank.options()], first.clone(), second.clone());
    let pay = node!(
        [options, first, second] | ctx | {
            let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
            let [here, there] = options;
            let left = async {
                let paid =
                    left.transaction_with(&SHOP, "pay", here, async |tx| first.pay(tx, "run").await).await;
                first.known.give();
                paid
            };
            let right = right.transaction_with(&BANK, "pay", there, async |tx| second.pay(tx, "run").await);
            let (left, right): (Result<i64, _>, Result<i64, _>) = tokio::join!(left, right);
            Ok::<_, NodeError>(Board::delta().total((left? + right?) as u64))
        }
    );
    Graph::new("twice", 1, PAY).node(PAY, pay)
}

/// One is committed and the other amid its statements when their process crashes.
#[test]
fn row_29_two_databases_in_one_node_are_settled_each_alone() {
    for [here, there] in [
        [(Kind::Postgres, MARKER), (Kind::MySql, MARKER)],
        [(Kind::Postgres, INTROSPECTION), (Kind::Sqlite, MARKER)],
        [(Kind::MySql, MARKER), (Kind::Postgres, INTROSPECTION)],
    ] {
        let (shop, bank) = (Shop::open(here.0, here.1), Shop::open(there.0, there.1));
        let (runs, first) = (Runs::In(memory()), Way::default());
        let second = Way { may_end: Some(Signal::default()), ..Way::default() };
        let doomed = Process::doomed(&runs.open());
        doomed.run(async {
            let engine = doomed.build(shop.builder().database(BANK.0, &bank.url));
            let graph = twice([(&SHOP, &shop, &first), (&BANK, &bank, &second)]);
            engine.register(graph, ()).await.unwrap().start("run", Board::default()).await.unwrap();
            first.known.take().await;
            second.paid.take().await;
        });
        doomed.crash();
        let (first, second, process) = (Way::default(), Way::default(), Process::healthy(&runs.open()));
        let board = process.run(async {
            let engine = process.build(shop.builder().database(BANK.0, &bank.url));
            let graph = twice([(&SHOP, &shop, &first), (&BANK, &bank, &second)]);
            let flow = engine.register(graph, ()).await.unwrap();
            let board = flow.resume("run").await.unwrap().wait().await.unwrap();
            engine.shutdown(Duration::from_secs(60)).await;
            board
        });
        assert_eq!((board.total, first.executed.len(), second.executed.len()), (2, 0, 1));
        assert_eq!((shop.effects(), bank.effects()), (vec!["run".to_owned()], vec!["run".to_owned()]));
    }
}
