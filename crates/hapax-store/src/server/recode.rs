//! What recoding asks of a server.

use super::{
    ServerStore, ask, blobs, call,
    error::{Halt, Outcome, all_runs},
    sql::{Cell, Fault, Row, Value, values},
    with_hand,
    writer::Tx,
};
use crate::{
    codec::Codec,
    db::{self, Statement},
    recode::{Change, Shelf, runs_of},
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

    fn whole(&self, run: RunKey, stored: Vec<u8>) -> Answer<'_, Vec<u8>> {
        Box::pin(async move {
            let whole = with_hand!(self, |codec| ask!(self, &run, |session| blobs::whole(
                session, codec, &run, &stored
            )));
            Ok(whole?.into_owned())
        })
    }

    fn change(&self, about: RunKey, changes: Vec<Change>) -> Answer<'_, u64> {
        Box::pin(async move { call!(self, &about, |tx| change(tx, &changes)) })
    }

    fn all_or_none(&self, run: RunKey, statements: Vec<Statement>) -> Answer<'_, bool> {
        Box::pin(async move { call!(self, &run, |tx| all_or_none(tx, &run, &statements)) })
    }

    fn now(&self) -> String {
        "{now}".to_owned()
    }
}

async fn all_or_none(tx: &mut Tx<'_>, run: &RunKey, statements: &[Statement]) -> Outcome<bool> {
    hold(tx, run).await?;
    for Statement { sql, values, must_meet } in statements {
        if tx.execute(sql, &bound(values)).await? == 0 && *must_meet {
            return Err(Halt::Settle(Ok(false)));
        }
    }
    Ok(true)
}

/// Whoever writes or deletes bytes of a run holds its row.
async fn hold(tx: &mut Tx<'_>, run: &RunKey) -> Result<(), Fault> {
    let sql = "SELECT 1 FROM hapax_runs WHERE namespace = ? AND run_id = ? FOR UPDATE";
    tx.one(sql, values![run.namespace.as_str(), run.run.as_str()]).await.map(drop)
}

/// All that concerns a run holds its row: so whoever writes bytes that are there already finds them there still.
async fn change(tx: &mut Tx<'_>, changes: &[Change]) -> Outcome<u64> {
    for run in runs_of(changes, |_| true) {
        hold(tx, run).await?;
    }
    let mut met = 0;
    for Change { run, update, blobs, .. } in changes {
        if tx.execute(&update.sql, &bound(&update.values)).await? == 1 {
            met += 1;
            if let Some(run) = run {
                blobs::insert(tx, run, blobs).await?;
            }
        }
    }
    for run in runs_of(changes, |change| change.sweeps) {
        blobs::sweep(tx, run).await?;
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
