//! Servers come up safe, keep what they confirmed, and never outlive those who started them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use hapax_servers::{MariaDb, Nats, Postgres, Redis, Server, fresh_database, redis_command, sql};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A server's process and those that it started.
fn family(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).chain([pid]).collect()
}

/// Handles that stay with the processes of a family, even when their ids are given to others. Some of a server's processes
/// are short-lived, and may have ended meanwhile.
fn watch(pid: u32) -> Vec<OwnedFd> {
    let pids = family(pid).into_iter().map(|pid| Pid::from_raw(pid.try_into().unwrap()).unwrap());
    pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
}

fn wait_for_end(process: &OwnedFd) {
    poll(&mut [PollFd::new(process, PollFlags::IN)], None).unwrap();
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).unwrap() == 1
}

fn wait_until_removed(folder: &Path) {
    while folder.exists() {
        thread::yield_now();
    }
}

/// The letter that `/proc` has for the state of a process, which follows its name in brackets.
fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

fn databases_are_apart(server: &Server) {
    let (one, other) = (fresh_database(&server.url()).unwrap(), fresh_database(&server.url()).unwrap());
    sql(&one, "CREATE TABLE t (v int)").unwrap();
    sql(&other, "CREATE TABLE t (v int)").unwrap();
    sql(&one, "INSERT INTO t VALUES (1)").unwrap();
    assert_eq!(sql(&one, "SELECT count(*) FROM t").unwrap(), "1");
    assert_eq!(sql(&other, "SELECT count(*) FROM t").unwrap(), "0");
}

fn a_crash_keeps_what_was_confirmed(server: &mut Server) {
    let database = fresh_database(&server.url()).unwrap();
    sql(&database, "CREATE TABLE t (v int)").unwrap();
    sql(&database, "INSERT INTO t VALUES (7), (8)").unwrap();
    let (pid, watched) = (server.pid(), watch(server.pid()));
    server.kill().unwrap();
    assert!(watched.iter().all(has_ended), "a killed server leaves no process");
    assert!(sql(&database, "SELECT 1").is_err());
    server.restart().unwrap();
    assert_ne!(server.pid(), pid);
    assert_eq!(sql(&database, "SELECT v FROM t ORDER BY v").unwrap(), "7\n8");
}

fn a_frozen_server_goes_on(server: &Server) {
    server.stop().unwrap();
    server.stop().unwrap();
    // They get their signals a little later than their parent; one that has ended waits for it as a zombie.
    for pid in family(server.pid()) {
        while !['T', 'Z'].contains(&state(pid)) {
            thread::yield_now();
        }
    }
    assert_eq!(state(server.pid()), 'T');
    server.cont().unwrap();
    assert_eq!(sql(&server.url(), "SELECT 1").unwrap(), "1");
}

fn runs_without_privileges(server: &Server) {
    let owner = fs::metadata(format!("/proc/{}", server.pid())).unwrap().uid();
    assert_ne!(owner, 0);
    assert_eq!(fs::metadata(server.folder()).unwrap().mode() & 0o777, 0o700);
}

/// Also when it is frozen, and so can't end by itself.
fn nothing_is_left_after_drop<S: std::ops::Deref<Target = Server>>(server: S) {
    let (watched, folder) = (watch(server.pid()), server.folder().to_path_buf());
    server.stop().unwrap();
    drop(server);
    assert!(watched.iter().all(has_ended));
    assert!(!folder.exists());
}

/// A process that holds a server, and is killed when dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn nothing_outlives_a_killed_holder(args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax-server-holder"));
    let mut holder = Holder(command.args(args).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(holder.0.stdout.take().unwrap()).lines();
    let pid = lines.next().unwrap().unwrap().parse().unwrap();
    let folder = lines.next().unwrap().unwrap();
    let watched = watch(pid);
    assert!(!has_ended(watched.last().unwrap()), "the server runs");
    drop(holder);
    watched.iter().for_each(wait_for_end);
    wait_until_removed(Path::new(&folder));
}

#[test]
fn postgres_is_safe_keeps_what_it_confirmed_and_leaves_nothing() {
    let mut server = Postgres::start().unwrap();
    let setting = |name: &str| sql(&server.url(), &format!("SHOW {name}")).unwrap();
    for name in ["fsync", "full_page_writes", "synchronous_commit"] {
        assert_eq!(setting(name), "on", "{name}");
    }
    assert_eq!(setting("listen_addresses"), "127.0.0.1");
    runs_without_privileges(&server);
    databases_are_apart(&server);
    a_frozen_server_goes_on(&server);
    a_crash_keeps_what_was_confirmed(&mut server);
    nothing_is_left_after_drop(server);
}

#[test]
fn mariadb_is_safe_keeps_what_it_confirmed_and_leaves_nothing() {
    let mut server = MariaDb::start().unwrap();
    let safety = "SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite, @@log_bin, @@bind_address";
    assert_eq!(sql(&server.url(), safety).unwrap(), "1|1|0|127.0.0.1");
    runs_without_privileges(&server);
    databases_are_apart(&server);
    a_frozen_server_goes_on(&server);
    a_crash_keeps_what_was_confirmed(&mut server);
    nothing_is_left_after_drop(server);
}

#[test]
fn redis_is_a_cache_that_comes_back_empty_and_leaves_nothing() {
    let mut server = Redis::start().unwrap();
    let (url, pid) = (server.url(), server.pid());
    let command = |words: &[&str]| redis_command(&url, words);
    assert_eq!(command(&["CONFIG", "GET", "bind"]).unwrap(), "bind\n127.0.0.1");
    runs_without_privileges(&server);
    assert_eq!(command(&["SET", "a", "1"]).unwrap(), "OK");
    server.stop().unwrap();
    assert_eq!(state(pid), 'T');
    server.cont().unwrap();
    assert_eq!(command(&["GET", "a"]).unwrap(), "1");
    server.kill().unwrap();
    assert!(command(&["PING"]).is_err());
    server.restart().unwrap();
    assert_ne!(server.pid(), pid);
    assert_eq!(command(&["DBSIZE"]).unwrap(), "0");
    assert!(command(&["NO-SUCH-COMMAND"]).unwrap_err().to_string().contains("unknown command"));
    nothing_is_left_after_drop(server);
}

#[test]
fn nats_comes_back_where_it_was_and_leaves_nothing() {
    let mut server = Nats::start().unwrap();
    let (url, pid) = (server.url(), server.pid());
    runs_without_privileges(&server);
    server.stop().unwrap();
    assert_eq!(state(pid), 'T');
    server.cont().unwrap();
    server.kill().unwrap();
    assert!(std::net::TcpStream::connect(server.address()).is_err());
    server.restart().unwrap();
    assert_ne!(server.pid(), pid);
    assert_eq!(server.url(), url);
    nothing_is_left_after_drop(server);
}

#[test]
fn a_killed_holder_takes_a_frozen_nats_with_it() {
    nothing_outlives_a_killed_holder(&["nats", "frozen"]);
}

/// Its family has members in the third generation, and a daemon.
#[test]
fn a_killed_holder_takes_rabbitmq_with_it() {
    nothing_outlives_a_killed_holder(&["rabbitmq"]);
}

#[test]
fn a_killed_holder_takes_a_frozen_redis_with_it() {
    nothing_outlives_a_killed_holder(&["redis", "frozen"]);
}

#[test]
fn a_killed_holder_takes_postgres_with_it() {
    nothing_outlives_a_killed_holder(&["postgres"]);
}

#[test]
fn a_killed_holder_takes_a_frozen_postgres_with_it() {
    nothing_outlives_a_killed_holder(&["postgres", "frozen"]);
}

#[test]
fn a_killed_holder_takes_mariadb_with_it() {
    nothing_outlives_a_killed_holder(&["mariadb"]);
}

#[test]
fn a_promoted_standby_has_what_the_primary_confirmed() {
    let mut primary = Postgres::start().unwrap();
    let standby = primary.standby().unwrap();
    let is_standby = sql(&standby.url(), "SELECT pg_is_in_recovery()").unwrap();
    assert_eq!(is_standby, "t");
    sql(&primary.url(), "CREATE TABLE t AS SELECT 7 AS v").unwrap();
    primary.kill().unwrap();
    standby.promote().unwrap();
    assert_eq!(sql(&standby.url(), "UPDATE t SET v = v + 1 RETURNING v").unwrap(), "8");
}

#[test]
fn a_server_that_does_not_come_up_shows_its_log() {
    let mut server = Postgres::start().unwrap();
    server.kill().unwrap();
    fs::remove_file(server.folder().join("data/global/pg_control")).unwrap();
    let message = server.restart().unwrap_err().to_string();
    assert!(message.contains("PostgreSQL ended with") && message.contains("pg_control"), "{message}");
}

#[test]
fn each_test_gets_a_database_of_its_own() {
    for fresh in [hapax_servers::postgres, hapax_servers::mysql] {
        let (one, other) = (fresh().unwrap(), fresh().unwrap());
        assert_ne!(one, other);
        assert_eq!(sql(&one, "SELECT 1").unwrap(), "1");
        assert_eq!(sql(&other, "SELECT 1").unwrap(), "1");
    }
}

#[test]
fn each_test_gets_a_database_of_its_own_in_redis() {
    let (one, other) = (hapax_servers::redis().unwrap(), hapax_servers::redis().unwrap());
    assert_ne!(one, other);
    redis_command(&one, &["SET", "a", "1"]).unwrap();
    redis_command(&other, &["FLUSHDB"]).unwrap();
    assert_eq!(redis_command(&one, &["GET", "a"]).unwrap(), "1");
    assert_eq!(redis_command(&other, &["DBSIZE"]).unwrap(), "0");
}

/// What is on the small disk can't grow beyond it, and room that is made is there at once; all else goes on.
fn a_small_disk_is_full_soon(server: &Server, database: &str, ballast: &str, says: &str) {
    let full = sql(database, ballast).unwrap_err().to_string();
    assert!(full.contains(says), "{full}");
    sql(database, "CREATE TABLE t (v int)").unwrap();
    sql(database, "INSERT INTO t VALUES (1)").unwrap();
    fresh_database(&server.url()).unwrap();
}

#[test]
fn a_database_may_lie_on_a_small_disk() {
    let (server, database) = Postgres::start_with_disk(24).unwrap();
    let ballast = "CREATE TABLE b AS SELECT repeat('x', 1000) FROM generate_series(1, 1000000)";
    a_small_disk_is_full_soon(&server, &database, ballast, "No space left on device");
    let (server, database) = MariaDb::start_with_disk(8).unwrap();
    let ballast = "CREATE TABLE b AS SELECT repeat('x', 1000) FROM seq_1_to_1000000";
    a_small_disk_is_full_soon(&server, &database, ballast, "ERROR 1114");
}

#[test]
fn settings_may_be_given() {
    let server = Postgres::start_with(&["max_connections=10"]).unwrap();
    assert_eq!(sql(&server.url(), "SHOW max_connections").unwrap(), "10");
    let server = MariaDb::start_with(&["max-connections=20"]).unwrap();
    assert_eq!(sql(&server.url(), "SELECT @@max_connections").unwrap(), "20");
}
