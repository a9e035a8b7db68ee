//! The table of markers: found or made, and fit for its purpose, before any statement of the user's. And which other
//! tables roll back.

use super::{MySqlDatabase, UserSession, failed};
use crate::db::{DbError, Kind, Refused, marker};
use mysql_async::{Conn, Error, prelude::Queryable};
use std::sync::PoisonError;

impl MySqlDatabase {
    pub(super) async fn prepare_marker(&self) -> Result<(), DbError> {
        let (mut session, _room) = self.lend().await?;
        let UserSession { conn, .. } = &mut session;
        let (table, make) = (marker::TABLE, marker::marker_table(Kind::MySql));
        let user: Option<String> =
            conn.query_first("SELECT current_user()").await.map_err(|error| failed(&error))?;
        let place = format!("`{}`.`{table}`", self.address.db_name().unwrap_or_default().replace('`', "``"));
        let account = account(&user.unwrap_or_default());
        if !is_there(conn).await? {
            conn.query_drop(make).await.map_err(|error| match failed(&error) {
                DbError::Statement { message, .. } => self.unusable(format!(
                    "the table {table} is missing ({message}), and is made by: {make}; \
                     GRANT SELECT, INSERT, DELETE ON {place} TO {account}"
                )),
                error => error,
            })?;
        }
        let missing = missing_rights(conn).await?;
        if !missing.is_empty() {
            let rights = missing.join(", ");
            return Err(
                self.unusable(format!("this user lacks rights: GRANT {rights} ON {place} TO {account}"))
            );
        }
        if let Some(odd) = self.stays(conn, &[table.to_owned()]).await? {
            let cure = format!("ALTER TABLE {odd} ENGINE=InnoDB");
            return Err(self.unusable(format!("the table {table} doesn't roll back: {cure}")));
        }
        if !has_key(conn).await? {
            let cure = format!("ALTER TABLE {table} ADD PRIMARY KEY (id)");
            return Err(self.unusable(format!("the table {table} lets two have the same id: {cure}")));
        }
        self.give_back(session);
        Ok(())
    }

    /// The first of these tables that doesn't roll back. One that does is remembered.
    async fn stays(&self, conn: &mut Conn, tables: &[String]) -> Result<Option<String>, DbError> {
        for table in tables {
            if self.sound.lock().unwrap_or_else(PoisonError::into_inner).contains(table) {
                continue;
            }
            let (schema, name) = match table.split_once('.') {
                Some((schema, name)) => (Some(schema), name),
                None => (None, &**table),
            };
            let ask = "SELECT e.transactions = 'YES' FROM information_schema.tables t \
                       JOIN information_schema.engines e ON e.engine = t.engine \
                       WHERE t.table_schema = coalesce(?, database()) AND t.table_name = ?";
            let found: Option<bool> =
                conn.exec_first(ask, (schema, name)).await.map_err(|error| failed(&error))?;
            match found {
                Some(false) => return Ok(Some(table.clone())),
                Some(true) => {
                    self.sound.lock().unwrap_or_else(PoisonError::into_inner).insert(table.clone());
                }
                // A view, or nothing at all.
                None => {}
            }
        }
        Ok(None)
    }

    /// Refuses to write to tables that don't roll back.
    pub(super) async fn demand_sound(&self, conn: &mut Conn, tables: &[String]) -> Result<(), DbError> {
        match self.stays(conn, tables).await? {
            Some(table) => Err(Refused::Stays(table).into()),
            None => Ok(()),
        }
    }
}

async fn is_there(conn: &mut Conn) -> Result<bool, DbError> {
    let ask = "SELECT 1 FROM information_schema.tables WHERE table_schema = database() AND table_name = ?";
    let found: Option<u8> = conn.exec_first(ask, (marker::TABLE,)).await.map_err(|error| failed(&error))?;
    Ok(found.is_some())
}

/// Whether its primary key lets one row have an id.
async fn has_key(conn: &mut Conn) -> Result<bool, DbError> {
    let ask = "SELECT group_concat(column_name) = 'id' AND max(sub_part) IS NULL FROM information_schema.statistics \
               WHERE table_schema = database() AND table_name = ? AND index_name = 'PRIMARY'";
    let found = conn.exec_first(ask, (marker::TABLE,)).await.map_err(|error| failed(&error))?;
    Ok(found.flatten() == Some(true))
}

/// Rights are tried without touching a row: they may come with a role, or with the whole server.
async fn missing_rights(conn: &mut Conn) -> Result<Vec<&'static str>, DbError> {
    let table = marker::TABLE;
    let mut missing = vec![];
    for (right, probe) in [
        ("SELECT", format!("SELECT id, result FROM {table} WHERE 1 = 0")),
        (
            "INSERT",
            format!(
                "INSERT INTO {table} (id, result, created_at) SELECT '', '', now() FROM DUAL WHERE 1 = 0"
            ),
        ),
        ("DELETE", format!("DELETE FROM {table} WHERE 1 = 0")),
    ] {
        match conn.query_drop(probe).await {
            Ok(()) => {}
            Err(Error::Server(said)) if matches!(said.code, 1044 | 1142 | 1143) => missing.push(right),
            Err(error) => return Err(failed(&error)),
        }
    }
    Ok(missing)
}

/// An account as a statement names it.
fn account(user: &str) -> String {
    let (name, host) = user.rsplit_once('@').unwrap_or((user, "%"));
    format!("'{name}'@'{host}'")
}
