//! What a claim on a record means: the same for all databases.
//!
//! Invariant: a verdict to take a record rests on the record as it was read and on a clock that was read with it. Whoever
//! acts on it demands the record to be still that one.

use super::{Begun, Claim};
use crate::clock::micros_left;
use hapax_core::{
    canary,
    request::{Record, Status},
};

/// What is to be done about a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing: this is the answer.
    Answer(Begun),
    /// The record may be taken, with how far it came.
    TakeOver(Box<Record>),
    /// The record may be forgotten: begin afresh in its place.
    Afresh(Box<Record>),
}

/// Judges a claim that drew this nonce, on a record that was read at this time of the database's clock.
pub(crate) fn judge(record: Record, claim: &Claim, nonce: u128, retry: bool, now_us: i64) -> Verdict {
    let status = record.status();
    if status == Status::InProgress && record.token.nonce == nonce {
        // The reply to our own claim was lost.
        return Verdict::Answer(Begun::Execute(record.lease()));
    }
    let is_busy = status == Status::InProgress && record.lease_until_us > now_us;
    if !is_busy && record.expires_at_us <= now_us && !canary::on("expiry_by_sweep") {
        return Verdict::Afresh(Box::new(record));
    }
    if record.hash != claim.hash {
        return Verdict::Answer(Begun::HashMismatch);
    }
    match status {
        Status::InProgress if is_busy => {
            let retry_after = micros_left(record.lease_until_us, now_us);
            Verdict::Answer(Begun::InProgress { retry_after })
        }
        Status::FailedRetryable if !retry => Verdict::Answer(Begun::Retryable { attempt: record.attempt }),
        Status::InProgress | Status::FailedRetryable => Verdict::TakeOver(Box::new(record)),
        Status::Succeeded | Status::FailedFinal => Verdict::Answer(Begun::Replay(Box::new(record))),
    }
}
