//! Counts the syncs of SQLite where SQLite asks for them: in its VFS, the table of functions through which it reaches
//! files.
//!
//! Once [installed](install), the counting VFS is the default of the process, so whoever opens a database is counted
//! without knowing it. Everything is handed on to the platform's VFS; only `xSync` is counted on its way.
//!
//! ```
//! # let folder = tempfile::tempdir()?;
//! hapax_vfs::install()?;
//! let db = rusqlite::Connection::open(folder.path().join("a.db"))?;
//! db.execute_batch("PRAGMA journal_mode = wal; PRAGMA synchronous = full; CREATE TABLE t (n)")?;
//! let before = hapax_vfs::syncs();
//! db.execute_batch("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)")?;
//! assert_eq!(hapax_vfs::syncs() - before, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `forward` | functions that hand a call on, and the table of those that can be |
//! | `vfs` | what SQLite asks of a file system; opens files |
//! | `file` | what SQLite asks of an open file; counts syncs |

mod file;
mod forward;
mod vfs;

use rusqlite::ffi;
use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

static SYNCS: AtomicU64 = AtomicU64::new(0);

/// Makes the counting VFS the default of this process. Databases that are open already are not counted.
///
/// A second call does nothing.
pub fn install() -> Result<(), ffi::Error> {
    static CODE: OnceLock<i32> = OnceLock::new();
    match *CODE.get_or_init(vfs::register) {
        ffi::SQLITE_OK => Ok(()),
        code => Err(ffi::Error::new(code)),
    }
}

/// How often SQLite asked for a file to be synced since [`install`]: calls of `xSync` on any database of this process.
///
/// Each is one `fsync`. The first on a new log or journal also syncs the folder, which is the platform's own affair and
/// counts no further.
pub fn syncs() -> u64 {
    SYNCS.load(Ordering::Relaxed)
}
