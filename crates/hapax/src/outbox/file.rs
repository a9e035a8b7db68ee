//! A sink that appends to a file.
//!
//! Invariant: a message is acknowledged after its line, with its end, is on the disk; a line that a crash cut off is
//! followed by a line end, so that it can't spoil the next one.

use super::{Delivery, Sink, SinkError};
use futures::future::BoxFuture;
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
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
pub struct FileSink(Arc<Mutex<Lines>>);

#[derive(Debug)]
struct Lines {
    file: File,
    /// The last line has no end.
    torn: bool,
}

impl FileSink {
    /// Opens a file, and creates it where there is none.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, SinkError> {
        let path = path.as_ref();
        let opened = open(path);
        let lines = opened.map_err(|error| SinkError::unavailable(format!("{}: {error}", path.display())))?;
        Ok(Self(Arc::new(Mutex::new(lines))))
    }
}

fn open(path: &Path) -> std::io::Result<Lines> {
    let is_new = !path.exists();
    let mut file = File::options().create(true).append(true).read(true).open(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if is_new {
        // A file whose name isn't on the disk is lost with all that was synced into it.
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    let torn = file.seek(SeekFrom::End(0))? > 0 && {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        last != *b"\n"
    };
    Ok(Lines { file, torn })
}

impl Lines {
    fn append(&mut self, line: &[u8]) -> std::io::Result<()> {
        if std::mem::replace(&mut self.torn, true) {
            self.file.write_all(b"\n")?;
        }
        self.file.write_all(line)?;
        self.torn = false;
        self.file.sync_data()
    }
}

impl Sink for FileSink {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move {
            let (line, lines) = (message.line()?, self.0.clone());
            let append = move || lines.lock().unwrap_or_else(PoisonError::into_inner).append(&line);
            tokio::task::spawn_blocking(append)
                .await
                .map_err(SinkError::unavailable)?
                .map_err(SinkError::unavailable)
        })
    }
}
