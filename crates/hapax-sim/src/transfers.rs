//! Work in a database of the user's: money goes from account to account, by two transactions for each transfer.
//!
//! Invariant: what a transaction returns is known to no other execution of it. So a result that was recorded tells of which
//! execution it is, and the row that took effect must tell the same.

use hapax::{
    Db, EffectError, NodePolicy, Retry, Tx,
    prelude::*,
    store::db::{DbError, TxOptions},
};
use serde::{Deserialize, Serialize};
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::Receiver,
    },
    time::Duration,
};

/// The database with the accounts.
pub const BANK: Db = Db("bank");
/// Accounts, counted from 0.
pub const ACCOUNTS: u32 = 8;
/// What each of them has in the beginning.
pub const BALANCE: i64 = 1000;
/// The transactions of a transfer, in order.
pub const CALLS: [&str; 2] = ["move", "fee"];

/// What makes the tables, in any database. No key keeps an effect from being there twice.
pub fn tables() -> [String; 3] {
    let accounts: Vec<_> = (0..ACCOUNTS).map(|id| format!("({id}, {BALANCE})")).collect();
    [
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL)".into(),
        format!("INSERT INTO accounts VALUES {}", accounts.join(", ")),
        "CREATE TABLE effects (line VARCHAR(200) NOT NULL)".into(),
    ]
}

/// A transfer.
#[derive(State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Which one.
    pub number: u32,
    /// What its transactions returned, in order.
    #[state(append)]
    pub receipts: Vec<String>,
}

/// The name of a transfer, and of its run.
pub fn name(number: u32) -> String {
    format!("transfer-{number:04}")
}

/// Money that goes from one account to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booking {
    /// Which transaction of which run it is.
    pub what: String,
    /// The account that pays.
    pub from: u32,
    /// The account that is paid.
    pub to: u32,
    /// How much.
    pub amount: i64,
}

impl Booking {
    /// What a transfer books by one of its calls: always the same.
    pub fn of(number: u32, call: &str) -> Self {
        let what = format!("{}/{call}", name(number));
        let (from, to) = (number % ACCOUNTS, (number * 3 + 1) % ACCOUNTS);
        let to = if from == to { (to + 1) % ACCOUNTS } else { to };
        match call {
            "fee" => Self { what, from: to, to: from, amount: 1 },
            _ => Self { what, from, to, amount: 2 + i64::from(number % 7) },
        }
    }

    /// Account and change, in the order of the accounts: two bookings never wait for each other.
    fn changes(&self) -> [(u32, i64); 2] {
        let mut changes = [(self.from, -self.amount), (self.to, self.amount)];
        changes.sort_unstable();
        changes
    }
}

/// Where a teller may be told to stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// One statement was executed.
    Amid,
    /// All of them were.
    Last,
    /// The node has the result, which is recorded nowhere yet.
    Known,
}

impl Point {
    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "amid" => Some(Self::Amid),
            "last" => Some(Self::Last),
            "known" => Some(Self::Known),
            _ => None,
        }
    }
}

/// Whoever books, and says so: `asked WHAT` · `in WHAT TOKEN` · `out WHAT TOKEN` · `known WHAT TOKEN`, and `stands` where it was
/// told to stand still.
#[derive(Debug, Default)]
pub struct Teller {
    /// What transactions are to be.
    pub options: TxOptions,
    stands_at: Mutex<Option<(Point, Receiver<()>)>>,
    executed: AtomicU64,
}

impl Teller {
    /// One that stands still at the point, once, until it is told to go on.
    pub fn new(options: TxOptions, stands_at: Option<(Point, Receiver<()>)>) -> Self {
        Self { options, stands_at: Mutex::new(stands_at), executed: AtomicU64::new(0) }
    }

    /// What no other execution has: the process, and how many it has executed.
    fn token(&self) -> String {
        format!("{}-{}", std::process::id(), self.executed.fetch_add(1, Ordering::Relaxed))
    }

    /// Blocks its thread, where that is wanted. (SIGSTOP to itself would let it go on for a while.)
    fn may_stand(&self, point: Point) {
        let mut stands_at = self.stands_at.lock().unwrap_or_else(PoisonError::into_inner);
        let stands = stands_at.take_if(|(at, _)| *at == point);
        drop(stands_at);
        if let Some((_, go_on)) = stands {
            println!("stands");
            // Nobody is left to tell it when the process ends.
            let _ = go_on.recv();
        }
    }

    async fn book(&self, tx: &mut Tx, booking: &Booking) -> Result<String, DbError> {
        let (Booking { what, from, to, amount }, token) = (booking, self.token());
        println!("in {what} {token}");
        let line = format!("INSERT INTO effects VALUES ('{what} {token} {from} {to} {amount}')");
        tx.execute(&line, &[]).await?;
        self.may_stand(Point::Amid);
        for (account, change) in booking.changes() {
            let change = format!("UPDATE accounts SET balance = balance + {change} WHERE id = {account}");
            tx.execute(&change, &[]).await?;
        }
        self.may_stand(Point::Last);
        println!("out {what} {token}");
        Ok(format!("receipt {token}"))
    }
}

const TRANSFER: Node = Node::new("transfer");

async fn transfer(mut ctx: hapax::Ctx<Transfer, Teller>) -> Result<TransferDelta, EffectError> {
    let (number, teller) = (ctx.state().number, ctx.app());
    let mut delta = Transfer::delta();
    for call in CALLS {
        let booking = Booking::of(number, call);
        println!("asked {}", booking.what);
        let options = teller.options.clone();
        let receipt: String =
            ctx.transaction_with(&BANK, call, options, async |tx| teller.book(tx, &booking).await).await?;
        teller.may_stand(Point::Known);
        println!("known {} {}", booking.what, receipt.trim_start_matches("receipt "));
        delta = delta.receipts(receipt);
    }
    Ok(delta)
}

/// Transfers. One that lost against another is tried again.
pub fn graph() -> Graph<Transfer, Teller> {
    let retry = Retry::standard().attempts(20).backoff(|_| Duration::from_millis(10));
    Graph::new("transfers", 1, TRANSFER)
        .node(TRANSFER, transfer)
        .policy(TRANSFER, NodePolicy::default().retry(retry))
}
