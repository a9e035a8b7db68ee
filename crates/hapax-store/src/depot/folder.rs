//! A folder as an object store: on another disk, say, or on a file system that many machines share.
//!
//! Invariant: an object is there whole and synced, or not at all. It is written under another name, which goes with it, so a
//! writer that was killed leaves nothing that its deletion doesn't find.

use super::Depot;
use crate::{error::Source, store::BoxFuture};
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Path, PathBuf},
};

/// Objects as files of a folder.
///
/// ```
/// use hapax_store::depot::{Depot, Folder};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::error::Source> {
/// # let temporary = tempfile::tempdir()?;
/// # let place = temporary.path();
/// let folder = Folder::open(place.join("objects"))?;
/// folder.put("one", b"bytes".to_vec()).await?;
/// assert_eq!(folder.get("one").await?.as_deref(), Some(&b"bytes"[..]));
/// folder.delete("one").await?;
/// assert_eq!(folder.get("one").await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// A folder, which is made where there is none.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    /// Does something with an object, off the async threads.
    async fn with<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Path, &str) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Source> {
        let (folder, name) = (self.0.clone(), name.to_owned());
        Ok(tokio::task::spawn_blocking(move || work(&folder, &name)).await??)
    }
}

impl Depot for Folder {
    fn put<'a>(&'a self, name: &'a str, bytes: Vec<u8>) -> BoxFuture<'a, Result<(), Source>> {
        Box::pin(self.with(name, move |folder, name| write(folder, name, &bytes)))
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Source>> {
        Box::pin(self.with(name, |folder, name| unless_gone(fs::read(folder.join(name)).map(Some))))
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Source>> {
        Box::pin(self.with(name, |folder, name| {
            unless_gone(fs::remove_file(folder.join(unfinished(name))))?;
            unless_gone(fs::remove_file(folder.join(name)))
        }))
    }
}

fn unfinished(name: &str) -> String {
    format!("{name}.unfinished")
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let beside = folder.join(unfinished(name));
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(beside, folder.join(name))?;
    // Its name is an entry of the folder.
    File::open(folder)?.sync_all()
}

fn unless_gone<T: Default>(done: io::Result<T>) -> io::Result<T> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(T::default()),
        done => done,
    }
}
