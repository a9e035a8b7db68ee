//! The fence against those who were taken for dead, and against what happens amid a group commit.

use crate::{
    both::{Kind, address, name, on_both, sql, until},
    operations::{Operation, Subject},
    raw::Raw,
};
use hapax_core::{
    commit::{Status, Write, Written},
    key::sha256,
};
use hapax_servers::Proxy;
use hapax_store::{
    Pace, Store, StoreError, Ticket,
    conformance::{
        Holder, Sample,
        flow::{keys, on},
        sample::{LONG, claimant, key, message, step, submit},
    },
};
use std::{sync::Arc, time::Duration};

on_both! {
    an_uncommitted_append_of_a_zombie_never_becomes_part_of_the_run,
    a_commit_that_waited_while_its_run_was_taken_over_writes_nothing,
    a_fence_that_meets_no_row_takes_no_other_of_its_group_with_it,
    a_deadlock_amid_a_group_commit_loses_nothing,
    a_run_whose_messages_are_claimed_just_now_does_not_leave,
    a_run_that_stays_just_now_is_let_go_by_who_gives_it_its_slot,
}

/// How many sessions of this database wait for a lock.
pub(crate) fn waiting(kind: Kind, url: &str) -> u32 {
    let statement = kind.pick(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            .to_owned(),
        format!(
            "SELECT count(*) FROM information_schema.INNODB_TRX JOIN information_schema.PROCESSLIST \
             ON ID = trx_mysql_thread_id WHERE trx_state = 'LOCK WAIT' AND DB = '{}'",
            name(url)
        ),
    );
    sql(url, &statement).parse().expect("a number")
}

/// Returns once somebody waits for a lock.
async fn until_waiting(kind: Kind, url: &str) {
    until("does anybody wait", || waiting(kind, url) > 0).await;
}

/// The zombie's transaction has passed its fence and appended, and its COMMIT never arrives. Whoever takes over waits for
/// the lock that the fence holds; so what the zombie wrote is committed before the claim, or never.
async fn an_uncommitted_append_of_a_zombie_never_becomes_part_of_the_run(kind: Kind) {
    let url = kind.database();
    let proxy = Proxy::start(address(&url)).expect("a proxy");
    let near = kind.store(&url).await;
    let far = kind.one_session(&proxy.url(&url).expect("a URL")).await;
    // Once to prepare the statements, once to count them.
    for name in ["warm", "counted"] {
        let before = proxy.counts().turns;
        let subject = Subject::make(&near, Operation::AppendThatTakes, name).await;
        subject.act(&far).await.expect("nothing goes wrong");
        if name == "counted" {
            proxy.swallow_requests(proxy.counts().turns - before);
        }
    }
    let subject =
        Arc::new(Subject::make_for(&near, Operation::AppendThatTakes, "r", Duration::from_millis(1)).await);
    let before = subject.content(kind, &url);
    let zombie = tokio::spawn({
        let (far, subject) = (far.clone(), subject.clone());
        async move { subject.act(&far).await }
    });
    tokio::task::block_in_place(|| proxy.wait_for_loss());
    let claim = tokio::spawn({
        let (near, key) = (near.clone(), subject.key());
        async move { near.claim(key, claimant("b", LONG)).await }
    });
    until_waiting(kind, &url).await;
    assert!(!claim.is_finished() && subject.content(kind, &url) == before);
    proxy.cut();
    proxy.pass();
    let lease = claim.await.expect("no panic").expect("the zombie's lock is gone");
    assert!(matches!(zombie.await.expect("no panic"), Err(StoreError::Unknown(_))));
    let mut holder = Holder::load(&near, &subject.key(), lease).await.expect("the run");
    assert_eq!(holder.next_seq, 0, "nothing of the zombie's is there");
    holder.commit(holder.next_with("of the new holder", 1, 2, vec![])).await.expect("a step");
    // It goes on, without and with a look.
    let write = subject.write.clone().expect("a write");
    assert!(matches!(far.settle(write).await, Err(StoreError::Fenced { .. })));
    assert!(matches!(subject.act(&far).await, Err(StoreError::Fenced { .. })));
    assert_eq!(near.journal(subject.key(), 0, 10).await.expect("rows").len(), 2);
    assert!(
        near.letter(subject.key(), "go".into(), 0).await.expect("an answer").is_some(),
        "it took no letter"
    );
}

/// Its statement began, and looked at the run, before another holder's claim was committed.
async fn a_commit_that_waited_while_its_run_was_taken_over_writes_nothing(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    let holder = Sample::run("r").hold(&store).await;
    let mut taker = Raw::connect(kind, &url).await;
    taker.run("BEGIN").await;
    taker.run("UPDATE hapax_runs SET epoch = epoch + 1, owner = 'b' WHERE namespace = 'default' AND run_id = 'r'").await;
    let commit = step(holder.next_with("late", 3, 2, vec![message("m")]));
    let ticket = queue(&store, commit.clone()).await;
    until_waiting(kind, &url).await;
    taker.run("COMMIT").await;
    let fenced = ticket.await.expect_err("another holds the run");
    assert!(matches!(fenced, StoreError::Fenced { .. }), "{fenced}");
    let rows = "SELECT (SELECT max(step_id) FROM hapax_checkpoints), (SELECT count(*) FROM hapax_journal), \
                (SELECT count(*) FROM hapax_outbox), (SELECT count(*) FROM hapax_keys), \
                (SELECT step_id FROM hapax_runs)";
    assert_eq!(sql(&url, rows), "0|0|0|1|0");
}

/// A relay's claim is written and not yet committed when the run is to leave: whoever moves it waits for the claim, and sees it.
async fn a_run_whose_messages_are_claimed_just_now_does_not_leave(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    let mut holder = Sample::run("r").hold(&store).await;
    holder.commit(holder.next_with("sends", 1, 0, vec![message("m")])).await.expect("a step");
    holder.write(Write::Status(holder.status(Status::Pending, true))).await.expect("it is let go");
    let mut relay = Raw::connect(kind, &url).await;
    relay.run("BEGIN").await;
    relay
        .run(
            "UPDATE hapax_channels SET token = '0123456789abcdef', owner = 'relay', due_at = due_at + 60000000 \
             WHERE namespace = 'default' AND run_id = 'r'",
        )
        .await;
    let leave = tokio::spawn({
        let (store, key) = (store.clone(), holder.key.clone());
        async move { store.house().leave(key, "there".into()).await }
    });
    until_waiting(kind, &url).await;
    relay.run("COMMIT").await;
    let refused = leave.await.expect("no panic");
    assert!(matches!(&refused, Err(StoreError::Held { owner, .. }) if owner == "relay"), "{refused:?}");
    assert_eq!(sql(&url, "SELECT status FROM hapax_runs"), "pending", "it is as it was");
}

/// It has looked for its slot, and that it waits again isn't committed yet, when the slot is given to it: whoever gives it waits
/// for that, and sees it.
async fn a_run_that_stays_just_now_is_let_go_by_who_gives_it_its_slot(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    for run in ["holds", "stays"] {
        store.create(on(run, &keys(&[("k", 1)]))).await.expect("it is created");
    }
    let read = async |run| store.run(key(run)).await.expect("a read").expect("it is there");
    let (token, waits) = (read("holds").await.terms.token, read("stays").await.status);
    assert_eq!(waits.word(), "waiting");
    store.house().leave(key("stays"), "there".into()).await.expect("nobody holds it");
    let mut mover = Raw::connect(kind, &url).await;
    mover.run("BEGIN").await;
    mover
        .run(&format!(
            "UPDATE hapax_runs SET status = 'waiting', status_json = '{}' WHERE namespace = 'default' AND run_id = 'stays'",
            waits.to_json().as_str()
        ))
        .await;
    let release = tokio::spawn({
        let store = store.clone();
        async move { store.flow().release(key("holds"), token).await }
    });
    until_waiting(kind, &url).await;
    mover.run("COMMIT").await;
    assert_eq!(release.await.expect("no panic").expect("an answer"), [key("stays")]);
    assert_eq!(read("stays").await.status, Status::Pending);
}

async fn queue(store: &Arc<dyn Store>, write: Write) -> Ticket {
    store.submit(Arc::new(write), Pace::Ahead).await.expect("room")
}

/// So many runs whose writes travel on one lane, held.
async fn of_one_lane(store: &Arc<dyn Store>, count: usize) -> Vec<Holder> {
    let lane = |name: &str| sha256(name.as_bytes()).0[7] % 4;
    let names = (0..).map(|n| format!("run {n:03}")).filter(|name| lane(name) == 0);
    let mut holders = vec![];
    for name in names.take(count) {
        holders.push(Sample::run(&name).hold(store).await);
    }
    holders
}

/// Keeps the lane of a run busy, so that writes which are queued meanwhile share one transaction. Who holds it up, until a
/// COMMIT; and the write that waits.
async fn block(kind: Kind, url: &str, store: &Arc<dyn Store>, holder: &Holder) -> (Raw, Ticket) {
    let mut blocker = Raw::connect(kind, url).await;
    blocker.run("BEGIN").await;
    // By its whole key: without an index all rows would be locked.
    let which = format!("namespace = 'default' AND run_id = '{}'", holder.key.run);
    blocker.run(&format!("SELECT 1 FROM hapax_runs WHERE {which} FOR UPDATE")).await;
    let busy = queue(store, step(holder.next("busy"))).await;
    until_waiting(kind, url).await;
    (blocker, busy)
}

async fn a_fence_that_meets_no_row_takes_no_other_of_its_group_with_it(kind: Kind) {
    let url = kind.database();
    let store = kind.store(&url).await;
    let mut holders = of_one_lane(&store, 7).await;
    let transactions = store.stats().transactions;
    let (mut blocker, busy) = block(kind, &url, &store, &holders.remove(0)).await;
    holders[3].epoch.counter += 7;
    let mut tickets = vec![];
    for holder in &holders {
        tickets.push(queue(&store, step(holder.next_with("one", 2, 3, vec![message("m")]))).await);
    }
    blocker.run("COMMIT").await;
    assert_eq!(busy.await.expect("a step"), Written::Committed);
    for (n, ticket) in tickets.into_iter().enumerate() {
        match ticket.await {
            Ok(Written::Committed) => assert_ne!(n, 3),
            Err(StoreError::Fenced { .. }) => assert_eq!(n, 3),
            outcome => panic!("{n}: {outcome:?}"),
        }
    }
    let shared = store.stats().transactions - transactions;
    assert_eq!(shared, 3, "the first one's, the group's, and a look at what was refused");
    let fenced = &holders[3].key.run;
    for table in ["keys", "checkpoints", "frontier", "journal", "outbox", "channels"] {
        let rows = format!("SELECT count(*) FROM hapax_{table} WHERE run_id = '{fenced}'");
        let at_start = if ["keys", "checkpoints"].contains(&table) { "1" } else { "0" };
        assert_eq!(sql(&url, &rows), at_start, "{table}");
    }
}

/// Two transactions wait for each other, and the group is the one that the server undoes.
async fn a_deadlock_amid_a_group_commit_loses_nothing(kind: Kind) {
    let url = kind.database();
    if kind == Kind::Postgres {
        // Long enough for the other one to join in, and shorter than the store waits for a lock.
        sql(&url, &format!("ALTER DATABASE {} SET deadlock_timeout = '3s'", name(&url)));
    }
    let store = kind.store(&url).await;
    let mut holders = of_one_lane(&store, 4).await;
    let (mut blocker, busy) = block(kind, &url, &store, &holders.remove(0)).await;
    let (first, last) = (holders[0].key.run.clone(), holders[2].key.run.clone());
    let deadlocks = deadlocks(kind, &url);
    let mut other = Raw::connect(kind, &url).await;
    if kind == Kind::Postgres {
        // Whoever looks first gives way: it never looks.
        other.run("SET deadlock_timeout = '600s'").await;
    }
    other.run("CREATE TABLE ballast (n BIGINT PRIMARY KEY)").await;
    other.run("BEGIN").await;
    // Whoever has written least gives way.
    let rows: Vec<String> = (0..500).map(|n| format!("({n})")).collect();
    other.run(&format!("INSERT INTO ballast VALUES {}", rows.join(", "))).await;
    other
        .run(&format!("UPDATE hapax_runs SET used_us = 1 WHERE namespace = 'default' AND run_id = '{last}'"))
        .await;
    let mut tickets = vec![];
    for holder in &holders {
        tickets.push(queue(&store, step(holder.next_with("one", 1, 2, vec![message("m")]))).await);
    }
    blocker.run("COMMIT").await;
    assert_eq!(busy.await.expect("a step"), Written::Committed);
    until_waiting(kind, &url).await;
    other
        .run(&format!("UPDATE hapax_runs SET used_us = 1 WHERE namespace = 'default' AND run_id = '{first}'"))
        .await;
    other.run("ROLLBACK").await;
    for ticket in tickets {
        assert_eq!(ticket.await.expect("it was tried again"), Written::Committed);
    }
    until("is a deadlock counted", || self::deadlocks(kind, &url) > deadlocks).await;
    assert_eq!(sql(&url, "SELECT count(*), max(step_id) FROM hapax_checkpoints"), "8|1");
    assert_eq!(sql(&url, "SELECT count(*) FROM hapax_journal"), "6");
    for holder in &mut holders {
        let write = step(holder.next_with("one", 1, 2, vec![message("m")]));
        assert_eq!(submit(&store, write.clone()).await.expect("it is there"), Written::AlreadyCommitted);
        holder.passed(&write);
        holder.commit(holder.next("two")).await.expect("it goes on");
    }
}

/// How often the server has undone a transaction for it; some tell a little later.
fn deadlocks(kind: Kind, url: &str) -> u32 {
    let statement = kind.pick(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()",
        "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Innodb_deadlocks'",
    );
    sql(url, statement).parse().expect("a number")
}
