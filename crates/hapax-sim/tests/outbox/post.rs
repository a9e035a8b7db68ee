//! A post: who sends, the broker, who receives; and what must be true of all that arrived.

use hapax_servers::Nats;
use hapax_sim::{
    kills::{Process, Waits},
    mails::{self, Books, PER_RUN, Raw, Stream, TOPICS},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::BufRead,
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Longer than anything here takes. Who waits longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(120);

const EMITTER: &str = env!("CARGO_BIN_EXE_hapax-emitter");
const RECEIVER: &str = env!("CARGO_BIN_EXE_hapax-receiver");

/// A party that can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    /// One of the engines, with its relay.
    Emitter(usize),
    Broker,
    Receiver,
}

/// All parties, and what they say.
pub(crate) struct Post {
    runs: u64,
    books: String,
    store: String,
    broker: Nats,
    emitters: Vec<Process>,
    receiver: Option<Process>,
    said: mpsc::Receiver<(Who, u32, String)>,
    saying: mpsc::Sender<(Who, u32, String)>,
    runtime: Runtime,
    _folder: TempDir,
}

/// What came of it all.
#[derive(Debug)]
pub(crate) struct Delivered {
    /// Deliveries to the stream, and from it.
    pub(crate) to_stream: usize,
    pub(crate) from_stream: u64,
}

impl Post {
    /// Starts all of them, over the books at this address, or in a file.
    pub(crate) fn open(runs: u64, books: Option<String>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
        let (books, store) = (books.unwrap_or_else(|| file("books.db")), file("runs.db"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (runtime, broker) = (runtime.expect("a runtime"), Nats::start().expect("NATS starts"));
        runtime.block_on(async {
            Books::open(&books).await.expect("they open").create().await.expect("tables are made");
            let client = mails::connect(&broker.url()).await.expect("a connection");
            Stream::open(client).await.expect("a stream");
        });
        let (saying, said) = mpsc::channel();
        let emitters = vec![];
        let mut post = Self {
            runs,
            books,
            store,
            broker,
            emitters,
            receiver: None,
            said,
            saying,
            runtime,
            _folder: folder,
        };
        post.emitters = [0, 1].map(|nth| post.emitter(nth)).into();
        post.receiver = Some(post.receiver());
        post
    }

    pub(crate) fn messages(&self) -> u64 {
        self.runs * PER_RUN
    }

    fn emitter(&self, nth: usize) -> Process {
        let runs = self.runs.to_string();
        self.start(Who::Emitter(nth), EMITTER, &[&self.store, &self.broker.url(), &runs])
    }

    fn receiver(&self) -> Process {
        self.start(Who::Receiver, RECEIVER, &[&self.books, &self.broker.url()])
    }

    /// Starts a process whose lines go where all go.
    fn start(&self, who: Who, program: &str, args: &[&str]) -> Process {
        let (process, lines) = Process::start(Path::new(program), args).expect("it starts");
        let (saying, life) = (self.saying.clone(), process.id());
        thread::spawn(move || {
            lines.lines().map_while(Result::ok).try_for_each(|line| saying.send((who, life, line)))
        });
        process
    }

    /// The next line of anybody who lives.
    pub(crate) fn line(&self) -> (Who, String) {
        loop {
            let (who, life, line) = self.said.recv_timeout(PATIENCE).expect("somebody says something");
            let lives = match who {
                Who::Emitter(nth) => self.emitters[nth].id() == life,
                Who::Receiver => self.receiver.as_ref().is_some_and(|process| process.id() == life),
                Who::Broker => true,
            };
            if lives {
                return (who, line);
            }
        }
    }

    /// Kills one of them, and starts it again.
    pub(crate) fn strike(&mut self, who: Who) {
        match who {
            Who::Emitter(nth) => {
                self.emitters[nth].kill();
                self.emitters[nth] = self.emitter(nth);
            }
            Who::Receiver => {
                // The old one is gone before the new one asks for the file.
                self.receiver.take().expect("there is one").kill();
                self.receiver = Some(self.receiver());
            }
            Who::Broker => self.broker.restart().expect("the broker starts again"),
        }
    }

    /// Waits until the receiver has acknowledged all that there is, and checks everything.
    pub(crate) fn check(self) -> Delivered {
        let (all, from_stream) = self.runtime.block_on(async {
            let client = mails::connect(&self.broker.url()).await.expect("a connection");
            let stream = Stream::open(client).await.expect("the stream is there");
            let reader = stream.reader().await.expect("the reader is there");
            let waits = Waits::begin(PATIENCE);
            loop {
                let info = reader.get_info().await.expect("the broker answers");
                if info.num_pending == 0 && info.num_ack_pending == 0 {
                    break (stream.all().await.expect("it can be read"), info.delivered.consumer_sequence);
                }
                waits.check(&format!("{} to be received", info.num_pending));
            }
        });
        self.check_stream(&all);
        self.runtime.block_on(self.check_books());
        Delivered { to_stream: all.len(), from_stream }
    }

    /// Each message has one id, and first deliveries are in the order of sending, for each run and topic.
    fn check_stream(&self, all: &[Raw]) {
        let (mut ids, mut seen) = (BTreeMap::new(), BTreeSet::new());
        let mut order: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
        for raw in all {
            let known = ids.entry(&raw.mail).or_insert(&raw.id);
            assert_eq!(*known, &raw.id, "a message came under two ids: {raw:?}");
            if seen.insert(&raw.id) {
                order.entry((raw.mail.run.clone(), raw.topic.clone())).or_default().push(raw.mail.number);
            }
        }
        assert_eq!(seen.len(), ids.len(), "two messages came under one id");
        for number in 0..self.runs {
            let run = mails::run_id(number);
            for (parity, topic) in (0..).zip(TOPICS) {
                let arrived = order.remove(&(run.clone(), topic.into())).unwrap_or_default();
                let sent: Vec<u64> = (0..PER_RUN).filter(|number| number % 2 == parity).collect();
                assert_eq!(arrived, sent, "{run} to {topic}");
            }
        }
        assert!(order.is_empty(), "messages of nobody: {order:?}");
    }

    /// The database's own counts and sums: each message took effect once.
    async fn check_books(&self) {
        let mut books = Books::open(&self.books).await.expect("they open");
        let total = mails::sum(self.runs);
        for (ask, expected) in [
            ("SELECT count(*) FROM effects", self.messages()),
            ("SELECT count(DISTINCT id) FROM effects", self.messages()),
            ("SELECT CAST(sum(number) AS BIGINT) FROM effects", total),
            ("SELECT messages FROM books", self.messages()),
            ("SELECT total FROM books", total),
        ] {
            let ask =
                if self.books.starts_with("mysql:") { ask.replace("BIGINT", "SIGNED") } else { ask.into() };
            let said = books.number(&ask).await.expect("an answer");
            assert_eq!(said.unsigned_abs(), expected, "{ask}");
        }
    }
}
