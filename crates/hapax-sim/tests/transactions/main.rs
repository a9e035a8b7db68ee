//! Transactions in the user's databases with real processes: workers and servers are killed, and workers frozen, at whatever
//! point; each transaction takes effect once, and its run has the result of the execution that did.
//!
//! What happens is waited for, never timed. With `HAPAX_LONG` there are far more kills.

mod bank;
mod kills;
mod zombies;
