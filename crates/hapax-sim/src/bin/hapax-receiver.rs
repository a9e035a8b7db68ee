//! Whoever receives: applies the messages of a stream to its own books, as a process that is killed: `hapax-receiver BOOKS
//! NATS`.
//!
//! Takes some messages at a time, applies them in one transaction, through its inbox, and acknowledges them after that. It
//! says `applied FIRST OF` for each transaction: of how many messages how many were new. It ends with its standard input, so
//! that it can't outlive the test that started it.

use futures::TryStreamExt;
use hapax_sim::mails::{Books, Raw, Stream, connect};
use std::{env, error::Error, io::Read, process, thread, time::Duration};

/// Messages of one transaction.
const BATCH: usize = 100;
/// How long it waits for as many.
const WAIT: Duration = Duration::from_millis(200);
/// How long a broker may take for that: one that was killed says nothing. What came of it is delivered again.
const IMPATIENT: Duration = Duration::from_millis(1000);
/// How soon it asks again after a broker that is down.
const AGAIN: Duration = Duration::from_millis(20);

type Failed = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [url, nats] = &words[..] else {
        eprintln!("usage: hapax-receiver BOOKS NATS");
        process::exit(2);
    };
    thread::spawn(|| {
        // Whatever ends the input ends the process.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let mut books = Books::open(url).await?;
        loop {
            // The broker may be down, now or soon.
            let stream = match connect(nats).await {
                Ok(client) => Stream::open(client).await,
                Err(error) => Err(error),
            };
            match stream {
                Ok(stream) => receive(&mut books, &stream).await?,
                Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    })
}

/// Receives until the broker doesn't answer.
async fn receive(books: &mut Books, stream: &Stream) -> Result<(), Failed> {
    let Ok(reader) = stream.reader().await else { return Ok(()) };
    loop {
        let Ok(batch) = reader.batch().max_messages(BATCH).expires(WAIT).messages().await else {
            return Ok(());
        };
        let Ok(messages) = tokio::time::timeout(IMPATIENT, batch.try_collect::<Vec<_>>()).await else {
            continue;
        };
        let Ok(messages) = messages else { return Ok(()) };
        let raw: Vec<Raw> =
            messages.iter().map(|message| Raw::of(message).expect("a relay has sent it")).collect();
        if raw.is_empty() {
            continue;
        }
        let firsts = books.apply(&raw).await?;
        println!("applied {firsts} {}", raw.len());
        for message in messages {
            // One that isn't heard is delivered again.
            let _ = message.ack().await;
        }
    }
}
