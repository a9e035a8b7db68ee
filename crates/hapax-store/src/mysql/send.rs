//! What a session sends as a text: whole transactions, fences, questions about them.
//!
//! Invariant: what is sent together with its COMMIT and isn't answered may have been committed. What failed before its COMMIT
//! is rolled back.

use super::{
    commit,
    connection::{MySession, NOW, Standing, row},
    error::{at_commit, ends_session, fault, is_missing},
    script::Script,
};
use crate::server::{
    chain::Chain,
    sql::{Fault, Inserts, Row, Session, insert_each},
};
use mysql_async::{Conn, prelude::Queryable};

impl MySession {
    /// Writes chains in a transaction; answers for each whether its fence let it pass.
    pub(super) async fn write(&mut self, chains: &[Chain]) -> Result<Vec<bool>, Fault> {
        let all = commit::numbered(chains);
        let whole = commit::script(self, &all).map(Script::committed);
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

    /// Sends a whole transaction, of so many statements. `false`: its fence has refused, and nothing of it is left.
    async fn send(&mut self, (text, statements): (Vec<u8>, usize)) -> Result<bool, Fault> {
        self.begin().await?;
        self.sends()?;
        let (answered, outcome) = answers(&mut self.conn, text).await;
        let Err(error) = outcome else {
            self.standing = Standing::Idle;
            return Ok(true);
        };
        if answered + 1 == statements {
            let undone = at_commit(error);
            if matches!(undone, Fault::Again(_)) {
                self.standing = Standing::Idle;
            }
            return Err(undone);
        }
        if !ends_session(&error) {
            self.standing = Standing::InTransaction;
            // A session that can't even roll back is closed, which does the same.
            let _ = self.roll_back().await;
        }
        if is_missing(&error) { Ok(false) } else { Err(fault(error)) }
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
        let whole = script.committed();
        let is_whole = self.send(whole).await?;
        is_whole.then_some(()).ok_or_else(|| Fault::damage("a value of a new run is missing"))
    }
}

/// Sends a text; how many of its statements were answered, and what became of it.
async fn answers(conn: &mut Conn, text: Vec<u8>) -> (usize, mysql_async::Result<()>) {
    let mut answered = 0;
    let outcome = async {
        let mut answers = conn.query_iter(text).await?;
        answered += 1;
        while !answers.is_empty() {
            answers.next().await?;
            answered += 1;
        }
        answers.drop_result().await
    };
    let outcome = outcome.await;
    (answered, outcome)
}
