//! Letters: what is sent to a run from outside, and waits until one of its items takes it.
//!
//! Invariant: a letter is taken by the journal row that says so, in the same transaction; until that row is durable the
//! letter lies where it was.

use crate::json::Json;
use std::sync::Arc;

/// A letter as its sender hands it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLetter {
    /// The sender's own id: a letter that is sent again under the same id arrives once.
    pub id: String,
    /// What it is about: runs wait for subjects.
    pub subject: Arc<str>,
    /// What it says.
    pub payload: Json,
}

/// A letter in a run's mailbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Its place in the mailbox: letters of one subject are taken in this order.
    pub number: u64,
    /// What it says.
    pub payload: Json,
}

/// What became of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// It lies in the mailbox.
    New,
    /// A letter of this id had arrived before.
    Known,
}

/// The subject of a signal.
///
/// ```
/// assert_eq!(&*hapax_core::mailbox::signal("approved"), "signal:approved");
/// ```
pub fn signal(name: &str) -> Arc<str> {
    format!("signal:{name}").into()
}

/// The subject of an operator's word on a call in doubt, by the call's key.
pub fn resolution(key: &str) -> Arc<str> {
    format!("resolve:{key}").into()
}

/// The subject of a person's answer to a question.
///
/// ```
/// assert_eq!(&*hapax_core::mailbox::answer("refund"), "answer:refund");
/// ```
pub fn answer(question: &str) -> Arc<str> {
    format!("answer:{question}").into()
}

/// The subject of a child's end: its parent then looks how it ended.
///
/// ```
/// assert_eq!(&*hapax_core::mailbox::end_of("payment-7"), "end:payment-7");
/// ```
pub fn end_of(child: &str) -> Arc<str> {
    format!("end:{child}").into()
}

/// The key of the call that a subject is about, when it is a resolution.
pub fn call_in_doubt(subject: &str) -> Option<&str> {
    subject.strip_prefix("resolve:")
}
