//! Lines of bounded length: how messages travel over pipes.
//!
//! Invariant: whatever the other side sends, no more than one line's limit is held; after a line that is too long the
//! next one is read as if nothing had been.

use super::Error;
use hapax_core::limits::AGENT_LINE_BYTES;
use serde::Serialize;
use std::io::{self, BufRead};
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _};

/// What came between two newlines.
///
/// ```
/// use hapax::agent::frame::{Frame, LineReader};
/// let mut lines = LineReader::with_limit(&b"hello\nfar too long\nbye"[..], 8);
/// assert_eq!(lines.next()?, Some(Frame::Line(b"hello".to_vec())));
/// assert_eq!(lines.next()?, Some(Frame::TooLong(b"far too ".to_vec())));
/// assert_eq!(lines.next()?, Some(Frame::Torn(b"bye".to_vec())), "the writer died before the newline");
/// assert_eq!(lines.next()?, None);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A whole line, without its newline.
    Line(Vec<u8>),
    /// The beginning of a line that is over the limit.
    TooLong(Vec<u8>),
    /// What came before the end of the stream, without a newline.
    Torn(Vec<u8>),
}

/// A line in the making.
#[derive(Debug)]
struct Assembly {
    line: Vec<u8>,
    /// The line is over the limit, and its rest is thrown away.
    over: bool,
    limit: usize,
}

impl Assembly {
    fn new(limit: usize) -> Self {
        Self { line: vec![], over: false, limit }
    }

    /// Takes bytes up to the end of a line; says how many, and what is complete.
    fn take(&mut self, bytes: &[u8]) -> (usize, Option<Frame>) {
        let newline = bytes.iter().position(|byte| *byte == b'\n');
        let part = &bytes[..newline.unwrap_or(bytes.len())];
        // The newline counts, too.
        let room = (self.limit - 1).saturating_sub(self.line.len());
        if part.len() > room && !self.over {
            self.over = true;
            // One byte more than fits: enough to see that it is too much.
            let kept = part.len().min(self.limit - self.line.len());
            self.line.extend_from_slice(&part[..kept]);
        } else if !self.over {
            self.line.extend_from_slice(part);
        }
        let used = newline.map_or(bytes.len(), |at| at + 1);
        (used, newline.map(|_| self.complete()))
    }

    fn complete(&mut self) -> Frame {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.over) { Frame::TooLong(line) } else { Frame::Line(line) }
    }

    /// The stream ended.
    fn end(&mut self) -> Option<Frame> {
        if self.line.is_empty() && !self.over {
            return None;
        }
        self.over = false;
        Some(Frame::Torn(std::mem::take(&mut self.line)))
    }
}

/// Reads lines from a blocking stream, as agents do.
///
/// ```
/// use hapax::agent::frame::{Frame, LineReader};
/// let mut lines = LineReader::new(&b"{}\n"[..]);
/// assert_eq!(lines.next()?, Some(Frame::Line(b"{}".to_vec())));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct LineReader<R> {
    from: R,
    assembly: Assembly,
}

impl<R: BufRead> LineReader<R> {
    /// With the protocol's own limit.
    pub fn new(from: R) -> Self {
        Self::with_limit(from, AGENT_LINE_BYTES)
    }

    /// With a limit in bytes, newline included.
    pub fn with_limit(from: R, limit: usize) -> Self {
        Self { from, assembly: Assembly::new(limit.max(1)) }
    }

    /// The next line; `None` at the end.
    #[allow(clippy::should_implement_trait, reason = "it can fail, like `BufRead::read_line`")]
    pub fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            let bytes = match self.from.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                bytes => bytes?,
            };
            if bytes.is_empty() {
                return Ok(self.assembly.end());
            }
            let (used, frame) = self.assembly.take(bytes);
            self.from.consume(used);
            if frame.is_some() {
                return Ok(frame);
            }
        }
    }
}

/// Reads lines from a pipe of the engine's. A `next` that is dropped loses nothing.
#[derive(Debug)]
pub(crate) struct AsyncLineReader<R> {
    from: R,
    assembly: Assembly,
}

impl<R: AsyncBufRead + Unpin> AsyncLineReader<R> {
    pub(crate) fn with_limit(from: R, limit: usize) -> Self {
        Self { from, assembly: Assembly::new(limit) }
    }

    pub(crate) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            let bytes = self.from.fill_buf().await?;
            if bytes.is_empty() {
                return Ok(self.assembly.end());
            }
            let (used, frame) = self.assembly.take(bytes);
            self.from.consume(used);
            if frame.is_some() {
                return Ok(frame);
            }
        }
    }
}

/// A message as a line, with its newline.
///
/// ```
/// use hapax::agent::{frame::line, protocol::Ack};
/// let ack = Ack { idempotency_key: "ik:00".into(), forget: false };
/// assert_eq!(line(&ack)?, b"{\"kind\":\"ack\",\"idempotency_key\":\"ik:00\"}\n");
/// # Ok::<(), hapax::agent::Error>(())
/// ```
pub fn line<T: Serialize + ?Sized>(message: &T) -> Result<Vec<u8>, Error> {
    let mut line = serde_json::to_vec(message).map_err(|e| Error::Invalid(format!("no JSON: {e}")))?;
    line.push(b'\n');
    if line.len() > AGENT_LINE_BYTES {
        return Err(Error::TooLarge { bytes: line.len(), limit: AGENT_LINE_BYTES });
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufReader;

    fn frames(bytes: &[u8], limit: usize, chunk: usize) -> Vec<Frame> {
        let mut lines = LineReader::with_limit(BufReader::with_capacity(chunk, bytes), limit);
        std::iter::from_fn(|| lines.next().unwrap()).collect()
    }

    #[test]
    fn a_line_of_exactly_the_limit_is_read_and_one_byte_more_is_not() {
        for chunk in 1..12 {
            assert_eq!(
                frames(b"1234567\nx\n", 8, chunk)[0],
                Frame::Line(b"1234567".to_vec()),
                "chunk {chunk}"
            );
            let longer = frames(b"12345678\nx\n", 8, chunk);
            assert!(matches!(&longer[0], Frame::TooLong(kept) if kept.len() <= 8), "chunk {chunk}");
            assert_eq!(longer[1], Frame::Line(b"x".to_vec()), "the next line is read as if nothing had been");
        }
    }

    #[test]
    fn no_more_than_the_limit_is_held_of_an_endless_line() {
        let mut assembly = Assembly::new(100);
        for _ in 0..10_000 {
            assert_eq!(assembly.take(&[b'x'; 64]).1, None);
            assert!(assembly.line.capacity() <= 256);
        }
        assert!(matches!(assembly.take(b"\n").1, Some(Frame::TooLong(_))));
        assert_eq!(assembly.take(b"{}\n").1, Some(Frame::Line(b"{}".to_vec())));
    }

    #[test]
    fn what_comes_without_a_newline_is_torn() {
        assert_eq!(frames(b"a\nhal", 8, 3), [Frame::Line(b"a".to_vec()), Frame::Torn(b"hal".to_vec())]);
        assert_eq!(frames(b"", 8, 3), []);
        assert_eq!(frames(b"\n", 8, 3), [Frame::Line(vec![])]);
    }
}
