//! From an agent's staging folder into the workspace.
//!
//! Invariant: a file of the workspace is the old one or the new one, never a part of it; a file is replaced only by bytes
//! whose size and hash are those of the answer. To do it twice is to do it once.

use super::{
    Error, Workspace,
    inside::{self, Inside, Refused, drain},
    protocol::{Artifact, Output},
    workspace::OWN,
};
use hapax_core::canary;
use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{Mode, OFlags, fchmod, fsync, openat, renameat},
};
use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Where a command's artifacts wait, and where they go.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) workspace: Workspace,
    /// The staging folder of the command.
    pub(crate) staging: PathBuf,
    pub(crate) artifacts: Vec<Artifact>,
}

/// What stands where an artifact is looked for.
enum Standing {
    Right(File, u32),
    Wrong(String),
    Missing,
}

impl Delivery {
    /// Checks that each artifact is there, whole, and belongs into the workspace. Changes nothing, but makes what is staged
    /// durable: the answer that is recorded next rests on it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (root, staging, mut paths) = (self.workspace.handle()?, self.staging()?, HashSet::new());
        for artifact in &self.artifacts {
            let path = self.path(artifact)?;
            if !paths.insert(&artifact.path) {
                return Err(Error::artifact(&artifact.path, "it is listed twice"));
            }
            destination(artifact, &path, &root)?;
            if let Some((file, _)) = source(artifact, &path, staging.as_ref(), &root)?
                && let Some(staging) = &staging
            {
                file.sync_all().map_err(|error| Error::workspace(&artifact.path, error))?;
                path.sync_names(staging.as_fd()).map_err(|reason| Error::artifact(&artifact.path, reason))?;
            }
        }
        self.sync_staging().map_err(|error| Error::workspace(&self.staging, error))
    }

    /// The staging folder's own name, and that of the folder that holds it.
    fn sync_staging(&self) -> io::Result<()> {
        for folder in self.staging.ancestors().skip(1).take(2).filter(|folder| folder.exists()) {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }

    /// Copies what isn't in the workspace yet.
    pub(crate) fn install(&self) -> Result<(), Error> {
        let (root, staging) = (self.workspace.handle()?, self.staging()?);
        for (number, artifact) in self.artifacts.iter().enumerate() {
            let path = self.path(artifact)?;
            destination(artifact, &path, &root)?;
            if let Some((file, mode)) = source(artifact, &path, staging.as_ref(), &root)? {
                self.put(artifact, &path, (file, mode), &root, number)?;
            }
        }
        Ok(())
    }

    fn path<'a>(&self, artifact: &'a Artifact) -> Result<Inside<'a>, Error> {
        let path = Inside::parse(&artifact.path).map_err(|reason| Error::artifact(&artifact.path, reason))?;
        if self.workspace.is_ignored(path.first()) {
            return Err(Error::artifact(&artifact.path, "it is in a folder that agents don't write to"));
        }
        Ok(path)
    }

    /// The staging folder, unless the agent has none. The agent made it, so it may be anything.
    fn staging(&self) -> Result<Option<OwnedFd>, Error> {
        let (Some(parent), Some(name)) = (self.staging.parent(), self.staging.file_name()) else {
            return Ok(None);
        };
        let parent = match inside::open_folder(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            parent => parent.map_err(|error| Error::workspace(&self.staging, error))?,
        };
        match inside::open_folder_at(parent.as_fd(), &name.to_string_lossy()) {
            Ok(folder) => Ok(Some(folder)),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::workspace(&self.staging, io::Error::from(error))),
        }
    }

    /// Writes beside the workspace's files first, then gives the name to what is whole and durable.
    fn put(
        &self,
        artifact: &Artifact,
        path: &Inside<'_>,
        (mut from, mode): (File, u32),
        root: &OwnedFd,
        number: usize,
    ) -> Result<(), Error> {
        let failed = |error: io::Error| Error::workspace(&artifact.path, error);
        let refused = |reason: Refused| Error::artifact(&artifact.path, reason);
        let parent = path.make_parent(root.as_fd()).map_err(refused)?;
        let own = format!("{OWN}/tmp/x");
        let own = Inside::parse(&own).map_err(|reason| Error::workspace(&artifact.path, reason))?;
        let aside = own.make_parent(root.as_fd()).map_err(refused)?;
        let name = format!("{}.{number}", self.staging.file_name().unwrap_or_default().to_string_lossy());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&aside, &*name, flags, Mode::from_raw_mode(0o600)).map_err(|e| failed(e.into()))?;
        let mut file = File::from(file);
        let (digest, size) = drain(&mut from, |bytes| file.write_all(bytes)).map_err(failed)?;
        if (digest != artifact.sha256 || size != artifact.size) && !canary::on("hash_unchecked") {
            return Err(Error::artifact(&artifact.path, "it changed while it was installed"));
        }
        let mode = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
        fchmod(&file, Mode::from_raw_mode(mode)).map_err(|e| failed(e.into()))?;
        file.sync_all().map_err(failed)?;
        renameat(&aside, &*name, &parent, path.leaf()).map_err(|e| failed(e.into()))?;
        fsync(&parent).map_err(|e| failed(e.into()))
    }

    /// The artifacts are where they belong for good: what was staged is of no use any more.
    pub(crate) fn clear(&self) {
        if let Err(error) = fs::remove_dir_all(&self.staging)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(folder = %self.staging.display(), %error, "a staging folder can't be removed");
        }
    }
}

/// Refuses what would be written through a symlink, or in the place of something else than a file.
fn destination(artifact: &Artifact, path: &Inside<'_>, root: &OwnedFd) -> Result<(), Error> {
    let refused = |reason: Refused| Error::artifact(&artifact.path, reason);
    if let Some(parent) = path.parent(root.as_fd()).map_err(refused)?
        && path.is_taken(parent.as_fd()).map_err(refused)?
    {
        return Err(Error::artifact(&artifact.path, "something else than a file stands there"));
    }
    Ok(())
}

/// Where the right bytes are: staged; or, `None`, in the workspace already, because they were installed before a crash
/// or never changed.
fn source(
    artifact: &Artifact,
    path: &Inside<'_>,
    staging: Option<&OwnedFd>,
    root: &OwnedFd,
) -> Result<Option<(File, u32)>, Error> {
    let staged = match staging {
        Some(staging) => look(artifact, path, staging)?,
        None => Standing::Missing,
    };
    match staged {
        Standing::Right(file, mode) => Ok(Some((file, mode))),
        Standing::Wrong(reason) => Err(Error::artifact(&artifact.path, reason)),
        Standing::Missing => match look(artifact, path, root)? {
            Standing::Right(..) => Ok(None),
            _ => Err(Error::artifact(&artifact.path, "it isn't in the staging folder")),
        },
    }
}

/// Looks for an artifact below a folder.
fn look(artifact: &Artifact, path: &Inside<'_>, below: &OwnedFd) -> Result<Standing, Error> {
    let opened = match path.open(below.as_fd()) {
        Ok(opened) => opened,
        Err(Refused::Io(error)) => return Err(Error::workspace(&artifact.path, error)),
        Err(reason) => return Ok(Standing::Wrong(reason.to_string())),
    };
    let Some((mut file, stat)) = opened else { return Ok(Standing::Missing) };
    let (digest, size) =
        drain(&mut file, |_| Ok(())).map_err(|error| Error::workspace(&artifact.path, error))?;
    if (size, digest) != (artifact.size, artifact.sha256) && !canary::on("hash_unchecked") {
        let (said, hash) = (artifact.size, artifact.sha256);
        return Ok(Standing::Wrong(format!("it has {size} bytes and hash {digest}, not {said} and {hash}")));
    }
    io::Seek::rewind(&mut file).map_err(|error| Error::workspace(&artifact.path, error))?;
    Ok(Standing::Right(file, stat.st_mode))
}

/// Whether everything is there that must be.
pub(crate) fn check_outputs(expected: &[Output], artifacts: &[Artifact]) -> Result<(), Error> {
    let is_there = |output: &&Output| artifacts.iter().any(|artifact| artifact.path == output.path);
    match expected.iter().filter(|output| output.required).find(|output| !is_there(output)) {
        Some(output) => Err(Error::OutputMissing { path: output.path.clone() }),
        None => Ok(()),
    }
}

/// The staging folder of a key, in an agent's own.
pub(crate) fn staging_of(folder: &Path, key: &str) -> PathBuf {
    folder.join(key.strip_prefix("ik:").unwrap_or(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{error::Coded, key::sha256};
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct Bench {
        _folder: tempfile::TempDir,
        delivery: Delivery,
    }

    fn bench(artifacts: &[(&str, &str)]) -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let (root, staging) = (folder.path().join("work"), folder.path().join("staging/00ff"));
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(&staging).unwrap();
        let artifacts = artifacts.iter().map(|(path, text)| {
            if Inside::parse(path).is_ok() {
                fs::create_dir_all(staging.join(path).parent().unwrap()).unwrap();
                fs::write(staging.join(path), text).unwrap();
            }
            Artifact { path: (*path).into(), sha256: sha256(text.as_bytes()), size: text.len() as u64 }
        });
        let artifacts = artifacts.collect();
        let delivery = Delivery { workspace: Workspace::open(&root).unwrap(), staging, artifacts };
        Bench { _folder: folder, delivery }
    }

    impl Bench {
        fn root(&self) -> &Path {
            self.delivery.workspace.root()
        }

        fn refused(&self) {
            let checked = self.delivery.check().unwrap_err();
            let installed = self.delivery.install().unwrap_err();
            assert_eq!((checked.code(), installed.code()), ("HX0127", "HX0127"), "{checked}; {installed}");
        }
    }

    #[test]
    fn what_is_right_is_installed_once_or_twice() {
        let bench = bench(&[("src/deep/x.py", "print()"), ("y", "2")]);
        fs::write(bench.root().join("y"), "old").unwrap();
        bench.delivery.check().unwrap();
        bench.delivery.install().unwrap();
        bench.delivery.install().unwrap();
        assert_eq!(fs::read_to_string(bench.root().join("src/deep/x.py")).unwrap(), "print()");
        assert_eq!(fs::read_to_string(bench.root().join("y")).unwrap(), "2");
        bench.delivery.clear();
        bench.delivery.clear();
        bench.delivery.install().expect("the workspace holds it already");
        assert_eq!(bench.delivery.workspace.snapshot().unwrap().files, 2, "nothing else is left there");
    }

    #[test]
    fn a_path_that_leads_out_is_refused() {
        for path in ["../x", "/tmp/x", "a/../../x", ".git/hooks/pre-commit", ".hapax/lock", "a//b", ""] {
            bench(&[(path, "1")]).refused();
        }
    }

    #[test]
    fn a_symlink_on_the_way_is_refused_also_for_a_new_file() {
        let bench = bench(&[("link/new.txt", "1")]);
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), bench.root().join("link")).unwrap();
        bench.refused();
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_symlink_in_the_place_of_the_file_is_refused() {
        let bench = bench(&[("x", "1")]);
        symlink("/etc/passwd", bench.root().join("x")).unwrap();
        bench.refused();
    }

    #[test]
    fn what_is_staged_must_be_a_file_with_that_content() {
        let linked = bench(&[("x", "root")]);
        fs::remove_file(linked.delivery.staging.join("x")).unwrap();
        symlink("/etc/hostname", linked.delivery.staging.join("x")).unwrap();
        linked.refused();
        let other = bench(&[("x", "one")]);
        fs::write(other.delivery.staging.join("x"), "two").unwrap();
        other.refused();
        fs::write(other.delivery.staging.join("x"), "longer").unwrap();
        other.refused();
        fs::remove_file(other.delivery.staging.join("x")).unwrap();
        other.refused();
        fs::create_dir(other.delivery.staging.join("x")).unwrap();
        other.refused();
    }

    #[test]
    fn a_program_stays_one() {
        let bench = bench(&[("run.sh", "#!/bin/sh")]);
        let staged = bench.delivery.staging.join("run.sh");
        fs::set_permissions(&staged, fs::Permissions::from_mode(0o700)).unwrap();
        bench.delivery.install().unwrap();
        let mode = fs::metadata(bench.root().join("run.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn required_outputs_are_demanded() {
        let output = |required| Output { path: "x".into(), description: None, required };
        assert!(check_outputs(&[output(false)], &[]).is_ok());
        assert_eq!(check_outputs(&[output(true)], &[]).unwrap_err().code(), "HX0128");
    }
}
