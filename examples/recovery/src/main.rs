//! A crash amid a run: the first engine dies with a call under way, the second goes on where the record ends.

use hapax::prelude::*;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use tokio::runtime::Runtime;

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Transfer {
    #[state(append)]
    done: Vec<String>,
}
type Ctx = hapax::Ctx<Transfer, Bank>;

/// The other side: it knows the keys that it has seen, as a good callee does.
#[derive(Clone, Default)]
struct Bank {
    seen: Arc<Mutex<Vec<String>>>,
    hangs: bool,
}

impl Bank {
    fn note(&self, what: &str, key: &str) {
        let mut seen = self.seen.lock().unwrap();
        let again = seen.contains(&key.to_owned());
        println!("  the bank is asked to {what}{}", if again { ", and knows it already" } else { "" });
        seen.push(key.to_owned());
    }

    async fn book(&self, what: &str, key: &str) -> Result<String, std::io::Error> {
        self.note(what, key);
        if self.hangs && what == "deposit" {
            std::future::pending::<()>().await; // it acted, but its answer never comes
        }
        Ok(format!("{what}: booked"))
    }
}

const WITHDRAW: Node = Node::new("withdraw");
const DEPOSIT: Node = Node::new("deposit");

async fn withdraw(mut ctx: Ctx) -> hapax::Result<TransferDelta> {
    let bank = ctx.app();
    let booked =
        ctx.effect("withdraw", Write, &100, async |call| bank.book("withdraw", call.key()).await).await?;
    Ok(Transfer::delta().done(booked))
}

async fn deposit(mut ctx: Ctx) -> hapax::Result<TransferDelta> {
    let bank = ctx.app();
    let booked =
        ctx.effect("deposit", Write, &100, async |call| bank.book("deposit", call.key()).await).await?;
    Ok(Transfer::delta().done(booked))
}

fn graph() -> Graph<Transfer, Bank> {
    Graph::new("transfers", 1, WITHDRAW)
        .node(WITHDRAW, withdraw)
        .node(DEPOSIT, deposit)
        .edge(WITHDRAW, DEPOSIT)
}

/// Runs the transfer until it ends, or until the bank has been asked twice and hangs.
async fn work(bank: Bank) -> hapax::Result<Option<Transfer>> {
    let engine = Engine::open("sqlite:transfers.db").await?;
    let transfers = engine.register(graph(), bank.clone()).await?;
    let run = transfers.start("transfer-1", Transfer::default()).await?;
    let asked_twice = async {
        while !bank.hangs || bank.seen.lock().unwrap().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        end = run.wait() => Ok(Some(end?)),
        () = asked_twice => Ok(None),
    }
}

fn main() -> hapax::Result<()> {
    let bank = Bank::default();
    println!("first engine");
    let first = Runtime::new()?;
    let end = first.block_on(work(Bank { hangs: true, ..bank.clone() }))?;
    println!("  finished: {}; it dies here", end.is_some());
    drop(first); // every task ends where it stands, as in a crash

    println!("second engine");
    let end = Runtime::new()?.block_on(work(bank.clone()))?;
    println!("  finished: {:?}", end.map(|transfer| transfer.done).unwrap_or_default());
    let mut keys = bank.seen.lock().unwrap().clone();
    let asked = keys.len();
    keys.sort();
    keys.dedup();
    println!("the bank was asked {asked} times, under {} keys", keys.len());
    Ok(())
}
