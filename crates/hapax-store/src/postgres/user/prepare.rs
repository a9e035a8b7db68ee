//! The table of markers: found or made, and fit for its purpose, before any statement of the user's.

use super::{Lent, PostgresDatabase, failed};
use crate::db::{DbError, Kind, marker};

/// The table as the session sees it: its full name, what is wrong with it, and which rights are missing.
const FIND: &str = "SELECT format('%I.%I', n.nspname, c.relname), \
     CASE WHEN c.relkind NOT IN ('r', 'p') THEN 'is no table' \
          WHEN c.relpersistence <> 'p' THEN 'doesn''t survive a crash: ALTER TABLE hapax_transactions SET LOGGED' \
          WHEN 3 <> (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid \
                     AND a.attname IN ('id', 'result', 'created_at')) \
          THEN 'is something else than the table of markers' \
          WHEN NOT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'id' \
                     WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate \
                     AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum) \
          THEN 'lets two have the same id: ALTER TABLE hapax_transactions ADD PRIMARY KEY (id)' END, \
     (SELECT string_agg(needed, ', ') FROM unnest(ARRAY['SELECT', 'INSERT', 'DELETE']) AS n(needed) \
      WHERE NOT has_table_privilege(c.oid, needed)), \
     quote_ident(current_user) \
     FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass($1)";

impl PostgresDatabase {
    pub(super) async fn prepare_marker(&self) -> Result<(), DbError> {
        if self.alone(FIND, &[&marker::TABLE]).await?.is_empty() {
            self.make_table().await?;
        }
        let rows = self.alone(FIND, &[&marker::TABLE]).await?;
        let row =
            rows.first().ok_or_else(|| self.unusable(format!("the table {} is gone", marker::TABLE)))?;
        let (table, user): (String, &str) = (row.get(0), row.get(3));
        if let Some(flaw) = row.get::<_, Option<&str>>(1) {
            return Err(self.unusable(format!("the table {table} {flaw}")));
        }
        if let Some(rights) = row.get::<_, Option<&str>>(2) {
            return Err(self.unusable(format!("this user lacks rights: GRANT {rights} ON {table} TO {user}")));
        }
        // Another thread may have found it first.
        let _ = self.table.set(table);
        Ok(())
    }

    /// Several who make it at once would get in each other's way without a lock.
    async fn make_table(&self) -> Result<(), DbError> {
        let Lent { session, room: _room, .. } = self.lend().await?;
        let (table, make) = (marker::TABLE, marker::marker_table(Kind::Postgres));
        let guarded = format!("BEGIN; SELECT pg_advisory_xact_lock(hashtext('{table}')); {make}; COMMIT");
        let Err(error) = session.client.batch_execute(&guarded).await else {
            self.give_back(session);
            return Ok(());
        };
        match failed(&error) {
            DbError::Statement { message, .. } => {
                let ask = "SELECT format('GRANT USAGE ON SCHEMA %1$I TO %2$I; GRANT SELECT, INSERT, DELETE \
                           ON %1$I.hapax_transactions TO %2$I', coalesce(current_schema(), 'public'), current_user)";
                let rights: String = self.second_opinion(ask).await?;
                Err(self.unusable(format!(
                    "the table {table} is missing ({message}), and is made by: {make}; {rights}"
                )))
            }
            error => Err(error),
        }
    }

    /// One text, asked over a session of its own: the one at hand may be in a transaction that failed.
    async fn second_opinion(&self, ask: &str) -> Result<String, DbError> {
        let session = self.connect().await?;
        let row = session.client.query_one(ask, &[]).await.map_err(|error| failed(&error))?;
        Ok(row.get(0))
    }
}
