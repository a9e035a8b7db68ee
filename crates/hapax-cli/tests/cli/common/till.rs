//! A till: a program that pays in a SQLite file of its own, is killed where a test wants it, and goes on.
//!
//! A test binary plays that program itself: started again with `HAPAX_TILL` set, its test `till` does what that says.

use super::{Said, clean_env, said, stock, url};
use hapax::{Db, Engine, Event, prelude::*};
use serde::{Deserialize, Serialize};
use std::{
    env,
    future::pending,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};
use tempfile::TempDir;

const SHOP: Db = Db("shop");
const PAY: Node = Node::new("pay");

/// What becomes of a payment.
pub(crate) const PAID: &str = "paid";
pub(crate) const DECLINED: &str = "declined";
pub(crate) const AGAIN: &str = "at the second attempt";
/// The program that starts it says `paying` inside its transaction, and waits.
pub(crate) const OPEN: &str = "open";
/// The program that starts it says `known` behind its COMMIT, and waits.
pub(crate) const KNOWN: &str = "known";

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Sale {
    how: String,
    receipt: Option<i64>,
}

async fn pay(mut ctx: hapax::Ctx<Sale>) -> hapax::Result<SaleDelta> {
    static FAILED: AtomicBool = AtomicBool::new(false);
    let (how, is_first) = (ctx.state().how.clone(), env::var_os("HAPAX_TILL_HOW").is_some());
    let receipt: i64 = ctx
        .transaction(&SHOP, "pay", async |tx| {
            tx.execute("INSERT INTO payments VALUES (?)", &[&how]).await?;
            match &*how {
                DECLINED => return Err(NodeError::new("the card is declined").fatal()),
                AGAIN if !FAILED.swap(true, Ordering::SeqCst) => {
                    return Err(NodeError::new("the line is busy"));
                }
                OPEN if is_first => {
                    println!("paying");
                    pending::<()>().await;
                }
                _ => {}
            }
            Ok(tx.query_one::<i64>("SELECT count(*) FROM payments", &[]).await?)
        })
        .await?;
    if how == KNOWN && is_first {
        println!("known");
        pending::<()>().await;
    }
    Ok(Sale::delta().receipt(receipt))
}

/// What a test named `till` is to do: nothing, unless it is the program.
pub(crate) fn play() {
    let Ok(run) = env::var("HAPAX_TILL") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let works = env::var_os("HAPAX_TILL_WORKS").is_some();
        let options = Options::default().finds_work(works);
        let url = env::var("HAPAX_STORE").unwrap();
        let engine = Engine::builder().options(options).open(&url).await.unwrap();
        let retry = NodePolicy::default().retry(Retry::standard().backoff(|_| Duration::ZERO));
        let graph = Graph::new("sales", 1, PAY).node(PAY, pay).policy(PAY, retry);
        let (flow, mut events) = (engine.register(graph, ()).await.unwrap(), engine.events());
        if works {
            flow.attach(&run).await.unwrap().wait().await.unwrap();
        } else {
            match env::var("HAPAX_TILL_HOW") {
                Ok(how) => flow.start(&run, Sale { how, receipt: None }).await.unwrap(),
                Err(_) => flow.resume(&run).await.unwrap(),
            };
            while !matches!(events.recv().await.unwrap(), Event::RunEnded { .. }) {}
        }
        engine.shutdown(Duration::from_secs(30)).await;
    });
}

pub(crate) struct Till {
    pub(crate) folder: TempDir,
}

impl Till {
    pub(crate) fn open() -> Self {
        let till = Self { folder: tempfile::tempdir().unwrap() };
        till.shop().execute_batch("CREATE TABLE payments (how TEXT NOT NULL)").unwrap();
        till
    }

    /// Every way in which a payment can stand, each in a run of its own.
    pub(crate) fn with_history() -> Self {
        let till = Self::open();
        till.sell("sale-1", PAID);
        till.sell("sale-2", DECLINED);
        till.sell("sale-3", AGAIN);
        till.killed("sale-4", OPEN, "paying");
        till.killed("sale-5", OPEN, "paying");
        till.go_on("sale-5", "missing.db");
        till.killed("sale-6", KNOWN, "known");
        let garbled = "UPDATE hapax_transactions SET result = '\"garbled\"' WHERE result LIKE '%:3}}'";
        assert_eq!(till.shop().execute(garbled, ()).unwrap(), 1, "the third payment");
        till.go_on("sale-6", "shop.db");
        till
    }

    /// The database of the user's.
    pub(crate) fn shop(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.folder.path().join("shop.db")).unwrap()
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.folder.path().join("sales.db")
    }

    fn program(&self, run: &str, database: &str) -> Command {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["till", "--exact", "--nocapture", "--test-threads=1"]);
        clean_env(&mut command);
        command.env("HAPAX_TILL", run).env("HAPAX_STORE", url(&self.store()));
        command.env("HAPAX_DB_SHOP", url(&self.folder.path().join(database)));
        command
    }

    /// A run to its end, or to where it is parked.
    pub(crate) fn sell(&self, run: &str, how: &str) {
        let mut program = self.program(run, "shop.db");
        program.env("HAPAX_TILL_HOW", how);
        finished(program);
    }

    /// The same for a run that is there, with its database in this file.
    pub(crate) fn go_on(&self, run: &str, database: &str) {
        finished(self.program(run, database));
    }

    /// Works until a run that waits has gone well.
    pub(crate) fn work(&self, run: &str) {
        let mut program = self.program(run, "shop.db");
        program.env("HAPAX_TILL_WORKS", "1");
        finished(program);
    }

    /// A run whose process is killed as soon as it says this.
    pub(crate) fn killed(&self, run: &str, how: &str, at: &str) {
        let mut program = self.program(run, "shop.db");
        program.env("HAPAX_TILL_HOW", how).stdout(Stdio::piped());
        let mut child = Killed(program.spawn().unwrap());
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(at)), "it never said `{at}`");
    }

    pub(crate) fn hapax(&self, args: &[&str]) -> Said {
        let mut command = stock(args);
        command.env("HAPAX_STORE", url(&self.store()));
        said(command)
    }

    /// A text without this folder's name.
    pub(crate) fn anywhere(&self, text: &str) -> String {
        text.replace(&self.folder.path().display().to_string(), "[folder]")
    }
}

fn finished(program: Command) {
    let said = said(program);
    assert_eq!(said.code, 0, "{}\n{}", said.out, said.err);
}

/// A process that ends with its owner.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
