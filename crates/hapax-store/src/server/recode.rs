//! What recoding asks of a server.

use super::{
    ServerStore, ask, call,
    error::{Outcome, all_runs},
    sql::{Cell, Row, Value},
    writer::Tx,
};
use crate::{
    codec::Codec,
    db::{self, Statement},
    recode::Shelf,
    store::Answer,
};
use hapax_core::id::{Namespace, RunKey};

impl Shelf for ServerStore {
    fn codec(&self) -> &Codec {
        &self.codec
    }

    fn sum_column(&self) -> &'static str {
        "row_sum"
    }

    fn ask(&self, sql: String, values: Vec<db::Value>) -> Answer<'_, Vec<db::Row>> {
        Box::pin(async move {
            let (about, bound) = (all_runs(&Namespace::default()), bound(&values));
            let rows = ask!(self, &about, |session| session.rows(&sql, &bound))?;
            Ok(rows.into_iter().map(owned).collect())
        })
    }

    fn change(&self, about: RunKey, updates: Vec<Statement>) -> Answer<'_, u64> {
        Box::pin(async move { call!(self, &about, |tx| change(tx, &updates)) })
    }
}

async fn change(tx: &mut Tx<'_>, updates: &[Statement]) -> Outcome<u64> {
    let mut met = 0;
    for update in updates {
        met += tx.execute(&update.sql, &bound(&update.values)).await?;
    }
    Ok(met)
}

fn bound(values: &[db::Value]) -> Vec<Value<'_>> {
    fn one(value: &db::Value) -> Value<'_> {
        match value {
            db::Value::Int(number) => Value::Int(Some(*number)),
            db::Value::Text(text) => Value::Text(Some(text)),
            db::Value::Bytes(bytes) => Value::Blob(Some(bytes)),
            _ => Value::Blob(None),
        }
    }
    values.iter().map(one).collect()
}

fn owned(row: Row) -> db::Row {
    let one = |cell| match cell {
        Cell::Null => db::Value::Null,
        Cell::Int(number) => db::Value::Int(number),
        Cell::Text(text) => db::Value::Text(text),
        Cell::Blob(bytes) => db::Value::Bytes(bytes),
    };
    db::Row::new(row.0.into_iter().map(one).collect())
}
