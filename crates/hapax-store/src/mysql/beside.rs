//! Tables of a database beside those of runs: made on demand, and refused when they aren't fit for their purpose.
//!
//! Invariant: a table that is used has transactions and its key, and its user has the rights; whoever lacks one is told the
//! statement that grants it.

use super::{
    connection::{MySession, TextEnd},
    error::{at_open, is_denied, refused},
    schema::{grant, is_there, probe},
};
use crate::{
    error::StoreError,
    server::{
        rights_missing,
        sql::{Fault, Session, one, values},
    },
};
use hapax_core::error::code;

/// A table, how it is made, and what is demanded of it.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// What is in it, for people.
    pub(super) holds: &'static str,
    pub(super) schema: &'static str,
    pub(super) key: &'static [&'static str],
    /// What is done with it.
    pub(super) rights: &'static [&'static str],
}

/// Makes the table where there is none, and refuses one that isn't fit for its purpose.
pub(super) async fn prepare(
    session: &mut MySession,
    what: &str,
    must_exist: bool,
    beside: &Table,
) -> Result<(), StoreError> {
    let about = |fault| at_open(what, fault);
    let table = session.table(beside.name);
    if !is_there(session, &table).await.map_err(about)? {
        if must_exist {
            let why = format!(
                "it holds no {} of Hapax: check its address, or let the service open it first",
                beside.holds
            );
            return Err(refused(what, why, code::CANNOT_OPEN));
        }
        match session.text(beside.schema.trim_end().trim_end_matches(';'), TextEnd::Idle).await {
            Err(fault) if is_denied(&fault) => {
                // A table with which a user may do nothing looks as if it weren't there.
                let rights = format!("CREATE, {}", beside.rights.join(", "));
                let grants = [grant(session, &rights, &format!("`{table}`")).await.map_err(about)?];
                return Err(refused(what, rights_missing(&grants), code::CANNOT_OPEN));
            }
            made => made.map_err(about)?,
        }
    }
    demand_rights(session, what, beside).await?;
    match flaw(session, &table, beside.key).await.map_err(about)? {
        Some(flaw) => Err(refused(what, format!("its table {table} {flaw}"), code::CANNOT_OPEN)),
        None => Ok(()),
    }
}

/// Refuses a user who may not do with the table what is done with it.
async fn demand_rights(session: &mut MySession, what: &str, table: &Table) -> Result<(), StoreError> {
    let about = |fault| at_open(what, fault);
    let (all, mut missing) = (session.rights(), vec![]);
    for right in table.rights.iter().filter(|right| all.contains(right)) {
        match session.text(&probe(table.name, right), TextEnd::InTransaction).await {
            Err(fault) if is_denied(&fault) => missing.push(*right),
            explained => explained.map_err(about)?,
        }
    }
    session.rollback().await.map_err(about)?;
    if missing.is_empty() {
        return Ok(());
    }
    let named = format!("`{}`", session.table(table.name));
    let grants = [grant(session, &missing.join(", "), &named).await.map_err(about)?];
    Err(refused(what, rights_missing(&grants), code::CANNOT_OPEN))
}

/// What is wrong with the table.
async fn flaw(session: &mut MySession, table: &str, key: &[&str]) -> Result<Option<String>, Fault> {
    let ask =
        "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ?";
    let row = one(session, ask, values![table]).await?;
    let engine =
        row.map(|row| row.maybe_text(0).map(|text| text.unwrap_or_default().to_owned())).transpose()?;
    if engine.as_deref() != Some("InnoDB") {
        return Ok(Some(format!("has no transactions: ALTER TABLE {table} ENGINE=InnoDB")));
    }
    let ask = "SELECT count(*) = ? AND count(sub_part) = 0 AND sum(FIND_IN_SET(column_name, ?) > 0) = ? \
               FROM information_schema.STATISTICS \
               WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = ? AND INDEX_NAME = 'PRIMARY'";
    let row = one(session, ask, values![key.len(), key.join(",").as_str(), key.len(), table]).await?;
    let has_key = row.map(|row| row.maybe_int(0)).transpose()?.flatten() == Some(1);
    let cure = format!("ALTER TABLE {table} ADD PRIMARY KEY ({})", key.join(", "));
    Ok((!has_key).then(|| format!("lets two have the same key: {cure}")))
}
