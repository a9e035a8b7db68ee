//! Runs in MySQL or MariaDB: for fleets of workers on many machines.
//!
//! Invariant: a commit is one transaction, and two round trips unless its rows are large; nothing is inserted before its fence
//! has met exactly the rows that it demanded.
//!
//! | file | what it holds |
//! |---|---|
//! | `connection`, `schema`, `error` | a session and what it demands of its server; the tables; numbers of errors |
//! | `commit`, `fence`, `script`, `send` | chains of many runs, written together; their one fence; a transaction as one text |
//! | `health` | what the server says of itself |
//! | `beside`, `requests`, `inbox` | tables of a database beside those of runs |
//!
//! What is done in other transactions, and how runs share them, is in `server`, with PostgreSQL.
//!
//! Tested on MariaDB 10.11; the statements keep to what MySQL 8 understands as well.

mod beside;
mod commit;
mod connection;
mod error;
mod fence;
mod health;
mod inbox;
mod requests;
mod schema;
mod script;
mod send;
mod user;

use crate::{
    codec::PayloadCodec,
    error::StoreError,
    server::{
        OnServer, ServerStore,
        address::{check_password, check_path, check_prefix, hidden, understood},
        clock_of,
        options::{Options, shared_options},
        pool::Sessions,
        sql::{Done, Session},
        tls::{self, Mode, Tls, Words},
    },
};
use connection::{Asking, MySession, Server};
use error::refused;
use hapax_core::error::code;
use health::Settings;
use mysql_async::{Opts, OptsBuilder, SslOpts};
use rustls::crypto::CryptoProvider;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub use crate::server::Isolation;
pub use inbox::MySqlInbox;
pub use requests::MySqlRequests;
pub use user::MySqlDatabase;

/// A connection on which nothing was said for so long is asked whether the other side is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Encryption in the words of MySQL's clients.
const WORDS: Words = Words {
    mode: "ssl-mode",
    root: "ssl-ca",
    modes: &[
        ("DISABLED", Mode::Disable),
        ("PREFERRED", Mode::Prefer),
        ("REQUIRED", Mode::Require),
        ("VERIFY_CA", Mode::VerifyCa),
        ("VERIFY_IDENTITY", Mode::VerifyFull),
    ],
    turn_on: "ssl_cert and ssl_key",
};

/// What the driver reads from an address, and we replace.
const UNHEARD: [&str; 4] = ["require_ssl", "verify_ca", "verify_identity", "built_in_roots"];

/// How a server is used.
///
/// ```
/// use hapax_store::mysql::{Isolation, MySqlOptions};
/// let options = MySqlOptions::default().prefix("workflows_").isolation(Isolation::Serializable);
/// ```
#[derive(Debug, Clone, Default)]
pub struct MySqlOptions {
    shared: Options,
}

impl MySqlOptions {
    shared_options!();
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
        let Options { sessions, answer_limit, must_exist, codec, .. } = options.shared.clone();
        let (server, mut first) = connect(url, options).await?;
        schema::migrate(&mut first, &server.what, must_exist).await?;
        let clock = clock_of(&mut first).await?;
        let sessions = Sessions::new(Arc::new(server.clone()), sessions, answer_limit);
        let asking = Sessions::new(Arc::new(Asking(server.clone())), 1, answer_limit);
        let store = ServerStore::new(sessions, asking, codec, Arc::new(health::facts), clock);
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

/// A session with a server that may be used, and what all its sessions share.
async fn connect(url: &str, options: MySqlOptions) -> Result<(Arc<Server>, MySession), StoreError> {
    let what = hidden(url);
    let bad = |why: String| refused(&what, why, code::BAD_URL);
    check_prefix(&options.shared.prefix).map_err(bad)?;
    let (address, mode) = address(url).map_err(bad)?;
    let server = Arc::new(Server { address, mode, options, what, round_trips: AtomicU64::new(0) });
    let mut first = MySession::open(&server).await?;
    server.options.shared.admit(first.check().await)?;
    Ok((server, first))
}

/// What names a database of a server.
fn identity(server: &Settings, address: &Opts) -> String {
    format!("mysql {} {}", server.server(), address.db_name().unwrap_or_default())
}

/// The parts of an address, with what every session of ours asks of its connection.
fn address(url: &str) -> Result<(Opts, Mode), String> {
    check_path(url)?;
    check_password(url)?;
    let (url, mut tls) = tls::take(&understood(url, "mysql")?, &WORDS)?;
    check_unheard(&url)?;
    let opts = Opts::from_url(&url).map_err(|error| error.to_string())?;
    if opts.socket().is_some() {
        tls.mode = over_socket(tls.mode)?;
    }
    if opts.db_name().is_none_or(str::is_empty) {
        return Err("it names no database: mysql://user:password@host:3306/database".into());
    }
    let keep_alive = opts.tcp_keepalive().unwrap_or(KEEP_ALIVE);
    // The driver looks an address in brackets up as if it were a name.
    let host = opts.ip_or_hostname().trim_start_matches('[').trim_end_matches(']').to_owned();
    // An update answers how many rows it met. Statements are kept by the session, which counts what it sends.
    let opts = OptsBuilder::from_opts(opts)
        .ip_or_hostname(host)
        .client_found_rows(true)
        .stmt_cache_size(0)
        .prefer_socket(false);
    let opts = opts.tcp_keepalive(Some(keep_alive)).ssl_opts(encryption(&tls));
    Ok((opts.into(), tls.mode))
}

/// Refuses the driver's own words for encryption: ours are in their place, so nobody would hear them.
fn check_unheard(url: &str) -> Result<(), String> {
    let options = url.split_once('?').map_or("", |(_, options)| options);
    let mut names = options.split('&').map(|option| option.split('=').next().unwrap_or_default());
    let word = match names.find(|name| UNHEARD.contains(name)) {
        None => return Ok(()),
        Some("verify_ca") => WORDS.of(Mode::VerifyCa),
        Some("verify_identity") => WORDS.of(Mode::VerifyFull),
        Some("built_in_roots") => format!("{}=…", WORDS.root),
        Some(_) => WORDS.of(Mode::Require),
    };
    Err(format!("encryption is demanded in the words of MySQL's own clients: write {word}"))
}

/// What a socket of this machine can do: nobody else hears it, and the driver doesn't encrypt it.
fn over_socket(mode: Mode) -> Result<Mode, String> {
    match mode {
        Mode::Disable | Mode::Prefer => Ok(Mode::Disable),
        mode => {
            Err(format!("a socket isn't encrypted: leave {} out, or name the server's host", WORDS.of(mode)))
        }
    }
}

fn encryption(tls: &Tls) -> Option<SslOpts> {
    if tls.mode == Mode::Disable {
        return None;
    }
    if CryptoProvider::get_default().is_none() {
        // The driver takes the process's own; another thread may have been faster.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    let anyone = matches!(tls.mode, Mode::Prefer | Mode::Require);
    let roots = tls.root.iter().map(|pem| pem.clone().into()).collect();
    let opts = SslOpts::default().with_root_certs(roots).with_disable_built_in_roots(tls.root.is_some());
    Some(opts.with_danger_accept_invalid_certs(anyone))
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

    fn name<'a>(&'a self, session: &'a mut dyn Session) -> Done<'a, String> {
        Box::pin(async move { Ok(identity(&Settings::ask(session).await?, &self.server.address)) })
    }

    fn words(&self, sql: &str) -> String {
        self.server.words(sql)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv6_stands_in_brackets() {
        let (opts, _) = address("mysql://root@[::1]:3306/orders").unwrap();
        assert_eq!((opts.ip_or_hostname(), opts.tcp_port()), ("::1", 3306));
    }

    #[test]
    fn what_would_go_unheard_is_refused_with_the_word_for_it() {
        let refused = |url: &str| address(url).map(drop).unwrap_err();
        for (option, word) in [
            ("require_ssl=true", "ssl-mode=REQUIRED"),
            ("x=1&verify_ca=true", "ssl-mode=VERIFY_CA"),
            ("verify_identity=true", "ssl-mode=VERIFY_IDENTITY"),
            ("built_in_roots=false", "ssl-ca=…"),
            ("ssl-mode=DISABLED&require_ssl=true", "ssl-mode=REQUIRED"),
        ] {
            let said = refused(&format!("mysql://me@db/orders?{option}"));
            assert!(said.ends_with(&format!("write {word}")), "{said}");
        }
        assert!(refused("mysql://me:p@ss@db/orders").contains("%40"));
    }

    #[test]
    fn a_socket_is_not_encrypted_and_whoever_demands_it_is_told() {
        let place = "mysql://me@localhost/orders?socket=%2Frun%2Fmysqld.sock";
        let (opts, mode) = address(place).unwrap();
        assert_eq!((opts.ssl_opts().is_none(), mode), (true, Mode::Disable));
        assert!(address(&format!("{place}&ssl-mode=REQUIRED")).unwrap_err().contains("ssl-mode=REQUIRED"));
    }
}
