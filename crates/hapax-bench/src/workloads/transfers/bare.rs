//! The same transfers without an engine: what they are held against.

use super::{ACCOUNTS, CENTS, Statements, accounts, sessions, statements, timed};
use crate::{Result, meter::Tally};
use futures::{StreamExt, TryStreamExt, stream};
use hapax::store::db::Kind;
use hapax_servers::sql;
use mysql_async::{Conn, Opts, prelude::Queryable};
use rusqlite::Connection;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Semaphore;
use tokio_postgres::{Client, NoTls, Statement};

const TABLES: [&str; 2] = [
    "CREATE TABLE accounts (id BIGINT NOT NULL PRIMARY KEY, cents BIGINT NOT NULL)",
    "CREATE TABLE entries (id {auto}, account BIGINT NOT NULL, cents BIGINT NOT NULL)",
];

/// Accounts with nothing in them.
pub(super) async fn set_up(bank: &str, kind: Kind) -> Result<()> {
    let auto = match kind {
        Kind::Postgres => "BIGSERIAL PRIMARY KEY",
        Kind::MySql => "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        Kind::Sqlite => "INTEGER PRIMARY KEY",
    };
    let rows: Vec<String> = (0..ACCOUNTS).map(|id| format!("({id}, 0)")).collect();
    let fill = format!("INSERT INTO accounts VALUES {}", rows.join(", "));
    for statement in TABLES.iter().map(|table| table.replace("{auto}", auto)).chain([fill]) {
        say(bank, kind, &statement).await?;
    }
    Ok(())
}

/// Whether there were so many transfers, and the money is all there.
pub(super) async fn audit(bank: &str, kind: Kind, made: u64) -> Result<()> {
    let ask = "SELECT concat(count(*), ' ', sum(abs(cents))) FROM entries";
    let noted = say(bank, kind, if kind == Kind::Sqlite { SQLITE_COUNT } else { ask }).await?;
    let sum = say(bank, kind, "SELECT sum(cents) FROM accounts").await?;
    let expected = format!("{} {}", 2 * made, 2 * made as i64 * CENTS);
    if (noted.trim(), sum.trim()) == (&*expected, "0") {
        return Ok(());
    }
    Err(format!("entries and cents: `{}` instead of `{expected}`, sum {}", noted.trim(), sum.trim()).into())
}

const SQLITE_COUNT: &str = "SELECT count(*) || ' ' || sum(abs(cents)) FROM entries";

/// Runs a statement; answers what it says first.
async fn say(bank: &str, kind: Kind, statement: &str) -> Result<String> {
    let (bank, statement) = (bank.to_owned(), statement.to_owned());
    let said = move || -> Result<String> {
        if kind != Kind::Sqlite {
            return Ok(sql(&bank, &statement)?);
        }
        let file = open_file(&bank)?;
        let mut statement = file.prepare(&statement)?;
        let mut rows = statement.query([])?;
        let Some(row) = rows.next()? else { return Ok(String::new()) };
        Ok(match row.get_ref(0)? {
            rusqlite::types::ValueRef::Integer(number) => number.to_string(),
            text => text.as_str()?.to_owned(),
        })
    };
    tokio::task::spawn_blocking(said).await?
}

fn open_file(bank: &str) -> Result<Connection> {
    let file = Connection::open(&bank["sqlite:".len()..])?;
    file.busy_timeout(Duration::from_secs(60))?;
    file.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    file.pragma_update(None, "synchronous", "FULL")?;
    Ok(file)
}

/// Sessions that are open, each with the statements of a transfer prepared.
pub(super) struct Bare {
    sessions: Arc<Sessions>,
    tally: Arc<Tally>,
    next: AtomicU64,
}

struct Sessions {
    idle: Mutex<Vec<Session>>,
    room: Semaphore,
}

enum Session {
    Postgres(Box<(Client, [Statement; 4])>),
    MySql(Box<(Conn, [mysql_async::Statement; 4])>),
    Sqlite(Connection, Statements),
}

impl Bare {
    pub(super) async fn open(bank: &str, kind: Kind, tally: Arc<Tally>) -> Result<Self> {
        // SQLite has one writer, whoever asks.
        let count = if kind == Kind::Sqlite { 1 } else { sessions() };
        let mut idle = vec![];
        for _ in 0..count {
            idle.push(match kind {
                Kind::Postgres => Session::Postgres(Box::new(postgres(bank).await?)),
                Kind::MySql => Session::MySql(Box::new(mysql(bank).await?)),
                Kind::Sqlite => Session::Sqlite(open_file(bank)?, statements(kind)),
            });
        }
        let sessions = Sessions { idle: Mutex::new(idle), room: Semaphore::new(count) };
        Ok(Self { sessions: Arc::new(sessions), tally, next: AtomicU64::new(0) })
    }

    pub(super) async fn transfer(&self, count: u64, in_flight: u64) -> Result<()> {
        let transfers = stream::iter(0..count).map(|_| {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let (sessions, tally) = (self.sessions.clone(), self.tally.clone());
            async move { tokio::spawn(async move { timed(&tally, sessions.transfer(number)).await }).await? }
        });
        transfers.buffer_unordered(in_flight as usize).try_collect::<Vec<()>>().await?;
        Ok(())
    }
}

impl Sessions {
    async fn transfer(&self, number: u64) -> Result<()> {
        let _room = self.room.acquire().await?;
        let session = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let session = session.ok_or("there are as many sessions as there is room")?;
        let session = session.transfer(number).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        Ok(())
    }
}

async fn postgres(bank: &str) -> Result<(Client, [Statement; 4])> {
    let (client, connection) = tokio_postgres::connect(bank, NoTls).await?;
    // It ends with its client, who is told why.
    tokio::spawn(connection);
    let Statements { take, give, note, read } = statements(Kind::Postgres);
    let mut prepared = vec![];
    for statement in [take, give, note, read] {
        prepared.push(client.prepare(statement).await?);
    }
    let prepared = prepared.try_into().map_err(|_| "four statements are prepared")?;
    Ok((client, prepared))
}

async fn mysql(bank: &str) -> Result<(Conn, [mysql_async::Statement; 4])> {
    let mut conn = Conn::new(Opts::from_url(bank)?).await?;
    let Statements { take, give, note, read } = statements(Kind::MySql);
    let mut prepared = vec![];
    for statement in [take, give, note, read] {
        prepared.push(conn.prep(statement).await?);
    }
    let prepared = prepared.try_into().map_err(|_| "four statements are prepared")?;
    Ok((conn, prepared))
}

impl Session {
    async fn transfer(self, number: u64) -> Result<Self> {
        let (giver, taker) = accounts(number);
        match self {
            Session::Postgres(mut session) => {
                let (client, [take, give, note, read]) = &mut *session;
                client.batch_execute("BEGIN").await?;
                client.execute(&*take, &[&giver, &CENTS]).await?;
                client.execute(&*give, &[&taker, &CENTS]).await?;
                client.execute(&*note, &[&giver, &-CENTS]).await?;
                client.execute(&*note, &[&taker, &CENTS]).await?;
                client.query_one(&*read, &[&giver]).await?.try_get::<_, i64>(0)?;
                client.batch_execute("COMMIT").await?;
                Ok(Session::Postgres(session))
            }
            Session::MySql(mut session) => {
                let (conn, [take, give, note, read]) = &mut *session;
                conn.query_drop("START TRANSACTION").await?;
                conn.exec_drop(&*take, (CENTS, giver)).await?;
                conn.exec_drop(&*give, (CENTS, taker)).await?;
                conn.exec_drop(&*note, (giver, -CENTS)).await?;
                conn.exec_drop(&*note, (taker, CENTS)).await?;
                conn.exec_first::<i64, _, _>(&*read, (giver,)).await?.ok_or("an account is missing")?;
                conn.query_drop("COMMIT").await?;
                Ok(Session::MySql(session))
            }
            Session::Sqlite(file, statements) => {
                let made = move || in_file(&file, &statements, giver, taker).map(|()| (file, statements));
                let (file, statements) = tokio::task::spawn_blocking(made).await??;
                Ok(Session::Sqlite(file, statements))
            }
        }
    }
}

fn in_file(file: &Connection, statements: &Statements, giver: i64, taker: i64) -> rusqlite::Result<()> {
    file.execute_batch("BEGIN IMMEDIATE")?;
    file.prepare_cached(statements.take)?.execute((CENTS, giver))?;
    file.prepare_cached(statements.give)?.execute((CENTS, taker))?;
    file.prepare_cached(statements.note)?.execute((giver, -CENTS))?;
    file.prepare_cached(statements.note)?.execute((taker, CENTS))?;
    file.prepare_cached(statements.read)?.query_row([giver], |row| row.get::<_, i64>(0))?;
    file.execute_batch("COMMIT")
}
