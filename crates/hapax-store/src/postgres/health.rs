//! What a server says of itself.

use crate::{
    error::StoreError,
    server::{
        error::{all_runs, undone},
        pool::Sessions,
        sql::{Fault, Session, one, values},
        takes_no_writes,
    },
    store::{BoxFuture, Fact, Verdict},
};
use hapax_core::id::Namespace;

/// All facts, the most important first.
pub(super) fn facts(sessions: Sessions) -> BoxFuture<'static, Result<Vec<Fact>, StoreError>> {
    Box::pin(async move {
        let mut session = sessions.lend().await?;
        let facts = ask(&mut **session).await;
        facts.map_err(|fault| undone(fault, &all_runs(&Namespace::default())))
    })
}

async fn ask(session: &mut dyn Session) -> Result<Vec<Fact>, Fault> {
    let mut facts = vec![];
    for (name, good, meaning) in [
        ("fsync", "on", "what is committed is on the disk: it survives a crash of the machine"),
        ("full_page_writes", "on", "a page that was half written when the machine stopped is mended"),
    ] {
        let found = setting(session, name).await?;
        let verdict = if found == good { Verdict::Good } else { Verdict::Unsafe };
        facts.push(Fact { name, found, verdict, meaning: meaning.into() });
    }
    let found = setting(session, "synchronous_commit").await?;
    let (verdict, meaning) = match found.as_str() {
        "off" => (Verdict::Unsafe, "commits are answered before they are on the disk: a crash can lose them"),
        _ => (Verdict::Good, "commits are on the disk before they are answered"),
    };
    facts.push(Fact { name: "synchronous_commit", found, verdict, meaning: meaning.into() });
    if setting(session, "transaction_read_only").await? == "on" {
        facts.push(takes_no_writes());
    }
    if !is_standby(session).await? {
        facts.push(standbys(session).await?);
    }
    let version = setting(session, "server_version").await?;
    let meaning = "13 and newer are supported".into();
    facts.push(Fact { name: "PostgreSQL", found: version, verdict: Verdict::Good, meaning });
    Ok(facts)
}

async fn setting(session: &mut dyn Session, name: &str) -> Result<String, Fault> {
    let row = one(session, "SELECT current_setting(?)", values![name]).await?;
    row.map_or(Ok(String::new()), |row| row.text(0).map(str::to_owned))
}

async fn is_standby(session: &mut dyn Session) -> Result<bool, Fault> {
    let row = one(session, "SELECT pg_is_in_recovery()::int", values![]).await?;
    row.map_or(Ok(false), |row| row.int(0).map(|standby| standby != 0))
}

/// A standby that lags behind loses what was acknowledged when it takes over.
async fn standbys(session: &mut dyn Session) -> Result<Fact, Fault> {
    let sql =
        "SELECT count(*), count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) FROM pg_stat_replication";
    let row = one(session, sql, values![]).await?;
    let (all, synchronous) = match row {
        Some(row) => (row.int(0)?, row.int(1)?),
        None => (0, 0),
    };
    let (verdict, meaning) = match (all, synchronous) {
        (0, _) => (Verdict::Note, "there is no standby: when this machine's disk is lost, so are the runs"),
        (_, 0) => (
            Verdict::Note,
            "standbys lag behind: a failover can lose steps that were acknowledged; make one synchronous",
        ),
        _ => (Verdict::Good, "a standby has every commit before it is answered: a failover loses nothing"),
    };
    Ok(Fact {
        name: "standbys",
        found: format!("{all}, {synchronous} synchronous"),
        verdict,
        meaning: meaning.into(),
    })
}
