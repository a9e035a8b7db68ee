//! One server of each kind for a whole test run, and in it a database for each test.

use std::sync::{Mutex, PoisonError};

use crate::redis::fresh;
use crate::{MariaDb, Postgres, RabbitMq, Redis, ServerError, fresh_database};

/// The variable with the URL of the PostgreSQL server that a test run shares.
///
/// ```
/// assert_eq!(hapax_servers::POSTGRES_VARIABLE, "HAPAX_TEST_POSTGRES");
/// ```
pub const POSTGRES_VARIABLE: &str = "HAPAX_TEST_POSTGRES";

/// The variable with the URL of the MariaDB or MySQL server that a test run shares.
///
/// ```
/// assert_eq!(hapax_servers::MYSQL_VARIABLE, "HAPAX_TEST_MYSQL");
/// ```
pub const MYSQL_VARIABLE: &str = "HAPAX_TEST_MYSQL";

/// The variable with the URL of the Redis server that a test run shares.
///
/// ```
/// assert_eq!(hapax_servers::REDIS_VARIABLE, "HAPAX_TEST_REDIS");
/// ```
pub const REDIS_VARIABLE: &str = "HAPAX_TEST_REDIS";

/// The variable with the URL of the RabbitMQ server that a test run shares: it takes long to start.
///
/// ```
/// assert_eq!(hapax_servers::RABBITMQ_VARIABLE, "HAPAX_TEST_RABBITMQ");
/// ```
pub const RABBITMQ_VARIABLE: &str = "HAPAX_TEST_RABBITMQ";

static OWN_POSTGRES: Mutex<Option<Postgres>> = Mutex::new(None);
static OWN_MARIADB: Mutex<Option<MariaDb>> = Mutex::new(None);
static OWN_REDIS: Mutex<Option<Redis>> = Mutex::new(None);
static OWN_RABBITMQ: Mutex<Option<RabbitMq>> = Mutex::new(None);

/// The URL of a fresh PostgreSQL database for one test. It is on the server of [`POSTGRES_VARIABLE`], which `cargo xtask
/// test` sets; without the variable this process starts a server of its own, once, and ends it when it ends.
///
/// ```no_run
/// let database = hapax_servers::postgres()?;
/// hapax_servers::sql(&database, "CREATE TABLE t (v int)")?;
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
///
/// # Errors
///
/// Those of [`Postgres::start`] and [`fresh_database`].
pub fn postgres() -> Result<String, ServerError> {
    fresh_database(&shared(POSTGRES_VARIABLE, &OWN_POSTGRES, Postgres::start, |server| server.url())?)
}

/// The URL of a fresh MariaDB or MySQL database for one test, as [`postgres`] with [`MYSQL_VARIABLE`].
///
/// ```no_run
/// let database = hapax_servers::mysql()?;
/// hapax_servers::sql(&database, "CREATE TABLE t (v int)")?;
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
///
/// # Errors
///
/// Those of [`MariaDb::start`] and [`fresh_database`].
pub fn mysql() -> Result<String, ServerError> {
    fresh_database(&shared(MYSQL_VARIABLE, &OWN_MARIADB, MariaDb::start, |server| server.url())?)
}

/// The URL of an empty Redis database for one test, as [`postgres`] with [`REDIS_VARIABLE`]. `FLUSHALL` would take those of
/// other tests; `FLUSHDB` doesn't.
///
/// ```no_run
/// let database = hapax_servers::redis()?;
/// assert_eq!(hapax_servers::redis_command(&database, &["DBSIZE"])?, "0");
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
///
/// # Errors
///
/// Those of [`Redis::start`] and [`redis_command`](crate::redis_command).
pub fn redis() -> Result<String, ServerError> {
    fresh(&shared(REDIS_VARIABLE, &OWN_REDIS, Redis::start, |server| server.url())?)
}

/// The URL of a RabbitMQ server, as [`postgres`] with [`RABBITMQ_VARIABLE`]. Tests share all of it: they name their queues and
/// exchanges so that no other test has the same.
///
/// ```no_run
/// let broker = hapax_servers::rabbitmq()?;
/// assert!(broker.starts_with("amqp://guest:guest@127.0.0.1:"));
/// # Ok::<(), hapax_servers::ServerError>(())
/// ```
///
/// # Errors
///
/// Those of [`RabbitMq::start`].
pub fn rabbitmq() -> Result<String, ServerError> {
    shared(RABBITMQ_VARIABLE, &OWN_RABBITMQ, RabbitMq::start, |server| server.url())
}

/// The URL of the server.
fn shared<S>(
    variable: &str,
    own: &Mutex<Option<S>>,
    start: impl FnOnce() -> Result<S, ServerError>,
    url: impl FnOnce(&S) -> String,
) -> Result<String, ServerError> {
    if let Ok(base_url) = std::env::var(variable) {
        return Ok(base_url);
    }
    // A test that panicked while it waited for the server left it whole or not there.
    let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
    let server = match &mut *own {
        Some(server) => server,
        none => none.insert(start()?),
    };
    Ok(url(server))
}
