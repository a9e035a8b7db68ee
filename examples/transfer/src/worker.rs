//! The process that is killed: makes transfers, says which one it is at, and ends with its input.

use crate::bank::BANK;
use futures::future::try_join_all;
use hapax::prelude::*;
use serde::{Deserialize, Serialize};
use std::{io::Read, ops::Range, process, thread};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Transfer {
    number: u32,
    from: u32,
    to: u32,
    cents: i64,
    /// What the payer had left.
    left: i64,
}

const TRANSFER: Node = Node::new("transfer");

async fn transfer(mut ctx: hapax::Ctx<Transfer>) -> hapax::Result<TransferDelta> {
    let Transfer { number, from, to, cents, .. } = *ctx.state();
    // Values may be bound as well; how that is written differs from database to database.
    let book = |account, change| {
        format!("UPDATE transfer_accounts SET cents = cents + {change} WHERE id = {account}")
    };
    // The lower account first: no two transfers wait for each other.
    let mut bookings = [(from, book(from, -cents)), (to, book(to, cents))];
    bookings.sort();
    let left: i64 = ctx
        .transaction(&BANK, "transfer", async |tx| {
            println!("ran {number}");
            for (_, booking) in &bookings {
                tx.execute(booking, &[]).await?;
            }
            tx.execute(&format!("INSERT INTO transfer_bookings VALUES ({number})"), &[]).await?;
            tx.query_one(&format!("SELECT cents FROM transfer_accounts WHERE id = {from}"), &[]).await
        })
        .await?;
    Ok(Transfer::delta().left(left))
}

pub(crate) async fn work(store: &str, database: &str, batch: &str, numbers: Range<u32>) -> hapax::Result<()> {
    thread::spawn(|| {
        // Whatever ends the input ends the worker.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(0);
    });
    let engine = Engine::builder().database(BANK.0, database).open(store).await?;
    let graph = Graph::new("transfers", 1, TRANSFER).node(TRANSFER, transfer);
    let transfers = engine.register(graph, ()).await?; // takes up what a kill left
    let make = async |number: u32| {
        let (from, cents) = (number % 10, i64::from(number % 90) + 10);
        let transfer = Transfer { number, from, to: (from + 1 + number / 10 % 9) % 10, cents, left: 0 };
        transfers.start(&format!("{batch}-{number}"), transfer).await?.wait().await?;
        println!("done {number}");
        Ok::<_, hapax::Error>(())
    };
    try_join_all(numbers.map(make)).await?;
    std::future::pending().await // until it is killed
}
