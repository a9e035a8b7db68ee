//! The program as its users call it, one file a part of it.

mod agents;
mod common;
mod damage;
mod demo;
mod embedded;
mod flow;
mod history;
mod keys;
mod letters;
mod outbox;
mod replay;
mod requests;
mod runs;
mod schedules;
mod tail;
mod terminal;
#[cfg(feature = "top")]
mod top;
mod transactions;
mod workers;

/// Not a test of its own: a program that the others start.
#[test]
fn tool() {
    common::tool::play();
}

/// Not a test of its own: another one.
#[test]
fn till() {
    common::till::play();
}
