//! The store's own rows behind the user's statements, in one text and so in one round trip.
//!
//! Invariant: rows are selected only if the fence, the statement before them, has met its own. From then on others wait for
//! the run's row: a session that stands still is ended as soon as one of the store's would be.

use crate::db::{Statement, Value};
use hapax_core::canary;

/// As long as a session of the store's may stand still in a transaction.
const HURRY: &str = "SET SESSION wait_timeout = 60 /*M! , idle_transaction_timeout = 60 */";
/// Whether the statement before met what it must, or wrote what it should.
const MET: &str = "ROW_COUNT() > 0";

/// What is sent, and at the end of which the number of rows tells whether all of it was done.
pub(super) fn together(statements: &[Statement], is_backslash_plain: bool) -> String {
    let mut text = if canary::on("rides_stand_still") { "DO 0" } else { HURRY }.to_owned();
    for Statement { sql, values, .. } in statements {
        text.push_str("; ");
        let mut written = values.iter().map(|value| literal(value, is_backslash_plain));
        let mut spell = |part: &str| {
            let mut spelled = String::with_capacity(part.len());
            let mut pieces = part.split('?');
            spelled.push_str(pieces.next().unwrap_or_default());
            for piece in pieces {
                spelled.push_str(&written.next().unwrap_or_default());
                spelled.push_str(piece);
            }
            spelled
        };
        match sql.split_once(" VALUES ") {
            None => text.push_str(&spell(sql)),
            Some((into, rows)) => {
                // One by one: several in one statement would take a temporary table, which costs more than all else.
                let rows = rows.trim_start_matches('(').trim_end_matches(')').split("), (");
                let rows = rows.map(|row| format!("{into} SELECT {} FROM DUAL WHERE {MET}", spell(row)));
                text.push_str(&rows.collect::<Vec<_>>().join("; "));
            }
        }
    }
    text
}

/// A value as it is written in a statement.
fn literal(value: &Value, is_backslash_plain: bool) -> String {
    match value {
        Value::Bytes(bytes) => {
            let mut written = String::with_capacity(2 * bytes.len() + 3);
            written.push_str("x'");
            let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
            written.extend(digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
            written.push('\'');
            written
        }
        value => super::transaction::bound(value).as_sql(is_backslash_plain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_only_behind_a_fence_that_met() {
        let text = |text: &str| Value::Text(text.into());
        let fence = Statement {
            sql: "UPDATE r SET n = ? WHERE id = ?".into(),
            values: vec![Value::Int(7), text("it's \\ here?")],
            must_meet: true,
        };
        let rows = Statement {
            sql: "INSERT INTO j (a, b) VALUES (?, ?), (?, ?)".into(),
            values: vec![Value::Int(-1), Value::Bytes(vec![0, 255]), Value::Null, Value::Bytes(vec![])],
            must_meet: false,
        };
        let (into, met) = ("INSERT INTO j (a, b) SELECT", "FROM DUAL WHERE ROW_COUNT() > 0");
        let inserted = format!("{into} -1, x'00ff' {met}; {into} NULL, x'' {met}");
        let both = [fence, rows];
        let escaped = "UPDATE r SET n = 7 WHERE id = 'it\\'s \\\\ here?'";
        assert_eq!(together(&both, false), format!("{HURRY}; {escaped}; {inserted}"));
        let plain = "UPDATE r SET n = 7 WHERE id = 'it''s \\ here?'";
        assert_eq!(together(&both, true), format!("{HURRY}; {plain}; {inserted}"));
    }
}
