//! A service in a process of its own, which stops where it is told to and waits there to be killed.
//!
//! A test binary plays that service itself: started again with `HAPAX_SERVICE_URL` set, its test `service` serves.

use crate::shop::{Client, Shared, World, engine, layer, orders, router};
use futures::future::BoxFuture;
use hapax_core::request::{Completion, Lease, Record, RecoveryPoint, RequestId};
use hapax_requests::Requests;
use hapax_store::{
    requests::{Begun, Claim, Finished, Listed, RequestFilter, RequestStore, open},
    store::Answer,
};
use std::{
    env,
    fs::{File, OpenOptions},
    future::pending,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{self, Child, ChildStdout, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::net::TcpListener;

/// Where a service stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The request is claimed, its run isn't started.
    Claimed,
    /// The run is started, and the record doesn't know.
    Started,
    /// The record knows, and the client doesn't.
    Finished,
    /// The run has made its first step.
    Running,
    /// Nowhere.
    Never,
}

impl Stop {
    const ALL: [Stop; 5] = [Stop::Claimed, Stop::Started, Stop::Finished, Stop::Running, Stop::Never];

    fn word(self) -> String {
        format!("{self:?}")
    }
}

/// Tells the test where the service is, and what became of it.
fn say(word: &str) {
    println!("\n<{word}>");
}

fn stops() {
    say("stopped");
}

struct Logged {
    log: File,
    stop: Stop,
}

impl World for Logged {
    fn at(&self, node: &'static str, _: &str) -> BoxFuture<'_, ()> {
        let holds = match self.stop {
            Stop::Never => false,
            Stop::Running => node == "ship",
            // The run waits, so that what is counted happened in the service's next life.
            Stop::Claimed | Stop::Started | Stop::Finished => true,
        };
        Box::pin(async move {
            if holds {
                if self.stop == Stop::Running {
                    stops();
                }
                pending::<()>().await;
            }
        })
    }

    fn done(&self, node: &'static str) {
        let mut log = &self.log;
        log.write_all(format!("{node}\n").as_bytes()).and_then(|()| log.sync_all()).expect("a log");
    }
}

/// A store that stops when it hears how a request ended, before or after it has written that down.
struct Stopping {
    inner: Arc<dyn RequestStore>,
    stop: Stop,
}

impl RequestStore for Stopping {
    fn begin<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        self.inner.begin(claim)
    }

    fn reacquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Begun> {
        self.inner.reacquire(claim)
    }

    fn finish<'a>(&'a self, lease: &'a Lease, completion: &'a Completion) -> Answer<'a, Finished> {
        Box::pin(async move {
            if self.stop == Stop::Started {
                stops();
                pending::<()>().await;
            }
            let finished = self.inner.finish(lease, completion).await;
            if self.stop == Stop::Finished {
                stops();
                pending::<()>().await;
            }
            finished
        })
    }

    fn heartbeat<'a>(&'a self, lease: &'a Lease, ttl: Duration) -> Answer<'a, Finished> {
        self.inner.heartbeat(lease, ttl)
    }

    fn set_point<'a>(&'a self, lease: &'a Lease, point: &'a RecoveryPoint) -> Answer<'a, Finished> {
        self.inner.set_point(lease, point)
    }

    fn get<'a>(&'a self, id: &'a RequestId) -> Answer<'a, Option<Record>> {
        self.inner.get(id)
    }

    fn list<'a>(&'a self, filter: &'a RequestFilter) -> Answer<'a, Vec<Listed>> {
        self.inner.list(filter)
    }

    fn release<'a>(&'a self, id: &'a RequestId) -> Answer<'a, bool> {
        self.inner.release(id)
    }

    fn sweep(&self, limit: usize) -> Answer<'_, u64> {
        self.inner.sweep(limit)
    }

    fn expired(&self) -> Answer<'_, u64> {
        self.inner.expired()
    }

    fn now_us(&self) -> Answer<'_, i64> {
        self.inner.now_us()
    }
}

/// What the test named `service` is to do: nothing, unless it is the service.
pub(crate) fn play() {
    let Ok(url) = env::var("HAPAX_SERVICE_URL") else { return };
    let (log, stop) = (env::var_os("HAPAX_SERVICE_LOG"), env::var("HAPAX_SERVICE_STOP").expect("where"));
    let stop = Stop::ALL.into_iter().find(|known| known.word() == stop).expect("a place to stop");
    let log = OpenOptions::new().create(true).append(true).open(log.expect("a log")).expect("a log");
    thread::spawn(|| {
        // Whatever ends the input ends the service: it can't outlive the test.
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(serve(&url, log, stop));
}

async fn serve(url: &str, log: File, stop: Stop) {
    let (engine, world): (_, Shared) = (engine(url).await, Arc::new(Logged { log, stop }));
    let flow = orders(&engine, world).await;
    let store = Arc::new(Stopping { inner: open(url).await.expect("it opens"), stop });
    let layer = layer(store).lease(Duration::from_secs(1));
    let router = router(&Requests::new(layer, engine), &flow, move || {
        if stop == Stop::Claimed {
            stops();
            loop {
                thread::park();
            }
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    say(&format!("http://{}", listener.local_addr().expect("an address")));
    axum::serve(listener, router).await.expect("it serves");
}

/// A life of the service.
pub(crate) struct Life {
    process: Child,
    said: BufReader<ChildStdout>,
    pub(crate) client: Client,
}

impl Life {
    pub(crate) fn begin(url: &str, log: &Path, stop: Stop) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["service", "--exact", "--nocapture", "--test-threads=1"]);
        command.env("HAPAX_SERVICE_URL", url).env("HAPAX_SERVICE_LOG", log);
        command.env("HAPAX_SERVICE_STOP", stop.word());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let mut said = BufReader::new(process.stdout.take().expect("its output is piped"));
        let address = next(&mut said);
        Self { process, said, client: Client::of(address) }
    }

    /// Waits until it has stopped where it was told to, then kills it with SIGKILL.
    pub(crate) async fn killed(mut self) {
        let (mut said, stopped) = (self.said, tokio::sync::oneshot::channel());
        thread::spawn(move || stopped.0.send(next(&mut said)));
        assert_eq!(stopped.1.await.expect("it says so"), "stopped");
        self.process.kill().expect("it lives");
        self.process.wait().expect("it ends");
    }

    pub(crate) fn end(mut self) {
        self.process.kill().expect("it lives");
        self.process.wait().expect("it ends");
    }
}

/// The next word of the service, between those of the test harness.
fn next(said: &mut BufReader<ChildStdout>) -> String {
    loop {
        let mut line = String::new();
        assert_ne!(said.read_line(&mut line).expect("it speaks"), 0, "the service ended");
        if let Some(word) = line.trim().strip_prefix('<').and_then(|line| line.strip_suffix('>')) {
            return word.to_owned();
        }
    }
}
