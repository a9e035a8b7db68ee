//! The counter is true: it tells what SQLite is documented to do, and what reaches the kernel.
//!
//! The counts are those of the whole process, so the tests take turns.

use rusqlite::{Connection, OpenFlags, ffi};
use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tempfile::TempDir;

/// The calls of `fsync` and `fdatasync` that leave this process. The linker prefers these functions to those of the C
/// library, for SQLite as for everybody else.
mod kernel {
    use std::{
        ffi::c_int,
        os::fd::BorrowedFd,
        sync::atomic::{AtomicU64, Ordering},
    };

    static FSYNCS: AtomicU64 = AtomicU64::new(0);

    pub(super) fn fsyncs() -> u64 {
        FSYNCS.load(Ordering::Relaxed)
    }

    // SAFETY: it does what the C library's does, but for `errno`, which SQLite doesn't need of a sync that succeeds.
    #[unsafe(no_mangle)]
    extern "C" fn fsync(file: c_int) -> c_int {
        sync(file, |file| rustix::fs::fsync(file))
    }

    // SAFETY: as above.
    #[unsafe(no_mangle)]
    extern "C" fn fdatasync(file: c_int) -> c_int {
        sync(file, |file| rustix::fs::fdatasync(file))
    }

    fn sync(file: c_int, call: fn(BorrowedFd<'_>) -> rustix::io::Result<()>) -> c_int {
        FSYNCS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: whoever calls fsync holds the file open until it returns.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        if call(file).is_ok() { 0 } else { -1 }
    }
}

/// A folder with databases, while no other test counts.
struct Turn {
    folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    hapax_vfs::install().unwrap();
    Turn { folder: tempfile::tempdir().unwrap(), _turn: turn }
}

impl Turn {
    fn path(&self) -> PathBuf {
        self.folder.path().join("a.db")
    }

    /// A database with a table, its log begun.
    fn open(&self, journal: &str, synchronous: &str) -> Connection {
        let db = Connection::open(self.path()).unwrap();
        set(&db, "journal_mode", journal);
        set(&db, "synchronous", synchronous);
        db.execute_batch("CREATE TABLE t (n INTEGER)").unwrap();
        db
    }
}

fn set(db: &Connection, name: &str, value: &str) {
    db.pragma_update_and_check(None, name, value, |_| Ok(())).or_else(ignore_no_row).unwrap();
}

/// Some pragmas answer with a row, others with none.
fn ignore_no_row(error: rusqlite::Error) -> rusqlite::Result<()> {
    if error == rusqlite::Error::QueryReturnedNoRows { Ok(()) } else { Err(error) }
}

fn insert(db: &Connection, commits: u32) {
    let mut insert = db.prepare("INSERT INTO t VALUES (?1)").unwrap();
    for n in 0..commits {
        insert.execute([n]).unwrap();
    }
}

fn insert_at_once(db: &Connection, rows: u32) {
    db.execute_batch("BEGIN").unwrap();
    insert(db, rows);
    db.execute_batch("COMMIT").unwrap();
}

fn checkpoint(db: &Connection) {
    db.query_row("PRAGMA wal_checkpoint(RESTART)", (), |row| {
        assert_eq!(row.get(0), Ok(0), "nobody is in the way");
        Ok(())
    })
    .unwrap();
}

/// The syncs meanwhile: those that were counted, and those that the kernel saw.
fn syncs(work: impl FnOnce()) -> (u64, u64) {
    let before = (hapax_vfs::syncs(), kernel::fsyncs());
    work();
    (hapax_vfs::syncs() - before.0, kernel::fsyncs() - before.1)
}

#[test]
fn a_full_commit_is_one_sync() {
    let turn = turn();
    let db = turn.open("wal", "full");
    assert_eq!(syncs(|| insert(&db, 200)), (200, 200));
}

#[test]
fn rows_that_share_a_transaction_share_its_sync() {
    let turn = turn();
    let db = turn.open("wal", "full");
    assert_eq!(syncs(|| insert_at_once(&db, 200)), (1, 1));
}

#[test]
fn a_normal_commit_is_not_synced_but_a_checkpoint_is() {
    let turn = turn();
    let db = turn.open("wal", "normal");
    assert_eq!(syncs(|| insert(&db, 200)), (0, 0));
    assert_eq!(syncs(|| checkpoint(&db)), (2, 2), "the log, then the database");
    assert_eq!(syncs(|| insert(&db, 1)), (1, 1), "the header of the log that starts anew");
}

#[test]
fn nothing_is_synced_when_sqlite_is_told_not_to() {
    let turn = turn();
    let all = || {
        let db = turn.open("wal", "off");
        insert(&db, 200);
        checkpoint(&db);
    };
    // What comes before `synchronous` is set, the switch to a log, is synced all the same.
    let (switch, _) = syncs(|| drop(Connection::open(turn.path()).map(|db| set(&db, "journal_mode", "wal"))));
    assert!(switch > 0);
    assert_eq!(syncs(all), (0, 0));
}

#[test]
fn a_rollback_journal_takes_three_syncs_and_two_of_its_folder() {
    let turn = turn();
    let db = turn.open("delete", "extra");
    // Counted: the journal, its header, the database. Beside them the platform syncs the folder with the first sync of
    // a new journal, and when it deletes it.
    assert_eq!(syncs(|| insert(&db, 1)), (3, 5));
    assert_eq!(syncs(|| insert(&db, 10)), (30, 50));
}

#[test]
fn who_asks_for_the_platform_is_not_counted() {
    let turn = turn();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let db = Connection::open_with_flags_and_vfs(turn.path(), flags, c"unix").unwrap();
    set(&db, "journal_mode", "wal");
    db.execute_batch("CREATE TABLE t (n INTEGER)").unwrap();
    assert_eq!(syncs(|| insert(&db, 20)), (0, 20));
}

#[test]
fn connections_share_the_log_the_locks_and_mapped_memory() {
    let turn = turn();
    let (writer, reader) = (turn.open("wal", "full"), Connection::open(turn.path()).unwrap());
    let count = |db: &Connection| db.query_row("SELECT COUNT(*) FROM t", (), |row| row.get::<_, u32>(0));
    reader.execute_batch("PRAGMA mmap_size = 1000000; BEGIN").unwrap();
    assert_eq!(count(&reader), Ok(0));
    insert_at_once(&writer, 5000);
    assert_eq!((count(&reader), count(&writer)), (Ok(0), Ok(5000)), "a reader keeps its snapshot");
    reader.execute_batch("COMMIT").unwrap();
    checkpoint(&writer);
    assert_eq!(count(&reader), Ok(5000));
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    reader.busy_timeout(std::time::Duration::ZERO).unwrap();
    let refused = reader.execute_batch("BEGIN IMMEDIATE").unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ffi::ErrorCode::DatabaseBusy));
    writer.execute_batch("COMMIT; VACUUM").unwrap();
    let sound: String = reader.query_row("PRAGMA integrity_check", (), |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
}

#[test]
fn a_file_that_cannot_be_opened_is_an_error() {
    let turn = turn();
    let refused = Connection::open(turn.folder.path()).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ffi::ErrorCode::CannotOpen));
    let refused = Connection::open(Path::new("/proc/self/none/a.db")).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(ffi::ErrorCode::CannotOpen));
}

#[test]
fn a_second_installation_changes_nothing() {
    let turn = turn();
    hapax_vfs::install().unwrap();
    let db = turn.open("wal", "full");
    assert_eq!(syncs(|| insert(&db, 3)), (3, 3));
}
