//! Letters: what is sent to a run from outside, and waits until one of its items takes it.
//!
//! Invariant: a letter is taken by the journal row that says so, in the same transaction; until that row is durable the
//! letter lies where it was.

use crate::{canary, json::Json, key::DigestBuilder, order::PathHash};
use std::sync::Arc;

/// How the subjects of answers begin.
const ANSWER: &str = "answer:";

/// How the subjects of children's ends begin.
const END: &str = "end:";

/// A letter as its sender hands it in.
///
/// ```
/// use hapax_core::{json::Json, mailbox::{NewLetter, signal}};
/// let payload = Json::from_text("\"Ada\"").unwrap();
/// let letter = NewLetter { id: "webhook-7".into(), subject: signal("approved"), payload };
/// assert_eq!(&*letter.subject, "signal:approved");
/// ```
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
///
/// ```
/// use hapax_core::{json::Json, mailbox::Letter};
/// let letter = |number, text: &str| Letter { number, payload: Json::of(text).unwrap() };
/// let mailbox = [letter(8, "second"), letter(3, "first")];
/// let next = mailbox.iter().min_by_key(|letter| letter.number).unwrap();
/// assert_eq!(next.payload.read::<String>()?, "first");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Its place in the mailbox: letters of one subject are taken in this order.
    pub number: u64,
    /// What it says.
    pub payload: Json,
}

/// What became of a letter.
///
/// ```
/// use hapax_core::mailbox::Posted;
/// // A webhook may be delivered twice; either answer means that the letter has arrived.
/// let http = |posted| match posted {
///     Posted::New => 201,
///     Posted::Known => 200,
/// };
/// assert_eq!(http(Posted::Known), 200);
/// ```
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
///
/// ```
/// use hapax_core::mailbox::{call_in_doubt, resolution};
/// assert_eq!(call_in_doubt(&resolution("fx:3b0f")), Some("fx:3b0f"));
/// ```
pub fn resolution(key: &str) -> Arc<str> {
    format!("resolve:{key}").into()
}

/// The subject of a person's answer to one question, by its place in the run: several questions may have one name.
///
/// ```
/// use hapax_core::{mailbox::{answer, is_answer}, order::PathHash};
/// let left = answer(1, PathHash(7), "left", 0);
/// assert!(is_answer(&left) && left != answer(1, PathHash(7), "right", 0));
/// ```
pub fn answer(step: u64, item: PathHash, scope: &str, index: u32) -> Arc<str> {
    let mut place = DigestBuilder::new("hapax.answer.v1");
    let index = if canary::on("answer_to_all") { 0 } else { index };
    let place = place.u64(step).u64(item.0).text(scope).u64(index.into()).finish();
    format!("{ANSWER}{place}").into()
}

/// Whether a subject is that of an answer.
///
/// ```
/// use hapax_core::mailbox::{is_answer, signal};
/// assert!(!is_answer(&signal("answer")));
/// ```
pub fn is_answer(subject: &str) -> bool {
    subject.starts_with(ANSWER)
}

/// The subject of a child's end: its parent then looks how it ended.
///
/// ```
/// assert_eq!(&*hapax_core::mailbox::end_of("payment-7"), "end:payment-7");
/// ```
pub fn end_of(child: &str) -> Arc<str> {
    format!("{END}{child}").into()
}

/// The child whose end a subject is about, when it is about one.
///
/// ```
/// use hapax_core::mailbox::{child_of, end_of, signal};
/// assert_eq!(child_of(&end_of("payment-7")), Some("payment-7"));
/// assert_eq!(child_of(&signal("end")), None);
/// ```
pub fn child_of(subject: &str) -> Option<&str> {
    subject.strip_prefix(END)
}

/// The key of the call that a subject is about, when it is a resolution.
///
/// ```
/// use hapax_core::mailbox::{call_in_doubt, signal};
/// assert_eq!(call_in_doubt("resolve:fx:3b0f"), Some("fx:3b0f"));
/// assert_eq!(call_in_doubt(&signal("approved")), None);
/// ```
pub fn call_in_doubt(subject: &str) -> Option<&str> {
    subject.strip_prefix("resolve:")
}
