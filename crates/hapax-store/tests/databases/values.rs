//! What goes in comes out, on each of the databases.

use crate::kit::{Place, begin, on_all, one, places};
use hapax_store::db::{FromValue, Kind, ToValue, Value};

on_all! {
    every_value_comes_back_as_it_went,
    nothing_comes_back_as_nothing_and_as_nothing_else,
    what_is_read_as_something_else_is_told_with_its_column,
}

/// A table with a column for each kind of value.
fn make(place: &Place) {
    let (real, bytes) = match place.kind {
        Kind::Postgres => ("double precision", "bytea"),
        Kind::MySql => ("double", "longblob"),
        Kind::Sqlite => ("real", "blob"),
    };
    place
        .sql(&format!("CREATE TABLE v (b boolean, i bigint, r {real}, t text, y {bytes}, d decimal(30, 4))"));
}

async fn back<T: FromValue>(place: &Place, column: &str, value: Value) -> T {
    let database = place.open().await;
    let mut tx = begin(&database).await;
    let insert = places(place.kind, &format!("INSERT INTO v ({column}) VALUES (?)"));
    assert_eq!(tx.execute(&insert, &[value]).await.expect("it is taken"), 1);
    let row = one(&mut *tx, &format!("SELECT {column} FROM v"), &[]).await;
    tx.rollback().await.expect("a rollback");
    row.get(0).expect("it is what it was")
}

async fn every_value_comes_back_as_it_went(place: Place) {
    make(&place);
    for flag in [true, false] {
        assert_eq!(back::<bool>(&place, "b", flag.to_value()).await, flag);
    }
    for number in [0, -1, 7, i64::MAX, i64::MIN] {
        assert_eq!(back::<i64>(&place, "i", number.to_value()).await, number);
    }
    for number in [0.0, -0.1, 1.5e300, 1e-300, f64::MAX] {
        assert_eq!(back::<f64>(&place, "r", number.to_value()).await, number);
    }
    for text in ["", "anvil", "ä € 🦀", "it's \"quoted\" \\ and `more`\n", "NULL", "?", "$1"] {
        assert_eq!(back::<String>(&place, "t", text.to_value()).await, text);
    }
    let all: Vec<u8> = (0..=255).collect();
    for bytes in [vec![], all, b"text".to_vec()] {
        assert_eq!(back::<Vec<u8>>(&place, "y", bytes.to_value()).await, bytes);
    }
    let (uuid, tree) = (uuid::Uuid::from_u128(7), serde_json::json!({"a": [1, null]}));
    assert_eq!(back::<uuid::Uuid>(&place, "t", uuid.to_value()).await, uuid);
    assert_eq!(back::<serde_json::Value>(&place, "t", tree.to_value()).await, tree);
    assert_eq!(back::<u8>(&place, "i", 255u8.to_value()).await, 255);
    if place.kind != Kind::Sqlite {
        // SQLite has no decimals.
        assert_eq!(
            back::<String>(&place, "d", "12345678901234567890.1200".to_value()).await,
            "12345678901234567890.1200"
        );
        assert_eq!(back::<String>(&place, "d", "-0.5".to_value()).await, "-0.5000");
        assert_eq!(back::<String>(&place, "d", u64::MAX.to_value()).await, "18446744073709551615.0000");
    }
}

async fn nothing_comes_back_as_nothing_and_as_nothing_else(place: Place) {
    make(&place);
    for column in ["b", "i", "r", "t", "y"] {
        assert_eq!(back::<Value>(&place, column, Value::Null).await, Value::Null);
        assert_eq!(back::<Option<String>>(&place, column, None::<i64>.to_value()).await, None);
    }
}

async fn what_is_read_as_something_else_is_told_with_its_column(place: Place) {
    make(&place);
    let database = place.open().await;
    let mut tx = begin(&database).await;
    let insert = places(place.kind, "INSERT INTO v (i, t, y) VALUES (?, ?, ?)");
    let values = [300.to_value(), "secret".to_value(), vec![1u8].to_value()];
    tx.execute(&insert, &values).await.expect("a row");
    let row = one(&mut *tx, "SELECT i, t, y, NULL FROM v", &[]).await;
    let mismatch = row.get::<u8>(0).unwrap_err();
    assert_eq!((mismatch.column, mismatch.wanted), (0, "a whole number of 8 bits"));
    assert!(row.get::<String>(0).is_err(), "a number is no text");
    let told = row.get::<i64>(1).unwrap_err().to_string();
    assert!(told.contains("column 1") && told.contains("a text") && !told.contains("secret"), "{told}");
    assert!(row.get::<bool>(1).is_err() && row.get::<String>(2).is_err());
    assert!(row.get::<i64>(3).unwrap_err().to_string().contains("NULL"));
    assert!(row.get::<i64>(4).unwrap_err().to_string().contains("fewer columns"));
    tx.commit().await.expect("a mismatch harms nothing");
}
