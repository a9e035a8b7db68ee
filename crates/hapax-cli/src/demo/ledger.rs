//! The bank: a process of its own that keeps a log of every call it ever got.
//!
//! Invariant: a call is in the log, and the log on the disk, before its answer leaves; a key moves money once, and
//! gets the same receipt every time. What happened is counted from this log, never from Hapax's own store.

use super::process::ends_with_its_input;
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// How long the bank takes to answer.
const ANSWERS_AFTER: Duration = Duration::from_millis(25);

/// Where the ledger listens, and where it writes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    log: PathBuf,
}

/// A charge that is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Charge {
    /// The idempotency key.
    pub(super) key: String,
    /// Who pays.
    pub(super) order: String,
    /// The fraud check that it rests on.
    pub(super) case: String,
    /// How much.
    pub(super) cents: u64,
}

/// One raw call, as the log keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// What was asked for.
    pub(super) charge: Charge,
    /// Money was moved: the key was new.
    pub(super) applied: bool,
    /// The caller had seen the answer to this key, and asks for it again.
    pub(super) seen: bool,
}

/// What a caller says when its code has seen the answer. Not an effect, and no order needs it: it tells the bank what
/// it must never be asked for again.
const SEEN: &str = "seen\n";

/// The line to the bank on which a charge was answered.
#[derive(Debug)]
pub(super) struct Answered(UnixStream);

impl Answered {
    /// Tells that the answer is seen. It is the bank's as soon as this returns, even if the caller dies with it.
    pub(super) fn seen(mut self) -> io::Result<()> {
        self.0.write_all(SEEN.as_bytes())
    }
}

/// A call on the wire, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Call {
    life: u32,
    charge: Charge,
}

/// What the supervisor is told, one line of JSON for each thing.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Notice {
    /// It listens.
    Ready,
    /// What this life may get is settled.
    Allowed(u32),
    /// A call is in the log.
    Called {
        /// The worker's life that made it.
        life: u32,
        /// The order.
        order: String,
        /// How much.
        cents: u64,
        /// Money was moved: the key was new.
        applied: bool,
        /// Whether it will be answered; otherwise the caller waits until it is killed.
        answered: bool,
    },
}

/// What the supervisor demands, one line of JSON for each thing.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Allow {
    /// The worker's life that is meant.
    pub(super) life: u32,
    /// What it gets; `None`: all that it asks for.
    pub(super) limits: Option<Limits>,
}

/// Whom the ledger answers. A call beyond is applied, and its answer is kept back until the caller is killed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Limits {
    /// A new charge, while there are no more than so many.
    pub(super) charges: usize,
    /// Any call, while no more than so many different keys were ever answered.
    pub(super) keys: usize,
}

/// Asks the ledger for a charge. Blocks until it answers.
pub(super) fn charge(ledger: &Path, life: u32, charge: Charge) -> io::Result<(String, Answered)> {
    let mut stream = UnixStream::connect(ledger)?;
    stream.write_all(format!("{}\n", serde_json::to_string(&Call { life, charge })?).as_bytes())?;
    let mut receipt = String::new();
    if BufReader::new(&stream).read_line(&mut receipt)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((receipt.trim_end().to_owned(), Answered(stream)))
}

/// Every call that the ledger ever got, in order.
pub(super) fn read_log(log: &Path) -> io::Result<Vec<Entry>> {
    let lines = BufReader::new(File::open(log)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// Answers calls until its input ends.
pub(super) fn run(args: Args) -> io::Result<()> {
    let log = File::options().create(true).append(true).open(args.log)?;
    let allowed = Allow { life: 0, limits: None };
    let (receipts, answered, seen) = (HashMap::new(), HashSet::new(), HashSet::new());
    let books = Books { log: log.try_clone()?, receipts, answered, seen, allowed };
    let ledger = Arc::new(Ledger { log, books: Mutex::new(books) });
    let listener = UnixListener::bind(args.socket)?;
    let hears = ledger.clone();
    ends_with_its_input(move |line| hears.obey(line));
    tell(&Notice::Ready)?;
    for stream in listener.incoming() {
        let (ledger, stream) = (ledger.clone(), stream?);
        // A caller that was killed in the middle of a line is not the ledger's trouble.
        thread::spawn(move || ledger.converse(stream).err());
    }
    Ok(())
}

fn tell(notice: &Notice) -> io::Result<()> {
    let line = format!("{}\n", serde_json::to_string(notice)?);
    io::stdout().write_all(line.as_bytes())
}

struct Ledger {
    log: File,
    books: Mutex<Books>,
}

/// What one thread at a time may touch.
struct Books {
    log: File,
    receipts: HashMap<String, String>,
    answered: HashSet<String>,
    /// The keys whose answers were seen by whoever asked.
    seen: HashSet<String>,
    allowed: Allow,
}

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn obey(&self, line: &str) {
        if let Ok(allow) = serde_json::from_str::<Allow>(line) {
            self.books().allowed = allow;
            // A supervisor that went away needs no answer; this process ends with its input.
            let _ = tell(&Notice::Allowed(allow.life));
        }
    }

    fn converse(&self, mut caller: UnixStream) -> io::Result<()> {
        let (mut line, mut hears) = (String::new(), BufReader::new(caller.try_clone()?));
        hears.read_line(&mut line)?;
        let call: Call = serde_json::from_str(&line)?;
        let key = call.charge.key.clone();
        let receipt = self.books().take(call)?;
        // Outside of the lock, so that calls which come together share the disk's time.
        self.log.sync_data()?;
        let Some(receipt) = receipt else {
            // The caller is about to be killed; its end of the connection closes with it.
            caller.read_to_end(&mut vec![])?;
            return Ok(());
        };
        thread::sleep(ANSWERS_AFTER);
        caller.write_all(format!("{receipt}\n").as_bytes())?;
        line.clear();
        hears.read_line(&mut line)?;
        if line == SEEN {
            self.books().seen.insert(key);
        }
        Ok(())
    }
}

impl Books {
    /// Applies a call: it is in the log. Answers the receipt, unless the caller must not get it.
    fn take(&mut self, Call { life, charge }: Call) -> io::Result<Option<String>> {
        let next = format!("receipt-{:04}", self.receipts.len() + 1);
        let applied = !self.receipts.contains_key(&charge.key);
        let receipt = self.receipts.entry(charge.key.clone()).or_insert(next).clone();
        let (order, cents) = (charge.order.clone(), charge.cents);
        let answered = self.may_answer(life, &charge.key, applied);
        let seen = self.seen.contains(&charge.key);
        let entry = serde_json::to_string(&Entry { charge, applied, seen })?;
        self.log.write_all(format!("{entry}\n").as_bytes())?;
        // Told at once: whoever is to be killed now dies while everything is still on its way to some disk.
        tell(&Notice::Called { life, order, cents, applied, answered })?;
        Ok(answered.then_some(receipt))
    }

    fn may_answer(&mut self, life: u32, key: &str, applied: bool) -> bool {
        let limits = self.allowed.limits.filter(|_| self.allowed.life == life);
        let within = |limits: Limits| {
            let new_key = usize::from(!self.answered.contains(key));
            self.answered.len() + new_key <= limits.keys
                && (!applied || self.receipts.len() <= limits.charges)
        };
        let answers = limits.is_none_or(within);
        if answers {
            self.answered.insert(key.to_owned());
        }
        answers
    }
}
