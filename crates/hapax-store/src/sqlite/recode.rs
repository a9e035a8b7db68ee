//! What recoding asks of a file.

use super::{
    SqliteStore,
    error::{all_runs, unreadable},
    writer::{Outcome, Tx},
};
use crate::{
    codec::Codec,
    db::{Row, Statement, Value, bound, value_of},
    recode::Shelf,
    store::Answer,
};
use hapax_core::id::{Namespace, RunKey};
use rusqlite::{Connection, params_from_iter};

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

    fn change(&self, about: RunKey, updates: Vec<Statement>) -> Answer<'_, u64> {
        Box::pin(self.queue.call(about, move |tx| change(tx, &updates)))
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

fn change(tx: &Tx<'_>, updates: &[Statement]) -> Outcome<u64> {
    let mut met = 0;
    for update in updates {
        met += tx.execute(&update.sql, params_from_iter(bound(&update.values)))? as u64;
    }
    Ok(met)
}
