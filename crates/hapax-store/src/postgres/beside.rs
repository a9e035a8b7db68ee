//! Tables of a database beside those of runs: made on demand, and refused when they aren't fit for their purpose.
//!
//! Invariant: a table that is used survives a crash and has its key, and its user has the rights; whoever lacks one is told
//! the statement that grants it.

use super::{
    connection::PgSession,
    error::refused,
    schema::{LOCK, missing_for_schema, texts},
};
use crate::{
    error::StoreError,
    requests::server::reported,
    server::{
        rights_missing,
        sql::{Fault, Session, one, values},
    },
};
use hapax_core::error::code;

/// Behind a statement of a transaction: its commit waits for the disk, whatever its session does.
pub(super) const DURABLE: &str = " RETURNING CASE current_setting('synchronous_commit') WHEN 'off' \
     THEN set_config('synchronous_commit', 'on', true) END";

/// A table, how it is made, and what is demanded of it.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// What is in it, for people.
    pub(super) holds: &'static str,
    pub(super) schema: &'static str,
    /// What the schema makes last.
    pub(super) last: &'static str,
    pub(super) sequence: Option<&'static str>,
    pub(super) key: &'static [&'static str],
    /// What is done with it.
    pub(super) rights: &'static [&'static str],
}

/// Makes the table where there is none, and refuses one that isn't fit for its purpose.
pub(super) async fn prepare(
    session: &mut PgSession,
    what: &str,
    must_exist: bool,
    table: &Table,
) -> Result<(), StoreError> {
    let about = |fault: Fault| reported(fault.before_commit(), "*");
    let lacking = |grants: Vec<String>| match &*grants {
        [] => Ok(()),
        grants => Err(refused(what, rights_missing(grants), code::CANNOT_OPEN)),
    };
    lacking(missing_for_schema(session, "USAGE").await.map_err(about)?)?;
    if !is_there(session, table).await.map_err(about)? {
        if must_exist {
            let why = format!(
                "it holds no {} of Hapax: check its address, or let the service open it first",
                table.holds
            );
            return Err(refused(what, why, code::CANNOT_OPEN));
        }
        lacking(missing_for_schema(session, "CREATE").await.map_err(about)?)?;
        make(session, table.schema).await.map_err(about)?;
    }
    if let Some(flaw) = flaw(session, table).await.map_err(about)? {
        return Err(refused(what, flaw, code::CANNOT_OPEN));
    }
    lacking(missing_rights(session, table).await.map_err(about)?)
}

/// Several who make it at once would get in each other's way without a lock.
async fn make(session: &mut PgSession, schema: &str) -> Result<(), Fault> {
    session.begin().await?;
    let made = match session.rows("SELECT 1 FROM pg_advisory_xact_lock(?)", values![LOCK]).await {
        Ok(_) => session.script(schema).await,
        Err(fault) => Err(fault),
    };
    match made {
        Ok(()) => session.commit().await,
        Err(fault) => {
            // A session that can't roll back is closed, which does the same.
            let _ = session.rollback().await;
            Err(fault)
        }
    }
}

async fn is_there(session: &mut PgSession, table: &Table) -> Result<bool, Fault> {
    let (last, schema) = (session.table(table.last), session.schema());
    let sql = "SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE c.relname = ? AND n.nspname = ?";
    Ok(one(session, sql, values![last.as_str(), schema.as_str()]).await?.is_some())
}

/// What is wrong with the table.
async fn flaw(session: &mut PgSession, table: &Table) -> Result<Option<String>, Fault> {
    let (name, schema, key) = (session.table(table.name), session.schema(), table.key.join(" "));
    let ask = "SELECT CASE WHEN c.relkind NOT IN ('r', 'p') THEN 'is no table' \
               WHEN c.relpersistence <> 'p' THEN format('doesn''t survive a crash: ALTER TABLE %I SET LOGGED', c.relname) \
               WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique \
                   AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = cardinality(k.names) \
                   AND cardinality(k.names) = (SELECT count(*) FROM pg_catalog.pg_attribute AS a \
                   WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey::smallint[]) AND a.attname = ANY (k.names))) \
               THEN format('lets two have the same key: ALTER TABLE %I ADD PRIMARY KEY (%s)', c.relname, \
                    array_to_string(k.names, ', ')) END \
               FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               CROSS JOIN (SELECT string_to_array(?, ' ') AS names) AS k WHERE c.relname = ? AND n.nspname = ?";
    let row = one(session, ask, values![key.as_str(), name.as_str(), schema.as_str()]).await?;
    let flaw = match &row {
        None => Some("is gone: restore it from a backup"),
        Some(row) => row.maybe_text(0)?,
    };
    Ok(flaw.map(|flaw| format!("its table {name} {flaw}")))
}

/// The statements that would grant what is done with the table and its sequence and isn't allowed.
async fn missing_rights(session: &mut PgSession, table: &Table) -> Result<Vec<String>, Fault> {
    let sequence = session.table(table.sequence.unwrap_or_default());
    let (name, schema) = (session.table(table.name), session.schema());
    let all = session.rights();
    let rights: Vec<&str> = table.rights.iter().copied().filter(|right| all.contains(right)).collect();
    let rights = rights.join(" ");
    let ask = "SELECT format('GRANT %s ON %I.%I TO %I', string_agg(r.word, ', ' ORDER BY r.n), n.nspname, c.relname, \
               current_user) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               CROSS JOIN unnest(string_to_array(?, ' ')) WITH ORDINALITY AS r(word, n) \
               WHERE n.nspname = ? AND c.relname = ? AND NOT has_table_privilege(c.oid, r.word) \
               GROUP BY n.nspname, c.relname UNION ALL \
               SELECT format('GRANT USAGE ON SEQUENCE %I.%I TO %I', n.nspname, c.relname, current_user) \
               FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace \
               WHERE n.nspname = ? AND c.relname = ? AND ? <> 'SELECT' AND NOT has_sequence_privilege(c.oid, 'USAGE')";
    let (rights, schema) = (rights.as_str(), schema.as_str());
    let values = values![rights, schema, name.as_str(), schema, sequence.as_str(), rights];
    texts(&session.rows(ask, values).await?)
}
