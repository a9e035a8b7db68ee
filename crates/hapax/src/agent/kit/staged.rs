//! A command's staging folder, as its agent fills it.
//!
//! Invariant: a file is there whole or not at all, and durable with every folder above it before it is listed. Nothing is
//! written or read through a symlink, whoever put it there.

use super::super::{
    Error, Workspace,
    inside::{self, Inside, Refused, drain},
    install::staging_of,
    protocol::Artifact,
};
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat},
};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Where a command's files wait.
pub(super) struct Staged<'a> {
    workspace: &'a Workspace,
    folder: PathBuf,
}

impl<'a> Staged<'a> {
    pub(super) fn new(workspace: &'a Workspace, staging: &Path, key: &str) -> Self {
        Self { workspace, folder: staging_of(staging, key) }
    }

    /// Makes a file.
    pub(super) fn put(&self, path: &str, content: &[u8]) -> Result<Artifact, Error> {
        let inside = self.parse(path)?;
        let refused = |reason: Refused| about(path, reason);
        let failed = |error: io::Error| Error::workspace(path, error);
        let parent = inside.make_parent(self.open()?.as_fd()).map_err(refused)?;
        let aside = format!(".{}.tmp", uuid::Uuid::new_v4().simple());
        let written = write(&parent, &aside, content)
            .and_then(|()| renameat(&parent, &*aside, &parent, inside.leaf()).map_err(io::Error::from));
        if written.is_err() {
            // What is left of it isn't listed, and goes with the folder.
            let _ = unlinkat(&parent, &*aside, AtFlags::empty());
        }
        written.map_err(failed)?;
        self.seal(path)
    }

    /// Lists a file that is there.
    pub(super) fn seal(&self, path: &str) -> Result<Artifact, Error> {
        let inside = self.parse(path)?;
        let failed = |error: io::Error| Error::workspace(path, error);
        let root = self.open()?;
        let opened = inside.open(root.as_fd()).map_err(|reason| about(path, reason))?;
        let (mut file, _) = opened.ok_or_else(|| Error::workspace(path, "it isn't in the staging folder"))?;
        file.sync_all().map_err(failed)?;
        let (sha256, size) = drain(&mut file, |_| Ok(())).map_err(failed)?;
        inside.sync_names(root.as_fd()).map_err(|reason| about(path, reason))?;
        if let Some(above) = self.folder.parent() {
            File::open(above).and_then(|above| above.sync_all()).map_err(failed)?;
        }
        Ok(Artifact { path: path.into(), sha256, size })
    }

    /// What the engine would refuse later is refused here.
    fn parse<'p>(&self, path: &'p str) -> Result<Inside<'p>, Error> {
        let inside = Inside::parse(path).map_err(|reason| Error::artifact(path, reason))?;
        if self.workspace.is_ignored(inside.first()) {
            return Err(Error::artifact(path, "it is in a folder that agents don't write to"));
        }
        Ok(inside)
    }

    /// The folder itself, made if it is missing. A symlink in its place isn't followed.
    fn open(&self) -> Result<OwnedFd, Error> {
        let failed = |error: io::Error| Error::workspace(&self.folder, error);
        fs::create_dir_all(&self.folder).map_err(failed)?;
        let (above, name) = (self.folder.parent(), self.folder.file_name().and_then(|name| name.to_str()));
        let above = inside::open_folder(above.unwrap_or(Path::new("/"))).map_err(failed)?;
        inside::open_folder_at(above.as_fd(), name.unwrap_or(".")).map_err(|error| failed(error.into()))
    }
}

fn about(path: &str, reason: Refused) -> Error {
    match reason {
        Refused::Io(error) => Error::workspace(path, error),
        reason => Error::artifact(path, reason),
    }
}

fn write(folder: &OwnedFd, name: &str, content: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(openat(folder, name, flags, Mode::from_raw_mode(0o666))?);
    file.write_all(content)?;
    file.sync_all()
}
