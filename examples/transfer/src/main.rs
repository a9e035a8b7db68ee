//! Money in a database of its own: 1,000 transfers, while the process that makes them is killed with SIGKILL again and again.
//! Each transfer takes effect once, and the sum of all accounts never changes.
//!
//! `cargo run --release -p transfer` needs nothing but itself: runs and accounts are two SQLite files in a temporary folder.
//! `--database URL` puts the accounts elsewhere, with `--features postgres` or `--features mysql`. There are also
//! `--transfers N` and `--kills N`.

mod bank;
mod worker;

use bank::Bank;
use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher, RandomState},
    io::{self, BufRead, BufReader, Write as _},
    ops::Range,
    process::{Child, ChildStdout, Command, Stdio},
};

struct Args {
    database: Option<String>,
    transfers: u32,
    kills: u32,
}

fn args(mut words: impl Iterator<Item = String>) -> io::Result<Args> {
    let mut args = Args { database: None, transfers: 1000, kills: 50 };
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| io::Error::other(format!("{flag} wants a value")))?;
        let number = || value.parse().map_err(|_| io::Error::other(format!("{flag} wants a number")));
        match &*flag {
            "--database" => args.database = Some(value),
            "--transfers" => args.transfers = number()?,
            "--kills" => args.kills = number()?,
            _ => {
                let flags = "--database, --transfers and --kills";
                return Err(io::Error::other(format!("there is no {flag}; there are {flags}")));
            }
        }
    }
    Ok(args)
}

#[tokio::main]
async fn main() -> hapax::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    if let [word, store, database, batch, from, to] = &words[..]
        && word == "worker"
    {
        return worker::work(store, database, batch, from.parse()?..to.parse()?).await;
    }
    let args = args(words.into_iter())?;
    let folder = tempfile::tempdir()?;
    let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
    let bank = Bank::open(args.database.unwrap_or_else(|| file("accounts.db"))).await?;
    let show = Show { store: file("runs.db"), bank, transfers: args.transfers, kills: args.kills };
    show.run().await
}

/// What happens in a life of the worker.
struct Life {
    process: Child,
    said: BufReader<ChildStdout>,
}

struct Show {
    store: String,
    bank: Bank,
    transfers: u32,
    kills: u32,
}

impl Show {
    async fn run(&self) -> hapax::Result<()> {
        let sum = self.bank.sum().await?;
        // Markers of an earlier show may still be in the database: transfers of this one have names of their own.
        let batch = format!("{:x}", RandomState::new().hash_one(std::process::id()));
        // How often each transfer's transaction was executed, and which transfers are over.
        let (mut ran, mut done) = (BTreeMap::<u32, u32>::new(), vec![false; self.transfers as usize]);
        for life in 0..=self.kills {
            // It is killed when it is through with its part, and amid the next one.
            let part =
                |life: u32| (u64::from(self.transfers) * u64::from(life) / u64::from(self.kills + 1)) as u32;
            let first = done.iter().position(|done| !done).unwrap_or(done.len()) as u32;
            let mut worker = self.worker(&batch, first..part((life + 2).min(self.kills + 1)))?;
            while over(&done) < part(life + 1) {
                let mut line = String::new();
                worker.said.read_line(&mut line)?;
                match line.trim_end().split_once(' ') {
                    Some(("ran", number)) => *ran.entry(number.parse()?).or_default() += 1,
                    Some(("done", number)) => {
                        done[number.parse::<usize>()?] = true;
                        eprint!("\r{} of {} transfers are done, {life} kills", over(&done), self.transfers);
                        io::stderr().flush()?;
                    }
                    _ => return Err(io::Error::other("the worker failed").into()),
                }
            }
            if life < self.kills {
                worker.process.kill()?;
            }
            worker.process.wait()?; // the last one ends with its input
            // What it said before it died counts.
            for line in worker.said.lines() {
                if let Some(("ran", number)) = line?.split_once(' ') {
                    *ran.entry(number.parse()?).or_default() += 1;
                }
            }
            assert_eq!(self.bank.sum().await?, sum, "the sum of all accounts has changed");
        }
        let again = ran.values().filter(|times| **times > 1).count();
        eprintln!("\n{again} transactions ran more than once, and took effect once");
        self.tell(sum).await
    }

    fn worker(&self, batch: &str, numbers: Range<u32>) -> hapax::Result<Life> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["worker", &self.store, self.bank.url(), batch]);
        command.args([numbers.start.to_string(), numbers.end.to_string()]);
        // It ends with its input, so that it can't outlive us.
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(process.stdout.take().expect("its output is piped"));
        Ok(Life { process, said })
    }

    async fn tell(&self, sum: i64) -> hapax::Result<()> {
        let booked = self.bank.booked().await?;
        let times = |number: u32| booked.iter().filter(|booked| **booked == i64::from(number)).count();
        assert!(
            (0..self.transfers).all(|number| times(number) == 1),
            "a transfer is missing, or there twice"
        );
        assert_eq!(booked.len(), self.transfers as usize);
        println!("{} transfers, and their worker was killed {} times", self.transfers, self.kills);
        println!("each took effect once");
        println!("the sum of all accounts was {sum} after each kill, as in the beginning");
        Ok(())
    }
}

fn over(done: &[bool]) -> u32 {
    done.iter().filter(|done| **done).count() as u32
}
