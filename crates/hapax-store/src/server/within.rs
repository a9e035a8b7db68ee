//! What the store would write, as statements for another's transaction in the same database.
//!
//! Invariant: they are the very statements of an append, its fence first: whoever comes to nothing behind it holds the row of
//! its own run, and no row of the journal for which the runs that share a commit with its successor would wait.

use super::{
    chain::Chain,
    error::{Halt, reported},
    journal,
    sql::{Done, Fault, Inserts, Row, Session, Value},
    writer::Tx,
};
use crate::{
    codec::Codec,
    db::{self, Statement},
    error::StoreError,
    prepare,
};
use hapax_core::commit::Append;

/// The statements of an append, in the words that all servers share.
pub(crate) async fn append(append: &Append, codec: &Codec) -> Result<Vec<Statement>, StoreError> {
    let entries =
        prepare::entries(&append.run, append.first_seq, &append.rows, codec).map_err(StoreError::Retry)?;
    let mut noted = Noted::default();
    let mut tx = Tx { session: &mut noted, codec, hints: vec![] };
    match journal::append(&mut tx, append, &entries).await {
        Ok(_) => {}
        Err(Halt::Settle(answer)) => drop(answer?),
        Err(Halt::Fault(fault)) => return Err(reported(fault, &append.run)),
    }
    Ok(noted.statements)
}

/// A session that notes what it is told, and does nothing.
#[derive(Default)]
struct Noted {
    statements: Vec<Statement>,
}

fn nothing<T: Send + 'static>() -> Done<'static, T> {
    Box::pin(std::future::ready(Err(Fault::Nothing("what is only noted has no answer".into()))))
}

impl Session for Noted {
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Done<'a, u64> {
        // The fence must meet its run's row; whatever else there is follows from it.
        let must_meet = self.statements.is_empty();
        let values = values.iter().map(owned).collect();
        self.statements.push(Statement { sql: sql.to_owned(), values, must_meet });
        Box::pin(std::future::ready(Ok(1)))
    }

    fn rows<'a>(&'a mut self, _: &'a str, _: &'a [Value<'a>]) -> Done<'a, Vec<Row>> {
        nothing()
    }

    fn begin(&mut self) -> Done<'_, ()> {
        nothing()
    }

    fn begin_reading(&mut self) -> Done<'_, ()> {
        nothing()
    }

    fn commit(&mut self) -> Done<'_, ()> {
        nothing()
    }

    fn rollback(&mut self) -> Done<'_, ()> {
        nothing()
    }

    fn write_chains<'a>(&'a mut self, _: &'a [Chain]) -> Done<'a, Vec<bool>> {
        nothing()
    }

    fn insert_all<'a>(&'a mut self, _: &'a [Inserts<'a>]) -> Done<'a, ()> {
        nothing()
    }

    fn unless_there(&self) -> &'static str {
        ""
    }
}

fn owned(value: &Value<'_>) -> db::Value {
    match value {
        Value::Int(Some(number)) => db::Value::Int(*number),
        Value::Text(Some(text)) => db::Value::Text((*text).to_owned()),
        Value::Blob(Some(bytes)) => db::Value::Bytes(bytes.to_vec()),
        Value::Int(None) | Value::Text(None) | Value::Blob(None) => db::Value::Null,
    }
}
