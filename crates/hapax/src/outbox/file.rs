//! A sink that appends to a file.
//!
//! Invariant: a message is acknowledged after its line, with its end, is on the disk, in a file that somebody can open; a
//! line that a crash cut off, whoever wrote it, is followed by a line end, so that it can't spoil the next one.

use super::{Delivery, Sink, SinkError, turns::Turns};
use futures::future::BoxFuture;
use hapax_core::canary;
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Appends each message as a line of JSON to a file, synced before it is acknowledged.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("messages.ndjson");
/// use hapax::outbox::{FileSink, RelayOptions};
/// let engine = hapax::Engine::open("memory:").await?;
/// let relay = engine.relay(RelayOptions::default(), FileSink::open(&path)?)?;
/// relay.stop().await;
/// assert_eq!(std::fs::read(&path)?, b"");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FileSink {
    turns: Arc<Turns>,
    lines: Arc<Mutex<Lines>>,
}

impl FileSink {
    /// Opens a file, and creates it where there is none. One that is deleted or moved away meanwhile is created again.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SinkError> {
        let path = path.as_ref();
        let opened = Lines::open(path);
        let lines = opened.map_err(|error| SinkError::unavailable(format!("{}: {error}", path.display())))?;
        Ok(Self { turns: Arc::new(Turns::new()), lines: Arc::new(Mutex::new(lines)) })
    }
}

#[derive(Debug)]
struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    fn open(path: &Path) -> io::Result<Self> {
        let is_new = !path.exists();
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            // A pipe or a device takes bytes and keeps none: no sync of it succeeds.
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "it is no regular file, so it keeps nothing",
            ));
        }
        let file = File::options().create(true).append(true).read(true).open(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if is_new {
            // A file whose name isn't on the disk is lost with all that was synced into it.
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(Self { path: path.to_owned(), file })
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        loop {
            if !self.is_in_place()? {
                *self = Self::open(&self.path)?;
            }
            self.write(line)?;
            self.file.sync_data()?;
            // Deleted while it was written to: nobody will ever read that. One that was moved is somewhere.
            if self.file.metadata()?.nlink() > 0 || canary::on("file_gone") {
                return Ok(());
            }
        }
    }

    /// Whether the file is still the one of its path.
    fn is_in_place(&self) -> io::Result<bool> {
        match fs::metadata(&self.path) {
            _ if canary::on("file_gone") => Ok(true),
            Ok(there) => {
                let here = self.file.metadata()?;
                Ok((here.dev(), here.ino()) == (there.dev(), there.ino()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes a line behind whole ones. Another relay may write to the file too, and may have died in the midst of it.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        // Where files can't be locked, relays of several processes should have a file each.
        let _ = self.file.lock();
        let written = self.end_line().and_then(|()| self.file.write_all(line));
        let _ = self.file.unlock();
        written
    }

    fn end_line(&mut self) -> io::Result<()> {
        if self.is_torn()? { self.file.write_all(b"\n") } else { Ok(()) }
    }

    /// Whether the last line has no end.
    fn is_torn(&self) -> io::Result<bool> {
        let length = self.file.metadata()?.len();
        let mut last = *b"\n";
        if length > 0 && !canary::on("torn_by_others") {
            self.file.read_exact_at(&mut last, length - 1)?;
        }
        Ok(last != *b"\n")
    }
}

impl Sink for FileSink {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let (line, lines) = (message.line()?, self.lines.clone());
            let append = move || lines.lock().unwrap_or_else(PoisonError::into_inner).append(&line);
            self.turns.write(&message.id, append).await
        })
    }
}
