//! What is counted of a store at a look, each look at a bounded cost.

use hapax_core::limits::MAX_COUNTED;
use std::fmt;

/// How many there are, counted no further than [`MAX_COUNTED`].
///
/// ```
/// use hapax_store::Tally;
/// # use hapax_core::limits::MAX_COUNTED;
/// assert_eq!(Tally::exactly(7).to_string(), "7");
/// let many = Tally::exactly(MAX_COUNTED + 1);
/// assert_eq!((many.count, many.or_more), (MAX_COUNTED, true));
/// assert_eq!(many.to_string(), "100000 or more");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// So many were counted.
    pub count: u64,
    /// There are others that weren't.
    pub or_more: bool,
}

impl Tally {
    /// So many; beyond [`MAX_COUNTED`] only that there are more.
    pub fn exactly(count: u64) -> Self {
        Self { count: count.min(MAX_COUNTED), or_more: count > MAX_COUNTED }
    }

    /// Whether there is none.
    pub fn is_none(self) -> bool {
        self.count == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.count, if self.or_more { " or more" } else { "" })
    }
}
