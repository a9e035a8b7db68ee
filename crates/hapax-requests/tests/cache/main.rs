//! The read cache on a real Redis: what it answers, what it never answers, and what it costs when it is away.
//!
//! What happens is waited for, never timed. Whether a database was asked is counted on its way.

mod faults;
mod hits;
mod kit;
mod lies;
mod promises;
