//! Throwaway servers for tests: started in seconds, gone with the process that started them.
//!
//! | item | what it is for |
//! |---|---|
//! | [`postgres`], [`mysql`], [`redis`] | a fresh database for one test, on the server that the whole test run shares |
//! | [`Postgres`], [`MariaDb`], [`Redis`], [`Nats`] | a server of a test's own, which it may kill, freeze and restart |
//! | [`Server`] | what all have in common |
//! | [`Proxy`] | stands between a client and a server, counts round trips, loses and holds messages on cue |
//! | [`fresh_database`], [`sql`], [`redis_command`] | databases and statements through the servers' own clients |
//! | [`install_missing`] | the Debian packages that all of this takes |
//!
//! A server listens on 127.0.0.1 only, runs without privileges in a temporary folder of its own, and syncs as it would in
//! production: what it confirmed survives [`Server::kill`]. Redis is a cache, and comes back empty.

mod clock;
mod database;
mod error;
mod folder;
mod mariadb;
mod nats;
mod postgres;
mod process;
mod programs;
mod proxy;
mod redis;
mod server;
mod shared;

pub use database::{fresh_database, sql};
pub use error::ServerError;
pub use mariadb::MariaDb;
pub use nats::Nats;
pub use postgres::Postgres;
pub use programs::{clock_off_by, install_missing};
pub use proxy::{Counts, Proxy};
pub use redis::{Redis, redis_command};
pub use server::Server;
pub use shared::{MYSQL_VARIABLE, POSTGRES_VARIABLE, REDIS_VARIABLE, mysql, postgres, redis};
