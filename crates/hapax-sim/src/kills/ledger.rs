//! The outside party: a ledger that remembers every call it ever got.
//!
//! Invariant: a call is in the log, and the log on the disk, before its answer leaves. What happened outside is
//! therefore counted from this log, never from Hapax's own store. The same key always gets the same receipt, and who
//! only looks never sees the same twice.

use hapax_core::key::sha256;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::HashSet,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

/// One call, as the log keeps it. A key that was sent twice stands there twice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The idempotency key.
    pub key: String,
    /// What was asked for.
    pub request: Value,
}

impl Call {
    /// The answer: the same for the same call, in every ledger, so that two executions can be compared.
    pub fn receipt(&self) -> String {
        let bound = format!("{}\n{}", self.key, self.request);
        format!("receipt-{}", &sha256(bound.as_bytes()).to_string()[..16])
    }
}

/// What a connection asks for, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// Do it, and answer with the receipt.
    Call(Call),
    /// Do it, and hang up without an answer when the key comes for the first time.
    LateCall(Call),
    /// Tell something.
    Look,
    /// Answer when all who came before have gone.
    Calm,
    /// Apply the n-th call from now, say so on this connection, and never answer the caller.
    Hold(u64),
}

/// Asks the ledger to do something, and waits for the receipt.
pub async fn call(ledger: &Path, key: &str, request: &Value) -> io::Result<String> {
    answer(ledger, Ask::Call(Call { key: key.to_owned(), request: request.clone() })).await
}

/// The same with a ledger that is too slow at first: it did what it was asked for, and the answer never comes.
pub async fn call_in_vain(ledger: &Path, key: &str, request: &Value) -> io::Result<String> {
    answer(ledger, Ask::LateCall(Call { key: key.to_owned(), request: request.clone() })).await
}

/// Asks the ledger for something that it tells only once.
pub async fn look(ledger: &Path) -> io::Result<u64> {
    answer(ledger, Ask::Look).await?.parse().map_err(io::Error::other)
}

/// Waits until the ledger is done with everybody who came before, also with callers that were killed.
pub fn calm(ledger: &Path) -> io::Result<()> {
    BufReader::new(ask(ledger, &Ask::Calm)?).read_line(&mut String::new()).map(drop)
}

async fn answer(ledger: &Path, what: Ask) -> io::Result<String> {
    let ledger = ledger.to_owned();
    let blocking = move || {
        let mut answer = String::new();
        if BufReader::new(ask(&ledger, &what)?).read_line(&mut answer)? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the ledger gave no answer"));
        }
        Ok(answer.trim_end().to_owned())
    };
    tokio::task::spawn_blocking(blocking).await?
}

/// Asks the ledger to apply its n-th call from now without answering it.
pub fn hold(ledger: &Path, nth: u64) -> io::Result<Held> {
    ask(ledger, &Ask::Hold(nth)).map(Held)
}

fn ask(ledger: &Path, ask: &Ask) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(ledger)?;
    stream.write_all(format!("{}\n", serde_json::to_string(ask)?).as_bytes())?;
    Ok(stream)
}

/// A call that will be applied and left without its answer.
#[derive(Debug)]
pub struct Held(UnixStream);

impl Held {
    /// Waits until it was applied; `false`: it was given up before.
    pub fn applied(&self) -> bool {
        let mut byte = [0];
        (&self.0).read(&mut byte).is_ok_and(|read| read == 1)
    }

    /// Lets the ledger answer all calls again, and whoever waits go on, when the answer is dropped: also when a
    /// panic unwinds past it.
    pub fn until_dropped(&self) -> GivesUp<'_> {
        GivesUp(self)
    }
}

/// Gives a held call up when it is dropped.
#[derive(Debug)]
pub struct GivesUp<'h>(&'h Held);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        // A connection that is closed already has been given up.
        let _ = self.0.0.shutdown(std::net::Shutdown::Both);
    }
}

/// Every call that the ledger ever applied, in order.
pub fn read_log(log: &Path) -> io::Result<Vec<Call>> {
    let lines = BufReader::new(File::open(log)?).lines();
    lines.map(|line| Ok(serde_json::from_str(&line?)?)).collect()
}

/// The ledger itself.
#[derive(Debug)]
struct Ledger {
    log: Mutex<File>,
    hold: Mutex<Option<(u64, UnixStream)>>,
    late: Mutex<HashSet<String>>,
    looked: AtomicU64,
    /// Who came and hasn't gone.
    present: Mutex<usize>,
    gone: Condvar,
}

/// Answers calls at `socket` and logs them in `log`, until the process ends.
pub fn serve(socket: &Path, log: PathBuf) -> io::Result<()> {
    let log = File::options().create(true).append(true).open(log)?;
    let (hold, late, looked, present, gone) = Default::default();
    let ledger = Arc::new(Ledger { log: Mutex::new(log), hold, late, looked, present, gone });
    let listener = UnixListener::bind(socket)?;
    println!("ready");
    for stream in listener.incoming() {
        let (ledger, stream) = (ledger.clone(), stream?);
        // In the order in which they came, so that whoever asks for calm waits for those before.
        *lock(&ledger.present) += 1;
        thread::spawn(move || {
            // A caller that was killed in the middle of a line is not the ledger's trouble.
            let _ = ledger.converse(stream);
            *lock(&ledger.present) -= 1;
            ledger.gone.notify_all();
        });
    }
    Ok(())
}

impl Ledger {
    fn converse(&self, stream: UnixStream) -> io::Result<()> {
        let mut line = String::new();
        BufReader::new(stream.try_clone()?).read_line(&mut line)?;
        match serde_json::from_str(&line)? {
            Ask::Hold(nth) => *lock(&self.hold) = Some((nth, stream)),
            Ask::Call(call) => self.take(&call, stream, false)?,
            Ask::LateCall(call) => self.take(&call, stream, true)?,
            Ask::Calm => {
                let others = self.gone.wait_while(lock(&self.present), |present| *present > 1);
                drop(others);
                writeln!(&stream)?;
            }
            Ask::Look => writeln!(&stream, "{}", self.looked.fetch_add(1, Ordering::Relaxed))?,
        }
        Ok(())
    }

    fn take(&self, call: &Call, mut caller: UnixStream, late: bool) -> io::Result<()> {
        self.apply(call)?;
        let hangs_up = late && lock(&self.late).insert(call.key.clone());
        if let Some(mut waiting) = self.held()
            && waiting.write_all(b"!").is_ok()
        {
            // The caller is about to be killed; its end of the connection closes with it.
            caller.read_to_end(&mut vec![])?;
            return Ok(());
        }
        if hangs_up {
            return Ok(());
        }
        caller.write_all(format!("{}\n", call.receipt()).as_bytes())
    }

    /// The call takes effect: it is in the log, and the log is on the disk.
    fn apply(&self, call: &Call) -> io::Result<()> {
        let line = format!("{}\n", serde_json::to_string(call)?);
        let mut log = lock(&self.log);
        log.write_all(line.as_bytes())?;
        log.sync_data()
    }

    /// Who waits for this very call to be applied, if anyone does.
    fn held(&self) -> Option<UnixStream> {
        let mut hold = lock(&self.hold);
        let (left, _) = hold.as_mut()?;
        *left -= 1;
        if *left == 0 { hold.take().map(|(_, waiting)| waiting) } else { None }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
