//! Moving house while everything dies: in one process at every call to either store, and as real processes that are killed
//! while workers go on in both stores. No run is lost, none is in two places, and the outside is called once.
//!
//! What happens is waited for, never timed. The seed of the kills is printed, and may be given as `HAPAX_SEED`; with
//! `HAPAX_LONG` there are a thousand runs.

mod crashes;
mod kills;
