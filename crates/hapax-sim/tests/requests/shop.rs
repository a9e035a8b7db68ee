//! A database of a service, the processes that serve it, their client, and what must be true in the end.

use hapax_core::{
    id::Namespace,
    request::{Outcome, Record, RequestId},
};
use hapax_sim::{
    charges::{Answer, CHARGES, EFFECTS, MERCHANT},
    kills::{Party, Process},
};
use hapax_store::requests::RequestStore;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, BufReader},
    path::Path,
    process::ChildStdout,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{runtime::Runtime, task::JoinHandle};

/// Longer than anything here takes. Who waits longer waits for something that never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

const SERVICE: &str = env!("CARGO_BIN_EXE_hapax-cashier");

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    MySql,
}

/// Each of the tests in each kind of database.
macro_rules! on_each {
    ($($test:ident),* $(,)?) => {
        on_each!(@ sqlite, Sqlite, $($test),*);
        on_each!(@ postgres, Postgres, $($test),*);
        on_each!(@ mysql, MySql, $($test),*);
    };
    (@ $name:ident, $kind:ident, $($test:ident),*) => {
        mod $name {
            $(#[test]
            fn $test() {
                super::$test(&crate::shop::Shop::open(crate::shop::Kind::$kind));
            })*
        }
    };
}
pub(crate) use on_each;

/// A database, an outside party, and a client.
pub(crate) struct Shop {
    pub(crate) kind: Kind,
    pub(crate) url: String,
    store: Arc<dyn RequestStore>,
    party: Party,
    runtime: Runtime,
    client: reqwest::Client,
    folder: TempDir,
}

impl Shop {
    pub(crate) fn open(kind: Kind) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = match kind {
            Kind::Sqlite => format!("sqlite:{}", folder.path().join("shop.db").display()),
            Kind::Postgres => hapax_servers::postgres().expect("a server"),
            Kind::MySql => hapax_servers::mysql().expect("a server"),
        };
        Self::of(kind, url, folder)
    }

    /// At an address of its own.
    pub(crate) fn at(kind: Kind, url: String) -> Self {
        Self::of(kind, url, tempfile::tempdir().expect("a folder"))
    }

    fn of(kind: Kind, url: String, folder: TempDir) -> Self {
        let party = Party::start(Path::new(env!("CARGO_BIN_EXE_hapax-ledger")), folder.path());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        let runtime = runtime.expect("a runtime");
        let store = runtime.block_on(hapax_store::requests::open(&url)).expect("it opens");
        let shop = Self { kind, url, store, party, runtime, client, folder };
        shop.sql(EFFECTS);
        shop
    }

    /// The file.
    pub(crate) fn file(&self) -> rusqlite::Connection {
        let file = rusqlite::Connection::open(&self.url["sqlite:".len()..]).expect("a file");
        file.busy_timeout(Duration::from_secs(30)).expect("a timeout can be set");
        file
    }

    /// A file for whatever a test needs.
    pub(crate) fn beside(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a statement behind everybody's back; answers the first column.
    pub(crate) fn sql(&self, sql: &str) -> Vec<String> {
        if self.kind != Kind::Sqlite {
            let said = hapax_servers::sql(&self.url, sql).expect("a statement");
            return said.lines().map(str::to_owned).collect();
        }
        let file = self.file();
        let mut statement = file.prepare(sql).expect("a statement");
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).expect("an answer");
        rows.map(|row| row.expect("a text")).collect()
    }

    /// Starts a service, and waits until it listens.
    pub(crate) fn service(&self, terms: &Terms<'_>) -> Service {
        let url = terms.url.unwrap_or(&self.url);
        let ledger = self.party.socket().display().to_string();
        let (lease, conflicts) =
            (terms.lease_ms.to_string(), if terms.refuses { "refuses" } else { "waits" });
        let args = [url, &ledger, &lease, conflicts].into_iter().chain(terms.stands_at);
        let command = terms.env.iter().map(String::as_str).chain([SERVICE]).chain(args);
        Service::listening(Process::start(Path::new("/usr/bin/env"), command))
    }

    /// Sends a request, in a task of its own; an error is one of the connection.
    pub(crate) fn asked(
        &self,
        service: &Service,
        path: &str,
        key: &str,
    ) -> JoinHandle<reqwest::Result<Reply>> {
        let url = format!("http://{}{path}", service.address);
        let request = self.client.post(url).header("idempotency-key", key).header("x-merchant", MERCHANT);
        self.runtime.spawn(async {
            let answer = request.timeout(PATIENCE).send().await?;
            let (status, is_replayed) =
                (answer.status().as_u16(), answer.headers().contains_key("idempotency-replayed"));
            Ok(Reply { status, is_replayed, body: answer.text().await? })
        })
    }

    /// Waits for an answer that must come.
    pub(crate) fn reply(&self, asked: JoinHandle<reqwest::Result<Reply>>) -> Reply {
        self.outcome(asked).expect("an answer")
    }

    /// Waits for an answer, or for the end of the connection.
    pub(crate) fn outcome(&self, asked: JoinHandle<reqwest::Result<Reply>>) -> reqwest::Result<Reply> {
        self.runtime.block_on(asked).expect("no panic")
    }

    pub(crate) fn ask(&self, service: &Service, path: &str, key: &str) -> Reply {
        self.reply(self.asked(service, path, key))
    }

    /// The record of a request.
    pub(crate) fn record(&self, path: &str, key: &str) -> Option<Record> {
        let id = RequestId::new(Namespace::default(), MERCHANT, format!("POST {path}"), key).expect("a name");
        self.runtime.block_on(self.store.get(&id)).expect("it can be read")
    }

    /// The lines of the effects, by phase and key.
    ///
    /// # Panics
    ///
    /// If one took effect twice.
    fn effects(&self) -> BTreeMap<(String, String), Vec<String>> {
        let mut effects = BTreeMap::new();
        for line in self.sql("SELECT line FROM effects ORDER BY line") {
            let mut words = line.split_whitespace().map(str::to_owned);
            let (phase, key) = (words.next().expect("a phase"), words.next().expect("a key"));
            let earlier = effects.insert((phase, key), words.collect());
            assert_eq!(earlier, None, "an effect is there twice: {line}");
        }
        effects
    }

    /// Each of these requests has one effect of each phase, one stored answer, which every client got that got one, and called
    /// the outside under one key.
    pub(crate) fn check(&self, path: &str, keys: &BTreeSet<String>, answers: &[Answer]) {
        let mut effects = self.effects();
        let calls = self.party.calls();
        let mut called: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for call in &calls {
            called.entry(call.request.as_str().expect("a key").to_owned()).or_default().insert(&call.key);
        }
        for key in keys {
            let record = self.record(path, key).expect("it is there");
            let end = record.completion.expect("it has ended");
            assert_eq!(end.status, Outcome::Succeeded, "{key}");
            let stored: Answer = serde_json::from_slice(&end.response_payload).expect("an answer");
            let charge = effects.remove(&("charge".into(), key.clone())).expect("a charge");
            // What called nobody outside has no receipt.
            let told = [&stored.token, &stored.receipt].into_iter().filter(|word| !word.is_empty());
            assert!(charge.iter().eq(told), "{key}: {charge:?}, and {stored:?} was stored");
            if path == CHARGES {
                assert!(
                    effects.remove(&("reserve".into(), key.clone())).is_some(),
                    "{key}: nothing is reserved"
                );
                let under = called.remove(key).unwrap_or_default();
                assert_eq!(under.len(), 1, "{key}: the outside was called under {under:?}");
            }
            for answer in answers.iter().filter(|answer| answer.key == *key) {
                assert_eq!(answer, &stored, "{key}: a client got another answer");
            }
        }
        assert!(effects.is_empty(), "effects of nobody: {effects:?}");
        assert!(called.is_empty(), "calls of nobody: {called:?}");
        let keys: BTreeSet<_> = calls.iter().map(|call| &call.key).collect();
        let requests: BTreeSet<_> = calls.iter().map(|call| call.request.to_string()).collect();
        assert_eq!(keys.len(), requests.len(), "two requests called under one key");
    }

    /// The same for the only request.
    pub(crate) fn check_one(&self, path: &str, answers: &[Answer]) {
        self.check(path, &BTreeSet::from([KEY.to_owned()]), answers);
    }
}

/// What most tests are about.
pub(crate) const KEY: &str = "k";

/// How a service is set up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Terms<'a> {
    pub(crate) lease_ms: u32,
    /// Whether a request that is under way is refused at once.
    pub(crate) refuses: bool,
    pub(crate) stands_at: Option<&'a str>,
    /// Another way to the database.
    pub(crate) url: Option<&'a str>,
    /// Variables of its environment.
    pub(crate) env: Vec<String>,
}

impl<'a> Terms<'a> {
    /// Leases that end soon after a death.
    pub(crate) fn quick() -> Self {
        Self { lease_ms: 1500, ..Self::default() }
    }

    pub(crate) fn stands_at(self, point: &'a str) -> Self {
        Self { stands_at: Some(point), ..self }
    }
}

/// What a client got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) is_replayed: bool,
    pub(crate) body: String,
}

impl Reply {
    /// That it was charged.
    pub(crate) fn answer(&self) -> Answer {
        assert_eq!(self.status, 201, "{self:?}");
        serde_json::from_str(&self.body).expect("an answer")
    }
}

/// A process that serves.
pub(crate) struct Service {
    pub(crate) process: Process,
    lines: mpsc::Receiver<String>,
    address: String,
}

impl Service {
    fn listening(started: io::Result<(Process, BufReader<ChildStdout>)>) -> Self {
        let (process, said) = started.expect("the service starts");
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut service = Self { process, lines, address: String::new() };
        service.address = service.until("listens ");
        service
    }

    /// What it says next; nothing when it has ended.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the service is stuck"),
        }
    }

    /// What it says up to this line, and that.
    pub(crate) fn lines_until(&self, last: &str) -> Vec<String> {
        let mut lines: Vec<String> = vec![];
        while lines.last().is_none_or(|line| line != last) {
            lines.push(self.line().unwrap_or_else(|| panic!("the service never said `{last}`: {lines:?}")));
        }
        lines
    }

    /// What it has said since.
    pub(crate) fn said(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Waits for the line that begins like this; those before it are dropped. Answers the rest of it.
    pub(crate) fn until(&self, beginning: &str) -> String {
        loop {
            let line = self.line().unwrap_or_else(|| panic!("the service never said `{beginning}`"));
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.to_owned();
            }
        }
    }
}
