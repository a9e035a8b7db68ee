//! Runs in PostgreSQL: for fleets of workers on many machines.
//!
//! Invariant: a step's commit is one statement, so one round trip and one transaction; what is inserted is selected from
//! what its fence has updated.
//!
//! | file | what it holds |
//! |---|---|
//! | `connection`, `tls`, `schema`, `error` | a session and what it demands of its server; its encryption; the tables; SQLSTATEs |
//! | `commit` | the one statement |
//! | `beside`, `requests`, `inbox` | tables of a database beside those of runs |
//! | `listen`, `health` | what other processes say; what the server says of itself |
//!
//! What is done in other transactions, and how runs share them, is in `server`, with MySQL.

mod beside;
mod commit;
mod connection;
mod error;
mod health;
mod inbox;
mod listen;
mod requests;
mod schema;
mod tls;
mod user;

use crate::{
    codec::PayloadCodec,
    db::Statement,
    error::StoreError,
    server::{
        OnServer, ServerStore,
        address::{check_password, check_prefix, hidden, understood},
        clock_of,
        options::{Options, shared_options},
        pool::Sessions,
        sql::{Done, Fault, Session, one},
        tls::{Mode, Words, take},
    },
    store::Hint,
};
use connection::{PgSession, Server, translate};
use error::{deepest, refused};
use hapax_core::error::code;
use listen::Listening;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::broadcast;
use tokio_postgres::{Config, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

pub use crate::server::Isolation;
pub use inbox::PostgresInbox;
pub use requests::PostgresRequests;
pub use user::PostgresDatabase;

/// How long a connection may take, unless the address says something else.
const CONNECT: Duration = Duration::from_secs(10);

/// A connection on which nothing was said, or confirmed, for so long is asked whether the other side is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Encryption in libpq's words. Its `allow` encrypts only when the server insists; here it does so whenever it can.
const WORDS: Words = Words {
    mode: "sslmode",
    root: "sslrootcert",
    modes: &[
        ("disable", Mode::Disable),
        ("prefer", Mode::Prefer),
        ("allow", Mode::Prefer),
        ("require", Mode::Require),
        ("verify-ca", Mode::VerifyCa),
        ("verify-full", Mode::VerifyFull),
    ],
    turn_on: "ssl = on",
};

/// How a server is used.
///
/// ```
/// use hapax_store::postgres::{Isolation, PostgresOptions};
/// let options = PostgresOptions::default().schema("workflows").isolation(Isolation::Serializable);
/// ```
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    schema: String,
    shared: Options,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { schema: "public".into(), shared: Options::default() }
    }
}

impl PostgresOptions {
    /// The schema of the tables, which must be there; `public` by default.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    shared_options!();

    /// A statement that finds our tables from any session.
    fn words(&self, sql: &str) -> String {
        translate(sql, &format!("\"{}\".{}", self.schema.replace('"', "\"\""), self.shared.prefix))
    }
}

/// Runs in PostgreSQL.
///
/// ```no_run
/// use hapax_store::{ListFilter, Store, postgres::{PostgresOptions, PostgresStore}};
/// # async fn example() -> Result<(), hapax_store::StoreError> {
/// let store = PostgresStore::open("postgres://localhost/orders", PostgresOptions::default()).await?;
/// assert!(store.list(ListFilter::default()).await?.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// What can't be used is refused when it is opened, with what to do:
///
/// ```
/// use hapax_store::postgres::{PostgresOptions, PostgresStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let nobody = PostgresStore::open("postgres://127.0.0.1:1/orders?user=a", PostgresOptions::default()).await;
/// assert!(nobody.unwrap_err().to_string().contains("check that the server runs"));
/// # }
/// ```
pub struct PostgresStore {
    store: ServerStore,
    server: Arc<Server>,
    listening: Listening,
}

impl PostgresStore {
    /// Connects, and creates the tables where there are none.
    ///
    /// Refuses, with [`StoreError::Open`], a server that can't be reached, is older than 13, takes no writes, or may
    /// lose what it has committed.
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Arc<Self>, StoreError> {
        let Options { sessions, answer_limit, must_exist, codec, .. } = options.shared.clone();
        let (server, mut first) = connect(url, options).await?;
        schema::migrate(&mut first, &server.what, must_exist).await?;
        let clock = clock_of(&mut first).await?;
        let sessions = Sessions::new(Arc::new(server.clone()), sessions, answer_limit);
        let store = ServerStore::new(sessions.clone(), sessions, codec, Arc::new(health::facts), clock);
        Ok(Arc::new(Self { store, server, listening: Listening::default() }))
    }

    /// How many round trips to the server this store has made.
    ///
    /// ```no_run
    /// # async fn example(store: &hapax_store::postgres::PostgresStore) {
    /// println!("{} round trips", store.round_trips());
    /// # }
    /// ```
    pub fn round_trips(&self) -> u64 {
        self.server.round_trips.load(Ordering::Relaxed)
    }
}

/// A session with a server that may be used, and what all its sessions share.
async fn connect(url: &str, options: PostgresOptions) -> Result<(Arc<Server>, PgSession), StoreError> {
    let bad = |why: String| refused(&hidden(url), why, code::BAD_URL);
    check_prefix(&options.shared.prefix).map_err(bad)?;
    let (config, tls) = address(url).map_err(bad)?;
    let (what, round_trips) = (hidden(url), Arc::<AtomicU64>::default());
    let server = Arc::new(Server { config, tls, options, what, round_trips });
    let first = PgSession::open(&server, None).await?;
    server.options.shared.admit(first.check().await)?;
    Ok((server, first))
}

/// By the moment at which the server was started: a standby that was promoted has the numbers of its primary, and not every
/// user may ask for those.
const IDENTITY: &str = "SELECT format('postgres %s %s %s', \
     (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint, oid, datname) \
     FROM pg_database WHERE datname = current_database()";

/// The parts of an address, and how its sessions are encrypted.
fn address(url: &str) -> Result<(Config, MakeRustlsConnect), String> {
    check_password(url)?;
    let (url, encryption) = take(&understood(url, "postgres")?, &WORDS)?;
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| deepest(&error))?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err("it names no host: postgres://user:password@host/database".into());
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT);
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(KEEP_ALIVE);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(KEEP_ALIVE);
    }
    config.ssl_mode(match encryption.mode {
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
    });
    Ok((config, tls::connector(&encryption)?))
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("server", &self.server.what).finish_non_exhaustive()
    }
}

impl OnServer for PostgresStore {
    fn server(&self) -> &ServerStore {
        &self.store
    }

    fn hear(&self) -> Option<broadcast::Receiver<Hint>> {
        Some(self.listening.hear(&self.server))
    }

    fn stop_hearing(&self) {
        self.listening.stop();
    }

    fn name<'a>(&'a self, session: &'a mut dyn Session) -> Done<'a, String> {
        Box::pin(async move {
            let name = one(session, IDENTITY, &[]).await?;
            Ok(name.ok_or_else(|| Fault::damage("the database has no name"))?.text(0)?.to_owned())
        })
    }

    fn words(&self, sql: &str) -> String {
        self.server.options.words(sql)
    }

    fn riding(&self, statements: Vec<Statement>) -> Vec<Statement> {
        let in_words = |statement: Statement| Statement { sql: self.words(&statement.sql), ..statement };
        user::together(statements).into_iter().map(in_words).collect()
    }
}
