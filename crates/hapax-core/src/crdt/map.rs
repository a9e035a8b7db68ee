//! A map of values that merge.

use super::Crdt;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Borrow,
    collections::{BTreeMap, btree_map::Entry},
};

/// A map whose values merge key by key. Keys only come; a value that can be taken back, such as [`OrSet`](super::OrSet),
/// says for itself that there is nothing left.
///
/// ```
/// use hapax_core::crdt::{Crdt, CrdtMap, GCounter, Replica};
/// let (paris, rome) = (Replica::from("paris"), Replica::from("rome"));
/// let mut votes = CrdtMap::<String, GCounter>::default();
/// let cast = |votes: &CrdtMap<String, GCounter>, by| votes.with("tea".into(), |tea| tea.added(by, 1));
/// let both = [cast(&votes, &paris), cast(&votes, &rome)]; // side by side
/// both.map(|delta| votes.merge(delta));
/// assert_eq!(votes.get("tea").map(GCounter::value), Some(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent, bound(deserialize = "K: Ord + Deserialize<'de>, V: Deserialize<'de>"))]
pub struct CrdtMap<K: Ord, V>(BTreeMap<K, V>);

impl<K: Ord, V> Default for CrdtMap<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, V> CrdtMap<K, V> {
    /// What to write to change a key's value: that key alone, with what the edit of its value answers. A key that isn't
    /// there yet begins with the value's default.
    ///
    /// Edits of one key are chained inside; other keys are written beside it, each from the state:
    ///
    /// ```
    /// # use hapax_core as hapax;
    /// use hapax_core::{crdt::{CrdtMap, GCounter, Replica}, state::State};
    /// # use serde::{Deserialize, Serialize};
    /// #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
    /// # #[state(crate = hapax)]
    /// struct Board { #[state(crdt)] votes: CrdtMap<String, GCounter> }
    /// let (mut board, ann) = (Board::default(), Replica::from("ann"));
    /// let tea = board.votes.with("tea".into(), |tea| tea.added(&ann, 1).added(&ann, 1));
    /// let milk = board.votes.with("milk".into(), |milk| milk.added(&ann, 1));
    /// board.apply(Board::delta().votes(tea).votes(milk));
    /// assert_eq!(board.votes.iter().map(|(_, votes)| votes.value()).collect::<Vec<_>>(), [1, 2]);
    /// ```
    #[must_use]
    pub fn with(&self, key: K, edit: impl FnOnce(&V) -> V) -> Self
    where
        V: Default,
    {
        let value = match self.0.get(&key) {
            Some(known) => edit(known),
            None => edit(&V::default()),
        };
        Self(BTreeMap::from([(key, value)]))
    }

    /// A key's value.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.0.get(key)
    }

    /// Keys and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter()
    }
}

impl<K: Ord, V: Crdt> Crdt for CrdtMap<K, V> {
    fn merge(&mut self, other: Self) {
        for (key, value) in other.0 {
            match self.0.entry(key) {
                Entry::Occupied(mut known) => known.get_mut().merge(value),
                Entry::Vacant(place) => {
                    place.insert(value);
                }
            }
        }
    }
}
