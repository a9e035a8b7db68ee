//! Where Hapax keeps its runs: one transaction per step, fenced, with duplicates refused by the database.
//!
//! [`Store`] is the contract, [`MemoryStore`] the reference model,
//! [`SqliteStore`] the default; [`outbox`] is the part of the contract that relays use, [`schedules`] the one of runs that start by the clock, [`flow`] the one that says how many
//! of them go at a time. Every store passes the suite in [`conformance`].
//! For fleets of workers there are servers, each behind a feature: `postgres`, and `mysql` for MySQL and MariaDB.

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod blobs;
mod census;
pub mod check;
pub mod clock;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod db;
pub mod depot;
pub mod error;
mod fact;
#[cfg(feature = "conformance")]
pub mod faulty;
mod fleet;
pub mod flow;
pub mod house;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub mod inbox;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod inspection;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod judge;
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
pub mod outbox;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
mod prepare;
pub mod recode;
pub mod requests;
pub mod schedules;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod server;
pub mod sharded;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod store;

pub use check::check_limits;
pub use clock::Clock;
pub use error::StoreError;
pub use memory::MemoryStore;
pub use sharded::ShardedStore;
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore};
pub use store::*;
