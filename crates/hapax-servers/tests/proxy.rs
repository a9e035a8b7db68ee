//! The proxy in front of a real server: what is lost, what is done all the same, and what is counted.

use std::thread;

use hapax_servers::{Postgres, Proxy, fresh_database, sql};

/// A database with an empty table, and its URL by way of the proxy. Without TLS a session of the client is two round
/// trips: it presents itself, and it executes a statement.
fn scene(server: &Postgres) -> (Proxy, String, String) {
    let database = fresh_database(&server.url()).unwrap();
    sql(&database, "CREATE TABLE t (v int)").unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let through = proxy.url(&format!("{database}?sslmode=disable")).unwrap();
    (proxy, database, through)
}

/// Inserts a row by way of a proxy that swallows the second message of one side, and is cut when it has.
fn insert_with_loss(proxy: &Proxy, through: &str, swallow: fn(&Proxy, u64)) -> bool {
    swallow(proxy, 2);
    let confirmed = thread::scope(|scope| {
        let insert = scope.spawn(|| sql(through, "INSERT INTO t VALUES (1)"));
        proxy.wait_for_loss();
        proxy.cut();
        insert.join().unwrap().is_ok()
    });
    proxy.pass();
    confirmed
}

#[test]
fn a_swallowed_reply_hides_what_was_done_and_a_swallowed_request_was_not() {
    let server = Postgres::start().unwrap();
    let (proxy, database, through) = scene(&server);
    assert!(!insert_with_loss(&proxy, &through, Proxy::swallow_requests));
    assert_eq!(sql(&database, "SELECT count(*) FROM t").unwrap(), "0");
    assert!(!insert_with_loss(&proxy, &through, Proxy::swallow_replies));
    assert_eq!(sql(&database, "SELECT count(*) FROM t").unwrap(), "1");
    assert_eq!(sql(&through, "SELECT count(*) FROM t").unwrap(), "1", "it passes again");
}

#[test]
fn round_trips_are_counted() {
    let server = Postgres::start().unwrap();
    let (proxy, _, through) = scene(&server);
    sql(&through, "SELECT 1").unwrap();
    let one = proxy.counts();
    assert_eq!(one.turns, 2);
    assert!(one.flushes >= 2 && one.bytes_up > 0 && one.bytes_down > 0);
    sql(&through, "SELECT 1").unwrap();
    assert_eq!(proxy.counts().turns, 4);
    assert_eq!(proxy.counts().bytes_lost, 0);
}

#[test]
fn a_client_of_a_killed_server_is_turned_away() {
    let mut server = Postgres::start().unwrap();
    let (_proxy, _, through) = scene(&server);
    server.kill().unwrap();
    assert!(sql(&through, "SELECT 1").is_err());
    server.restart().unwrap();
    assert_eq!(sql(&through, "SELECT 1").unwrap(), "1");
}

#[test]
fn a_held_request_arrives_when_it_is_released_and_a_held_reply_tells_of_what_was_done() {
    let server = Postgres::start().unwrap();
    let (proxy, database, through) = scene(&server);
    let count = || sql(&database, "SELECT count(*) FROM t").unwrap();
    thread::scope(|scope| {
        proxy.hold_request("VALUES (1)");
        let insert = scope.spawn(|| sql(&through, "INSERT INTO t VALUES (1)"));
        proxy.wait_for_hold();
        assert_eq!(count(), "0");
        assert_eq!(sql(&through, "SELECT 1").unwrap(), "1", "others pass");
        proxy.release();
        insert.join().unwrap().unwrap();
        proxy.hold_reply("VALUES (2)");
        let insert = scope.spawn(|| sql(&through, "INSERT INTO t VALUES (2)"));
        proxy.wait_for_hold();
        assert_eq!(count(), "2");
        proxy.release();
        insert.join().unwrap().unwrap();
    });
}
