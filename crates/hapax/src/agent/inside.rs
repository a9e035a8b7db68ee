//! Paths that stay inside a folder, whatever lies there.
//!
//! Invariant: a file is reached name by name from the folder's own handle, and no name on the way is a symlink; so what
//! is checked is what is opened, even if somebody moves things meanwhile.

use hapax_core::key::Digest;
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, statat},
    io::Errno,
};
use sha2::{Digest as _, Sha256};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// What a name may have on every file system.
const LONGEST_NAME: usize = 255;

/// The characters of a path.
const LONGEST_PATH: usize = 4096;

/// A relative path of plain names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Inside<'a> {
    folders: Vec<&'a str>,
    leaf: &'a str,
}

impl<'a> Inside<'a> {
    /// Takes apart a path that an agent or a caller gave, or says what is wrong with it.
    pub(crate) fn parse(path: &'a str) -> Result<Self, &'static str> {
        if path.contains(char::is_control) {
            return Err("the path has a control character");
        }
        if path.contains('\\') {
            return Err("the path has a backslash, which is a separator elsewhere");
        }
        if path.split('/').any(|name| name.len() > LONGEST_NAME) || path.chars().count() > LONGEST_PATH {
            return Err("the path, or a name in it, is too long");
        }
        Self::found(path)
    }

    /// Takes apart a path that was found in a folder. What stands there has a right to its name, however odd.
    pub(crate) fn found(path: &'a str) -> Result<Self, &'static str> {
        if path.starts_with('/') {
            return Err("the path is absolute");
        }
        let mut folders: Vec<&str> = path.split('/').collect();
        for name in &folders {
            match *name {
                "" => return Err("the path has an empty name"),
                "." | ".." => return Err("the path leads out of the workspace or in circles"),
                _ => {}
            }
        }
        let leaf = folders.pop().ok_or("the path is empty")?;
        Ok(Self { folders, leaf })
    }

    /// The first name of it.
    pub(crate) fn first(&self) -> &'a str {
        self.folders.first().copied().unwrap_or(self.leaf)
    }

    pub(crate) fn leaf(&self) -> &'a str {
        self.leaf
    }

    /// The folder that holds it; `None`: there is none.
    pub(crate) fn parent(&self, root: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Refused> {
        let mut at = root.try_clone_to_owned().map_err(Refused::Io)?;
        for name in &self.folders {
            match open_folder_at(at.as_fd(), name) {
                Ok(next) => at = next,
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(Some(at))
    }

    /// The folder that holds it, made where it is missing; what is made is durable.
    pub(crate) fn make_parent(&self, root: BorrowedFd<'_>) -> Result<OwnedFd, Refused> {
        let mut at = root.try_clone_to_owned().map_err(Refused::Io)?;
        for name in &self.folders {
            match mkdirat(&at, *name, Mode::from_raw_mode(0o777)) {
                Ok(()) => rustix::fs::fsync(&at).map_err(refused)?,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(refused(error)),
            }
            at = open_folder_at(at.as_fd(), name).map_err(refused)?;
        }
        Ok(at)
    }

    /// Makes the names on the way to it durable.
    pub(crate) fn sync_names(&self, root: BorrowedFd<'_>) -> Result<(), Refused> {
        let mut at = root.try_clone_to_owned().map_err(Refused::Io)?;
        for name in &self.folders {
            rustix::fs::fsync(&at).map_err(refused)?;
            at = open_folder_at(at.as_fd(), name).map_err(refused)?;
        }
        rustix::fs::fsync(&at).map_err(refused)
    }

    /// The file itself, if it is there and a regular one.
    pub(crate) fn open(&self, root: BorrowedFd<'_>) -> Result<Option<(File, Stat)>, Refused> {
        let Some(parent) = self.parent(root)? else { return Ok(None) };
        // Without blocking: a pipe that somebody put there would be waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&parent, self.leaf, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(refused(error)),
        };
        let stat = fstat(&file).map_err(refused)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Refused::NotAFile);
        }
        Ok(Some((File::from(file), stat)))
    }

    /// Whether something other than a regular file stands there.
    pub(crate) fn is_taken(&self, parent: BorrowedFd<'_>) -> Result<bool, Refused> {
        match statat(parent, self.leaf, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(refused(error)),
        }
    }
}

/// Why a path can't be followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("a symlink or a file stands where a folder should be, or a symlink where a file should be")]
    Symlink,
    #[error("it isn't a regular file")]
    NotAFile,
    #[error("{0}")]
    Io(io::Error),
}

fn refused(error: Errno) -> Refused {
    match error {
        Errno::LOOP | Errno::NOTDIR => Refused::Symlink,
        Errno::ISDIR | Errno::NXIO => Refused::NotAFile,
        error => Refused::Io(error.into()),
    }
}

/// A handle of a folder that the user named: that one may be reached through symlinks.
pub(crate) fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A folder in a folder, which isn't a symlink.
pub(crate) fn open_folder_at(at: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, Errno> {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Bytes that are read at a time.
const CHUNK: usize = 64 * 1024;

/// Reads all of it, handing on what is read; the digest and the size of what was there.
pub(crate) fn drain(
    from: &mut impl Read,
    mut to: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<(Digest, u64)> {
    let (mut hash, mut size, mut chunk) = (Sha256::new(), 0u64, vec![0; CHUNK]);
    loop {
        let read = match from.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        if read == 0 {
            return Ok((Digest(hash.finalize().into()), size));
        }
        hash.update(&chunk[..read]);
        to(&chunk[..read])?;
        size += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_relative_paths_are_taken() {
        for path in ["a", "a/b.c", "src/näh.rs", "...", "a/.hidden"] {
            assert!(Inside::parse(path).is_ok(), "{path}");
        }
        let long = "x".repeat(256);
        for path in ["", "/", "/a", "../a", "a/../b", "a/..", ".", "./a", "a//b", "a/"] {
            assert!(Inside::parse(path).is_err() && Inside::found(path).is_err(), "{path:?}");
        }
        let deep = "x/".repeat(2100) + "x";
        for path in ["a\0b", "a\n", "a\u{7f}", "a\u{9f}", "a\\b", "..\\a", &long, &deep] {
            assert!(Inside::parse(path).is_err() && Inside::found(path).is_ok(), "{path:?}");
        }
    }
}
