//! One session with a server: set up, checked, and spoken to in MySQL's words.
//!
//! Invariant: a session that is handed out takes writes, commits durably, and waits for no lock for ever. Before anything is
//! awaited it is marked as spent, so that one whose answer was never read is never used again.
//!
//! Autocommit is off: a transaction begins by itself with its first statement, which saves the round trip of a BEGIN. A
//! question outside of a transaction is therefore followed by a COMMIT, so that no session rests with a lock.

use super::{
    MySqlOptions,
    error::{at_commit, at_open, cannot_connect, ends_session, fault, refused},
    health::Settings,
};
use crate::{
    error::StoreError,
    server::{
        chain::Chain,
        pool::{Connect, Pooled},
        sql::{Cell, Done, Fault, Inserts, Row, Session, Value},
        tls::{self, Mode},
    },
    store::BoxFuture,
};
use hapax_core::{error::code, limits::MAX_STATE_BYTES};
use mysql_async::{Conn, DriverError, Error, Opts, OptsBuilder, SslOpts, Statement, prelude::Queryable};
use rustls::CertificateError;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How long a connection may take.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// Statements that are kept prepared at the most: a server has room for 16382 of all its sessions.
const STATEMENTS: usize = 128;
/// What a packet holds beside the values of its statement.
const OVERHEAD: usize = 64 * 1024;
/// The server's clock, in microseconds since 1970: of this moment, not of the statement's start.
pub(super) const NOW: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)";

/// A statement in MySQL's words.
pub(super) fn translate(sql: &str, prefix: &str) -> String {
    sql.replace("{now}", NOW)
        .replace("{writable}", "@@GLOBAL.read_only IN ('0', 'OFF')")
        .replace("hapax_", prefix)
}

/// What every session of a store shares.
pub(super) struct Server {
    pub(super) address: Opts,
    pub(super) mode: Mode,
    pub(super) options: MySqlOptions,
    /// The server's address, without its password.
    pub(super) what: String,
    pub(super) round_trips: AtomicU64,
}

impl Server {
    /// A statement that finds our tables from any session.
    pub(super) fn words(&self, sql: &str) -> String {
        let database = self.address.db_name().unwrap_or_default().replace('`', "``");
        translate(sql, &format!("`{database}`.{}", self.options.shared.prefix))
    }
}

impl Connect for Arc<Server> {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Pooled>, StoreError>> {
        Box::pin(async move { Ok(Box::new(MySession::open(self).await?) as Box<dyn Pooled>) })
    }
}

/// Opens sessions that are only asked: each question is a transaction of its own, without a COMMIT to be sent after it.
pub(super) struct Asking(pub(super) Arc<Server>);

impl Connect for Asking {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Pooled>, StoreError>> {
        Box::pin(async move {
            let mut session = MySession::open(&self.0).await?;
            let set = session.conn.query_drop("SET SESSION autocommit = 1").await;
            set.map_err(|error| cannot_connect(&self.0.what, &self.0.address, &error))?;
            session.only_asks = true;
            Ok(Box::new(session) as Box<dyn Pooled>)
        })
    }
}

/// A session.
pub(super) struct MySession {
    pub(super) conn: Conn,
    pub(super) server: Arc<Server>,
    statements: HashMap<Box<str>, Statement>,
    pub(super) standing: Standing,
    /// Bytes that the values of one statement may have.
    room: usize,
    /// What is asked is over with its answer.
    only_asks: bool,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    Idle,
    /// The next statement begins a transaction.
    Begins,
    InTransaction,
    /// It must not be used again.
    Spent,
}

impl MySession {
    pub(super) async fn open(server: &Arc<Server>) -> Result<Self, StoreError> {
        let refuse = |error| cannot_connect(&server.what, &server.address, &error);
        let conn = match tokio::time::timeout(CONNECT, connect(&server.address, server.mode)).await {
            Ok(conn) => conn.map_err(refuse)?,
            Err(_) => {
                let why = "it doesn't answer: check that the server runs, and its address";
                return Err(refused(&server.what, why, code::CANNOT_OPEN));
            }
        };
        let (standing, statements) = (Standing::Idle, HashMap::new());
        let mut session =
            Self { conn, server: server.clone(), statements, standing, room: 0, only_asks: false };
        session.set_up().await.map_err(refuse)?;
        Ok(session)
    }

    /// The time zone is one without summer time: an hour that comes twice would be taken for the other one.
    async fn set_up(&mut self) -> mysql_async::Result<()> {
        let settings = format!(
            "SET SESSION TRANSACTION ISOLATION LEVEL {}; SET SESSION autocommit = 0, \
             sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
             innodb_lock_wait_timeout = 5, lock_wait_timeout = 60, wait_timeout = 600, sql_safe_updates = 0, \
             completion_type = 'NO_CHAIN', sql_select_limit = 18446744073709551615, sql_big_selects = 1 \
             /*M! , max_statement_time = 60, idle_transaction_timeout = 60 */",
            self.server.options.shared.isolation.words()
        );
        self.server.round_trips.fetch_add(2, Ordering::Relaxed);
        self.conn.query_drop(settings).await?;
        let packet: Option<u64> = self.conn.query_first("SELECT @@max_allowed_packet").await?;
        let packet = usize::try_from(packet.unwrap_or_default()).unwrap_or(usize::MAX);
        self.room = packet.saturating_sub(OVERHEAD);
        self.conn.query_drop("COMMIT").await
    }

    /// Refuses a server that is too old, takes no writes, or may lose what it has committed.
    pub(super) async fn check(&mut self) -> Result<(), StoreError> {
        let what = self.server.what.clone();
        let found = Settings::ask(self).await.map_err(|fault| at_open(&what, fault))?;
        if found.is_too_old() {
            let why =
                format!("it is {}, older than MySQL 8.0.1 or MariaDB 10.6: upgrade it", found.version());
            return Err(refused(&what, why, code::CANNOT_OPEN));
        }
        if found.is_read_only() {
            return Err(refused(&what, "it is read-only: name the primary", code::READ_ONLY));
        }
        if found.number("max_allowed_packet") < MAX_STATE_BYTES as u64 {
            let why = format!(
                "its max_allowed_packet of {} bytes is too small for a state: set it to {} or more",
                found.number("max_allowed_packet"),
                4 * MAX_STATE_BYTES
            );
            return Err(refused(&what, why, code::CANNOT_OPEN));
        }
        if found.logs_statements() {
            let why = "its binary log has the format STATEMENT, which can't hold what is written here: \
                       set binlog_format = ROW";
            return Err(refused(&what, why, code::CANNOT_OPEN));
        }
        let Some(why) = found.loses_commits() else { return Ok(()) };
        let why = format!("it may lose what it has committed: {why}");
        if self.server.options.shared.allow_unsafe {
            tracing::warn!(store = %what, "{why}");
            return Ok(());
        }
        Err(refused(&what, why, code::CANNOT_OPEN))
    }

    /// Bytes that the values of one statement may have.
    pub(super) fn room(&self) -> usize {
        self.room
    }

    /// A table as it is named here.
    pub(super) fn table(&self, name: &str) -> String {
        name.replace("hapax_", &self.server.options.shared.prefix)
    }

    /// What is done with each table.
    pub(super) fn rights(&self) -> &'static [&'static str] {
        self.server.options.shared.rights()
    }

    /// What names our tables among all of the server.
    pub(super) fn place(&self) -> String {
        format!("{} {}", self.server.address.db_name().unwrap_or_default(), self.server.options.shared.prefix)
    }

    /// Sends a text of ours, whose tables are named as configured; where the session stands afterwards.
    pub(super) async fn text(&mut self, sql: &str, then: TextEnd) -> Result<(), Fault> {
        self.sends()?;
        let named = self.table(sql);
        let answer = self.conn.query_drop(named).await;
        let standing = match then {
            TextEnd::Idle => Standing::Idle,
            TextEnd::InTransaction => Standing::InTransaction,
        };
        self.answered(standing, answer).map_err(fault)
    }

    /// Marks it as spent until the answer is here; where it stood.
    pub(super) fn sends(&mut self) -> Result<Standing, Fault> {
        match std::mem::replace(&mut self.standing, Standing::Spent) {
            Standing::Spent => Err(Fault::Nothing("the connection to the server is lost".into())),
            standing => {
                self.server.round_trips.fetch_add(1, Ordering::Relaxed);
                Ok(standing)
            }
        }
    }

    /// The answer is here, so the session stands there, unless it is over.
    pub(super) fn answered<T>(
        &mut self,
        standing: Standing,
        answer: mysql_async::Result<T>,
    ) -> mysql_async::Result<T> {
        if !answer.as_ref().is_err_and(ends_session) {
            self.standing = standing;
        }
        answer
    }

    async fn statement(&mut self, sql: &str) -> Result<Statement, Fault> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let standing = self.sends()?;
        if self.statements.len() >= STATEMENTS {
            for (_, statement) in self.statements.drain() {
                self.conn.close(statement).await.map_err(fault)?;
            }
        }
        let answer = self.conn.prep(translate(sql, &self.server.options.shared.prefix)).await;
        let statement = self.answered(standing, answer).map_err(fault)?;
        self.statements.insert(sql.into(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement, in a transaction or alone.
    async fn run(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Answer, Fault> {
        let size = values.iter().map(Value::size).sum();
        if size > self.room {
            return Err(Fault::TooLarge { size, limit: self.room });
        }
        let statement = self.statement(sql).await?;
        let before = self.sends()?;
        let bound: Vec<mysql_async::Value> = values.iter().map(bind).collect();
        let answer = self.conn.exec::<mysql_async::Row, _, _>(&statement, bound).await;
        let after = if self.only_asks { Standing::Idle } else { Standing::InTransaction };
        let rows = self.answered(after, answer).map_err(fault)?;
        let there_already = self.conn.last_insert_id().is_some_and(|id| id != 0);
        let changed = if there_already { 0 } else { self.conn.affected_rows() };
        if before == Standing::Idle && !self.only_asks {
            self.text("COMMIT", TextEnd::Idle).await?;
        }
        Ok(Answer { rows, changed })
    }

    pub(super) async fn commit_now(&mut self) -> Result<(), Fault> {
        if self.standing == Standing::Begins {
            self.standing = Standing::Idle;
            return Ok(());
        }
        self.sends()?;
        let done = self.conn.query_drop("COMMIT").await.map_err(at_commit);
        if matches!(done, Ok(()) | Err(Fault::Again(_))) {
            self.standing = Standing::Idle;
        }
        done
    }

    pub(super) async fn roll_back(&mut self) -> Result<(), Fault> {
        match self.standing {
            Standing::InTransaction => self.text("ROLLBACK", TextEnd::Idle).await,
            Standing::Idle | Standing::Begins => {
                self.standing = Standing::Idle;
                Ok(())
            }
            Standing::Spent => Err(Fault::Nothing("the connection to the server is lost".into())),
        }
    }
}

/// Where a session stands after a text.
#[derive(Clone, Copy)]
pub(super) enum TextEnd {
    Idle,
    InTransaction,
}

/// What came of a statement.
struct Answer {
    rows: Vec<mysql_async::Row>,
    changed: u64,
}

impl Session for MySession {
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Done<'a, u64> {
        Box::pin(async move { Ok(self.run(sql, values).await?.changed) })
    }

    fn rows<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Done<'a, Vec<Row>> {
        Box::pin(async move { self.run(sql, values).await?.rows.into_iter().map(row).collect() })
    }

    fn begin(&mut self) -> Done<'_, ()> {
        let begun = match self.standing {
            Standing::Idle | Standing::Begins => {
                self.standing = Standing::Begins;
                Ok(())
            }
            Standing::InTransaction | Standing::Spent => {
                Err(Fault::Nothing("the session can't begin a transaction".into()))
            }
        };
        Box::pin(std::future::ready(begun))
    }

    fn begin_reading(&mut self) -> Done<'_, ()> {
        let sql = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
                   START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";
        Box::pin(self.text(sql, TextEnd::InTransaction))
    }

    fn commit(&mut self) -> Done<'_, ()> {
        Box::pin(self.commit_now())
    }

    fn rollback(&mut self) -> Done<'_, ()> {
        Box::pin(self.roll_back())
    }

    fn write_chains<'a>(&'a mut self, chains: &'a [Chain]) -> Done<'a, Vec<bool>> {
        Box::pin(self.write(chains))
    }

    fn insert_all<'a>(&'a mut self, tables: &'a [Inserts<'a>]) -> Done<'a, ()> {
        Box::pin(self.insert_rows(tables))
    }

    /// Of a row that is there nothing is changed, which would count as one row like a new one. So it leaves a word: an id,
    /// as no table of ours makes one.
    fn unless_there(&self) -> &'static str {
        " ON DUPLICATE KEY UPDATE namespace = IF(LAST_INSERT_ID(1) = 1, namespace, namespace)"
    }
}

impl Pooled for MySession {
    fn is_sound(&self) -> bool {
        matches!(self.standing, Standing::Idle | Standing::Begins) && !self.conn.is_disconnected()
    }

    fn takes_writes(&mut self) -> BoxFuture<'_, Result<bool, Fault>> {
        Box::pin(async move {
            // It may have come back before its first statement.
            self.standing = Standing::Idle;
            // A number on some servers, a word on others.
            let rows = self.rows("SELECT 1 FROM DUAL WHERE @@GLOBAL.read_only IN ('0', 'OFF')", &[]);
            match tokio::time::timeout(Duration::from_secs(5), rows).await {
                Ok(rows) => Ok(!rows?.is_empty() || self.server.options.shared.allow_read_only),
                Err(_) => Ok(false),
            }
        })
    }
}

/// Connects, encrypted as the address demands.
pub(super) async fn connect(address: &Opts, mode: Mode) -> mysql_async::Result<Conn> {
    let refused = match Conn::new(address.clone()).await {
        Err(error) => error,
        connected => return connected,
    };
    let opts = OptsBuilder::from_opts(address.clone());
    match mode {
        Mode::Prefer if matches!(refused, Error::Driver(DriverError::NoClientSslFlagFromServer)) => {
            Conn::new(opts.ssl_opts(None::<SslOpts>)).await
        }
        Mode::VerifyCa => match name_on_certificate(&refused) {
            Some(name) => {
                let ssl = address.ssl_opts().cloned().unwrap_or_default();
                Conn::new(opts.ssl_opts(ssl.with_danger_tls_hostname_override(Some(name)))).await
            }
            None => Err(refused),
        },
        _ => Err(refused),
    }
}

/// A name on a certificate that is refused for its name alone. The driver can't leave the name out of its check, so a
/// server whose name doesn't matter is asked for by one that it has.
fn name_on_certificate(error: &Error) -> Option<String> {
    let rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) =
        tls::cause(error)?
    else {
        return None;
    };
    // Each is written as `DnsName("…")` or `IpAddress(…)`.
    let name =
        |one: &String| Some(one.split_once('(')?.1.strip_suffix(')')?.trim_matches('"').replace('*', "any"));
    presented.iter().find_map(name)
}

fn bind(value: &Value<'_>) -> mysql_async::Value {
    match value {
        Value::Int(value) => (*value).into(),
        Value::Text(text) => text.map(str::as_bytes).into(),
        Value::Blob(bytes) => (*bytes).into(),
    }
}

pub(super) fn row(row: mysql_async::Row) -> Result<Row, Fault> {
    let cell = |value| match value {
        mysql_async::Value::NULL => Ok(Cell::Null),
        mysql_async::Value::Int(value) => Ok(Cell::Int(value)),
        mysql_async::Value::UInt(value) => Ok(Cell::Int(value.cast_signed())),
        mysql_async::Value::Bytes(bytes) => Ok(Cell::Blob(bytes)),
        other => Err(Fault::damage(format!("the server answers {other:?}"))),
    };
    Ok(Row(row.unwrap().into_iter().map(cell).collect::<Result<_, _>>()?))
}
