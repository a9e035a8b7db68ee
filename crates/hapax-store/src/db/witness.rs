//! What is written down of a transaction before its COMMIT, so that the database can be asked for its fate afterwards.

use serde::{Deserialize, Serialize};

/// A transaction as its server knows it. It is taken after the user's statements, and by then the number is in the
/// part of the server's log that survives a crash: it is never given to another transaction.
///
/// ```
/// use hapax_store::db::Witness;
/// let witness = Witness { xid: 731, system: "7".into(), timeline: "00000001".into(), pid: 42, started_us: 9 };
/// let written = serde_json::to_string(&witness)?;
/// assert_eq!(serde_json::from_str::<Witness>(&written)?, witness);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Witness {
    /// The transaction's number. One that wrote nothing has one as well: what it does at its end, such as NOTIFY,
    /// counts.
    pub xid: u64,
    /// Which cluster gave the number.
    pub system: String,
    /// Which of the cluster's histories it belongs to: another begins with every failover.
    pub timeline: String,
    /// The server's process that runs the transaction.
    pub pid: i32,
    /// When that process began, in microseconds since 1970: its id may be another's by now.
    pub started_us: i64,
}

/// What became of a transaction.
///
/// ```
/// use hapax_store::db::Fate;
/// assert_ne!(Fate::Aborted, Fate::Unknown("another timeline".into()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Its effect is there: never run it again.
    Committed,
    /// It has no effect, and never will have one: run it again.
    Aborted,
    /// It may still commit: ask again.
    InProgress,
    /// Nobody can tell any more, for this reason: never run it again.
    Unknown(String),
}
