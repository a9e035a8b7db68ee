//! What MySQL's values are for a user: its own types where there is one, else as they are written.

use crate::db::{Row, Value};
use mysql_async::{Column, consts::ColumnType};

/// The character set of bytes.
const BINARY: u16 = 63;

/// A row as it came.
pub(super) fn row(row: mysql_async::Row) -> Row {
    let columns = row.columns();
    let values = row.unwrap().into_iter().zip(columns.iter());
    Row::new(values.map(|(found, column)| value(found, column)).collect())
}

fn value(found: mysql_async::Value, column: &Column) -> Value {
    match found {
        mysql_async::Value::NULL => Value::Null,
        mysql_async::Value::Bytes(bytes) if holds_bytes(column) => Value::Bytes(bytes),
        mysql_async::Value::Bytes(bytes) => {
            String::from_utf8(bytes).map_or_else(|error| Value::Bytes(error.into_bytes()), Value::Text)
        }
        mysql_async::Value::Int(number) => Value::Int(number),
        mysql_async::Value::UInt(number) => {
            i64::try_from(number).map_or_else(|_| Value::Text(number.to_string()), Value::Int)
        }
        mysql_async::Value::Float(number) => Value::Float(number.into()),
        mysql_async::Value::Double(number) => Value::Float(number),
        time => Value::Text(time.as_sql(true).trim_matches('\'').to_owned()),
    }
}

fn holds_bytes(column: &Column) -> bool {
    let may_hold_text = matches!(
        column.column_type(),
        ColumnType::MYSQL_TYPE_BLOB
            | ColumnType::MYSQL_TYPE_TINY_BLOB
            | ColumnType::MYSQL_TYPE_MEDIUM_BLOB
            | ColumnType::MYSQL_TYPE_LONG_BLOB
            | ColumnType::MYSQL_TYPE_STRING
            | ColumnType::MYSQL_TYPE_VAR_STRING
            | ColumnType::MYSQL_TYPE_BIT
    );
    may_hold_text && column.character_set() == BINARY
}
