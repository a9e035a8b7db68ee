//! The program as its users call it, one file a part of it.

mod agents;
mod anew;
mod common;
mod damage;
mod demo;
mod embedded;
mod flow;
mod history;
mod house;
mod keys;
mod letters;
mod objects;
mod outbox;
mod replay;
mod requests;
#[cfg(feature = "encryption")]
mod rotate;
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
