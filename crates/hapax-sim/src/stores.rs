//! The stores that the proofs run on. Process crashes don't lose what the operating system has, so SQLite's file
//! lives in memory where the machine offers that: the proofs are about order, not about disks.

use hapax_store::{
    MemoryStore, Store,
    sqlite::{SqliteOptions, SqliteStore},
};
use std::{path::Path, sync::Arc};
use tempfile::TempDir;

/// Which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The reference model.
    Memory,
    /// A file.
    Sqlite,
}

/// A store, and what must outlive it.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    _folder: Option<TempDir>,
}

/// Opens an empty store.
pub fn open(kind: Kind) -> Opened {
    if kind == Kind::Memory {
        return Opened { store: MemoryStore::shared(), _folder: None };
    }
    let shm = Path::new("/dev/shm");
    let folder = if shm.is_dir() { TempDir::new_in(shm) } else { TempDir::new() }.expect("a folder");
    let path = folder.path().join("sim.db");
    let store = quick_runtime()
        .block_on(SqliteStore::open(path, SqliteOptions::default()))
        .expect("a fresh folder holds a store");
    Opened { store, _folder: Some(folder) }
}

/// A runtime of one thread; dropping it drops all of its tasks where they stand, as a crash does.
pub fn quick_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
}
