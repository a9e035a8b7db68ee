//! Runs in MySQL or MariaDB: for fleets of workers on many machines.
//!
//! Invariant: a step's commit is four round trips and one transaction; nothing is inserted before its fence has met
//! exactly the rows that it demanded.
//!
//! | file | what it holds |
//! |---|---|
//! | `connection`, `schema`, `error` | a session and what it demands of its server; the tables; numbers of errors |
//! | `commit` | chains of many runs, written together |
//! | `health` | what the server says of itself |
//!
//! What is done in other transactions, and how runs share them, is in `server`, with PostgreSQL.
//!
//! Tested on MariaDB 10.11; the statements keep to what MySQL 8 understands as well.

mod commit;
mod connection;
mod error;
mod health;
mod schema;

use crate::{
    codec::{Codec, PayloadCodec},
    error::StoreError,
    server::{
        OnServer, ServerStore,
        address::{check_prefix, hidden},
        pool::Sessions,
    },
};
use connection::{Asking, MySession, Server};
use error::refused;
use hapax_core::error::code;
use mysql_async::{Opts, OptsBuilder};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use crate::server::Isolation;

/// A connection on which nothing was said for so long is asked whether the other side is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// How a server is used.
///
/// ```
/// use hapax_store::mysql::{Isolation, MySqlOptions};
/// let options = MySqlOptions::default().prefix("workflows_").isolation(Isolation::Serializable);
/// ```
#[derive(Clone)]
pub struct MySqlOptions {
    prefix: String,
    sessions: usize,
    isolation: Isolation,
    allow_unsafe: bool,
    codec: Codec,
}

impl Default for MySqlOptions {
    fn default() -> Self {
        Self {
            prefix: "hapax_".into(),
            sessions: 16,
            isolation: Isolation::default(),
            allow_unsafe: false,
            codec: Codec::default(),
        }
    }
}

impl MySqlOptions {
    /// What the names of the tables begin with; `hapax_` by default. Letters, digits and `_`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sessions at the most; 16 by default.
    #[must_use]
    pub fn sessions(mut self, most: usize) -> Self {
        self.sessions = most.max(1);
        self
    }

    /// What transactions see of each other.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Warns about a server that may lose what it has committed, and uses it nevertheless.
    #[must_use]
    pub fn allow_unsafe(mut self, allow: bool) -> Self {
        self.allow_unsafe = allow;
        self
    }

    /// Encrypts, or otherwise changes, what is stored of states, frontiers, journal entries and messages.
    #[must_use]
    pub fn payload_codec(mut self, codec: Arc<dyn PayloadCodec>) -> Self {
        self.codec = Codec(Some(codec));
        self
    }
}

impl std::fmt::Debug for MySqlOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlOptions")
            .field("prefix", &self.prefix)
            .field("sessions", &self.sessions)
            .field("isolation", &self.isolation)
            .field("allow_unsafe", &self.allow_unsafe)
            .field("payload_codec", &self.codec.0.is_some())
            .finish()
    }
}

/// Runs in MySQL or MariaDB.
///
/// ```no_run
/// use hapax_store::{ListFilter, Store, mysql::{MySqlOptions, MySqlStore}};
/// # async fn example() -> Result<(), hapax_store::StoreError> {
/// let store = MySqlStore::open("mysql://root@localhost:3306/orders", MySqlOptions::default()).await?;
/// assert!(store.list(ListFilter::default()).await?.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// What keeps a store from opening is told with its cure:
///
/// ```
/// use hapax_core::error::Coded;
/// use hapax_store::mysql::{MySqlOptions, MySqlStore};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let refused = MySqlStore::open("mysql://localhost:3306", MySqlOptions::default()).await.unwrap_err();
/// assert_eq!(refused.code(), "HX0050", "{refused}"); // docs/errors/HX0050.md
/// # }
/// ```
pub struct MySqlStore {
    store: ServerStore,
    server: Arc<Server>,
}

impl MySqlStore {
    /// Connects, and creates the tables where there are none.
    ///
    /// Refuses, with [`StoreError::Open`], a server that can't be reached, is older than MySQL 8.0.1 or MariaDB 10.6,
    /// takes no writes or only small ones, or may lose what it has committed.
    pub async fn open(url: &str, options: MySqlOptions) -> Result<Arc<Self>, StoreError> {
        let what = hidden(url);
        let bad = |why: String| refused(&what, why, code::BAD_URL);
        check_prefix(&options.prefix).map_err(bad)?;
        let address = address(url).map_err(bad)?;
        let (sessions, codec) = (options.sessions, options.codec.clone());
        let server = Arc::new(Server { address, options, what, round_trips: AtomicU64::new(0) });
        let mut first = MySession::open(&server).await?;
        first.check().await?;
        schema::migrate(&mut first, &server.what).await?;
        let sessions = Sessions::new(Arc::new(server.clone()), sessions);
        let asking = Sessions::new(Arc::new(Asking(server.clone())), 1);
        let store = ServerStore::new(sessions, asking, codec, Arc::new(health::facts));
        Ok(Arc::new(Self { store, server }))
    }

    /// How many round trips to the server this store has made.
    ///
    /// ```no_run
    /// # async fn example(store: &hapax_store::mysql::MySqlStore) {
    /// println!("{} round trips", store.round_trips());
    /// # }
    /// ```
    pub fn round_trips(&self) -> u64 {
        self.server.round_trips.load(Ordering::Relaxed)
    }
}

/// The parts of an address, with what every session of ours asks of its connection.
fn address(url: &str) -> Result<Opts, String> {
    let opts = Opts::from_url(url).map_err(|error| error.to_string())?;
    if opts.db_name().is_none_or(str::is_empty) {
        return Err("it names no database: mysql://user:password@host:3306/database".into());
    }
    let keep_alive = opts.tcp_keepalive().unwrap_or(KEEP_ALIVE);
    // An update answers how many rows it met. Statements are kept by the session, which counts what it sends.
    let opts = OptsBuilder::from_opts(opts).client_found_rows(true).stmt_cache_size(0).prefer_socket(false);
    Ok(opts.tcp_keepalive(Some(keep_alive)).into())
}

impl std::fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MySqlStore").field("server", &self.server.what).finish_non_exhaustive()
    }
}

impl OnServer for MySqlStore {
    fn server(&self) -> &ServerStore {
        &self.store
    }
}
