//! Why a message wasn't taken.
//!
//! Invariant: an error says whom it concerns: one message, one topic for now, or all of them. A message dies only of what is
//! its own fault.

use hapax_core::error::{Code, Coded, code};
use std::{error::Error as StdError, fmt, time::Duration};

/// Why a message wasn't taken, named by what the relay does next.
///
/// ```
/// use hapax::{Coded, outbox::SinkError};
/// assert!(!SinkError::refused("it fits no schema").is_unavailable());
/// assert!(SinkError::busy("the queue is full").is_busy());
/// assert_eq!(SinkError::unavailable("connection refused").code(), "HX0071");
/// ```
#[derive(Debug)]
pub struct SinkError {
    source: Box<dyn StdError + Send + Sync>,
    blame: Blame,
    code: Code,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Blame {
    Message,
    /// The other side wants to be left alone for at least so long.
    Topic(Duration),
    Everything,
}

impl SinkError {
    /// The other side won't take this message: it is tried again later, and is dead after some attempts.
    pub fn refused(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(error, Blame::Message)
    }

    /// The other side can't take it now, and others perhaps can be: its queue is full, or isn't there yet. Its run and topic
    /// rest, no longer than half a minute at a time unless it [asks](Self::rest) for more. It counts as no refusal.
    pub fn busy(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(error, Blame::Topic(Duration::ZERO))
    }

    /// The other side takes none: no message is to blame, and all of them wait.
    pub fn unavailable(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(error, Blame::Everything)
    }

    fn new(error: impl Into<Box<dyn StdError + Send + Sync>>, blame: Blame) -> Self {
        Self { source: error.into(), blame, code: code::SINK_FAILED }
    }

    /// Lets a message that the other side [can't take now](Self::busy) rest for this long at least. Elsewhere it says
    /// nothing.
    ///
    /// ```
    /// use hapax::outbox::SinkError;
    /// # use std::time::Duration;
    /// let error = SinkError::busy("429 Too Many Requests").rest(Duration::from_secs(90));
    /// assert!(error.is_busy());
    /// ```
    #[must_use]
    pub fn rest(mut self, at_least: Duration) -> Self {
        if let Blame::Topic(rest) = &mut self.blame {
            *rest = at_least;
        }
        self
    }

    /// The same under another code than that of all sinks.
    #[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis", feature = "webhook"))]
    pub(super) fn under(mut self, code: Code) -> Self {
        self.code = code;
        self
    }

    /// Whether no message is to blame.
    pub fn is_unavailable(&self) -> bool {
        self.blame == Blame::Everything
    }

    /// Whether the other side may take it later, and others already now.
    pub fn is_busy(&self) -> bool {
        self.asked_rest().is_some()
    }

    /// How long the other side wants to be left alone, if it can't take the message now.
    pub(super) fn asked_rest(&self) -> Option<Duration> {
        match self.blame {
            Blame::Topic(rest) => Some(rest),
            Blame::Message | Blame::Everything => None,
        }
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.blame {
            Blame::Message => "the message was refused",
            Blame::Topic(_) => "the message cannot be taken now",
            // Nobody has tried to reach it.
            Blame::Everything if self.code == code::SINK_INVALID => "the sink cannot be made",
            Blame::Everything => "the sink cannot be reached",
        };
        write!(f, "{what}: {}", self.source)?;
        // The outbox keeps the text alone.
        if self.code == code::SINK_FAILED { Ok(()) } else { write!(f, " [{}]", self.code) }
    }
}

impl StdError for SinkError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

impl Coded for SinkError {
    fn code(&self) -> Code {
        self.code
    }
}
