//! One session with a server: set up, checked, and spoken to in PostgreSQL's words.
//!
//! Invariant: a session that is handed out takes writes, commits durably, and waits for no lock for ever.

use super::{
    CONNECT, PostgresOptions,
    commit::{self, Needs},
    error::{cannot_connect, ends_session, fault, refused},
    listen,
};
use crate::{
    error::StoreError,
    server::{
        chain::Chain,
        pool::{Connect, Pooled},
        sql::{Cell, Done, Fault, Inserts, Row, Session, Value, insert_each, values},
    },
    store::{BoxFuture, Hint},
};
use hapax_core::error::code;
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::mpsc;
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, SimpleQueryMessage, Socket, Statement,
    tls::TlsStream,
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Statements that are kept prepared at the most.
const STATEMENTS: usize = 256;
/// The first version with all that is relied on.
const OLDEST: i64 = 130_000;

/// Who is told what is said on a channel.
pub(super) type Heard = mpsc::UnboundedSender<String>;

/// What every session of a store shares.
pub(super) struct Server {
    pub(super) config: Config,
    pub(super) tls: MakeRustlsConnect,
    pub(super) options: PostgresOptions,
    /// The server's address, without its password.
    pub(super) what: String,
    pub(super) round_trips: Arc<AtomicU64>,
}

impl Connect for Arc<Server> {
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Pooled>, StoreError>> {
        Box::pin(async move { Ok(Box::new(PgSession::open(self, None).await?) as Box<dyn Pooled>) })
    }
}

/// A session.
pub(super) struct PgSession {
    client: Client,
    server: Arc<Server>,
    statements: HashMap<Box<str>, Statement>,
    /// The statement that writes chains, by what they need.
    chains: HashMap<Needs, Statement>,
    standing: Standing,
    /// The server warned since this was last cleared.
    warned: Arc<AtomicBool>,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Idle,
    /// BEGIN goes with the next statement.
    Begins(&'static str),
    InTransaction,
    /// It must not be used again.
    Spent,
}

impl PgSession {
    /// Opens a session; `heard` is told what is said on the channels that it [listens](Self::listen) to, and dropped when
    /// the session ends.
    pub(super) async fn open(server: &Arc<Server>, heard: Option<Heard>) -> Result<Self, StoreError> {
        // The driver's own limit is that of a connection to each host, and not of what the host says then.
        let hosts = u32::try_from(server.config.get_hosts().len()).unwrap_or(1).max(1);
        let limit = server.config.get_connect_timeout().copied().unwrap_or(CONNECT) * hosts;
        let opened = tokio::time::timeout(limit, Self::connect(server, heard)).await;
        opened.unwrap_or_else(|_| {
            let why = "it doesn't answer: check that the server runs, and its address";
            Err(refused(&server.what, why, code::CANNOT_OPEN))
        })
    }

    async fn connect(server: &Arc<Server>, heard: Option<Heard>) -> Result<Self, StoreError> {
        let connected = server.config.connect(server.tls.clone()).await;
        let (client, connection) =
            connected.map_err(|error| cannot_connect(&server.what, &server.config, &error))?;
        let warned = Arc::<AtomicBool>::default();
        tokio::spawn(drive(connection, warned.clone(), heard));
        let session = Self {
            client,
            server: server.clone(),
            statements: HashMap::new(),
            chains: HashMap::new(),
            standing: Standing::Idle,
            warned,
        };
        session.set_up().await?;
        Ok(session)
    }

    async fn set_up(&self) -> Result<(), StoreError> {
        let PostgresOptions { schema, shared } = &self.server.options;
        let quoted = schema.replace('"', "\"\"");
        let settings = format!(
            "SET application_name = 'hapax'; SET search_path = \"{quoted}\"; SET lock_timeout = '5s'; \
             SET statement_timeout = '60s'; SET idle_in_transaction_session_timeout = '60s'; \
             SET client_min_messages = 'warning'; SET enable_seqscan = off; SET plan_cache_mode = 'force_generic_plan'; \
             SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
            shared.isolation.words()
        );
        let refuse = |error| cannot_connect(&self.server.what, &self.server.config, &error);
        self.client.batch_execute(&settings).await.map_err(refuse)
    }

    /// Hears what other stores with the same tables say.
    pub(super) async fn listen(&self) -> Result<(), StoreError> {
        self.server.round_trips.fetch_add(1, Ordering::Relaxed);
        let listened = self.client.batch_execute(&format!("LISTEN {}", self.channel())).await;
        listened.map_err(|error| cannot_connect(&self.server.what, &self.server.config, &error))
    }

    fn channel(&self) -> String {
        let PostgresOptions { schema, shared } = &self.server.options;
        listen::channel(schema, &shared.prefix)
    }

    /// Refuses a server that is too old, takes no writes, or may lose what it has committed.
    pub(super) async fn check(&self) -> Result<(), StoreError> {
        let what = &self.server.what;
        let ask = "SELECT current_setting('server_version_num'), pg_is_in_recovery(), current_setting('fsync'), \
                   current_setting('full_page_writes'), current_setting('synchronous_commit'), \
                   current_setting('server_version'), current_setting('default_transaction_read_only')";
        let answer = self
            .client
            .simple_query(ask)
            .await
            .map_err(|error| cannot_connect(what, &self.server.config, &error))?;
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let said = |column| row.and_then(|row| row.get(column)).unwrap_or_default();
        if is_too_old(said(0)) {
            let why = format!("it is {}, older than PostgreSQL 13: upgrade the server", said(5));
            return Err(refused(what, why, code::CANNOT_OPEN));
        }
        if said(1) == "t" {
            let why = "it is a standby, which takes no writes: name the primary";
            return Err(refused(what, why, code::READ_ONLY));
        }
        if said(6) == "on" {
            let why = "its transactions are read-only (default_transaction_read_only = on): turn that off for this user";
            return Err(refused(what, why, code::READ_ONLY));
        }
        let unsafe_settings: Vec<&str> = [
            (said(2) != "on", "fsync = off"),
            (said(3) != "on", "full_page_writes = off"),
            (said(4) == "off", "synchronous_commit = off"),
        ]
        .into_iter()
        .filter_map(|(is_unsafe, setting)| is_unsafe.then_some(setting))
        .collect();
        if unsafe_settings.is_empty() {
            return Ok(());
        }
        let why = format!("it may lose what it has committed ({}): turn it on", unsafe_settings.join(", "));
        if self.server.options.shared.allow_unsafe {
            tracing::warn!(store = %what, "{why}");
            return Ok(());
        }
        Err(refused(what, why, code::CANNOT_OPEN))
    }

    /// Runs a script of ours, whose tables are named as configured.
    pub(super) async fn script(&mut self, sql: &str) -> Result<(), Fault> {
        self.start().await?;
        self.server.round_trips.fetch_add(1, Ordering::Relaxed);
        let renamed = sql.replace("hapax_", &self.server.options.shared.prefix);
        self.client.batch_execute(&renamed).await.map_err(fault)
    }

    /// A table as it is named here.
    pub(super) fn table(&self, name: &str) -> String {
        name.replace("hapax_", &self.server.options.shared.prefix)
    }

    /// What is done with each table.
    pub(super) fn rights(&self) -> &'static [&'static str] {
        self.server.options.shared.rights()
    }

    /// The schema of the tables.
    pub(super) fn schema(&self) -> String {
        self.server.options.schema.clone()
    }

    /// Sends a BEGIN that was put off.
    async fn start(&mut self) -> Result<(), Fault> {
        if let Standing::Begins(sql) = self.standing {
            self.standing = Standing::InTransaction;
            self.server.round_trips.fetch_add(1, Ordering::Relaxed);
            self.client.batch_execute(sql).await.map_err(fault)?;
        }
        Ok(())
    }

    async fn statement(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Statement, Fault> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let types: Vec<Type> = values
            .iter()
            .map(|value| match value {
                Value::Int(_) => Type::INT8,
                Value::Text(_) => Type::TEXT,
                Value::Blob(_) => Type::BYTEA,
            })
            .collect();
        let translated = translate(sql, &self.server.options.shared.prefix);
        let statement = self.client.prepare_typed(&translated, &types).await.map_err(fault)?;
        if self.statements.len() >= STATEMENTS {
            self.statements.clear();
        }
        self.statements.insert(sql.into(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement, with the BEGIN that was put off in the same round trip.
    async fn query(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<tokio_postgres::Row>, Fault> {
        let statement = self.statement(sql, values).await?;
        let bound = bind(values);
        self.server.round_trips.fetch_add(1, Ordering::Relaxed);
        if let Standing::Begins(begin) = self.standing {
            self.standing = Standing::InTransaction;
            // Both are sent before either is answered.
            let (begun, rows) =
                futures::join!(self.client.batch_execute(begin), self.client.query(&statement, &bound));
            begun.map_err(|error| self.failed(error))?;
            return rows.map_err(|error| self.failed(error));
        }
        let rows = self.client.query(&statement, &bound).await;
        rows.map_err(|error| self.failed(error))
    }

    async fn change(&mut self, sql: &str, values: &[Value<'_>]) -> Result<u64, Fault> {
        let statement = self.statement(sql, values).await?;
        let bound = bind(values);
        self.server.round_trips.fetch_add(1, Ordering::Relaxed);
        if let Standing::Begins(begin) = self.standing {
            self.standing = Standing::InTransaction;
            let (begun, changed) =
                futures::join!(self.client.batch_execute(begin), self.client.execute(&statement, &bound));
            begun.map_err(|error| self.failed(error))?;
            return changed.map_err(|error| self.failed(error));
        }
        let changed = self.client.execute(&statement, &bound).await;
        changed.map_err(|error| self.failed(error))
    }

    /// A session that is of no more use is never lent again.
    fn failed(&mut self, error: tokio_postgres::Error) -> Fault {
        if ends_session(&error) {
            self.standing = Standing::Spent;
        }
        fault(error)
    }

    /// A transaction begins with the next statement.
    fn begins(&mut self, sql: &'static str) -> Result<(), Fault> {
        match self.standing {
            Standing::Idle | Standing::Begins(_) => {
                self.standing = Standing::Begins(sql);
                Ok(())
            }
            Standing::InTransaction | Standing::Spent => {
                Err(Fault::Nothing("the session can't begin a transaction".into()))
            }
        }
    }

    /// A commit that the server warned about may not be where it should be.
    fn unless_warned(&mut self) -> Result<(), Fault> {
        if self.warned.swap(false, Ordering::SeqCst) {
            self.standing = Standing::Spent;
            return Err(Fault::Lost("the server warned while it committed".into()));
        }
        Ok(())
    }

    async fn commit_now(&mut self) -> Result<(), Fault> {
        if matches!(self.standing, Standing::Begins(_)) {
            self.standing = Standing::Idle;
            return Ok(());
        }
        self.warned.store(false, Ordering::SeqCst);
        self.standing = Standing::Spent;
        self.server.round_trips.fetch_add(1, Ordering::Relaxed);
        match self.client.batch_execute("COMMIT").await.map_err(fault) {
            Ok(()) => {}
            // A deferred check or a serialization failure: nothing was committed.
            Err(fault @ (Fault::Again(_) | Fault::Duplicate(_))) => {
                self.standing = Standing::Idle;
                return Err(fault);
            }
            Err(Fault::Nothing(source) | Fault::Full(source) | Fault::Lost(source)) => {
                return Err(Fault::Lost(source));
            }
            Err(fault) => return Err(Fault::Lost(format!("{fault:?}").into())),
        }
        self.standing = Standing::Idle;
        self.unless_warned()
    }

    async fn roll_back(&mut self) -> Result<(), Fault> {
        match self.standing {
            Standing::InTransaction => {
                self.standing = Standing::Spent;
                self.server.round_trips.fetch_add(1, Ordering::Relaxed);
                self.client.batch_execute("ROLLBACK").await.map_err(fault)?;
            }
            Standing::Idle | Standing::Begins(_) => {}
            Standing::Spent => return Err(Fault::Nothing("the connection to the server is lost".into())),
        }
        self.standing = Standing::Idle;
        Ok(())
    }

    async fn write(&mut self, chains: &[Chain]) -> Result<Vec<bool>, Fault> {
        let needs = Needs::of(chains);
        let statement = match self.chains.get(&needs) {
            Some(statement) => statement.clone(),
            None => {
                let sql = commit::sql(needs).replace("hapax_", &self.server.options.shared.prefix);
                let statement =
                    self.client.prepare(&sql).await.map_err(|error| fault(error).before_commit())?;
                self.chains.insert(needs, statement.clone());
                statement
            }
        };
        self.warned.store(false, Ordering::SeqCst);
        self.server.round_trips.fetch_add(1, Ordering::Relaxed);
        // Until the answer is here, nothing is known.
        self.standing = Standing::Spent;
        let rows = commit::run(&self.client, &statement, needs, chains).await;
        let rows = rows.map_err(|error| {
            if !ends_session(&error) {
                self.standing = Standing::Idle;
            }
            fault(error)
        })?;
        self.standing = Standing::Idle;
        self.unless_warned()?;
        let mut passed = vec![false; chains.len()];
        for row in rows {
            let number: i64 = row.try_get(0).map_err(fault)?;
            if let Some(passed) = usize::try_from(number - 1).ok().and_then(|number| passed.get_mut(number)) {
                *passed = true;
            }
        }
        Ok(passed)
    }
}

impl Session for PgSession {
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Done<'a, u64> {
        Box::pin(self.change(sql, values))
    }

    fn rows<'a>(&'a mut self, sql: &'a str, values: &'a [Value<'a>]) -> Done<'a, Vec<Row>> {
        Box::pin(async move { self.query(sql, values).await?.iter().map(row).collect() })
    }

    fn begin(&mut self) -> Done<'_, ()> {
        Box::pin(std::future::ready(self.begins("BEGIN")))
    }

    fn begin_reading(&mut self) -> Done<'_, ()> {
        let begun = self.begins("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY");
        Box::pin(std::future::ready(begun))
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
        Box::pin(insert_each(self, tables))
    }

    fn unless_there(&self) -> &'static str {
        " ON CONFLICT DO NOTHING"
    }

    fn warned(&mut self) -> bool {
        self.warned.swap(false, Ordering::SeqCst)
    }

    fn tell<'a>(&'a mut self, hints: &'a [Hint]) -> Done<'a, ()> {
        Box::pin(async move {
            let channel = self.channel();
            let mut said: Vec<String> = hints.iter().map(listen::write).collect();
            said.dedup();
            for hint in said {
                self.change("SELECT pg_notify(?, ?)", values![channel.as_str(), hint.as_str()]).await?;
            }
            Ok(())
        })
    }
}

impl Pooled for PgSession {
    fn is_sound(&self) -> bool {
        matches!(self.standing, Standing::Idle | Standing::Begins(_)) && !self.client.is_closed()
    }

    fn takes_writes(&mut self) -> BoxFuture<'_, Result<bool, Fault>> {
        Box::pin(async move {
            let rows = self.query("SELECT 1 WHERE NOT pg_is_in_recovery()", &[]);
            match tokio::time::timeout(Duration::from_secs(5), rows).await {
                Ok(rows) => Ok(!rows?.is_empty() || self.server.options.shared.allow_read_only),
                Err(_) => Ok(false),
            }
        })
    }
}

/// Moves bytes between client and server until either is gone; notes warnings.
pub(super) async fn drive<T>(
    mut connection: Connection<Socket, T>,
    warned: Arc<AtomicBool>,
    heard: Option<Heard>,
) where
    T: TlsStream + Unpin + Send,
{
    loop {
        match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notice(notice))) => {
                tracing::warn!(message = notice.message(), code = notice.code().code(), "PostgreSQL warns");
                warned.store(true, Ordering::SeqCst);
            }
            Some(Ok(AsyncMessage::Notification(said))) => {
                let _ = heard.as_ref().map(|heard| heard.send(said.payload().to_owned()));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(%error, "a session with PostgreSQL ended");
                break;
            }
            None => break,
        }
    }
}

/// Whether a version, as the server numbers it, lacks what is relied on. What a vendor calls it is another matter.
fn is_too_old(number: &str) -> bool {
    number.parse::<i64>().map_or(true, |number| number < OLDEST)
}

/// A statement in PostgreSQL's words.
pub(super) fn translate(sql: &str, prefix: &str) -> String {
    let named = sql
        .replace("hapax_", prefix)
        .replace("{now}", commit::NOW)
        // On in a standby, too.
        .replace("{writable}", "current_setting('transaction_read_only') = 'off'");
    let mut parts = named.split('?');
    let mut translated = parts.next().unwrap_or_default().to_owned();
    for (number, part) in parts.enumerate() {
        translated.push_str(&format!("${}{part}", number + 1));
    }
    translated
}

fn bind<'a>(values: &'a [Value<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    values
        .iter()
        .map(|value| match value {
            Value::Int(value) => value as &(dyn ToSql + Sync),
            Value::Text(value) => value,
            Value::Blob(value) => value,
        })
        .collect()
}

fn row(row: &tokio_postgres::Row) -> Result<Row, Fault> {
    let cell = |(at, column): (usize, &tokio_postgres::Column)| {
        let cell = match *column.type_() {
            Type::INT8 => row.try_get::<_, Option<i64>>(at).map(|value| value.map(Cell::Int)),
            Type::INT4 => {
                row.try_get::<_, Option<i32>>(at).map(|value| value.map(|value| Cell::Int(value.into())))
            }
            Type::BYTEA => row.try_get::<_, Option<Vec<u8>>>(at).map(|value| value.map(Cell::Blob)),
            _ => row.try_get::<_, Option<String>>(at).map(|value| value.map(Cell::Text)),
        };
        cell.map(|cell| cell.unwrap_or(Cell::Null)).map_err(fault)
    };
    Ok(Row(row.columns().iter().enumerate().map(cell).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `server_version_num` of PostgreSQL and of those who build on it.
    #[test]
    fn versions_before_13_are_too_old() {
        for (version, number, too_old) in [
            ("8.0.2 (Redshift)", "80002", true),
            ("9.6.24", "90624", true),
            ("10.23", "100023", true),
            ("12.22 (Debian 12.22-1.pgdg120+1)", "120022", true),
            ("13.0", "130000", false),
            ("13.16-google", "130016", false),
            ("15.18 (Debian 15.18-0+deb12u1)", "150018", false),
            ("18beta1", "180000", false),
            ("no PostgreSQL at all", "", true),
        ] {
            assert_eq!(is_too_old(number), too_old, "{version}");
        }
    }
}
