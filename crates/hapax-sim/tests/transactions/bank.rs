//! A database of the user's with accounts, whoever books in it, and what must be true of both in the end.

use hapax::Engine;
use hapax_sim::{
    kills::Process,
    transfers::{self, ACCOUNTS, BALANCE, Booking, CALLS, Teller, Transfer},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    ops::Range,
    path::Path,
    process::ChildStdout,
    sync::mpsc,
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Longer than anything here takes. Who waits longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(240);

/// A kind of database, and how the outcome of a transaction is known in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
    Introspection,
    MySql,
}

impl Kind {
    fn strategy(self) -> &'static str {
        if self == Kind::Introspection { "introspection" } else { "marker" }
    }
}

/// Each of the tests in each kind of database, and by each strategy that it has.
macro_rules! on_each {
    ($($test:ident),* $(,)?) => {
        on_each!(@ sqlite, Sqlite, $($test),*);
        on_each!(@ postgres, Postgres, $($test),*);
        on_each!(@ postgres_by_introspection, Introspection, $($test),*);
        on_each!(@ mysql, MySql, $($test),*);
    };
    (@ $name:ident, $kind:ident, $($test:ident),*) => {
        mod $name {
            $(#[test]
            fn $test() {
                super::$test(&crate::bank::Bank::open(crate::bank::Kind::$kind));
            })*
        }
    };
}
pub(crate) use on_each;

/// A database with accounts, and a folder for what else a test needs.
pub(crate) struct Bank {
    pub(crate) kind: Kind,
    pub(crate) url: String,
    folder: TempDir,
}

impl Bank {
    pub(crate) fn open(kind: Kind) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let url = match kind {
            Kind::Sqlite => format!("sqlite:{}", folder.path().join("bank.db").display()),
            Kind::Postgres | Kind::Introspection => hapax_servers::postgres().expect("a server"),
            Kind::MySql => hapax_servers::mysql().expect("a server"),
        };
        Self { folder, ..Self::at(kind, url) }
    }

    /// At an address of its own.
    pub(crate) fn at(kind: Kind, url: String) -> Self {
        let bank = Self { kind, url, folder: tempfile::tempdir().expect("a folder") };
        for statement in transfers::tables() {
            bank.sql(&statement);
        }
        bank
    }

    /// A file for runs, which has nothing to do with the accounts.
    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("runs.db").display())
    }

    /// The accounts' file.
    pub(crate) fn file(&self) -> rusqlite::Connection {
        let file = rusqlite::Connection::open(&self.url["sqlite:".len()..]).expect("a file");
        file.busy_timeout(Duration::from_secs(30)).expect("a timeout can be set");
        file
    }

    /// Runs a statement behind everybody's back; answers the first column.
    pub(crate) fn sql(&self, sql: &str) -> Vec<String> {
        if self.kind != Kind::Sqlite {
            let said = hapax_servers::sql(&self.url, sql).expect("a statement");
            return said.lines().map(str::to_owned).collect();
        }
        let file = self.file();
        let mut statement = file.prepare(sql).expect("a statement");
        let mut rows = statement.query([]).expect("an answer");
        let mut said = vec![];
        while let Some(row) = rows.next().expect("a row") {
            said.push(match row.get_ref(0).expect("a column") {
                rusqlite::types::ValueRef::Integer(number) => number.to_string(),
                text => text.as_str().expect("a text").to_owned(),
            });
        }
        said
    }

    /// Starts a process that books, by way of this address of the database.
    pub(crate) fn teller(&self, store: &str, url: &str, work: &[&str]) -> Booker {
        let program = Path::new(env!("CARGO_BIN_EXE_hapax-teller"));
        let args = [store, url, self.kind.strategy()].into_iter().chain(work.iter().copied());
        Booker::new(Process::start(program, args).expect("the teller starts"))
    }

    /// What took effect: the execution of each transaction.
    ///
    /// # Panics
    ///
    /// If one took effect twice, or the accounts don't show what did.
    pub(crate) fn effects(&self) -> BTreeMap<String, String> {
        let mut balances = vec![BALANCE; ACCOUNTS as usize];
        let mut effects = BTreeMap::new();
        for line in self.sql("SELECT line FROM effects ORDER BY line") {
            let words: Vec<&str> = line.split(' ').collect();
            let [what, token, from, to, amount] = words[..] else { panic!("a strange line: {line}") };
            let earlier = effects.insert(what.to_owned(), token.to_owned());
            assert_eq!(earlier, None, "{what} took effect twice");
            let amount: i64 = amount.parse().expect("an amount");
            balances[from.parse::<usize>().expect("an account")] -= amount;
            balances[to.parse::<usize>().expect("an account")] += amount;
        }
        let booked = self.sql("SELECT balance FROM accounts ORDER BY id");
        let booked: Vec<i64> = booked.iter().map(|balance| balance.parse().expect("a number")).collect();
        assert_eq!(booked.iter().sum::<i64>(), BALANCE * i64::from(ACCOUNTS), "money was made or lost");
        assert_eq!(booked, balances, "the accounts show what took effect");
        effects
    }

    /// All runs are over, each of their transactions took effect once, and what they have recorded, and were shown in any
    /// life, is the result of the execution that did. A replay of their records comes to the same.
    pub(crate) fn check(&self, store: &str, numbers: Range<u32>, shown: &Shown) {
        let effects = self.effects();
        let whats = numbers.clone().flat_map(|number| CALLS.map(|call| Booking::of(number, call).what));
        assert!(effects.keys().eq(whats.collect::<BTreeSet<_>>().iter()), "effects are missing or strange");
        for (what, token) in &shown.0 {
            assert_eq!(effects.get(what), Some(token), "{what}: a result was shown that didn't take effect");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let options = hapax::Options::default().finds_work(false);
            let engine = Engine::builder().options(options).open(store).await.expect("the store opens");
            let flow = engine.register(transfers::graph(), Teller::default()).await.expect("a graph");
            for number in numbers {
                let name = transfers::name(number);
                let end = flow.attach(&name).await.expect("it is there").wait().await.expect("it succeeded");
                let tokens =
                    CALLS.map(|call| format!("receipt {}", effects[&Booking::of(number, call).what]));
                assert_eq!(end, Transfer { number, receipts: tokens.to_vec() });
                for _ in 0..2 {
                    let replay = engine.replay(&name).await.expect("it can be replayed");
                    assert_eq!((replay.divergence, replay.calls), (None, CALLS.len() as u64), "{name}");
                }
            }
        });
    }
}

/// The results that nodes were shown, in any life.
#[derive(Debug, Default)]
pub(crate) struct Shown(BTreeSet<(String, String)>);

impl Shown {
    /// Notes what a line tells.
    pub(crate) fn hear(&mut self, line: &str) {
        if let Some((what, token)) = line.strip_prefix("known ").and_then(|rest| rest.split_once(' ')) {
            self.0.insert((what.to_owned(), token.to_owned()));
        }
    }
}

/// A process that books, and what it says.
pub(crate) struct Booker {
    pub(crate) process: Process,
    lines: mpsc::Receiver<String>,
}

impl Booker {
    fn new((process, said): (Process, BufReader<ChildStdout>)) -> Self {
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { process, lines }
    }

    /// What it says next; nothing when it has ended.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the teller is stuck"),
        }
    }
    /// Waits for a line that begins like this; those before it are dropped.
    pub(crate) fn until(&self, beginning: &str) {
        while !self.line().expect("the teller goes on").starts_with(beginning) {}
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) fn stop(&self) {
        self.process.terminate();
        assert!(self.process.wait().success(), "the teller failed");
    }
}
