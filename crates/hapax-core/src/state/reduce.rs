//! The built-in reducers: each folds a written value into the one that is there.
//!
//! Invariant: every reducer is a pure `fn(&mut T, T)`, the signature that `#[state(reduce = path)]` asks for, so
//! a reducer of the user's can be built from these. None of them can panic or depend on the build's settings.

use crate::crdt::Crdt;
use std::time::Duration;

/// A value that `#[state(sum)]` can add up.
///
/// Integers and durations saturate: an overflow must not panic in one build and wrap in another, because two
/// workers would then disagree about one step. Floats add as IEEE 754 says.
///
/// ```
/// use hapax_core::state::Sum;
/// let mut total = 250u8;
/// total.add(10);
/// assert_eq!(total, 255);
/// ```
///
/// ```
/// use hapax_core::state::reduce;
/// let mut value = 1u8;
/// reduce::sum(&mut value, 2);
/// assert_eq!(value, 3);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be summed",
    label = "`#[state(sum)]` needs a number, a `Duration`, or a type that implements `Sum`"
)]
pub trait Sum {
    /// Adds `other` to it.
    fn add(&mut self, other: Self);
}

macro_rules! sum {
    ($add:ident: $($type:ty)*) => {$(
        impl Sum for $type {
            fn add(&mut self, other: Self) {
                *self = self.$add(other);
            }
        }
    )*};
}

sum!(saturating_add: u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize Duration);

macro_rules! sum_floats {
    ($($type:ty)*) => {$(
        impl Sum for $type {
            fn add(&mut self, other: Self) {
                *self += other;
            }
        }
    )*};
}

sum_floats!(f32 f64);

/// Names the two halves of a map's item, so that the derive can speak of keys and values of any map type.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`#[state(merge)]` needs a map, and `{Self}` is not an entry of one",
    label = "not a map"
)]
pub trait Pair {
    /// The first half.
    type Key;
    /// The second half.
    type Value;
}

impl<K, V> Pair for (K, V) {
    type Key = K;
    type Value = V;
}

/// The new value replaces the old.
///
/// ```
/// use hapax_core::state::reduce;
/// let mut value = 1;
/// reduce::last(&mut value, 2);
/// assert_eq!(value, 2);
/// ```
pub fn last<T>(value: &mut T, new: T) {
    *value = new;
}

/// The new elements follow the old: lists grow, sets unite, and a map's equal keys take the new value.
///
/// ```
/// use hapax_core::state::reduce;
/// let mut value = vec![1];
/// reduce::extend(&mut value, vec![2, 3]);
/// assert_eq!(value, [1, 2, 3]);
/// ```
pub fn extend<T: IntoIterator + Extend<T::Item>>(value: &mut T, new: T) {
    value.extend(new);
}

/// The new value is added.
///
/// ```
/// use hapax_core::state::reduce;
/// let mut value = 1u8;
/// reduce::sum(&mut value, 2);
/// assert_eq!(value, 3);
/// ```
pub fn sum<T: Sum>(value: &mut T, new: T) {
    value.add(new);
}

/// The smaller value stays; one that doesn't compare (NaN) changes nothing.
///
/// ```
/// use hapax_core::state::reduce;
/// let mut value = 3;
/// reduce::min(&mut value, 2);
/// assert_eq!(value, 2);
/// ```
pub fn min<T: PartialOrd>(value: &mut T, new: T) {
    if new < *value {
        *value = new;
    }
}

/// The larger value stays; one that doesn't compare (NaN) changes nothing.
///
/// ```
/// use hapax_core::state::reduce;
/// let mut value = 2;
/// reduce::max(&mut value, 3);
/// assert_eq!(value, 3);
/// ```
pub fn max<T: PartialOrd>(value: &mut T, new: T) {
    if new > *value {
        *value = new;
    }
}

/// [`min`] where `None` means "not yet": any value takes its place.
///
/// ```
/// use hapax_core::state::reduce;
/// let mut value = None;
/// reduce::min_some(&mut value, Some(2));
/// assert_eq!(value, Some(2));
/// ```
pub fn min_some<T: PartialOrd>(value: &mut Option<T>, new: Option<T>) {
    some(value, new, min);
}

/// [`max`] where `None` means "not yet": any value takes its place.
///
/// ```
/// use hapax_core::state::reduce;
/// let mut value = Some(2);
/// reduce::max_some(&mut value, None);
/// assert_eq!(value, Some(2));
/// ```
pub fn max_some<T: PartialOrd>(value: &mut Option<T>, new: Option<T>) {
    some(value, new, max);
}

fn some<T>(value: &mut Option<T>, new: Option<T>, reduce: fn(&mut T, T)) {
    match (value, new) {
        (_, None) => {}
        (Some(value), Some(new)) => reduce(value, new),
        (value, new) => *value = new,
    }
}

/// The type's own CRDT merge.
///
/// ```
/// use hapax_core::{crdt::Crdt, state::reduce};
/// struct Seen(u64);
/// impl Crdt for Seen {
///     fn merge(&mut self, other: Self) {
///         self.0 |= other.0;
///     }
/// }
/// let mut seen = Seen(0b001);
/// reduce::crdt(&mut seen, Seen(0b100));
/// reduce::crdt(&mut seen, Seen(0b100));
/// assert_eq!(seen.0, 0b101, "told twice is told once");
/// ```
pub fn crdt<T: Crdt>(value: &mut T, new: T) {
    value.merge(new);
}
