//! OS file locks: proof that an engine of this machine is alive.
//!
//! Invariant: an owner holds the lock of its name before its name appears in any run's row, until its store is
//! closed or its process ends. So a name whose lock is free belongs to nobody.

use super::{connection::Place, error::Refusal};
use crate::error::StoreError;
use hapax_core::error::code;
use std::{
    collections::HashMap,
    fmt::Write as _,
    fs::{File, Permissions, TryLockError},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Somebody who asks whether a name is alive holds its lock for a moment; this often we look again.
const TRIES: usize = 100;

/// Waits until nobody else opens the file.
pub(super) fn take_turn(place: &Place) -> Result<File, Refusal> {
    let turn = || {
        create_folder(place)?;
        let folder = File::open(&place.locks)?;
        folder.lock()?;
        // Whoever may not write in it could open the file and then claim nothing.
        rustix::fs::access(&place.locks, rustix::fs::Access::WRITE_OK)?;
        Ok(folder)
    };
    turn().map_err(|error: io::Error| {
        let (what, file) = (place.locks.display().to_string(), place.file.display());
        let why = format!(
            "{error}: in it engines show that they are alive; give it the owner and the rights of {file}, \
             or delete it while no engine runs"
        );
        Refusal { what, why, code: code::READ_ONLY }
    })
}

fn create_folder(place: &Place) -> io::Result<()> {
    match std::fs::create_dir(&place.locks) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Err(_) => Ok(()),
        Ok(()) => {
            lend(&place.locks, place);
            Ok(())
        }
    }
}

/// Gives what was just created to all who share the file, as SQLite does with its log: the same rights and, as far as
/// this user can, the same owner and group.
fn lend(created: &Path, place: &Place) {
    let Ok(file) = std::fs::metadata(&place.file) else { return };
    let mut rights = file.mode() & 0o666;
    if created.is_dir() {
        // Who may read a file may look into a folder.
        rights |= (rights & 0o444) >> 2;
    }
    // What another user created is that user's to lend.
    let _ = std::fs::set_permissions(created, Permissions::from_mode(rights));
    if chown(created, Some(file.uid()), Some(file.gid())).is_err() {
        let _ = chown(created, None, Some(file.gid()));
    }
}

/// The locks of the owners that claim through this store.
pub(super) struct Locks {
    place: Place,
    held: Mutex<HashMap<Arc<str>, File>>,
}

impl Locks {
    pub(super) fn new(place: Place) -> Self {
        Self { place, held: Mutex::default() }
    }

    /// Takes the lock of a name, unless it is ours already. A name that somebody else keeps alive needs no more.
    pub(super) fn hold(&self, owner: &Arc<str>) -> Result<(), StoreError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.contains_key(owner) {
            return Ok(());
        }
        match self.lock(owner) {
            Ok(Some(file)) => held.insert(owner.clone(), file),
            Ok(None) => None,
            Err(error) => return Err(StoreError::Retry(error.into())),
        };
        Ok(())
    }

    fn lock(&self, owner: &str) -> io::Result<Option<File>> {
        let path = self.path(owner);
        create_folder(&self.place)?;
        for _ in 0..TRIES {
            let file = File::options().create(true).append(true).open(&path)?;
            match file.try_lock() {
                // Whoever found the name dead may have removed the file under us: then the lock proves nothing.
                Ok(()) if std::fs::metadata(&path).is_ok_and(|there| same_file(&there, &file)) => {
                    lend(&path, &self.place);
                    return Ok(Some(file));
                }
                Ok(()) | Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Whether the owner of that name is gone. Removes what it left.
    pub(super) fn is_dead(&self, owner: &str) -> bool {
        if self.held.lock().unwrap_or_else(PoisonError::into_inner).contains_key(owner) {
            return false;
        }
        let path = self.path(owner);
        match File::open(&path) {
            Err(error) => error.kind() == io::ErrorKind::NotFound,
            Ok(file) => {
                let dead = file.try_lock().is_ok();
                if dead {
                    // Left behind it would only be found again.
                    let _ = std::fs::remove_file(&path);
                }
                dead
            }
        }
    }

    /// Gives up all names, so that others may claim their runs at once.
    pub(super) fn release(&self) {
        for (owner, file) in self.held.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            // The file goes while it is locked: nobody can take it for a living one in between.
            let _ = std::fs::remove_file(self.path(&owner));
            drop(file);
        }
    }

    /// An owner's name as a file name: letters, digits, `-` and `_` as they are, anything else in hex.
    fn path(&self, owner: &str) -> PathBuf {
        let mut name = String::with_capacity(owner.len() + 1);
        for byte in owner.bytes() {
            if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
                name.push(char::from(byte));
            } else {
                let _ = write!(name, "%{byte:02x}");
            }
        }
        if name.len() > 200 || name.is_empty() {
            // Beyond a file name's length the hash of the name does.
            name = hapax_core::key::sha256(owner.as_bytes()).to_string();
        }
        self.place.locks.join(name)
    }
}

fn same_file(there: &std::fs::Metadata, file: &File) -> bool {
    file.metadata().is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.release();
    }
}
