//! Registers: one value, and a rule for which of two it is.

use super::{Crdt, Replica};
use serde::{Deserialize, Serialize};

/// The value that was written last.
///
/// A write counts one more than the latest that its writer has seen, so it comes after whatever it has seen; of writes
/// side by side the one with the greater replica stays, everywhere the same. No clock is asked.
///
/// ```
/// use hapax_core::crdt::{Crdt, Lww, Replica};
/// let (ann, bob) = (Replica::from("ann"), Replica::from("bob"));
/// let mut title = Lww::default();
/// let both = [title.set("draft", &bob), title.set("notes", &ann)];
/// both.map(|delta| title.merge(delta));
/// assert_eq!(title.get(), Some(&"draft"), "bob is greater than ann");
/// title.merge(title.set("final", &ann));
/// assert_eq!(title.get(), Some(&"final"), "and later is later");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lww<T>(Option<Written<T>>);

/// Compared by its first fields first. The value decides only where a name was used twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written<T> {
    at: u64,
    by: Replica,
    value: T,
}

impl<T> Default for Lww<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Lww<T> {
    /// What to write so that this is the value. Of two that both begin with the state, by one replica, the greater value
    /// stays; a chained one is later.
    #[must_use]
    pub fn set(&self, value: T, by: &Replica) -> Self {
        let at = self.0.as_ref().map_or(0, |written| written.at).saturating_add(1);
        Self(Some(Written { at, by: by.clone(), value }))
    }

    /// The value, if there ever was one.
    pub fn get(&self) -> Option<&T> {
        self.0.as_ref().map(|written| &written.value)
    }
}

impl<T: Ord> Crdt for Lww<T> {
    fn merge(&mut self, other: Self) {
        if other.0 > self.0 {
            *self = other;
        }
    }
}

/// The largest value that was written.
///
/// ```
/// use hapax_core::crdt::{Crdt, Max};
/// let mut high = Max::default();
/// [3, 9, 5].map(|value| high.merge(Max::of(value)));
/// assert_eq!(high.get(), Some(&9));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Max<T>(Option<T>);

/// The smallest value that was written.
///
/// ```
/// use hapax_core::crdt::{Crdt, Min};
/// let mut low = Min::default();
/// [3, 9, 5].map(|value| low.merge(Min::of(value)));
/// assert_eq!(low.get(), Some(&3));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Min<T>(Option<T>);

impl<T> Default for Max<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Default for Min<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Max<T> {
    /// This value.
    pub fn of(value: T) -> Self {
        Self(Some(value))
    }

    /// The largest, if there is one.
    pub fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T> Min<T> {
    /// This value.
    pub fn of(value: T) -> Self {
        Self(Some(value))
    }

    /// The smallest, if there is one.
    pub fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }
}

impl<T: Ord> Crdt for Max<T> {
    fn merge(&mut self, other: Self) {
        // Nothing is less than any value.
        if other.0 > self.0 {
            *self = other;
        }
    }
}

impl<T: Ord> Crdt for Min<T> {
    fn merge(&mut self, other: Self) {
        if self.0.is_none() || other.0.is_some() && other.0 < self.0 {
            *self = other;
        }
    }
}
