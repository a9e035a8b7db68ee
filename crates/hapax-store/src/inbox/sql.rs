//! The statements of inboxes: the same for all databases.
//!
//! Invariant: whether a delivery is the first is what one INSERT says. `{now}` is the database's clock, `hapax_` how tables
//! are named.

/// The table of inboxes.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const TABLE: &str = "hapax_inbox";

/// What makes the row unique.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const KEY: &[&str] = &["consumer", "id"];

/// What is done with the table.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const RIGHTS: &[&str] = &["SELECT", "INSERT", "DELETE"];

/// How many rows a sweep deletes in one transaction, so that nobody waits long for it.
pub(crate) const BATCH: i64 = 1000;

/// The row of a delivery.
macro_rules! received {
    () => {
        "INSERT INTO hapax_inbox (consumer, id, received_at) VALUES (?, ?, {now})"
    };
}

/// The row, where a duplicate is an error.
#[cfg(feature = "mysql")]
pub(crate) const RECEIVE: &str = received!();

/// The row, unless there is one. It names its key, so that a table without that key is refused.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) const RECEIVE_ONCE: &str = concat!(received!(), " ON CONFLICT (consumer, id) DO NOTHING");

/// What the mutant asks beforehand.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) const IS_THERE: &str = "SELECT 1 FROM hapax_inbox WHERE consumer = ? AND id = ?";

/// The oldest of those that were received before then.
macro_rules! old {
    () => {
        "received_at < ? ORDER BY received_at LIMIT ?"
    };
}

/// Deletes some that are old, where DELETE has no LIMIT.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) const SWEEP: &str = concat!(
    "DELETE FROM hapax_inbox WHERE (consumer, id) IN (SELECT consumer, id FROM hapax_inbox WHERE ",
    old!(),
    ")"
);

/// Deletes some that are old.
#[cfg(feature = "mysql")]
pub(crate) const SWEEP_MYSQL: &str = concat!("DELETE FROM hapax_inbox WHERE ", old!());
