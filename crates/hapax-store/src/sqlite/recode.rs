//! What recoding asks of a file.

use super::{
    SqliteStore, blobs,
    error::{all_runs, unreadable},
    writer::{Halt, Outcome, Tx},
};
use crate::{
    codec::Codec,
    db::{Row, Statement, Value, bound, value_of},
    recode::{Change, Shelf, runs_of},
    store::Answer,
};
use hapax_core::id::{Namespace, RunKey};
use rusqlite::{Connection, params_from_iter};
use std::borrow::Cow;

impl Shelf for SqliteStore {
    fn codec(&self) -> &Codec {
        &self.codec
    }

    fn sum_column(&self) -> &'static str {
        "sum"
    }

    fn ask(&self, sql: String, values: Vec<Value>) -> Answer<'_, Vec<Row>> {
        let read = move |connection: &Connection, _: &Codec, about: &RunKey| {
            rows(connection, &sql, &values).map_err(|error| unreadable(error, about))
        };
        Box::pin(self.read(all_runs(&Namespace::default()), read))
    }

    fn whole(&self, run: RunKey, stored: Vec<u8>) -> Answer<'_, Vec<u8>> {
        let read = move |connection: &Connection, codec: &Codec, run: &RunKey| {
            let whole = blobs::whole(connection, codec, run, &stored);
            whole.map(Cow::into_owned).map_err(|error| unreadable(error, run))
        };
        Box::pin(self.read_payloads(run, read))
    }

    fn change(&self, about: RunKey, changes: Vec<Change>) -> Answer<'_, u64> {
        Box::pin(self.queue.call(about, move |tx| change(tx, &changes)))
    }

    fn all_or_none(&self, run: RunKey, statements: Vec<Statement>) -> Answer<'_, bool> {
        Box::pin(self.queue.call(run, move |tx| all_or_none(tx, &statements)))
    }

    fn now(&self) -> String {
        self.clock.now_us().to_string()
    }
}

fn rows(connection: &Connection, sql: &str, values: &[Value]) -> rusqlite::Result<Vec<Row>> {
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let read = |row: &rusqlite::Row<'_>| {
        let values = (0..columns).map(|at| row.get_ref(at).map(value_of));
        Ok(Row::new(values.collect::<rusqlite::Result<_>>()?))
    };
    statement.query_map(params_from_iter(bound(values)), read)?.collect()
}

fn all_or_none(tx: &Tx<'_>, statements: &[Statement]) -> Outcome<bool> {
    for Statement { sql, values, must_meet } in statements {
        if tx.execute(sql, params_from_iter(bound(values)))? == 0 && *must_meet {
            return Err(Halt::Settle(Ok(false)));
        }
    }
    Ok(true)
}

fn change(tx: &Tx<'_>, changes: &[Change]) -> Outcome<u64> {
    let mut met = 0;
    for Change { run, update, blobs, .. } in changes {
        if tx.execute(&update.sql, params_from_iter(bound(&update.values)))? == 1 {
            met += 1;
            run.as_ref().map_or(Ok(()), |run| blobs::insert(tx, run, blobs))?;
        }
    }
    for run in runs_of(changes, |change| change.sweeps) {
        blobs::sweep(tx, run)?;
    }
    Ok(met)
}
