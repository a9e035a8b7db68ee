//! The folder that agents work on, and its snapshots.
//!
//! Invariant: a snapshot's id depends on names and contents alone. What was hashed before is remembered only as long as
//! nothing about the file has changed, and never when it might change within one tick of its clock.

use super::{
    Error,
    inside::{self, drain},
};
use crate::gate::lock;
use hapax_core::key::{Digest, sha256};
use hapax_store::clock::now_us;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    collections::HashMap,
    fs::{self, File, Metadata},
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex},
};

/// The folder in a workspace that is the engine's own.
pub(crate) const OWN: &str = ".hapax";

/// A file that changed each time it was read is given up.
const MOST_READS: u32 = 5;

/// A path of more symlinks leads in circles: nobody can follow it.
const MOST_LINKS: u32 = 40;

/// A file that changed as lately may change again without its times telling so.
const SETTLED_US: i64 = 1_000_000;

/// The files that agents work on: read by them, changed by the engine alone. Clones are the same workspace.
///
/// What the engine keeps beside them (agents' caches, staging folders, receipts) lies in `.hapax` in that folder, unless
/// [`Workspace::state`] says where.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// use hapax::agent::Workspace;
/// std::fs::write(folder.path().join("a.txt"), "once")?;
/// let workspace = Workspace::open(folder.path())?.ignore(["target"]);
/// let before = workspace.snapshot()?;
/// std::fs::create_dir(folder.path().join("target"))?;
/// std::fs::write(folder.path().join("target/big"), "made anew each time")?;
/// assert_eq!(workspace.snapshot()?.id, before.id);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Workspace {
    root: PathBuf,
    state: PathBuf,
    ignored: Arc<[String]>,
    known: Arc<Mutex<HashMap<Seen, Digest>>>,
    /// Whoever installs or looks has it: nobody sees half of what another installs.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// A file as it was when it was hashed: the same name, place, size and times have the same content.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Seen {
    path: String,
    device: u64,
    inode: u64,
    size: u64,
    /// Of its content and, since that can be set by anyone, of the file itself; in nanoseconds.
    changed: [i128; 2],
}

/// What a workspace held at one moment.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # use hapax::agent::Workspace;
/// let nothing = Workspace::open(folder.path())?.snapshot()?;
/// assert_eq!((nothing.files, nothing.bytes), (0, 0));
/// assert_eq!(nothing.id, "snap-67da82e92e2f");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// `snap-` and twelve hex digits: the same for the same files.
    pub id: String,
    /// How many files and symlinks there are.
    pub files: u64,
    /// How large they are together.
    pub bytes: u64,
}

/// A file or symlink, as it counts for a snapshot.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # use hapax::agent::Workspace;
/// std::fs::write(folder.path().join("a.txt"), "once")?;
/// let (snapshot, files) = Workspace::open(folder.path())?.listing()?;
/// assert_eq!((snapshot.files, files[0].path.as_str(), files[0].size), (1, "a.txt", 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Relative to the workspace, with `/`.
    pub path: String,
    /// Of its content; of a symlink, of the word `symlink:` and its target.
    pub sha256: Digest,
    /// In bytes; of a symlink, of its target.
    pub size: u64,
}

/// What stands under a path.
struct Found {
    path: String,
    is_link: bool,
    meta: Metadata,
}

impl Workspace {
    /// A folder that is there.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, Error> {
        let root = root.as_ref();
        let real = root.canonicalize().map_err(|error| Error::workspace(root, error))?;
        if !real.is_dir() {
            return Err(Error::workspace(root, "it isn't a folder"));
        }
        let state = real.join(OWN);
        let ignored = [".git".to_owned(), OWN.to_owned()].into();
        Ok(Self { root: real, state, ignored, known: Arc::default(), turn: Arc::default() })
    }

    /// Leaves these out of snapshots, beside `.git` and `.hapax`: names of files and folders at the top. Agents can't
    /// install anything there.
    pub fn ignore<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.ignored = self.ignored.iter().cloned().chain(names.into_iter().map(Into::into)).collect();
        self
    }

    /// Keeps agents' caches, staging folders and receipts in this folder instead of `.hapax` in the workspace.
    pub fn state(mut self, folder: impl AsRef<Path>) -> Self {
        self.state = std::path::absolute(folder.as_ref()).unwrap_or_else(|_| folder.as_ref().into());
        self
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the engine keeps what is its own.
    pub fn state_folder(&self) -> &Path {
        &self.state
    }

    /// Where the receipts are: one for each command that was answered.
    pub fn receipts(&self) -> PathBuf {
        self.state.join("receipts")
    }

    pub(crate) fn is_ignored(&self, name: &str) -> bool {
        self.ignored.iter().any(|ignored| ignored == name)
    }

    /// Waits until nobody installs.
    pub(crate) async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// What the workspace holds now. Blocks while it reads what changed since the last time.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        Ok(self.listing()?.0)
    }

    /// The same, with each of the files, in the order of their paths.
    pub fn listing(&self) -> Result<(Snapshot, Vec<Listed>), Error> {
        let mut found = vec![];
        self.walk(&self.root, "", &mut found)?;
        found.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        let mut hash = Sha256::new_with_prefix(b"hapax.snapshot.v1");
        let mut known = HashMap::with_capacity(found.len());
        let mut files = Vec::with_capacity(found.len());
        for file in found {
            let (sha256, size) = if file.is_link { self.link(&file)? } else { self.file(&file, &mut known)? };
            let length =
                u32::try_from(file.path.len()).map_err(|_| Error::workspace(&file.path, "too long"))?;
            hash.update(length.to_be_bytes());
            hash.update(&file.path);
            hash.update(sha256.0);
            hash.update(size.to_be_bytes());
            files.push(Listed { path: file.path, sha256, size });
        }
        *lock(&self.known) = known;
        let (id, bytes) =
            (Digest(hash.finalize().into()).to_string(), files.iter().map(|file| file.size).sum());
        let snapshot = Snapshot { id: format!("snap-{}", &id[..12]), files: files.len() as u64, bytes };
        Ok((snapshot, files))
    }

    /// Everything below a folder that counts.
    fn walk(&self, folder: &Path, prefix: &str, found: &mut Vec<Found>) -> Result<(), Error> {
        let failed = |error| Error::workspace(folder, error);
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let name = name.to_str().ok_or_else(|| Error::workspace(entry.path(), "its name isn't UTF-8"))?;
            if prefix.is_empty() && self.is_ignored(name) {
                continue;
            }
            let meta = entry.metadata().map_err(|error| Error::workspace(entry.path(), error))?;
            let path = format!("{prefix}{name}");
            if meta.is_dir() {
                self.walk(&entry.path(), &format!("{path}/"), found)?;
            } else if meta.is_file() || meta.is_symlink() {
                found.push(Found { path, is_link: meta.is_symlink(), meta });
            }
        }
        Ok(())
    }

    /// A symlink is the text that it holds; one that leads out would make the workspace mean something else elsewhere.
    fn link(&self, link: &Found) -> Result<(Digest, u64), Error> {
        let path = self.root.join(&link.path);
        let target = fs::read_link(&path).map_err(|error| Error::workspace(&link.path, error))?;
        if climbs_out(&link.path, &target) || self.leads_out(&link.path, &target) {
            return Err(Error::workspace(&link.path, "the symlink leads out of the workspace"));
        }
        let text = target.to_str().ok_or_else(|| Error::workspace(&link.path, "its target isn't UTF-8"))?;
        Ok((sha256(format!("symlink:{text}").as_bytes()), text.len() as u64))
    }

    /// Whether a target leads out by way of other symlinks. It is followed name by name, since there may be nothing at its end.
    fn leads_out(&self, link: &str, target: &Path) -> bool {
        let mut at: PathBuf = Path::new(link).parent().unwrap_or(Path::new("")).into();
        let mut ahead: Vec<PathBuf> = parts(target);
        let mut links = 0;
        while let Some(part) = ahead.pop() {
            match part.components().next() {
                Some(Component::Normal(name)) => {
                    at.push(name);
                    let Ok(target) = fs::read_link(self.root.join(&at)) else { continue };
                    links += 1;
                    if links > MOST_LINKS {
                        return false;
                    }
                    at.pop();
                    ahead.extend(parts(&target));
                }
                Some(Component::CurDir) => {}
                Some(Component::ParentDir) if at.pop() => {}
                _ => return true,
            }
        }
        false
    }

    fn file(&self, file: &Found, known: &mut HashMap<Seen, Digest>) -> Result<(Digest, u64), Error> {
        let seen = Seen::of(&file.path, &file.meta);
        let before = lock(&self.known).get(&seen).copied();
        let (digest, size, seen) = match before {
            Some(digest) => (digest, seen.size, Some(seen)),
            None => self.hash(&file.path)?,
        };
        if let Some(seen) = seen {
            known.insert(seen, digest);
        }
        Ok((digest, size))
    }

    /// Reads a file; and says whether that can be remembered: it can't if the file may change and look the same. What is
    /// read of a file that changes meanwhile was never its content.
    fn hash(&self, path: &str) -> Result<(Digest, u64, Option<Seen>), Error> {
        for _ in 0..MOST_READS {
            if let Some(read) = self.read(path)? {
                return Ok(read);
            }
        }
        Err(Error::workspace(path, "it changes while it is read"))
    }

    /// `None`: it changed meanwhile.
    fn read(&self, path: &str) -> Result<Option<(Digest, u64, Option<Seen>)>, Error> {
        let failed = |error: std::io::Error| Error::workspace(path, error);
        let name = inside::Inside::found(path).map_err(|reason| Error::workspace(path, reason))?;
        let root = inside::open_folder(&self.root).map_err(failed)?;
        let opened =
            name.open(std::os::fd::AsFd::as_fd(&root)).map_err(|reason| Error::workspace(path, reason))?;
        let (mut file, _) = opened.ok_or_else(|| Error::workspace(path, "it is gone"))?;
        let before = Seen::of(path, &file.metadata().map_err(failed)?);
        let (digest, size) = drain(&mut file, |_| Ok(())).map_err(failed)?;
        let after = Seen::of(path, &file.metadata().map_err(failed)?);
        if before != after || size != after.size {
            return Ok(None);
        }
        Ok(Some((digest, size, after.is_settled().then_some(after))))
    }

    /// A handle of the folder.
    pub(crate) fn handle(&self) -> Result<std::os::fd::OwnedFd, Error> {
        inside::open_folder(&self.root).map_err(|error| Error::workspace(&self.root, error))
    }

    /// Locked against other processes for as long as the file is open.
    pub(crate) fn locked(&self) -> Result<File, Error> {
        let path = self.state.join("lock");
        let failed = |error| Error::workspace(&path, error);
        fs::create_dir_all(&self.state).map_err(failed)?;
        let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(file)
    }
}

impl Seen {
    fn of(path: &str, meta: &Metadata) -> Self {
        let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Self {
            path: path.into(),
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            changed: [nanos(meta.mtime(), meta.mtime_nsec()), nanos(meta.ctime(), meta.ctime_nsec())],
        }
    }

    fn is_settled(&self) -> bool {
        let settled = i128::from(now_us() - SETTLED_US) * 1000;
        self.changed.iter().all(|changed| *changed < settled)
    }
}

/// The parts of a path, the last one first.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect()
}

/// Whether a target, read where the link stands, climbs above the top on its way.
fn climbs_out(link: &str, target: &Path) -> bool {
    let mut depth = link.split('/').count() - 1;
    for part in target.components() {
        match part {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir if depth > 0 => depth -= 1,
            _ => return true,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        os::unix::fs::symlink,
        time::{Duration, SystemTime},
    };

    fn workspace() -> (tempfile::TempDir, Workspace) {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Workspace::open(folder.path()).unwrap();
        (folder, workspace)
    }

    fn put(workspace: &Workspace, path: &str, text: &str) {
        let path = workspace.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Long ago, so that what is read may be remembered.
    fn age(workspace: &Workspace, path: &str, seconds: u64) {
        let file = File::options().append(true).open(workspace.root().join(path)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn a_snapshot_id_does_not_change_with_mtime_order_or_place() {
        let ((_a, one), (_b, other)) = (workspace(), workspace());
        for path in ["b", "a/x", "a.txt"] {
            put(&one, path, path);
        }
        for path in ["a.txt", "b", "a/x"] {
            put(&other, path, path);
        }
        let id = one.snapshot().unwrap().id;
        age(&one, "b", 1_000_000);
        assert_eq!(one.snapshot().unwrap().id, id);
        assert_eq!(other.snapshot().unwrap().id, id);
    }

    #[test]
    fn a_snapshot_is_the_formula_byte_by_byte() {
        let (_folder, workspace) = workspace();
        put(&workspace, "a/x", "1");
        put(&workspace, "a.txt", "22");
        symlink("a/x", workspace.root().join("l")).unwrap();
        let mut bytes = b"hapax.snapshot.v1".to_vec();
        // Sorted by the bytes of the whole path: `.` comes before `/`.
        for (path, digest, size) in
            [("a.txt", sha256(b"22"), 2u64), ("a/x", sha256(b"1"), 1), ("l", sha256(b"symlink:a/x"), 3)]
        {
            bytes.extend((path.len() as u32).to_be_bytes());
            bytes.extend(path.as_bytes());
            bytes.extend(digest.0);
            bytes.extend(size.to_be_bytes());
        }
        let expected = format!("snap-{}", &sha256(&bytes).to_string()[..12]);
        assert_eq!(workspace.snapshot().unwrap().id, expected);
    }

    #[test]
    fn a_change_that_keeps_size_and_mtime_is_seen() {
        let (_folder, workspace) = workspace();
        put(&workspace, "a", "one");
        age(&workspace, "a", 1_000_000);
        let before = workspace.snapshot().unwrap().id;
        assert_eq!(workspace.snapshot().unwrap().id, before, "now it is remembered, or would be");
        put(&workspace, "a", "two");
        age(&workspace, "a", 1_000_000);
        assert_ne!(workspace.snapshot().unwrap().id, before);
    }

    #[test]
    fn a_symlink_that_leads_out_is_refused() {
        for target in ["/etc/passwd", "../x", "a/../../x", "/"] {
            let (_folder, workspace) = workspace();
            symlink(target, workspace.root().join("link")).unwrap();
            assert!(workspace.snapshot().is_err(), "{target}");
        }
        let (_folder, workspace) = workspace();
        fs::create_dir(workspace.root().join("deep")).unwrap();
        symlink("..", workspace.root().join("deep/up")).unwrap();
        assert!(workspace.snapshot().is_ok(), "it leads to the top, no further");
        symlink("up/..", workspace.root().join("deep/out")).unwrap();
        assert!(workspace.snapshot().is_err(), "one that leads out by way of another");
        fs::remove_file(workspace.root().join("deep/out")).unwrap();
        symlink("up/../no-such-file", workspace.root().join("deep/out")).unwrap();
        assert!(workspace.snapshot().is_err(), "the same, with nothing at its end");
    }

    #[test]
    fn a_symlink_that_leads_nowhere_or_in_circles_counts() {
        let (_folder, workspace) = workspace();
        for (link, target) in [("a", "b"), ("b", "a"), ("dangling", "no/such/file"), ("self", "self/..")] {
            symlink(target, workspace.root().join(link)).unwrap();
        }
        assert_eq!(workspace.snapshot().unwrap().files, 4);
    }

    #[test]
    fn a_file_counts_whatever_its_name_has() {
        let (_folder, workspace) = workspace();
        for name in ["a\\b", "a\nb", "a\u{7f}"] {
            put(&workspace, name, "1");
        }
        assert_eq!(workspace.snapshot().unwrap().files, 3);
    }

    #[test]
    fn a_symlink_to_a_folder_is_not_followed() {
        let (_folder, workspace) = workspace();
        put(&workspace, "real/x", "1");
        symlink("real", workspace.root().join("link")).unwrap();
        assert_eq!(workspace.snapshot().unwrap().files, 2);
    }
}
