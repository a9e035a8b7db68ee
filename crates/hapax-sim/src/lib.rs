//! Workloads, fault injection and the crash harness behind the tests of Hapax.

pub mod kills;
pub mod orders;
