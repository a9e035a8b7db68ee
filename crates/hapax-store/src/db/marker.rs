//! The table of markers: one row for each transaction that was committed and whose end may not be in the journal yet.
//!
//! Invariant: its primary key lets one execution of a transaction commit. Nothing else is asked of it. Ages are by the
//! database's own clock at the moment of the statement, not of the transaction's begin.

use super::Kind;
use hapax_core::canary;

/// What the table is called.
pub(crate) const TABLE: &str = "hapax_transactions";

/// Markers that one statement deletes at the most.
pub(crate) const BATCH: usize = 200;

/// The database's clock in SQLite: milliseconds since 1970.
const SQLITE_NOW: &str = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";

/// The statement that makes the table, for whoever makes it beforehand.
///
/// ```
/// use hapax_store::db::{Kind, marker_table};
/// assert!(marker_table(Kind::MySql).contains("ENGINE=InnoDB"));
/// ```
pub fn marker_table(kind: Kind) -> &'static str {
    match kind {
        Kind::Postgres => {
            "CREATE TABLE IF NOT EXISTS hapax_transactions (id text PRIMARY KEY, result text NOT NULL, \
             created_at timestamptz NOT NULL)"
        }
        Kind::MySql => {
            "CREATE TABLE IF NOT EXISTS hapax_transactions \
             (id varchar(191) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY, \
             result longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, created_at datetime(6) NOT NULL) \
             ENGINE=InnoDB"
        }
        Kind::Sqlite => {
            "CREATE TABLE IF NOT EXISTS hapax_transactions (id TEXT PRIMARY KEY, result TEXT NOT NULL, \
             created_at INTEGER NOT NULL) WITHOUT ROWID"
        }
    }
}

/// Whether the transaction that set `hapax.open` is still open in PostgreSQL; and that what its COMMIT says is true: a routine
/// may have changed whether it waits for the disk, and whether the server warns.
pub(crate) const OPEN: &str = "coalesce(current_setting('hapax.open', true), '') = '1' \
     AND set_config('synchronous_commit', NULL, true) <> '' \
     AND set_config('client_min_messages', 'warning', true) <> ''";

/// Leaves a marker in the table of this name. Two values: id and result. In PostgreSQL no row is left where the
/// transaction is [over](OPEN).
pub(crate) fn insert(kind: Kind, table: &str) -> String {
    // Of two that both found none, both leave one.
    let unrefused = canary::on("check_then_run");
    let into =
        format!("{} INTO {table} (id, result, created_at)", if unrefused { "REPLACE" } else { "INSERT" });
    match kind {
        Kind::Postgres => format!(
            "INSERT INTO {table} (id, result, created_at) \
             SELECT $1::text, $2::text, clock_timestamp() WHERE {OPEN}{}",
            if unrefused { " ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at" } else { "" }
        ),
        Kind::MySql => format!("{into} VALUES (?, ?, sysdate(6))"),
        Kind::Sqlite => format!("{into} VALUES (?, ?, {SQLITE_NOW})"),
    }
}

/// Asks for a marker's result by its id.
pub(crate) fn select(kind: Kind, table: &str) -> String {
    let place = match kind {
        Kind::Postgres => "$1",
        Kind::MySql | Kind::Sqlite => "?",
    };
    format!("SELECT result FROM {table} WHERE id = {place}")
}

/// Deletes markers by their exact ids if they are old enough, and looks at no other: MySQL would wait for it. The age
/// comes first, in milliseconds; PostgreSQL takes all ids as one value, the others as so many.
pub(crate) fn delete(kind: Kind, table: &str, ids: usize) -> String {
    let places = vec!["?"; ids].join(", ");
    match kind {
        Kind::Postgres => format!(
            "DELETE FROM {table} WHERE created_at <= clock_timestamp() - $1::bigint * interval '1 millisecond' \
             AND id = ANY ($2)"
        ),
        Kind::MySql => format!(
            "DELETE m FROM {table} AS m FORCE INDEX (PRIMARY) \
             WHERE m.created_at <= sysdate(6) - INTERVAL ? * 1000 MICROSECOND AND m.id IN ({places})"
        ),
        Kind::Sqlite => {
            format!("DELETE FROM {table} WHERE created_at <= {SQLITE_NOW} - ? AND id IN ({places})")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_statements_that_make_the_table() {
        let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(");
        let guide = plain(include_str!("../../../../docs/guide/transactions.md"));
        for kind in [Kind::Postgres, Kind::MySql, Kind::Sqlite] {
            assert!(guide.contains(&plain(marker_table(kind))), "{kind:?}");
        }
    }
}
