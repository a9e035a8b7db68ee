//! Requests on every database: the promises of all, and what only real servers and files can show.

mod clocks;
mod faults;
mod in_mysql;
mod in_postgres;
mod in_sqlite;
mod kit;
mod promises;
mod setup;
