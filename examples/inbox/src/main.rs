//! From a run to another program's books, exactly once. Orders send what was paid, a relay delivers it to a file, which
//! stands for a broker here, and a bookkeeper reads it. The bookkeeper dies before a commit, starts again and has forgotten
//! how far it had read: its inbox, in the database of its books, knows what it has booked.

use hapax::{
    inbox::{Received, SqliteInbox},
    outbox::{FileSink, RelayOptions},
    prelude::*,
};
use rusqlite::{Connection, TransactionBehavior};
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;

const MAIL: &str = "payments.ndjson";
const BOOKS: &str = "books.db";

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Order {
    cents: u64,
    paid: bool,
}

const PAY: Node = Node::new("pay");

async fn pay(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
    let (order, cents) = (ctx.run_id().to_string(), ctx.state().cents);
    ctx.emit("payments", &order, &Payment { order: order.clone(), cents })?;
    Ok(Order::delta().paid(true))
}

/// What a message says.
#[derive(Serialize, Deserialize)]
struct Payment {
    order: String,
    cents: u64,
}

/// The line of a message.
#[derive(Deserialize)]
struct Message {
    id: String,
    payload: Payment,
}

/// The producer: runs that send, and a relay that delivers.
async fn sell() -> hapax::Result<()> {
    let engine = Engine::open("sqlite:orders.db").await?;
    let orders = engine.register(Graph::new("orders", 1, PAY).node(PAY, pay), ()).await?;
    let mail = FileSink::open(MAIL)?;
    for (order, cents) in [("order-1", 4200), ("order-2", 1900), ("order-3", 700)] {
        orders.start(order, Order { cents, paid: false }).await?.wait().await?;
        let delivered = engine.deliver(RelayOptions::default(), &mail).await?;
        println!("{order} is paid, {} message delivered", delivered.sent);
    }
    Ok(())
}

/// One life of the consumer, which reads all from the beginning. It dies within the transaction of that order.
fn keep_books(inbox: &SqliteInbox, dies_at: Option<&str>) -> hapax::Result<usize> {
    println!("the bookkeeper reads its mail");
    let mut books = Connection::open(BOOKS)?;
    let mut read = 0;
    for line in read_to_string(MAIL)?.lines() {
        let Message { id, payload: Payment { order, cents } } = serde_json::from_str(line)?;
        read += 1;
        let tx = books.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let received = inbox.first_in(&tx, "bookkeeper", &id)?;
        if received == Received::First {
            tx.execute("UPDATE books SET cents = cents + ?", [cents.cast_signed()])?;
        }
        if dies_at == Some(order.as_str()) {
            println!("  {order}, {cents} cents: it dies before its commit");
            return Ok(read); // the transaction is rolled back, as a crash would
        }
        tx.commit()?;
        // Now a broker would be told.
        let word = if received == Received::First { "booked" } else { "known already" };
        println!("  {order}, {cents} cents: {word}");
    }
    Ok(read)
}

#[tokio::main]
async fn main() -> hapax::Result<()> {
    sell().await?;
    let inbox = SqliteInbox::open(BOOKS, Default::default()).await?;
    let books = Connection::open(BOOKS)?;
    books.execute_batch("CREATE TABLE books (cents INTEGER); INSERT INTO books VALUES (0)")?;
    let mut read = 0;
    for dies_at in [Some("order-2"), None, None] {
        read += keep_books(&inbox, dies_at)?;
    }
    let cents: i64 = books.query_row("SELECT cents FROM books", [], |row| row.get(0))?;
    println!("{read} deliveries of 3 messages, and {cents} cents in the books");
    Ok(())
}
