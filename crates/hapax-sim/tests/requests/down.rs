//! A database that is down: nothing is executed, and clients are told to come again.

use crate::shop::{KEY, Kind, Shop, Terms};
use hapax_servers::{MariaDb, Postgres, Server, fresh_database};
use hapax_sim::{charges::CHARGES, kills::Waits};

/// Asks a service whose database is down, and again when it is back.
fn refuses_while_it_is_down(shop: &Shop, mut down: impl FnMut(bool)) {
    let service = shop.service(&Terms::quick());
    let before = shop.ask(&service, CHARGES, "before").answer();
    service.until("out before");
    down(true);
    for key in [KEY, "before"] {
        // A file can be read while nobody may write, and an answer that is there may be given.
        let refused = shop.ask(&service, CHARGES, key);
        let may_read = shop.kind == Kind::Sqlite && key == "before";
        assert_eq!(refused.status, if may_read { 201 } else { 503 }, "{refused:?}");
        assert_eq!(refused.body.contains("HX0098"), !may_read, "{refused:?}");
    }
    assert_eq!(service.said(), Vec::<String>::new(), "nothing is executed without a claim");
    down(false);
    let waits = Waits::begin(crate::shop::PATIENCE);
    let mut reply = shop.ask(&service, CHARGES, KEY);
    while reply.status == 503 {
        waits.check("the database is back");
        reply = shop.ask(&service, CHARGES, KEY);
    }
    let again = shop.ask(&service, CHARGES, "before");
    let keys = [KEY, "before"].map(str::to_owned).into();
    shop.check(CHARGES, &keys, &[before, again.answer(), reply.answer()]);
}

fn is_killed(kind: Kind, server: &mut Server) {
    let shop = Shop::at(kind, fresh_database(&server.url()).expect("a database"));
    refuses_while_it_is_down(&shop, |down| {
        let done = if down { server.kill() } else { server.restart() };
        done.expect("our own server");
    });
}

#[test]
fn row_14_nothing_executes_while_postgres_is_down() {
    is_killed(Kind::Postgres, &mut Postgres::start().expect("PostgreSQL starts"));
}

#[test]
fn row_14_nothing_executes_while_mariadb_is_down() {
    is_killed(Kind::MySql, &mut MariaDb::start().expect("MariaDB starts"));
}

/// Somebody else holds the lock for longer than anybody waits.
#[test]
fn row_14_nothing_executes_while_the_file_cannot_be_written() {
    let shop = Shop::open(Kind::Sqlite);
    let file = shop.file();
    refuses_while_it_is_down(&shop, |down| {
        file.execute_batch(if down { "BEGIN IMMEDIATE" } else { "COMMIT" }).expect("a lock");
    });
}
