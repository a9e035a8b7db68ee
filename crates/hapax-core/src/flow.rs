//! Flow control: how many runs go at a time, how soon, and which of them first. The plain data, and the sums.
//!
//! Invariant: what is decided here follows from the terms, what is stored, and a time that is passed in. A limit never
//! depends on who asks: every process that has the same rows comes to the same answer.

use crate::{
    canary,
    error::{Code, Coded, code},
    id::{InvalidId, check_name},
    limits::{MAX_FLOW_KEYS, MAX_FLOW_SLOTS, MAX_PRIORITY},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How far one level of priority lets a run go before others: as if it had come so much earlier.
///
/// ```
/// use hapax_core::flow::{HEAD_START, Terms};
/// let urgent = Terms { priority: 3, ..Terms::default() };
/// assert_eq!(urgent.head_start_us(), 3 * HEAD_START.as_micros() as i64);
/// ```
pub const HEAD_START: Duration = Duration::from_secs(10);

/// The longest time that a rate or a debounce may count with.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// A concurrency key: at most so many of the runs that name it go at a time.
///
/// ```
/// use hapax_core::flow::Key;
/// let key = Key::new("customer-42", 2);
/// assert_eq!((&*key.name, key.most), ("customer-42", 2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The key.
    pub name: String,
    /// How many runs at a time, as this run sees it.
    pub most: u32,
}

impl Key {
    /// At most `most` runs at a time.
    pub fn new(name: impl Into<String>, most: u32) -> Self {
        Self { name: name.into(), most }
    }

    /// The lowest number of a slot that is free; `None`: as many runs go as may. `taken` is in order.
    ///
    /// ```
    /// use hapax_core::flow::Key;
    /// let key = Key::new("customer-42", 2);
    /// assert_eq!((key.free_slot(&[]), key.free_slot(&[0]), key.free_slot(&[1])), (Some(0), Some(1), Some(0)));
    /// assert_eq!(key.free_slot(&[0, 1]), None);
    /// ```
    pub fn free_slot(&self, taken: &[u32]) -> Option<u32> {
        let most = if canary::on("one_slot_more") { self.most + 1 } else { self.most };
        (0..most).find(|slot| taken.binary_search(slot).is_err())
    }
}

/// A token bucket by name: so many in a time, evenly, and a few at once.
///
/// In any window of time `w` no more than `burst + w / (per / limit)` go, whoever asks. What lies between two of them is
/// `per / limit`, rounded up to whole microseconds: never more than promised, and never more than a million in a second.
///
/// ```
/// use hapax_core::flow::Rate;
/// use std::time::Duration;
/// let rate = Rate::new("mail", 10, Duration::from_secs(1)).burst(2);
/// let now = 1_000_000;
/// let first = rate.reserve(None, now);
/// let second = rate.reserve(Some(first.arrival_us), now);
/// let third = rate.reserve(Some(second.arrival_us), now);
/// assert_eq!([first.at_us, second.at_us, third.at_us], [now, now, now + 100_000]);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// The bucket.
    pub name: String,
    /// How many in `per_us`.
    pub limit: u32,
    /// In how many microseconds.
    pub per_us: u64,
    /// How many at once after a time of rest.
    pub burst: u32,
}

/// A time that was reserved in a bucket.
///
/// ```
/// use hapax_core::flow::Reservation;
/// let reserved = Reservation { at_us: 1_500, arrival_us: 2_000 };
/// assert_eq!(reserved.wait(1_000).as_micros(), 500);
/// assert!(reserved.wait(9_000).is_zero());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reservation {
    /// When it may go, in microseconds since 1970 by the store's clock.
    pub at_us: i64,
    /// When the bucket will be as full as before: what the next one counts from.
    pub arrival_us: i64,
}

impl Reservation {
    /// How long to wait from that time of the store's on.
    pub fn wait(&self, now_us: i64) -> Duration {
        Duration::from_micros(u64::try_from(self.at_us.saturating_sub(now_us)).unwrap_or(0))
    }
}

impl Rate {
    /// So many in a time, one after the other; see [`burst`](Self::burst).
    pub fn new(name: impl Into<String>, limit: u32, per: Duration) -> Self {
        let per_us = u64::try_from(per.as_micros()).unwrap_or(u64::MAX);
        Self { name: name.into(), limit, per_us, burst: 1 }
    }

    /// So many may go at once when there was rest before.
    #[must_use]
    pub fn burst(mut self, burst: u32) -> Self {
        self.burst = burst;
        self
    }

    /// What lies between two that go. Rounded up: rounded down, more would go than promised.
    fn interval_us(&self) -> i64 {
        let interval = self.per_us.div_ceil(u64::from(self.limit.max(1)));
        i64::try_from(interval).unwrap_or(i64::MAX).clamp(1, LONGEST.as_micros() as i64)
    }

    /// Reserves the next time (generic cell rate algorithm); `arrival_us` is what the latest reservation left.
    pub fn reserve(&self, arrival_us: Option<i64>, now_us: i64) -> Reservation {
        let interval = self.interval_us();
        let arrival = arrival_us.map_or(now_us, |arrival| arrival.max(now_us));
        let tolerance = interval.saturating_mul(i64::from(self.burst.max(1)) - 1);
        Reservation {
            at_us: arrival.saturating_sub(tolerance).max(now_us),
            arrival_us: arrival.saturating_add(interval),
        }
    }

    /// Refuses a rate that no bucket has.
    pub fn check(&self) -> Result<(), BadTerms> {
        check_name("name of a rate", &self.name)?;
        let fits = (1..=LONGEST.as_micros() as u64).contains(&self.per_us);
        if self.limit == 0 || self.burst == 0 || !fits {
            return Err(BadTerms::Rate { name: self.name.clone() });
        }
        Ok(())
    }
}

/// Starts under one name become one run, that begins when it has been quiet for so long.
///
/// ```
/// use hapax_core::flow::Debounce;
/// use std::time::Duration;
/// let calm = Debounce::new("index-42", Duration::from_secs(5)).at_most(Duration::from_secs(60));
/// assert_eq!(calm.due_us(0, 1_000_000), 6_000_000, "five seconds after the latest start");
/// assert_eq!(calm.due_us(0, 58_000_000), 60_000_000, "but not later than a minute after the first");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Debounce {
    /// The name.
    pub name: String,
    /// How long no start must come, in microseconds.
    pub quiet_us: u64,
    /// How long after its first start the run begins at the latest, in microseconds.
    pub most_us: Option<u64>,
}

impl Debounce {
    /// Begins when nobody has started it for this long.
    pub fn new(name: impl Into<String>, quiet: Duration) -> Self {
        let quiet_us = u64::try_from(quiet.as_micros()).unwrap_or(u64::MAX);
        Self { name: name.into(), quiet_us, most_us: None }
    }

    /// Begins at the latest so long after its first start, however often it is started.
    #[must_use]
    pub fn at_most(mut self, most: Duration) -> Self {
        self.most_us = Some(u64::try_from(most.as_micros()).unwrap_or(u64::MAX));
        self
    }

    /// When the run begins that was first started then and is started again now.
    pub fn due_us(&self, first_us: i64, now_us: i64) -> i64 {
        let after = |from: i64, us: u64| from.saturating_add(i64::try_from(us).unwrap_or(i64::MAX));
        let quiet = after(now_us, self.quiet_us);
        self.most_us.map_or(quiet, |most| quiet.min(after(first_us, most))).max(now_us)
    }

    fn check(&self) -> Result<(), BadTerms> {
        check_name("name of a debounce", &self.name)?;
        let fits = |us: u64| (1..=LONGEST.as_micros() as u64).contains(&us);
        if !fits(self.quiet_us) || self.most_us.is_some_and(|most| !fits(most) || most < self.quiet_us) {
            return Err(BadTerms::Debounce { name: self.name.clone() });
        }
        Ok(())
    }
}

/// The terms on which a run starts.
///
/// ```
/// use hapax_core::flow::{Key, Terms};
/// let terms = Terms { keys: vec![Key::new("b", 1), Key::new("a", 2)], ..Terms::default() }.in_order();
/// assert_eq!(terms.keys[0].name, "a", "all runs take their keys in one order");
/// assert!(terms.check().is_ok() && terms.parks());
/// assert!(Terms::default().is_plain());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// Its concurrency keys, by name. It holds a slot of each from before its first step until it is over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    /// How many levels it goes before others; 0 to [`MAX_PRIORITY`].
    pub priority: u8,
    /// The bucket in which it reserves its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// The name under which at most one run lives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub singleton: Option<String>,
    /// The name under which starts become one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debounce: Option<Debounce>,
    /// The store's: when it may begin, in microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before_us: Option<i64>,
    /// The store's: what its slots and names were taken under. A retry takes them anew, under another one, so that a late
    /// word on the end before it frees nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub token: String,
}

impl Terms {
    /// With its keys in the order in which every run takes them: two runs never wait for each other.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.keys.sort();
        self
    }

    /// The terms on which a failed run goes on: it takes its slots and its singleton's name again, under another token.
    #[must_use]
    pub fn again(self, token: String) -> Self {
        Self { token, not_before_us: None, rate: None, debounce: None, ..self }
    }

    /// Whether they ask for nothing.
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the run is parked when it is created, until the store lets it go.
    pub fn parks(&self) -> bool {
        !self.keys.is_empty() || self.rate.is_some() || self.debounce.is_some()
    }

    /// Whether the run holds something that others wait for.
    pub fn holds(&self) -> bool {
        !self.keys.is_empty() || self.singleton.is_some() || self.debounce.is_some()
    }

    /// How much earlier than it did the run counts as having come, in microseconds.
    pub fn head_start_us(&self) -> i64 {
        let level = if canary::on("priority_ignores_age") {
            3_000_000_000_000
        } else {
            HEAD_START.as_micros() as i64
        };
        i64::from(self.priority) * level
    }

    /// The terms as the store keeps them.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("terms are plain data")
    }

    /// Refuses what no store can keep.
    pub fn check(&self) -> Result<(), BadTerms> {
        if self.keys.len() > MAX_FLOW_KEYS {
            return Err(BadTerms::TooManyKeys { given: self.keys.len() });
        }
        for key in &self.keys {
            check_name("concurrency key", &key.name)?;
            if !(1..=MAX_FLOW_SLOTS).contains(&key.most) {
                return Err(BadTerms::Slots { key: key.name.clone(), given: key.most });
            }
        }
        let again = |(at, key): &(usize, &Key)| self.keys[..*at].iter().any(|before| before.name == key.name);
        if let Some((_, twice)) = self.keys.iter().enumerate().find(again) {
            return Err(BadTerms::Twice { key: twice.name.clone() });
        }
        if self.priority > MAX_PRIORITY {
            return Err(BadTerms::Priority { given: self.priority });
        }
        self.rate.as_ref().map_or(Ok(()), Rate::check)?;
        self.singleton.as_ref().map_or(Ok(()), |name| check_name("name of a singleton", name))?;
        self.debounce.as_ref().map_or(Ok(()), Debounce::check)?;
        let others = self.rate.is_some() || self.singleton.is_some() || !self.keys.is_empty();
        if self.debounce.is_some() && others { Err(BadTerms::NotAlone) } else { Ok(()) }
    }
}

/// Terms that no store can keep.
///
/// ```
/// use hapax_core::{error::Coded, flow::{Key, Terms}};
/// let none = Terms { keys: vec![Key::new("customer-42", 0)], ..Terms::default() };
/// let error = none.check().unwrap_err();
/// assert_eq!(error.code(), "HX0170");
/// assert!(error.to_string().contains("`customer-42`"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadTerms {
    /// A name is no name.
    #[error(transparent)]
    Name(#[from] InvalidId),
    /// More keys than a run may have.
    #[error("a run has at most {MAX_FLOW_KEYS} concurrency keys, and this one has {given}")]
    TooManyKeys {
        /// How many were given.
        given: usize,
    },
    /// A key with a number of slots that can't be.
    #[error("concurrency key `{key}` lets {given} runs go at a time, and must let 1 to {MAX_FLOW_SLOTS}")]
    Slots {
        /// The key.
        key: String,
        /// What was given.
        given: u32,
    },
    /// A key is named twice.
    #[error("concurrency key `{key}` is named twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// A priority that can't be.
    #[error("the priority is {given}, and must be from 0 to {MAX_PRIORITY}")]
    Priority {
        /// What was given.
        given: u8,
    },
    /// A rate of nothing, or in no time.
    #[error("rate `{name}` must let at least one go, in a microsecond to a year")]
    Rate {
        /// The bucket.
        name: String,
    },
    /// A quiet time that can't be.
    #[error(
        "debounce `{name}` must be quiet for a microsecond to a year, and wait at most no less than that"
    )]
    Debounce {
        /// The name.
        name: String,
    },
    /// A debounced run has other terms.
    #[error("a debounced run can have a priority, but no key, no rate and no singleton's name")]
    NotAlone,
}

impl Coded for BadTerms {
    fn code(&self) -> Code {
        match self {
            BadTerms::Name(error) => error.code(),
            _ => code::BAD_TERMS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_window_holds_more_than_its_bucket_allows() {
        let rate = Rate::new("mail", 10, Duration::from_secs(1)).burst(3);
        let (mut arrival, mut starts) = (None, vec![]);
        for n in 0..200_i64 {
            let reserved = rate.reserve(arrival, n * 7_000);
            arrival = Some(reserved.arrival_us);
            starts.push(reserved.at_us);
        }
        for (first, from) in starts.iter().enumerate() {
            for (last, to) in starts.iter().enumerate().skip(first) {
                let allowed = 3 + (to - from) / 100_000;
                assert!((last - first + 1) as i64 <= allowed, "{first} to {last}");
            }
        }
        assert!(starts.is_sorted());
    }

    #[test]
    fn an_interval_that_is_no_whole_number_of_microseconds_is_rounded_up() {
        let second = Duration::from_secs(1);
        for (limit, interval) in [(600_000, 2), (3, 333_334), (1_000_000, 1), (u32::MAX, 1), (1000, 1000)] {
            let rate = Rate::new("mail", limit, second);
            let (mut arrival, mut last) = (None, 0);
            for _ in 0..100 {
                let reserved = rate.reserve(arrival, 0);
                (arrival, last) = (Some(reserved.arrival_us), reserved.at_us);
            }
            assert_eq!(last, 99 * interval, "{limit} in a second");
        }
    }

    #[test]
    fn a_bucket_that_rested_lets_a_burst_go_and_no_more() {
        let rate = Rate::new("mail", 1, Duration::from_secs(60)).burst(2);
        let first = rate.reserve(None, 0);
        let later = rate.reserve(Some(first.arrival_us), 3_600_000_000);
        let next = rate.reserve(Some(later.arrival_us), 3_600_000_000);
        let last = rate.reserve(Some(next.arrival_us), 3_600_000_000);
        assert_eq!([later.at_us, next.at_us], [3_600_000_000; 2]);
        assert_eq!(last.at_us, 3_660_000_000);
    }

    #[test]
    fn terms_that_cannot_be_are_refused_with_what_is_wrong() {
        let keys = |names: &[&str]| names.iter().map(|name| Key::new(*name, 1)).collect::<Vec<_>>();
        let with = |keys| Terms { keys, ..Terms::default() }.in_order();
        let calm = || Some(Debounce::new("d", Duration::from_secs(1)));
        let cases = [
            (with(keys(&["a", "b", "c", "d", "e"])), "at most 4"),
            (with(keys(&["a", "a"])), "named twice"),
            (with(vec![Key::new("a", 0)]), "must let 1 to"),
            (with(keys(&["two\nlines"])), "concurrency key"),
            (Terms { priority: 101, ..Terms::default() }, "from 0 to 100"),
            (
                Terms { rate: Some(Rate::new("r", 0, Duration::from_secs(1))), ..Terms::default() },
                "at least one",
            ),
            (Terms { rate: Some(Rate::new("r", 1, Duration::ZERO)), ..Terms::default() }, "at least one"),
            (
                Terms { debounce: Some(Debounce::new("d", Duration::ZERO)), ..Terms::default() },
                "must be quiet",
            ),
            (
                Terms { debounce: calm(), singleton: Some("s".into()), ..Terms::default() },
                "no singleton's name",
            ),
        ];
        for (terms, words) in cases {
            let error = terms.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
