//! Schedules whose keepers die: in one process at every call to the store, and as real processes that are killed about
//! every second, on every SQL store. Each time starts one run: not two, and not none.
//!
//! What happens is waited for, never timed. The seed of the kills is printed, and may be given as `HAPAX_SEED`; with
//! `HAPAX_LONG` there are five times as many kills.

mod crashes;
mod kills;
