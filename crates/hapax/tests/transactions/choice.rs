//! Which strategy a transaction gets when it asks for none, and when it asks for one that it can't have.

use crate::{
    common::*,
    shop::{CO_COMMIT, Kind, MARKER, PAY, SHOP, Shop},
};
use hapax::{
    Error, Graph, NodeError, State,
    core::journal::{Entry, JournalRow, TxSaid},
    store::db::{Isolation, Strategy, TxOptions},
};
use hapax_servers::{MariaDb, fresh_database};

/// Runs a transaction with these options where the runs are in its database; what was noted of how its outcome is known.
fn noted(shop: &Shop, options: &TxOptions) -> Result<Vec<String>, Error> {
    let store = shop.runs().open();
    let process = Process::healthy(&store);
    process.run(async {
        let pay = node!(
            [options] | ctx | {
                let pay =
                    async |tx: &mut hapax::Tx| tx.execute("INSERT INTO effects VALUES ('run')", &[]).await;
                let paid: u64 = ctx.transaction_with(&SHOP, "pay", options, pay).await?;
                Ok::<_, NodeError>(Board::delta().total(paid))
            }
        );
        let engine = process.build(shop.builder());
        let flow = engine.register(Graph::new("paying", 1, PAY).node(PAY, pay), ()).await?;
        flow.start("run", Board::default()).await?.wait().await?;
        let journal = store.journal(key("run"), 0, 100).await?;
        let strategy = |entry: &Entry| match entry {
            Entry::Transaction(note) => match &note.said {
                TxSaid::Begins { strategy, .. } => Some(strategy.clone()),
                _ => None,
            },
            _ => None,
        };
        Ok(journal.iter().flat_map(JournalRow::entries).filter_map(strategy).collect())
    })
}

#[test]
fn in_the_database_of_the_runs_a_transaction_writes_its_own_end() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::MySql] {
        let shop = Shop::open(kind, CO_COMMIT);
        assert_eq!(noted(&shop, &TxOptions::default()).unwrap(), ["co-commit"], "{kind:?}");
        assert_eq!(shop.effects(), ["run"]);
    }
}

/// A renewal of the run's lease would fail it.
#[test]
fn one_that_fails_when_its_run_has_changed_leaves_a_marker() {
    let serializable = TxOptions { isolation: Isolation::Serializable, ..TxOptions::default() };
    assert_eq!(noted(&Shop::open(Kind::Postgres, CO_COMMIT), &serializable).unwrap(), ["marker"]);
    assert_eq!(noted(&Shop::open(Kind::MySql, CO_COMMIT), &serializable).unwrap(), ["co-commit"]);
}

#[test]
fn one_whose_user_may_not_write_to_the_runs_leaves_a_marker() {
    let shop = Shop::open(Kind::Postgres, CO_COMMIT);
    drop(shop.runs().open());
    let clerk = format!("clerk_{}", shop.url.rsplit_once('/').unwrap().1);
    shop.sql(&format!(
        "CREATE ROLE {clerk} LOGIN; GRANT INSERT ON effects TO {clerk}; GRANT CREATE ON SCHEMA public TO {clerk}"
    ));
    let theirs = Shop::beside(&shop, &shop.url.replace("postgres@", &format!("{clerk}@")));
    assert_eq!(noted(&theirs, &TxOptions::default()).unwrap(), ["marker"]);
}

/// The server's own numbers are none of its business.
#[test]
fn one_whose_user_may_write_to_the_runs_and_nothing_else_writes_its_own_end() {
    let shop = Shop::open(Kind::Postgres, CO_COMMIT);
    drop(shop.runs().open());
    let clerk = format!("teller_{}", shop.url.rsplit_once('/').unwrap().1);
    shop.sql(&format!(
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; CREATE ROLE {clerk} LOGIN; \
         GRANT INSERT ON effects, hapax_journal TO {clerk}; GRANT SELECT, UPDATE ON hapax_runs, hapax_letters TO {clerk}"
    ));
    let theirs = Shop::beside(&shop, &shop.url.replace("postgres@", &format!("{clerk}@")));
    assert_eq!(noted(&theirs, &TxOptions::default()).unwrap(), ["co-commit"]);
}

/// As since MariaDB 11.6 by default.
#[test]
fn one_that_reads_repeatably_under_snapshot_isolation_leaves_a_marker() {
    let server = MariaDb::start_with(&["innodb-snapshot-isolation=ON"]).expect("a server");
    let database = || Shop::at(Kind::MySql, CO_COMMIT, fresh_database(&server.url()).expect("a database"));
    assert_eq!(noted(&database(), &TxOptions::default()).unwrap(), ["marker"]);
    let asks = TxOptions { isolation: Isolation::RepeatableRead, ..TxOptions::default() };
    assert_eq!(noted(&database(), &asks).unwrap(), ["marker"]);
    let fresh = TxOptions { isolation: Isolation::ReadCommitted, ..TxOptions::default() };
    assert_eq!(noted(&database(), &fresh).unwrap(), ["co-commit"]);
}

#[test]
fn a_strategy_that_cannot_be_had_is_refused_before_any_statement() {
    let ask = |strategy| TxOptions { strategy: Some(strategy), ..TxOptions::default() };
    let elsewhere = Shop::open(Kind::Postgres, MARKER);
    let refused = noted(&elsewhere, &ask(Strategy::CoCommit)).unwrap_err();
    assert!(failure(&refused).message.contains("the runs aren't in this database"), "{refused}");
    let file = Shop::open(Kind::Sqlite, CO_COMMIT);
    let refused = noted(&file, &ask(Strategy::Marker)).unwrap_err();
    assert!(failure(&refused).message.contains("one writer at a time"), "{refused}");
    assert!(elsewhere.effects().is_empty() && file.effects().is_empty());
}
