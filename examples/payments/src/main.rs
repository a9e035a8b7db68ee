//! A service that charges once: hundreds of clients ask for each charge at the same moment, and the service is killed meanwhile.
//! The ledger tells: one charge for each key, and every client has the same answer, byte for byte.
//!
//! `cargo run --release -p payments` needs nothing but itself: the service keeps its accounts and the records of its requests in
//! one SQLite file in a temporary folder. `--database URL` puts them elsewhere, with `--features postgres` or `--features mysql`.
//! There are also `--keys N`, `--duplicates N` and `--kills N`. `payments serve` is the service by itself.

mod bank;
mod load;
mod service;
mod till;

use std::{env, error::Error, io, process::ExitCode};

const USAGE: &str = "\
Usage: payments [--keys N] [--duplicates N] [--kills N] [--database URL]
       payments serve --database URL --bank URL

Without `serve` it proves that each charge is made once. Its tables, payments_accounts and payments_ledger, are made anew
in the database that is named; without --database it is a SQLite file in a temporary folder.

  --keys N        charges (20)
  --duplicates N  clients that ask for each at once (200)
  --kills N       how often the service is killed meanwhile (3)
  --database URL  sqlite:path, postgres://… or mysql://…, the servers with the feature of that name
  --bank URL      where charges are authorised";

/// Whatever went wrong: each is told as it is.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) struct Args {
    database: Option<String>,
    /// Where charges are authorised.
    bank: Option<String>,
    /// What ends a service that is part of the proof: its input.
    until: Option<String>,
    keys: usize,
    duplicates: usize,
    kills: usize,
}

fn args(mut words: impl Iterator<Item = String>) -> io::Result<Args> {
    let mut args = Args { database: None, bank: None, until: None, keys: 20, duplicates: 200, kills: 3 };
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| io::Error::other(format!("{flag} wants a value")))?;
        let number = || value.parse().map_err(|_| io::Error::other(format!("{flag} wants a number")));
        match &*flag {
            "--database" => args.database = Some(value),
            "--bank" => args.bank = Some(value),
            "--until" => args.until = Some(value),
            "--keys" => args.keys = at_least_one(&flag, number()?)?,
            "--duplicates" => args.duplicates = at_least_one(&flag, number()?)?,
            "--kills" => args.kills = number()?,
            _ => return Err(io::Error::other(format!("there is no {flag}; --help tells what there is"))),
        }
    }
    Ok(args)
}

fn at_least_one(flag: &str, number: usize) -> io::Result<usize> {
    match number {
        0 => Err(io::Error::other(format!("{flag} wants at least 1"))),
        number => Ok(number),
    }
}

/// An error with its causes, in one line.
pub(crate) fn told(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let text = deeper.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = deeper.source();
    }
    line.replace('\n', " ")
}

async fn run() -> Result<()> {
    let mut words = env::args().skip(1).peekable();
    if env::args().any(|word| matches!(&*word, "--help" | "-h")) {
        println!("{USAGE}");
        return Ok(());
    }
    if words.next_if(|word| word == "serve").is_some() {
        return service::serve(args(words)?).await;
    }
    load::prove(args(words)?).await
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("payments: {}", told(&*error));
            ExitCode::FAILURE
        }
    }
}
