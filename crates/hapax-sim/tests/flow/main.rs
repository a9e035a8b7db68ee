//! Flow control whose keepers die: in one process at every call to the store, and as two real processes that are killed again
//! and again, on every SQL store. No door lets one too many in, no slot is lost, no bucket is emptied twice, and one run lives
//! under a name.
//!
//! What happens is waited for, never timed. The seed of the kills is printed, and may be given as `HAPAX_SEED`; with
//! `HAPAX_LONG` there are five times as many kills.

mod crashes;
mod kills;
