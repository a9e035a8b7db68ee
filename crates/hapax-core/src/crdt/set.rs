//! Sets: one that only grows, and one from which things can be taken out.

use super::{Counts, Crdt, Replica, take_in};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A set that only grows.
///
/// ```
/// use hapax_core::crdt::{Crdt, GSet};
/// let mut seen = GSet::default();
/// [GSet::of("a"), GSet::of("b"), GSet::of("a")].map(|delta| seen.merge(delta));
/// assert_eq!(seen.iter().collect::<Vec<_>>(), [&"a", &"b"]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GSet<T: Ord>(BTreeSet<T>);

impl<T: Ord> Default for GSet<T> {
    fn default() -> Self {
        Self(BTreeSet::new())
    }
}

impl<T: Ord> GSet<T> {
    /// This alone: what to write to add it.
    pub fn of(value: T) -> Self {
        Self(BTreeSet::from([value]))
    }

    /// Whether it was added.
    pub fn contains(&self, value: &T) -> bool {
        self.0.contains(value)
    }

    /// All that was added, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

impl<T: Ord> FromIterator<T> for GSet<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl<T: Ord> Crdt for GSet<T> {
    fn merge(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// A set in which adding wins: whoever takes something out takes out what was added as far as it knew, and no more.
///
/// An addition has a number of its own. A value is in the set as long as one of its additions is; that an addition was
/// known and is gone says that it was taken out, so nothing is kept of what is gone but how far each replica has
/// counted.
///
/// ```
/// use hapax_core::crdt::{Crdt, OrSet, Replica};
/// let (ann, bob) = (Replica::from("ann"), Replica::from("bob"));
/// let mut tags = OrSet::default();
/// tags.merge(tags.added("red", &ann));
/// let both = [tags.removed(&"red"), tags.added("red", &bob)]; // side by side
/// both.map(|delta| tags.merge(delta));
/// assert!(tags.contains(&"red"), "bob's was added meanwhile");
/// tags.merge(tags.removed(&"red"));
/// assert!(!tags.contains(&"red"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound(serialize = "T: Serialize", deserialize = "T: Ord + Deserialize<'de>"))]
pub struct OrSet<T: Ord> {
    /// How far each replica has counted its additions.
    clock: Counts,
    /// The additions that are there. Pairs in order, because not every value can be a name in JSON.
    #[serde(with = "pairs")]
    added: BTreeMap<T, Counts>,
}

impl<T: Ord> Default for OrSet<T> {
    fn default() -> Self {
        Self { clock: BTreeMap::new(), added: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> OrSet<T> {
    /// What to write to add a value. It replaces what was known of that value, so a value that is added again and again
    /// takes no more room. Edits are chained: `tags.added(a, by).added(b, by)`.
    #[must_use]
    pub fn added(&self, value: T, by: &Replica) -> Self {
        let mut delta = self.clone();
        let count = delta.clock.entry(by.clone()).or_default();
        *count = count.saturating_add(1);
        delta.added.insert(value, BTreeMap::from([(by.clone(), *count)]));
        delta
    }

    /// What to write to take a value out.
    #[must_use]
    pub fn removed(&self, value: &T) -> Self {
        let mut delta = self.clone();
        delta.added.remove(value);
        delta
    }
}

impl<T: Ord> OrSet<T> {
    /// Whether it is in the set.
    pub fn contains(&self, value: &T) -> bool {
        self.added.contains_key(value)
    }

    /// All that is in the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.added.keys()
    }

    fn has_seen(&self, by: &Replica, count: u64) -> bool {
        self.clock.get(by).is_some_and(|seen| *seen >= count)
    }

    /// Those of the additions that the other has as well, or has never heard of.
    fn kept_by(&self, other: &Self) -> BTreeMap<T, Counts>
    where
        T: Clone,
    {
        let stays = |value: &T, by: &Replica, count: u64| {
            let has = other.added.get(value).is_some_and(|counts| counts.get(by) == Some(&count));
            has || !other.has_seen(by, count)
        };
        let kept = |(value, counts): (&T, &Counts)| {
            let counts = counts.iter().filter(|(by, count)| stays(value, by, **count));
            let counts: Counts = counts.map(|(by, count)| (by.clone(), *count)).collect();
            (!counts.is_empty()).then(|| (value.clone(), counts))
        };
        self.added.iter().filter_map(kept).collect()
    }
}

impl<T: Ord + Clone> Crdt for OrSet<T> {
    fn merge(&mut self, other: Self) {
        let theirs = other.kept_by(self);
        self.added = self.kept_by(&other);
        for (value, counts) in theirs {
            take_in(self.added.entry(value).or_default(), counts);
        }
        take_in(&mut self.clock, other.clock);
    }
}

/// A map as a list of pairs.
mod pairs {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
    where
        K: Ord + Deserialize<'de>,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
    }
}
