//! A sink that prints.
//!
//! Invariant: a message is acknowledged after its line, with its end, was written; a line that was cut off is followed by a
//! line end, so that it can't spoil the next one.

use super::{Delivery, Sink, SinkError, turns::Turns};
use futures::future::BoxFuture;
use hapax_core::canary;
use std::{
    fs::File,
    io::{self, ErrorKind, Write},
    os::fd::AsFd,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    thread,
    time::Duration,
};

/// How soon a pipe that doesn't block is tried again when it is full.
const FULL_PIPE: Duration = Duration::from_millis(5);

/// Prints each message as a line of JSON on standard output. While nobody reads it, all messages wait.
///
/// ```
/// use hapax::outbox::{Delivery, Sink, StdoutSink};
/// # use hapax::core::{id::{Namespace, RunId, RunKey}, json::Json};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let run = RunKey { namespace: Namespace::default(), run: RunId::new("order-42")? };
/// # let message = Delivery { topic: "orders".into(), ..Delivery::new("msg:3b0f", run, 1, Json::of("paid")?) };
/// // {"id":"msg:3b0f","topic":"orders","key":"","payload":"paid","namespace":"default","run":"order-42","step":1}
/// assert!(StdoutSink.publish(&message).await.is_ok(), "somebody reads our output");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct StdoutSink;

impl StdoutSink {
    /// Prints each message as a line of another form. The line's end is added.
    ///
    /// ```
    /// use hapax::outbox::{RelayOptions, StdoutSink};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> hapax::Result<()> {
    /// # let engine = hapax::Engine::open("memory:").await?;
    /// let sink = StdoutSink::lines(|message| Ok(format!("{} {}", message.id, message.payload.as_str())));
    /// engine.deliver(RelayOptions::default(), &sink).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lines(form: impl Fn(&Delivery) -> Result<String, SinkError> + Send + Sync + 'static) -> impl Sink {
        Formed(form)
    }
}

struct Formed<F>(F);

impl Sink for StdoutSink {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move { print(message, message.line()?).await })
    }
}

impl<F: Fn(&Delivery) -> Result<String, SinkError> + Send + Sync + 'static> Sink for Formed<F> {
    fn publish<'a>(&'a self, message: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(async move { print(message, ((self.0)(message)? + "\n").into_bytes()).await })
    }
}

/// The one standard output of this process.
static STDOUT: LazyLock<Printer> = LazyLock::new(|| Printer { turns: Turns::new(), lines: Arc::default() });

struct Printer {
    turns: Turns,
    lines: Arc<Mutex<Option<Lines<File>>>>,
}

async fn print(message: &Delivery, line: Vec<u8>) -> Result<(), SinkError> {
    let lines = STDOUT.lines.clone();
    let write = move || {
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *lines {
            Some(lines) => lines.append(&line),
            None => lines.insert(open()?).append(&line),
        }
    };
    STDOUT.turns.write(&message.id, write).await
}

/// Without the buffer of the standard library: what is left in it after a failure would be printed later.
fn open() -> io::Result<Lines<File>> {
    io::stdout().flush()?;
    Ok(Lines { out: io::stdout().as_fd().try_clone_to_owned()?.into(), torn: false })
}

struct Lines<W> {
    out: W,
    /// The last line has no end.
    torn: bool,
}

impl<W: Write> Lines<W> {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.torn && !canary::on("glued_line") {
            self.write(b"\n")?;
        }
        self.write(line)
    }

    /// Writes a line, or the end of one, as far as it goes.
    fn write(&mut self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match self.out.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = &rest[written..];
                    self.torn = !rest.is_empty();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !canary::on("full_pipe_fails") => {
                    thread::sleep(FULL_PIPE);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Takes so many bytes by turns, or fails.
    struct Moody {
        taken: Vec<u8>,
        moods: VecDeque<Result<usize, ErrorKind>>,
    }

    impl Write for Moody {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = self.moods.pop_front().unwrap_or(Ok(usize::MAX))?.min(bytes.len());
            self.taken.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn printer(moods: impl Into<VecDeque<Result<usize, ErrorKind>>>) -> Lines<Moody> {
        Lines { out: Moody { taken: vec![], moods: moods.into() }, torn: false }
    }

    #[test]
    fn a_line_that_a_full_disk_cut_off_does_not_spoil_the_next() {
        let full = Err(ErrorKind::StorageFull);
        let mut lines = printer([Ok(3), full, full, Ok(1), full]);
        assert!((0..3).all(|_| lines.append(b"first\n").is_err()));
        lines.append(b"first\n").unwrap();
        lines.append(b"second\n").unwrap();
        assert_eq!(String::from_utf8(lines.out.taken).unwrap(), "fir\nfirst\nsecond\n");
    }

    #[test]
    fn a_full_pipe_that_does_not_block_gets_the_rest_of_its_line_later() {
        let full = Err(ErrorKind::WouldBlock);
        let mut lines = printer([full, Ok(3), full, full, Err(ErrorKind::Interrupted), Ok(2)]);
        lines.append(b"first\n").unwrap();
        assert_eq!(String::from_utf8(lines.out.taken).unwrap(), "first\n");
    }
}
