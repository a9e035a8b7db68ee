//! Opening a file: what is checked before the first write, and the connections that read.
//!
//! Invariant: a connection that is handed out runs in WAL mode with `synchronous = FULL`, read back, on a library
//! without the WAL-reset bug and on a file system whose locks work.

use super::{
    error::{Refusal, cannot_open, cannot_write, read_only_cure, unreadable},
    locks, schema,
};
use crate::error::StoreError;
use hapax_core::{error::code, id::RunKey};
use rusqlite::{Connection, OpenFlags};
use std::{
    fs::File,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::Semaphore;

/// Up to 3.51.2 a checkpoint that raced with a writer could corrupt the database.
const MIN_SQLITE: i32 = 3_051_003;
/// Longer than any transaction of ours; a longer wait means that somebody else holds the file.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// 16 MiB of log. With SQLite's 1000 pages a transaction of many runs fills the log at once, and every commit
/// pays for a checkpoint: a third more CPU a step.
const CHECKPOINT_PAGES: i64 = 4000;
/// More than all statements of the store.
const STATEMENTS: usize = 128;
/// Reads beyond this wait for each other rather than for the disk.
const READERS: usize = 4;

/// As many links as Linux follows; a longer chain is left to SQLite, which refuses it.
const MAX_LINKS: usize = 40;

/// Where a store's files are.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    pub(super) locks: PathBuf,
}

impl Place {
    pub(super) fn new(file: &Path) -> Self {
        let file = followed(file);
        let mut locks = file.as_os_str().to_owned();
        locks.push("-locks");
        Self { file, locks: locks.into() }
    }

    pub(super) fn shown(&self) -> String {
        self.file.display().to_string()
    }

    pub(super) fn folder(&self) -> &Path {
        match self.file.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        }
    }

    pub(super) fn refuse(&self, why: impl Into<String>, code: hapax_core::error::Code) -> Refusal {
        Refusal { what: self.shown(), why: why.into(), code }
    }
}

/// The file that a link leads to. SQLite keeps its log beside that one; our locks must lie there too, or engines that
/// know the file by different names would take each other for dead.
fn followed(file: &Path) -> PathBuf {
    let mut file = file.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = std::fs::read_link(&file) else { break };
        file = file.parent().map(|folder| folder.join(&target)).unwrap_or(target);
    }
    file
}

/// Opens the file for the first time in this process: checks, settings, tables.
pub(super) fn open(place: &Place, allow_network_fs: bool) -> Result<Connection, Refusal> {
    open_with(place, allow_network_fs, |connection| schema::migrate(connection, &place.shown()))
}

/// The same with tables of another kind.
pub(super) fn open_with(
    place: &Place,
    allow_network_fs: bool,
    make: impl FnOnce(&mut Connection) -> Result<(), Refusal>,
) -> Result<Connection, Refusal> {
    let version = rusqlite::version_number();
    if version < MIN_SQLITE {
        let why = format!("SQLite {} can corrupt a WAL file; 3.51.3 or newer is needed", rusqlite::version());
        return Err(place.refuse(why, code::CANNOT_OPEN));
    }
    check_folder(place, allow_network_fs)?;
    create_file(place)?;
    // Only one opener at a time switches the file to WAL and creates the tables: SQLite answers "busy" to the
    // others without waiting.
    let _turn = locks::take_turn(place)?;
    let mut connection = open_writer(place)?;
    make(&mut connection)?;
    Ok(connection)
}

/// Refuses a file without our tables before anything is changed in it or beside it.
pub(super) fn check_is_store(place: &Place) -> Result<(), Refusal> {
    check_holds(place, "runs", schema::is_there)
}

/// The same for tables of another kind.
pub(super) fn check_holds(
    place: &Place,
    what: &str,
    is_there: impl FnOnce(&Connection) -> rusqlite::Result<bool>,
) -> Result<(), Refusal> {
    match std::fs::metadata(&place.file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(place.refuse("there is no such file", code::CANNOT_OPEN));
        }
        Err(error) => return Err(cannot_write(&place.file, &error)),
        Ok(_) => check_access(place)?,
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let is_store = Connection::open_with_flags(&place.file, flags).and_then(|connection| {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        is_there(&connection)
    });
    match is_store {
        Ok(true) => Ok(()),
        Ok(false) => {
            let why = format!("it holds no {what} of Hapax: it is some other file");
            Err(place.refuse(why, code::CANNOT_OPEN))
        }
        Err(error) => Err(cannot_open(&place.shown(), &error)),
    }
}

/// Refuses a file that this user may not change, before SQLite leaves its log beside it: under this user's name it
/// would keep the file's owner out.
fn check_access(place: &Place) -> Result<(), Refusal> {
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    rustix::fs::access(&place.file, access).map_err(|error| cannot_write(&place.file, &error.into()))
}

/// Creates the file, empty, where there is none: its rights are those of all that lies beside it.
fn create_file(place: &Place) -> Result<(), Refusal> {
    match File::create_new(&place.file) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => check_access(place),
        Err(error) => Err(cannot_write(&place.file, &error)),
    }
}

fn check_folder(place: &Place, allow_network_fs: bool) -> Result<(), Refusal> {
    let folder = place.folder();
    if !folder.is_dir() {
        let why = format!("there is no folder {}: create it first", folder.display());
        return Err(place.refuse(why, code::CANNOT_OPEN));
    }
    let stat = rustix::fs::statfs(folder).map_err(|error| cannot_write(&place.file, &error.into()))?;
    if !allow_network_fs {
        check_file_system(&place.file, stat.f_type as u64)?;
    }
    Ok(())
}

/// Refuses a file on a network file system, which has this magic number.
pub(super) fn check_file_system(file: &Path, magic: u64) -> Result<(), Refusal> {
    let Some(name) = network_file_system(magic) else { return Ok(()) };
    let place = Place::new(file);
    let why = format!(
        "{} is on {name}, whose locks can't be trusted: two engines could corrupt the file; \
         use a local disk (or set `allow_network_fs` if only one process ever opens it)",
        place.folder().display()
    );
    Err(place.refuse(why, code::NETWORK_FILE_SYSTEM))
}

/// The name of the network file system that has this magic number.
pub(crate) fn network_file_system(magic: u64) -> Option<&'static str> {
    // Some kernels report the number sign-extended.
    Some(match magic & 0xffff_ffff {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x0102_1997 => "9p",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x00c3_6400 => "Ceph",
        _ => return None,
    })
}

/// A connection that writes.
pub(super) fn open_writer(place: &Place) -> Result<Connection, Refusal> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let refuse = |error| cannot_open(&place.shown(), &error);
    let connection = Connection::open_with_flags(&place.file, flags).map_err(refuse)?;
    // SQLite silently falls back to reading when it may not write.
    if connection.is_readonly("main").map_err(refuse)? {
        return Err(place.refuse(read_only_cure("the file is read-only"), code::READ_ONLY));
    }
    let (mode, synchronous) = set_up_writer(&connection).map_err(refuse)?;
    if mode != "wal" || synchronous != 2 {
        let why = format!(
            "it refuses to be durable: journal_mode is {mode}, synchronous is {synchronous}, not wal and 2 (FULL)"
        );
        return Err(place.refuse(why, code::CANNOT_OPEN));
    }
    Ok(connection)
}

/// A connection that can't be made what it must be.
pub(super) fn cannot_be_set_up(place: &Place, error: &rusqlite::Error) -> Refusal {
    cannot_open(&place.shown(), error)
}

/// What is deleted or replaced from now on is overwritten in the file: whoever encrypts wants nothing of it left behind.
pub(super) fn overwrite_deleted(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update_and_check(None, "secure_delete", true, |_| Ok(()))
}

fn set_up_writer(connection: &Connection) -> rusqlite::Result<(String, i64)> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update_and_check(None, "journal_mode", "wal", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "full")?;
    // Savepoints keep the pages they may have to restore; in memory, not in a temporary file.
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.pragma_update(None, "cache_size", -16_384)?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", CHECKPOINT_PAGES, |_| Ok(()))?;
    let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    Ok((mode, connection.pragma_query_value(None, "synchronous", |row| row.get(0))?))
}

/// The connections that read, each opened when it is first needed.
pub(super) struct Readers {
    place: Place,
    idle: Mutex<Vec<Connection>>,
    turns: Arc<Semaphore>,
}

impl Readers {
    pub(super) fn new(place: Place) -> Self {
        Self { place, idle: Mutex::default(), turns: Arc::new(Semaphore::new(READERS)) }
    }

    /// Runs `read` in one snapshot of the file, off the async threads.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        about: RunKey,
        read: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let turn =
            self.turns.clone().acquire_owned().await.map_err(|error| StoreError::Retry(error.into()))?;
        let readers = self.clone();
        let work = move || {
            let _turn = turn;
            let connection = readers.connection().map_err(|error| unreadable(error, &about))?;
            let answer = in_snapshot(&connection, &about, read);
            // A connection that is stuck in its transaction isn't used again.
            if connection.is_autocommit() {
                readers.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            }
            answer
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(StoreError::Retry(error.into())))
    }

    fn connection(&self) -> rusqlite::Result<Connection> {
        if let Some(connection) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(connection);
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.place.file, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok(connection)
    }

    /// Closes the connections, once nobody reads any more.
    pub(super) async fn close(&self) {
        let _nobody = self.turns.acquire_many(READERS as u32).await;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn in_snapshot<T>(
    connection: &Connection,
    about: &RunKey,
    read: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.execute_batch("BEGIN").map_err(|error| unreadable(error, about))?;
    let answer = read(connection);
    connection.execute_batch("ROLLBACK").map_err(|error| unreadable(error, about))?;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        for (magic, name) in [
            (0x6969, "NFS"),
            (0x517b, "SMB"),
            (0xff53_4d42, "SMB"),
            (0xffff_ffff_fe53_4d42, "SMB"),
            (0x0102_1997, "9p"),
            (0x5346_414f, "AFS"),
            (0x00c3_6400, "Ceph"),
        ] {
            assert_eq!(network_file_system(magic), Some(name), "{magic:x}");
        }
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0x6573_5546] {
            assert_eq!(network_file_system(local), None, "{local:x}");
        }
    }

    #[test]
    fn a_writer_syncs_every_commit() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new(&folder.path().join("runs.db"));
        let connection = open(&place, false).unwrap();
        let pragma =
            |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(pragma("synchronous"), 2);
        assert_eq!(pragma("temp_store"), 2);
        assert_eq!(pragma("mmap_size"), 0);
    }
}
