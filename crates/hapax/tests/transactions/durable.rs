//! What must be durable before a transaction is committed, and what becomes of one of which nobody knows.

use crate::{
    common::*,
    shop::{INTROSPECTION, Kind, MARKER, PAY, Runs, SHOP, Shop, Way, finish, paying},
};
use hapax::{
    Graph, Resolution, State, Status,
    core::{
        commit::Write,
        journal::{Entry, JournalRow, TxSaid},
        json::Json,
    },
};
use hapax_servers::Postgres;
use std::time::Duration;

/// Looks for an effect that must not come.
const LOOKS: usize = 50;

/// The process doesn't know whether a write is durable, and dies.
fn die_before(shop: &Shop, rests_on: fn(&Entry) -> bool) {
    let runs = &shop.runs();
    let is_it = move |write: &Write| matches!(write, Write::Append(append) if append.rows.iter().flat_map(JournalRow::entries).any(rests_on));
    let process = Process::slow_to_hear(&runs.open(), is_it, &Signal::default());
    process.run(async {
        let flow = process.build(shop.builder()).register(paying(shop, &Way::default()), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
    });
    for _ in 0..LOOKS {
        assert!(shop.effects().is_empty(), "it was committed before what it rests on was durable");
    }
    process.crash();
    assert_eq!((finish(runs, shop, &Way::default()).total, shop.effects()), (1, vec!["run".to_owned()]));
}

async fn until_in_doubt(run: &hapax::Run<Board>) {
    while run.status().await.unwrap() != Status::InDoubt {
        tokio::task::yield_now().await;
    }
}

#[test]
fn row_02_nothing_is_committed_before_its_intent_is_durable() {
    for (kind, strategy) in [(Kind::Sqlite, MARKER), (Kind::Postgres, INTROSPECTION), (Kind::MySql, MARKER)] {
        die_before(&Shop::open(kind, strategy), |entry| matches!(entry, Entry::Intent(_)));
    }
}

#[test]
fn row_04_nothing_is_committed_before_the_note_of_its_number_is_durable() {
    let is_note = |entry: &Entry| matches!(entry, Entry::Transaction(note) if matches!(note.said, TxSaid::PreCommit { .. }));
    die_before(&Shop::open(Kind::Postgres, INTROSPECTION), is_note);
}

/// The run is taken up where the database is another one: nothing there knows of the transaction.
#[test]
fn row_16_of_whose_outcome_nobody_knows_a_person_decides() {
    for (resolution, executed, effects) in
        [(Resolution::Result(Json::of(&7).unwrap()), 0, 0), (Resolution::Retry, 1, 1)]
    {
        let (runs, here) = (Runs::In(memory()), Shop::open(Kind::Postgres, INTROSPECTION));
        let (way, doomed) =
            (Way { may_go: Some(Signal::default()), ..Way::default() }, Process::doomed(&runs.open()));
        doomed.run(async {
            let flow = doomed.build(here.builder()).register(paying(&here, &way), ()).await.unwrap();
            flow.start("run", Board::default()).await.unwrap();
            way.known.take().await;
        });
        doomed.crash();
        let server = Postgres::start().expect("another server");
        let there = Shop::at(Kind::Postgres, INTROSPECTION, server.url());
        let (again, process) = (Way::default(), Process::healthy(&runs.open()));
        let total = process.run(async {
            let engine = process.build(there.builder());
            let flow = engine.register(paying(&there, &again), ()).await.unwrap();
            let run = flow.resume("run").await.unwrap();
            until_in_doubt(&run).await;
            assert_eq!(again.executed.len(), 0, "in doubt nothing is run again");
            engine.resolve("run", "pay", resolution.clone()).await.unwrap();
            let total = run.wait().await.unwrap().total;
            engine.shutdown(Duration::from_secs(60)).await;
            total
        });
        assert_eq!(total, if effects == 0 { 7 } else { 1 });
        assert_eq!((again.executed.len(), there.effects().len()), (executed, effects));
    }
}

/// What the session says of its transaction is gone, as after a COMMIT that came from elsewhere.
#[test]
fn a_transaction_that_something_else_has_ended_is_in_doubt() {
    let (runs, shop) = (Runs::In(memory()), Shop::open(Kind::Postgres, MARKER));
    let process = Process::healthy(&runs.open());
    process.run(async {
        let engine = process.build(shop.builder());
        let pay = node!(
            [] | ctx | {
                let ended = async |tx: &mut hapax::Tx| tx.execute("SET LOCAL hapax.open = ''", &[]).await;
                let changed: u64 = ctx.transaction(&SHOP, "pay", ended).await?;
                Ok::<_, hapax::NodeError>(Board::delta().total(changed))
            }
        );
        let flow = engine.register(Graph::new("ending", 1, PAY).node(PAY, pay), ()).await.unwrap();
        let run = flow.start("run", Board::default()).await.unwrap();
        until_in_doubt(&run).await;
        engine.resolve("run", "pay", Resolution::Result(Json::of(&3).unwrap())).await.unwrap();
        assert_eq!(run.wait().await.unwrap().total, 3);
        engine.shutdown(Duration::from_secs(60)).await;
    });
}

/// Beside a wait the run isn't parked while the transaction has yet to reach its database.
#[test]
fn a_run_is_not_parked_while_its_transaction_connects() {
    let (runs, shop) = (Runs::In(memory()), Shop::open(Kind::Postgres, MARKER));
    let process = Process::healthy(&runs.open());
    process.run(async {
        let engine = process.build(shop.builder());
        let pay = node!(
            [] | ctx | {
                let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
                let pay =
                    async |tx: &mut hapax::Tx| tx.execute("INSERT INTO effects VALUES ('run')", &[]).await;
                let (word, paid) =
                    tokio::join!(left.signal::<String>("go"), right.transaction(&SHOP, "pay", pay));
                Ok::<_, hapax::NodeError>(Board::delta().word(word?).total(paid?))
            }
        );
        let flow = engine.register(Graph::new("beside", 1, PAY).node(PAY, pay), ()).await.unwrap();
        let run = flow.start("run", Board::default()).await.unwrap();
        let paid = async {
            while shop.effects().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), paid)
            .await
            .expect("it pays before it is told to go on");
        engine.signal("run", "go", "on").await.unwrap();
        assert_eq!(run.wait().await.unwrap().total, 1);
        engine.shutdown(Duration::from_secs(60)).await;
    });
}
