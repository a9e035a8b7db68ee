//! From a node to a consumer's database, exactly once: engines with their relays, a broker and a consumer, as real
//! processes that are killed at random moments, and what the database says in the end.
//!
//! What happens is waited for, never timed. The seed of the kills is printed, and may be given as `HAPAX_SEED`; with
//! `HAPAX_LONG` there are five times as many messages.

mod kills;
mod post;
