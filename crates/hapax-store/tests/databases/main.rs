//! Transactions in databases of the user's: on PostgreSQL, MariaDB and SQLite, each of them real. A test whose name
//! begins with a row is that row of the table of faults in the design.

mod control;
mod introspection;
mod kit;
mod lost;
mod markers;
mod mysql;
mod postgres;
mod raw;
mod riding;
mod setup;
mod sqlite;
mod values;
