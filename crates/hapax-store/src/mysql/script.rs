//! A transaction as one text but for its COMMIT, sent in one round trip.
//!
//! Invariant: no value stands in a text but as a number or as hexadecimal digits, so none can be taken for anything else. A row
//! behind a fence is there only if the fence met as many rows as it must: else it is none that its table takes, the text ends
//! there, and with it the transaction.

use crate::server::sql::{Inserts, Value};
use hapax_core::canary;
use std::io::Write;

/// What the server's clock told when the text began.
const TOLD: &str = "@now_us";
/// Two digits for each byte.
const DIGITS: [[u8; 2]; 256] = digits();

const fn digits() -> [[u8; 2]; 256] {
    let (mut all, mut byte) = ([[0; 2]; 256], 0);
    while byte < 256 {
        all[byte] = [b"0123456789abcdef"[byte >> 4], b"0123456789abcdef"[byte & 15]];
        byte += 1;
    }
    all
}

/// Statements, one after the other.
pub(super) struct Script<'p> {
    prefix: &'p str,
    /// What tells the time.
    now: &'p str,
    text: Vec<u8>,
}

impl<'p> Script<'p> {
    /// One whose tables are named so, with the server's words for its clock.
    pub(super) fn new(prefix: &'p str, now: &'p str) -> Self {
        Self { prefix, now, text: vec![] }
    }

    /// A transaction of so many bytes. It asks the clock once: rows that each do so take longer than all of their digits.
    pub(super) fn transaction(prefix: &'p str, now: &str, bytes: usize) -> Self {
        let mut script = Self { prefix, now: TOLD, text: Vec::with_capacity(bytes) };
        script.begin(&format!("SET {TOLD} = {now}"));
        script
    }

    /// Begins the next statement.
    pub(super) fn begin(&mut self, sql: &str) -> &mut Self {
        if !self.text.is_empty() {
            self.words("; ");
        }
        let words = self.translated(sql);
        self.words(&words)
    }

    /// Goes on with words that name no table and no time.
    pub(super) fn words(&mut self, sql: &str) -> &mut Self {
        self.text.extend_from_slice(sql.as_bytes());
        self
    }

    fn translated(&self, sql: &str) -> String {
        sql.replace("{now}", self.now).replace("hapax_", self.prefix)
    }

    /// Goes on with a value.
    pub(super) fn value(&mut self, value: Value<'_>) -> &mut Self {
        match value {
            Value::Int(Some(number)) => drop(write!(self.text, "{number}")),
            Value::Text(Some(text)) => self.digits(text.as_bytes()),
            Value::Blob(Some(bytes)) => self.digits(bytes),
            Value::Int(None) | Value::Text(None) | Value::Blob(None) => drop(self.words("NULL")),
        }
        self
    }

    fn digits(&mut self, bytes: &[u8]) {
        self.words("x'");
        let from = self.text.len();
        self.text.resize(from + 2 * bytes.len(), b'0');
        let (pairs, _) = self.text[from..].as_chunks_mut();
        pairs.iter_mut().zip(bytes).for_each(|(pair, byte)| *pair = DIGITS[usize::from(*byte)]);
        self.words("'");
    }

    /// Inserts rows. With `behind`, those of a fence: the statement before must have met so many rows. The first value of
    /// every table is one that may not be missing.
    pub(super) fn insert(&mut self, table: &Inserts<'_>, behind: Option<usize>) {
        let pieces: Vec<String> = table.row.split('?').map(|piece| self.translated(piece)).collect();
        self.begin(table.into).words(" VALUES ");
        let mut fence = behind.filter(|_| !canary::on("rows_unfenced"));
        for (number, row) in table.rows.iter().enumerate() {
            self.words(if number == 0 { "" } else { ", " });
            for (piece, value) in pieces.iter().zip(row) {
                self.words(piece);
                match fence.take() {
                    Some(met) => {
                        self.words(&format!("IF(ROW_COUNT() = {met}, ")).value(*value).words(", NULL)")
                    }
                    None => self.value(*value),
                };
            }
            self.words(pieces.last().map_or("", String::as_str));
        }
        self.words(table.end);
    }

    /// The text.
    pub(super) fn text(self) -> Vec<u8> {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::sql::values;

    #[test]
    fn values_are_digits_and_the_first_row_is_there_only_behind_a_fence_that_met() {
        let rows =
            vec![values!["it's \\", 7_u64, &[0, 255]].to_vec(), values!["", -1_i64, None::<&str>].to_vec()];
        let table =
            Inserts { into: "INSERT INTO hapax_t (a, b, c, d)", row: "(?, ?, ?, {now})", end: "", rows };
        let mut script = Script::transaction("our_", "NOW()", 0);
        script.begin("UPDATE hapax_r SET n = {now}");
        script.insert(&table, Some(3));
        let rows =
            "(IF(ROW_COUNT() = 3, x'69742773205c', NULL), 7, x'00ff', @now_us), (x'', -1, NULL, @now_us)";
        let whole = format!(
            "SET @now_us = NOW(); UPDATE our_r SET n = @now_us; INSERT INTO our_t (a, b, c, d) VALUES {rows}"
        );
        assert_eq!(String::from_utf8(script.text()).unwrap(), whole);
    }
}
