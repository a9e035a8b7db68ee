//! Lines on their way to a reader who may stand still.
//!
//! Invariant: whoever writes a line never waits. A thread of its own waits for the reader; what finds no room is dropped, and
//! how much it was is told as soon as there is room again.

use serde_json::json;
use std::{
    fmt,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

/// Lines that may be on their way.
const ROOM: usize = 8192;
/// How long the end of a program waits for them.
const PATIENCE: Duration = Duration::from_secs(1);

enum Job {
    Line(Vec<u8>),
    /// Is answered when all lines before it are written.
    Flush(SyncSender<()>),
}

/// Takes whole lines.
pub(crate) struct Aside {
    jobs: SyncSender<Job>,
    dropped: Arc<AtomicU64>,
}

/// Lines on their way to the standard error; see [`log_json`](crate::log_json).
///
/// ```
/// let logs: hapax_telemetry::Logs = hapax_telemetry::log_json(tracing::Level::INFO)?;
/// tracing::info!("the last words");
/// drop(logs);
/// # Ok::<(), hapax_telemetry::Error>(())
/// ```
#[must_use = "dropped, it waits for the lines that are on their way"]
pub struct Logs {
    jobs: SyncSender<Job>,
}

impl fmt::Debug for Logs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logs")
    }
}

/// A way to this writer, and what waits for its end.
pub(crate) fn to(writer: impl Write + Send + 'static) -> (Aside, Logs) {
    let (jobs, todo) = sync_channel(ROOM);
    let dropped = Arc::<AtomicU64>::default();
    let lost = dropped.clone();
    thread::spawn(move || write_all(writer, &todo, &lost));
    (Aside { jobs: jobs.clone(), dropped }, Logs { jobs })
}

/// Writes until nobody can send any more. Nobody can be told that something can't be written.
fn write_all(mut writer: impl Write, todo: &Receiver<Job>, dropped: &AtomicU64) {
    while let Ok(job) = todo.recv() {
        match job {
            Job::Line(line) => _ = writer.write_all(&line),
            Job::Flush(done) => {
                let _ = writer.flush();
                let _ = done.send(());
            }
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let told = json!({
                "level": "WARN",
                "target": module_path!(),
                "message": "lines of the log were dropped: nobody read them in time",
                "fields": {"lines": lost},
            });
            let _ = writer.write_all(format!("{told}\n").as_bytes());
        }
    }
}

impl Write for Aside {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.jobs.try_send(Job::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        let (done, is_done) = sync_channel(1);
        if self.jobs.try_send(Job::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_writes_waits_for_no_reader_and_what_is_dropped_is_told() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let (mut aside, logs) = to(pipe);
        let line = [&[b'x'; 99][..], b"\n"].concat();
        let many = ROOM * 2;
        for _ in 0..many {
            aside.write_all(&line).unwrap();
        }
        let reading = thread::spawn(move || io::read_to_string(&mut reader).unwrap());
        // Nobody waits for the reader, so this one is waited for.
        while aside.dropped.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        drop((aside, logs));
        let read = reading.join().unwrap();
        let (told, lines): (Vec<_>, Vec<_>) = read.lines().partition(|line| line.starts_with('{'));
        let lost =
            |told: &str| serde_json::from_str::<serde_json::Value>(told).unwrap()["fields"]["lines"].as_u64();
        let lost: u64 = told.into_iter().map(|told| lost(told).unwrap()).sum();
        assert!(lost > 0);
        assert_eq!(lines.len() as u64 + lost, many as u64);
    }
}
