//! The store's clock: the only place of this crate that asks for the time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970. A clock that is set before 1970 reads as 0.
///
/// ```
/// assert!(hapax_store::clock::now_us() > 1_700_000_000_000_000);
/// ```
#[allow(
    clippy::disallowed_methods,
    reason = "leases and retention need the wall clock, and this is its door"
)]
pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
