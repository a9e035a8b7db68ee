//! Where Hapax keeps its runs: one transaction per step, fenced, with duplicates refused by the database.
//!
//! [`Store`] is the contract, [`MemoryStore`](memory::MemoryStore) the reference model,
//! [`SqliteStore`](sqlite::SqliteStore) the default. Every store passes the suite in [`conformance`].

pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod error;
pub mod memory;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod store;

pub use error::StoreError;
pub use store::*;
