//! The proof: many clients ask for each charge at the same moment, the service is killed meanwhile, and the ledger tells.

use crate::{
    Args, Result,
    bank::{self, SharedBooks},
    service::Order,
    till::{ACCOUNTS, Till},
};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, future::join_all, stream};
use std::{
    collections::HashMap,
    env,
    hash::{BuildHasher, RandomState},
    io,
    process::Stdio,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::watch,
    time::{Instant, sleep},
};

/// Keys that are in flight at the same time.
const AT_ONCE: usize = 3;
/// Before a client asks again that got no answer.
const PAUSE: Duration = Duration::from_millis(20);

/// What a client has got for a charge.
#[derive(PartialEq, Eq, Clone)]
struct Answer {
    status: u16,
    body: Bytes,
}

/// The clients.
struct Clients {
    http: reqwest::Client,
    /// Where the service is now.
    service: watch::Receiver<String>,
    answered: watch::Sender<usize>,
    replayed: AtomicUsize,
    asked_again: AtomicUsize,
}

pub(crate) async fn prove(args: Args) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = || format!("sqlite:{}", folder.path().join("payments.db").display());
    let database = args.database.clone().unwrap_or_else(file);
    let till = Till::open(&database).await?;
    till.make().await?;
    let sum = till.sum().await?;
    let (bank, books) = bank::open().await?;
    let (service, address) = Service::start(database, bank).await?;
    let clients = Arc::new(Clients::new(address));
    let killer = tokio::spawn(service.killed(args.kills, args.keys * args.duplicates, clients.answered()));
    let begun = Instant::now();
    // Records of an earlier show may still be in the database: keys of this one have a name of their own.
    let batch = format!("{:x}", RandomState::new().hash_one(std::process::id()));
    let keys: Vec<String> = (0..args.keys).map(|number| format!("{batch}-{number}")).collect();
    let charges = stream::iter(keys.iter().enumerate())
        .map(|(number, key)| clients.charge(number, key, args.duplicates))
        .buffer_unordered(AT_ONCE);
    charges.try_collect::<()>().await?;
    clients.tell(begun.elapsed());
    let mut service = killer.await??;
    service.process.kill().await?;
    tell(&args, &keys, &till, &books, sum).await
}

impl Clients {
    fn new(service: watch::Receiver<String>) -> Self {
        // Each client has a connection of its own while it waits.
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        let (answered, _) = watch::channel(0);
        Self { http, service, answered, replayed: AtomicUsize::new(0), asked_again: AtomicUsize::new(0) }
    }

    fn answered(&self) -> watch::Receiver<usize> {
        self.answered.subscribe()
    }

    /// Asks for one charge, so many times at once, until each client has its answer.
    async fn charge(&self, number: usize, key: &str, duplicates: usize) -> Result<()> {
        let order = Order { account: 1 + number as i64 % (ACCOUNTS - 1), cents: 10 + number as i64 % 90 };
        let body = serde_json::to_string(&order)?;
        let answers = join_all((0..duplicates).map(|_| self.ask(key, &body))).await;
        let first = answers.first().cloned();
        assert!(answers.iter().all(|answer| Some(answer) == first.as_ref()), "two answers differ");
        assert!(first.is_none_or(|answer| answer.status == 201), "a charge was refused");
        Ok(())
    }

    async fn ask(&self, key: &str, body: &str) -> Answer {
        loop {
            match self.send(key, body).await {
                // It is under way, or nobody knows: the key makes it safe to ask again.
                Ok(answer) if matches!(answer.status, 409 | 500 | 503) => {}
                Ok(answer) => {
                    self.answered.send_modify(|answered| *answered += 1);
                    return answer;
                }
                // The service was killed before it answered.
                Err(_) => {}
            }
            self.asked_again.fetch_add(1, Relaxed);
            sleep(PAUSE).await;
        }
    }

    async fn send(&self, key: &str, body: &str) -> reqwest::Result<Answer> {
        let url = format!("{}/charges", *self.service.borrow());
        let request =
            self.http.post(url).header("x-merchant", "ada").header("content-type", "application/json");
        let answer =
            request.header("idempotency-key", format!("\"{key}\"")).body(body.to_owned()).send().await?;
        let (status, replayed) =
            (answer.status().as_u16(), answer.headers().contains_key("idempotency-replayed"));
        let body = answer.bytes().await?;
        self.replayed.fetch_add(replayed.into(), Relaxed);
        Ok(Answer { status, body })
    }

    fn tell(&self, took: Duration) {
        let answered = *self.answered.borrow();
        eprintln!(
            "{answered} requests were answered in {:.1} s, {:.0} a second; {} answers were given again, and clients asked \
             again {} times",
            took.as_secs_f64(),
            answered as f64 / took.as_secs_f64(),
            self.replayed.load(Relaxed),
            self.asked_again.load(Relaxed),
        );
    }
}

/// The service's process.
struct Service {
    database: String,
    bank: String,
    process: Child,
    address: watch::Sender<String>,
}

impl Service {
    async fn start(database: String, bank: String) -> Result<(Self, watch::Receiver<String>)> {
        let (process, address) = Self::spawn(&database, &bank).await?;
        let (address, told) = watch::channel(address);
        Ok((Self { database, bank, process, address }, told))
    }

    async fn spawn(database: &str, bank: &str) -> Result<(Child, String)> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["serve", "--database", database, "--bank", bank, "--until", "its input ends"]);
        let mut process = command.kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = process.stdout.take().ok_or_else(|| io::Error::other("its output is piped"))?;
        let address = BufReader::new(said).lines().next_line().await?;
        Ok((process, address.ok_or_else(|| io::Error::other("the service could not start"))?))
    }

    /// Kills the service so often, each time when another part of all clients has its answer, and starts it again.
    async fn killed(
        mut self,
        kills: usize,
        all: usize,
        mut answered: watch::Receiver<usize>,
    ) -> Result<Self> {
        for kill in 1..=kills {
            // In the middle of a part, so that it hits charges that are under way.
            let part = all * (2 * kill - 1) / (2 * kills);
            answered.wait_for(|answered| *answered >= part).await?;
            self.process.kill().await?; // SIGKILL
            let (process, address) = Self::spawn(&self.database, &self.bank).await?;
            self.process = process;
            self.address.send_replace(address);
        }
        Ok(self)
    }
}

/// What the ledger and the bank say.
async fn tell(args: &Args, keys: &[String], till: &Till, books: &SharedBooks, sum: i64) -> Result<()> {
    let mut times: HashMap<String, usize> = HashMap::new();
    for key in till.ledger().await? {
        *times.entry(key).or_default() += 1;
    }
    assert!(keys.iter().all(|key| times.get(key) == Some(&1)), "a charge is missing, or there twice");
    assert_eq!(times.len(), keys.len(), "the ledger has charges that nobody asked for");
    let after = till.sum().await?;
    assert_eq!(after, sum, "the sum of all accounts has changed");
    let books = books.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(books.authorised.len(), keys.len(), "the bank has authorised a charge under two keys");
    eprintln!("the bank was called {} times", books.calls);
    let Args { keys: count, duplicates, kills, .. } = args;
    println!("{count} keys, each sent by {duplicates} clients at once; the service was killed {kills} times");
    println!("the ledger has {} charges, one for each key", times.len());
    println!("all clients of a key got the same answer, byte for byte");
    println!("the bank authorised {} charges, each under one key", books.authorised.len());
    println!("the sum of all accounts is {after}, as in the beginning");
    Ok(())
}
