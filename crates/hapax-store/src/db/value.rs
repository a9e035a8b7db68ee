//! What goes into a statement of the user's, and what comes out of it.

use std::fmt;

/// A value of any of the databases.
///
/// ```
/// use hapax_store::db::{ToValue, Value};
/// assert_eq!(Some(7).to_value(), Value::Int(7));
/// assert_eq!(None::<i64>.to_value(), Value::Null);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Nothing.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text, and whatever else has no place above: decimals, times, UUIDs and JSON as they are written.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// What can be bound to a statement.
///
/// ```
/// use hapax_store::db::{ToValue, Value};
/// struct Cents(i64);
/// impl ToValue for Cents {
///     fn to_value(&self) -> Value {
///         Value::Int(self.0)
///     }
/// }
/// assert_eq!(Cents(7).to_value(), Value::Int(7));
/// ```
pub trait ToValue {
    /// As the database gets it.
    fn to_value(&self) -> Value;
}

macro_rules! to_value {
    ($($type:ty, |$value:ident| $to:expr;)*) => {
        $(impl ToValue for $type {
            fn to_value(&self) -> Value {
                let $value = self;
                $to
            }
        })*
    };
}

to_value! {
    Value, |value| value.clone();
    bool, |value| Value::Bool(*value);
    i8, |value| Value::Int((*value).into());
    i16, |value| Value::Int((*value).into());
    i32, |value| Value::Int((*value).into());
    i64, |value| Value::Int(*value);
    u8, |value| Value::Int((*value).into());
    u16, |value| Value::Int((*value).into());
    u32, |value| Value::Int((*value).into());
    // What is beyond the largest signed number is written out: a column that is wide enough takes it.
    u64, |value| i64::try_from(*value).map_or_else(|_| Value::Text(value.to_string()), Value::Int);
    usize, |value| (*value as u64).to_value();
    f32, |value| Value::Float((*value).into());
    f64, |value| Value::Float(*value);
    str, |value| Value::Text(value.to_owned());
    String, |value| Value::Text(value.clone());
    [u8], |value| Value::Bytes(value.to_vec());
    Vec<u8>, |value| Value::Bytes(value.clone());
    serde_json::Value, |value| Value::Text(value.to_string());
    uuid::Uuid, |value| Value::Text(value.to_string());
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null, ToValue::to_value)
    }
}

impl<T: ToValue + ?Sized> ToValue for &T {
    fn to_value(&self) -> Value {
        (**self).to_value()
    }
}

/// A value that isn't what was asked for.
///
/// ```
/// use hapax_store::db::{Row, Value};
/// let mismatch = Row::new(vec![Value::Null]).get::<i64>(0).unwrap_err();
/// assert_eq!(mismatch.to_string(), "column 0 holds NULL where a whole number of 64 bits is asked for");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column} holds {found} where {wanted} is asked for")]
pub struct Mismatch {
    /// The column, counted from 0.
    pub column: usize,
    /// What it holds.
    pub found: String,
    /// What was asked for.
    pub wanted: &'static str,
}

/// What a column can be read as.
///
/// ```
/// use hapax_store::db::{FromValue, Value};
/// assert_eq!(u8::from_value(&Value::Int(255)), Some(255));
/// assert_eq!(u8::from_value(&Value::Int(256)), None);
/// ```
pub trait FromValue: Sized {
    /// What it is called in an error.
    const WANTED: &'static str;

    /// The value; `None`: it is something else.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($type:ty, $wanted:literal, |$value:ident| $from:expr;)*) => {
        $(impl FromValue for $type {
            const WANTED: &'static str = $wanted;

            fn from_value($value: &Value) -> Option<Self> {
                $from
            }
        })*
    };
}

/// A whole number, however the database keeps it.
fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Int(number) => Some((*number).into()),
        Value::Text(digits) => digits.parse().ok(),
        _ => None,
    }
}

from_value! {
    Value, "a value", |value| Some(value.clone());
    // Neither MySQL nor SQLite has a type for it.
    bool, "yes or no", |value| match value {
        Value::Bool(flag) => Some(*flag),
        Value::Int(0) => Some(false),
        Value::Int(1) => Some(true),
        _ => None,
    };
    i8, "a whole number of 8 bits", |value| whole(value)?.try_into().ok();
    i16, "a whole number of 16 bits", |value| whole(value)?.try_into().ok();
    i32, "a whole number of 32 bits", |value| whole(value)?.try_into().ok();
    i64, "a whole number of 64 bits", |value| whole(value)?.try_into().ok();
    u8, "a whole number of 8 bits", |value| whole(value)?.try_into().ok();
    u16, "a whole number of 16 bits", |value| whole(value)?.try_into().ok();
    u32, "a whole number of 32 bits", |value| whole(value)?.try_into().ok();
    u64, "a whole number of 64 bits", |value| whole(value)?.try_into().ok();
    f64, "a number", |value| match value {
        Value::Float(number) => Some(*number),
        Value::Int(number) => Some(*number as f64),
        Value::Text(digits) => digits.parse().ok(),
        _ => None,
    };
    String, "a text", |value| match value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    };
    Vec<u8>, "bytes", |value| match value {
        Value::Bytes(bytes) => Some(bytes.clone()),
        Value::Text(text) => Some(text.clone().into_bytes()),
        _ => None,
    };
    serde_json::Value, "JSON", |value| match value {
        Value::Text(text) => serde_json::from_str(text).ok(),
        _ => None,
    };
    uuid::Uuid, "a UUID", |value| match value {
        Value::Text(text) => text.parse().ok(),
        Value::Bytes(bytes) => uuid::Uuid::from_slice(bytes).ok(),
        _ => None,
    };
}

impl<T: FromValue> FromValue for Option<T> {
    const WANTED: &'static str = T::WANTED;

    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            value => T::from_value(value).map(Some),
        }
    }
}

/// A row that was read.
///
/// ```
/// use hapax_store::db::{FromRow, Row, Value};
/// let row = Row::new(vec![Value::Text("anvil".into()), Value::Int(3)]);
/// assert_eq!(<(String, u8)>::from_row(&row)?, ("anvil".to_owned(), 3));
/// assert!(row.get::<i64>(0).unwrap_err().to_string().contains("column 0"));
/// # Ok::<(), hapax_store::db::Mismatch>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Row(Vec<Value>);

impl Row {
    /// Of its values, in their order.
    pub fn new(values: Vec<Value>) -> Self {
        Self(values)
    }

    /// How many columns it has.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A column, counted from 0, as it is.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) fn value(&self, column: usize) -> Option<&Value> {
        self.0.get(column)
    }

    /// A column, counted from 0, as what it is wanted to be.
    pub fn get<T: FromValue>(&self, column: usize) -> Result<T, Mismatch> {
        let found = self.0.get(column);
        found.and_then(T::from_value).ok_or_else(|| Mismatch {
            column,
            found: found.map_or_else(|| "nothing: there are fewer columns".to_owned(), kind),
            wanted: T::WANTED,
        })
    }
}

/// What a value is, without what it says: that may be secret.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "NULL",
        Value::Bool(_) => "yes or no",
        Value::Int(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Text(_) => "a text",
        Value::Bytes(_) => "bytes",
    }
    .to_owned()
}

/// What a row can be read as: a value, if it has one column; a tuple; itself.
///
/// ```
/// use hapax_store::db::{FromRow, Row, Value};
/// let row = Row::new(vec![Value::Int(1), Value::Null]);
/// assert_eq!(<(i64, Option<String>)>::from_row(&row), Ok((1, None)));
/// ```
pub trait FromRow: Sized {
    /// Reads it.
    fn from_row(row: &Row) -> Result<Self, Mismatch>;
}

impl FromRow for Row {
    fn from_row(row: &Row) -> Result<Self, Mismatch> {
        Ok(row.clone())
    }
}

impl<T: FromValue> FromRow for T {
    fn from_row(row: &Row) -> Result<Self, Mismatch> {
        row.get(0)
    }
}

macro_rules! tuples {
    ($(($($name:ident $at:literal),+))*) => {
        $(impl<$($name: FromValue),+> FromRow for ($($name,)+) {
            fn from_row(row: &Row) -> Result<Self, Mismatch> {
                Ok(($(row.get::<$name>($at)?,)+))
            }
        })*
    };
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("NULL"),
            Value::Bool(flag) => flag.fmt(f),
            Value::Int(number) => number.fmt(f),
            Value::Float(number) => number.fmt(f),
            Value::Text(text) => f.write_str(text),
            Value::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}
