//! Mutants of the shipped path: each breaks one promise, so that the tests can show that they would notice.
//!
//! Without the feature `canary` this is a constant `false` and costs nothing.

/// Whether the named mutant is alive: the feature is on and `HAPAX_CANARY` names it.
///
/// ```
/// # // With the feature off, or without HAPAX_CANARY, none is alive.
/// assert!(!hapax_core::canary::on("gate_open"));
/// ```
#[cfg(feature = "canary")]
pub fn on(name: &str) -> bool {
    static PICKED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    PICKED.get_or_init(|| std::env::var("HAPAX_CANARY").ok()).as_deref() == Some(name)
}

/// Whether the named mutant is alive: never, since the feature `canary` is off.
///
/// ```
/// # // With the feature off, or without HAPAX_CANARY, none is alive.
/// assert!(!hapax_core::canary::on("gate_open"));
/// ```
#[cfg(not(feature = "canary"))]
#[inline(always)]
pub const fn on(_name: &str) -> bool {
    false
}
