//! The hook through which all stored bytes go last: what it is asked, and what it may answer.
//!
//! Invariant: whoever encodes and whoever decodes name the same place, made of what identifies the row and of nothing
//! that changes.

use crate::error::Source;
use hapax_core::id::{Namespace, RunKey};

/// What encrypted bytes begin with, and the version of their form. Neither JSON nor compressed bytes begin so: as the length
/// of a patch it is far over every limit.
pub(crate) const ENCRYPTED: [u8; 5] = *b"\x03hxe\x01";

/// Turns stored bytes into something else, last of all: encryption.
///
/// It is applied after digest and compression, to states, frontiers, journal entries, the inputs of schedules, and the
/// payloads of letters and of the outbox. Equal bytes need not give equal results. The place is where the bytes belong:
/// a codec may bind them to it, so that they are refused anywhere else.
///
/// ```
/// use hapax_store::{codec::{Part, PayloadCodec, Place}, error::Source};
///
/// struct Flip;
/// impl PayloadCodec for Flip {
///     fn encode(&self, plain: Vec<u8>, _: &Place<'_>) -> Result<Vec<u8>, Source> {
///         Ok(plain.into_iter().map(|byte| !byte).collect())
///     }
///     fn decode(&self, stored: &[u8], place: &Place<'_>) -> Result<Vec<u8>, Source> {
///         self.encode(stored.to_vec(), place)
///     }
/// }
/// let place = Place { namespace: "default", owner: "order-42", part: Part::Journal { seq: 7 } };
/// # assert_eq!(Flip.decode(&Flip.encode(vec![1, 2], &place).unwrap(), &place).unwrap(), [1, 2]);
/// ```
pub trait PayloadCodec: Send + Sync {
    /// From plain to stored.
    fn encode(&self, plain: Vec<u8>, place: &Place<'_>) -> Result<Vec<u8>, Source>;
    /// From stored to plain. What lacks a key is a [`Locked`](crate::error::Locked); any other error reads as damage.
    fn decode(&self, stored: &[u8], place: &Place<'_>) -> Result<Vec<u8>, Source>;

    /// Which stored bytes it would encode otherwise today; none, unless it says so.
    fn stale(&self) -> Stale {
        Stale::Nothing
    }

    /// The keys that it knows, each with what the bytes under it begin with.
    fn marks(&self) -> Vec<(String, Vec<u8>)> {
        vec![]
    }
}

/// Which stored bytes a codec would encode otherwise today, told by how they begin.
///
/// ```
/// use hapax_store::codec::Stale;
/// let stale = Stale::NotBeginningWith(b"new".to_vec());
/// assert!(stale.is(b"old key") && !stale.is(b"new key"));
/// // What is empty says nothing: a letter that was taken, say.
/// assert!(!stale.is(b""));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stale {
    /// None.
    Nothing,
    /// All but those that begin so.
    NotBeginningWith(Vec<u8>),
    /// Those that begin so.
    BeginningWith(Vec<u8>),
}

impl Stale {
    /// Whether these bytes are.
    pub fn is(&self, stored: &[u8]) -> bool {
        match self {
            Stale::Nothing => false,
            Stale::NotBeginningWith(mark) => !stored.is_empty() && !stored.starts_with(mark),
            Stale::BeginningWith(mark) => stored.starts_with(mark),
        }
    }
}

/// Where stored bytes belong.
///
/// ```
/// use hapax_store::codec::{Part, Place};
/// let state = Place { namespace: "default", owner: "order-42", part: Part::State { step: 3 } };
/// let barriers = Place { part: Part::Barriers { step: 3 }, ..state };
/// assert_ne!(state.to_bytes(), barriers.to_bytes());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'p> {
    /// The tenant.
    pub namespace: &'p str,
    /// The run, or the schedule.
    pub owner: &'p str,
    /// Which of its payloads.
    pub part: Part<'p>,
}

/// One of the payloads of a run, or that of a schedule.
///
/// ```
/// use hapax_store::codec::Part;
/// assert_ne!(Part::State { step: 1 }, Part::State { step: 2 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part<'p> {
    /// The state after a step, or what it differs by from an earlier one.
    State {
        /// The step.
        step: u64,
    },
    /// A page of the frontier after a step.
    Frontier {
        /// The step.
        step: u64,
        /// The page.
        page: u64,
    },
    /// The barriers that wait after a step.
    Barriers {
        /// The step.
        step: u64,
    },
    /// An entry of the journal.
    Journal {
        /// Its number.
        seq: u64,
    },
    /// A message.
    Message {
        /// The step that sent it.
        step: u64,
        /// Its place among those of the step.
        position: u64,
    },
    /// A letter to the run.
    Letter {
        /// The name that its sender gave it.
        id: &'p str,
    },
    /// The input of a schedule's runs.
    Input,
}

impl<'p> Place<'p> {
    /// A part of a run.
    pub(crate) fn of(run: &'p RunKey, part: Part<'p>) -> Self {
        Self { namespace: run.namespace.as_str(), owner: run.run.as_str(), part }
    }

    /// The state of a run's step.
    pub(crate) fn state(run: &'p RunKey, step: u64) -> Self {
        Self::of(run, Part::State { step })
    }

    /// The input of a schedule.
    pub(crate) fn input(namespace: &'p Namespace, name: &'p str) -> Self {
        Self { namespace: namespace.as_str(), owner: name, part: Part::Input }
    }

    /// The place as bytes, those of two places never alike: for a codec that binds to it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (tag, a, b, id) = match self.part {
            Part::State { step } => (1, step, 0, ""),
            Part::Frontier { step, page } => (2, step, page, ""),
            Part::Barriers { step } => (3, step, 0, ""),
            Part::Journal { seq } => (4, seq, 0, ""),
            Part::Message { step, position } => (5, step, position, ""),
            Part::Letter { id } => (6, 0, 0, id),
            Part::Input => (7, 0, 0, ""),
        };
        let mut bytes = vec![tag];
        bytes.extend(a.to_be_bytes());
        bytes.extend(b.to_be_bytes());
        for text in [self.namespace, self.owner, id] {
            bytes.extend((text.len() as u64).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    }
}

/// The name of the key that encrypted bytes are under; `None`: they aren't encrypted.
pub(crate) fn key_id_of(stored: &[u8]) -> Option<String> {
    let (len, rest) = stored.strip_prefix(&ENCRYPTED)?.split_first()?;
    let id = rest.get(..usize::from(*len))?;
    Some(String::from_utf8_lossy(id).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_places_have_the_same_bytes() {
        let parts = [
            Part::State { step: 1 },
            Part::State { step: 2 },
            Part::Frontier { step: 1, page: 0 },
            Part::Frontier { step: 1, page: 1 },
            Part::Frontier { step: 0, page: 1 },
            Part::Barriers { step: 1 },
            Part::Journal { seq: 1 },
            Part::Message { step: 1, position: 0 },
            Part::Message { step: 0, position: 1 },
            Part::Letter { id: "" },
            Part::Letter { id: "a" },
            Part::Input,
        ];
        let owners = [("a", "bc"), ("ab", "c"), ("abc", "")];
        let all = owners
            .iter()
            .flat_map(|(namespace, owner)| parts.map(|part| Place { namespace, owner, part }.to_bytes()));
        assert_eq!(all.collect::<HashSet<_>>().len(), parts.len() * owners.len());
    }

    #[test]
    fn the_name_of_a_key_is_read_from_what_it_encrypted_and_from_nothing_else() {
        let stored = [&ENCRYPTED[..], b"\x03new", b"rest"].concat();
        assert_eq!(key_id_of(&stored).as_deref(), Some("new"));
        for other in [&b""[..], b"{}", &stored[..4], &stored[..5], &stored[..8]] {
            assert_eq!(key_id_of(other), None);
        }
    }
}
