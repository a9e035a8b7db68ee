//! A folder as an object store: on another disk, say, or on a file system that many machines share.
//!
//! Invariant: an object is there whole and synced, or not at all. Each attempt is a file of its own in `unfinished`, since two
//! may write the same object; its name begins like the object's, so a writer that was killed leaves nothing that the object's
//! deletion doesn't find. A name is one file of the folder: it comes from the database, and whoever can write there must not
//! reach the files beside.

use super::{BadObjectName, Depot};
use crate::{error::Source, store::BoxFuture};
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::{Component, Path, PathBuf},
};

/// Objects as files of a folder.
///
/// ```
/// use hapax_store::depot::{Depot, Folder};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::error::Source> {
/// # let temporary = tempfile::tempdir()?;
/// # let place = temporary.path();
/// let folder = Folder::open(place)?;
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
    /// A folder that is there: one that was made here for a misspelt name would be taken for one whose objects are lost.
    pub fn open(folder: impl Into<PathBuf>) -> io::Result<Self> {
        let folder = folder.into();
        fs::read_dir(&folder)?;
        Ok(Self(folder))
    }

    /// Does something with an object, off the async threads.
    async fn with<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce(&Path, &str) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Source> {
        let (folder, name) = (self.0.clone(), one_file(name)?.to_owned());
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
            for attempt in unless_gone(attempts_at(folder, name))? {
                unless_gone(fs::remove_file(attempt))?;
            }
            unless_gone(fs::remove_file(folder.join(name)))
        }))
    }
}

/// A name that leads to a file of the folder itself.
fn one_file(name: &str) -> Result<&str, BadObjectName> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(BadObjectName { name: name.to_owned() }),
    }
}

/// Where objects are written before they are there.
const UNFINISHED: &str = "unfinished";

fn attempts_at(folder: &Path, name: &str) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder.join(UNFINISHED))?.map(|entry| Ok(entry?.path()));
    let all = paths.collect::<io::Result<Vec<_>>>()?;
    Ok(all.into_iter().filter(|path| path.file_stem().is_some_and(|stem| stem == name)).collect())
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = folder.join(UNFINISHED);
    match fs::create_dir(&unfinished) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let beside = unfinished.join(format!("{name}.{}", uuid::Uuid::new_v4().simple()));
    let mut file = File::create_new(&beside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    if let Err(error) = written {
        // A disk that is full stays so as long as this is there.
        unless_gone(fs::remove_file(&beside))?;
        return Err(error);
    }
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
