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

use std::{env, error::Error, io};

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
            "--keys" => args.keys = number()?,
            "--duplicates" => args.duplicates = number()?,
            "--kills" => args.kills = number()?,
            _ => {
                let flags = "--database, --keys, --duplicates and --kills";
                return Err(io::Error::other(format!("there is no {flag}; there are {flags}")));
            }
        }
    }
    Ok(args)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = env::args().skip(1).peekable();
    if words.next_if(|word| word == "serve").is_some() {
        return service::serve(args(words)?).await;
    }
    load::prove(args(words)?).await
}
