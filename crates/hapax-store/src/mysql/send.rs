//! What a session sends as a text: whole transactions, fences, questions about them.
//!
//! Invariant: COMMIT is sent when all before it is answered, so whatever failed earlier is known to have left nothing.

use super::{
    commit,
    connection::{MySession, NOW, Standing, row},
    error::{fault, is_missing},
    script::Script,
};
use crate::server::{
    chain::Chain,
    sql::{Fault, Inserts, Row, Session, insert_each},
};
use mysql_async::prelude::Queryable;

impl MySession {
    /// Writes chains in a transaction; answers for each whether its fence let it pass.
    pub(super) async fn write(&mut self, chains: &[Chain]) -> Result<Vec<bool>, Fault> {
        let all = commit::numbered(chains);
        let whole = commit::script(self, &all).map(Script::text);
        let is_refused = whole.is_some();
        if let Some(whole) = whole
            && self.send(whole).await?
        {
            return Ok(vec![true; chains.len()]);
        }
        self.begin().await?;
        match commit::write(self, &all, is_refused).await {
            Ok(passed) if passed.contains(&true) => self.commit_now().await.map(|()| passed),
            Ok(passed) => self.roll_back().await.map(|()| passed).map_err(Fault::before_commit),
            Err(fault) => {
                // A session that can't even roll back is closed, which does the same.
                let _ = self.roll_back().await;
                Err(fault.before_commit())
            }
        }
    }

    /// Statements of ours that are sent as one text.
    pub(super) fn script(&self) -> Script<'_> {
        Script::new(&self.server.options.shared.prefix, NOW)
    }

    /// The same for a whole transaction of about so many bytes.
    pub(super) fn transaction(&self, bytes: usize) -> Script<'_> {
        Script::transaction(&self.server.options.shared.prefix, NOW, bytes)
    }

    /// Sends a whole transaction, and commits it. `false`: its fence has refused, and nothing of it is left.
    async fn send(&mut self, text: Vec<u8>) -> Result<bool, Fault> {
        self.begin().await?;
        self.sends()?;
        let answer = self.conn.query_drop(text).await;
        let Err(error) = self.answered(Standing::InTransaction, answer) else {
            return self.commit_now().await.map(|()| true);
        };
        // A session that can't even roll back is closed, which does the same.
        let _ = self.roll_back().await;
        if is_missing(&error) { Ok(false) } else { Err(fault(error).before_commit()) }
    }

    /// Sends a statement as it is; how many rows it met.
    pub(super) async fn change(&mut self, text: Vec<u8>) -> Result<u64, Fault> {
        self.sends()?;
        let answer = self.conn.query_drop(text).await;
        self.answered(Standing::InTransaction, answer).map_err(fault)?;
        Ok(self.conn.affected_rows())
    }

    /// Sends a question as it is, whose answers are texts.
    pub(super) async fn ask(&mut self, text: Vec<u8>) -> Result<Vec<Row>, Fault> {
        self.sends()?;
        let answer = self.conn.query::<mysql_async::Row, _>(text).await;
        let rows = self.answered(Standing::InTransaction, answer).map_err(fault)?;
        rows.into_iter().map(row).collect()
    }

    /// Inserts rows in one round trip where they are small, and statement by statement otherwise.
    pub(super) async fn insert_rows(&mut self, tables: &[Inserts<'_>]) -> Result<(), Fault> {
        let Some(script) = commit::inserts(self, tables) else { return insert_each(self, tables).await };
        let whole = script.text();
        let is_whole = self.send(whole).await?;
        is_whole.then_some(()).ok_or_else(|| Fault::damage("a value of a new run is missing"))
    }
}
