//! Counters: each replica counts for itself, and the value is the sum.

use super::{Counts, Crdt, Replica, take_in};
use serde::{Deserialize, Serialize};

/// A count that only grows.
///
/// ```
/// use hapax_core::crdt::{Crdt, GCounter, Replica};
/// let (paris, rome) = (Replica::from("paris"), Replica::from("rome"));
/// let mut likes = GCounter::default();
/// let both = [likes.added(&paris, 2), likes.added(&rome, 3)]; // side by side
/// both.map(|delta| likes.merge(delta));
/// likes.merge(likes.added(&paris, 1));
/// assert_eq!(likes.value(), 6);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GCounter(Counts);

impl GCounter {
    /// What to write so that it is larger by so much: the replica's own count alone. A count that overflows stays at
    /// its largest. Edits of one replica are chained.
    #[must_use]
    pub fn added(&self, by: &Replica, amount: u64) -> Self {
        Self(Counts::from([(by.clone(), self.count(by).saturating_add(amount))]))
    }

    /// The sum over all replicas, at most `u64::MAX`.
    pub fn value(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    fn count(&self, by: &Replica) -> u64 {
        self.0.get(by).copied().unwrap_or_default()
    }

    /// What is known of one replica.
    fn of(&self, by: &Replica) -> Self {
        Self(self.0.get_key_value(by).map(|(by, count)| (by.clone(), *count)).into_iter().collect())
    }
}

impl Crdt for GCounter {
    fn merge(&mut self, other: Self) {
        take_in(&mut self.0, other.0);
    }
}

/// A count that goes up and down.
///
/// ```
/// use hapax_core::crdt::{Crdt, PnCounter, Replica};
/// let (buyer, seller) = (Replica::from("buyer"), Replica::from("seller"));
/// let mut stock = PnCounter::default();
/// let both = [stock.added(&seller, 5), stock.removed(&buyer, 7)];
/// both.map(|delta| stock.merge(delta));
/// assert_eq!(stock.value(), -2);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PnCounter {
    up: GCounter,
    down: GCounter,
}

impl PnCounter {
    /// What to write so that it is larger by so much: the replica's own counts, so that another edit can be chained.
    #[must_use]
    pub fn added(&self, by: &Replica, amount: u64) -> Self {
        Self { up: self.up.added(by, amount), down: self.down.of(by) }
    }

    /// What to write so that it is smaller by so much.
    #[must_use]
    pub fn removed(&self, by: &Replica, amount: u64) -> Self {
        Self { up: self.up.of(by), down: self.down.added(by, amount) }
    }

    /// All that was added, less all that was removed. No two counts of `u64` are too far apart for it.
    pub fn value(&self) -> i128 {
        i128::from(self.up.value()) - i128::from(self.down.value())
    }
}

impl Crdt for PnCounter {
    fn merge(&mut self, other: Self) {
        self.up.merge(other.up);
        self.down.merge(other.down);
    }
}
