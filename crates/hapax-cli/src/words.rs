//! Journal entries in words.

use crate::view::{counted, time};
use hapax_core::{
    journal::{Done, EffectOutcome, Entry, TxSaid},
    stream::CallAt,
};

/// A call: its lane, unless that is the item's own, and its number there.
fn call(scope: &str, index: u32) -> String {
    if scope.is_empty() { format!("call {index}") } else { format!("call {scope}/{index}") }
}

/// A journal entry in words.
pub(crate) fn told(entry: &Entry) -> String {
    match entry {
        Entry::AttemptFailed { failure, .. } => {
            format!("attempt {} failed: {}", failure.attempt, failure.message)
        }
        Entry::Intent(intent) => {
            format!("{} {} {}", call(&intent.scope, intent.index), intent.name, intent.key)
        }
        Entry::Result { scope, index, outcome: EffectOutcome::Ok { response }, .. } => {
            format!("{} answered {}", call(scope, *index), response.as_str())
        }
        Entry::Result { scope, index, outcome: EffectOutcome::Err { code, message, .. }, .. } => {
            format!("{} failed: {code} {message}", call(scope, *index))
        }
        Entry::ItemDone { done: Done::Ok { delta, .. } } => format!("done, wrote {}", delta.as_str()),
        Entry::ItemDone { done: Done::Failed { failure } } => format!("given up: {}", failure.message),
        Entry::Seen(seen) => match &seen.outcome {
            EffectOutcome::Ok { response } => {
                format!("{} {} saw {}", call(&seen.scope, seen.index), seen.name, response.as_str())
            }
            EffectOutcome::Err { code, message, .. } => {
                format!("{} {} failed: {code} {message}", call(&seen.scope, seen.index), seen.name)
            }
        },
        Entry::Question(question) => {
            format!("{} asks {}: {}", call(&question.scope, question.index), question.name, question.text)
        }
        Entry::Awaits(awaits) => format!("{} {} waits", call(&awaits.scope, awaits.index), awaits.name),
        Entry::Turn(turn) => {
            let waits = turn.due_us.map_or_else(
                || "takes its turn".to_owned(),
                |due_us| format!("waits until {} for its turn", time(due_us)),
            );
            format!("{} {waits} in {}", call(&turn.scope, turn.index), turn.bucket)
        }
        Entry::Transaction(note) => format!("{} {}", call(&note.scope, note.index), said(&note.said)),
        Entry::Timer(timer) => {
            format!("{} sleeps until {}", call(&timer.scope, timer.index), time(timer.due_us))
        }
        Entry::Drew(drew) if drew.scope.is_empty() => {
            format!("drew {}", counted(drew.draws, "random number"))
        }
        Entry::Drew(drew) => format!("drew {} in {}", counted(drew.draws, "random number"), drew.scope),
        Entry::Took { letter } => format!("took letter {letter}"),
        Entry::Retried => "an operator asked for fresh attempts".into(),
        Entry::Chunk(chunk) => format!("{} {}", streamed(chunk.call.as_ref()), chunk.payload.as_str()),
        Entry::Streams(streams) => {
            let begins = format!(
                "attempt {} (epoch {}) {}",
                streams.attempt,
                streams.epoch,
                streamed(streams.call.as_ref())
            );
            match streams.instead_of {
                Some(old) => format!("{begins} instead of attempt {} (epoch {})", old.attempt, old.epoch),
                None => begins,
            }
        }
        other => format!("{other:?}"),
    }
}

/// What is said of a transaction.
fn said(said: &TxSaid) -> String {
    match said {
        TxSaid::Begins { database, strategy } => format!("begins in {database}, by {strategy}"),
        TxSaid::PreCommit { witness, .. } => format!("is about to be committed as {}", witness.as_str()),
        TxSaid::Away { why } => format!("waits for its database: {why}"),
        TxSaid::Doubt { why } => format!("is in doubt: {why}"),
        other => format!("{other:?}"),
    }
}

/// Who streams.
fn streamed(call: Option<&CallAt>) -> String {
    call.map_or("streams".into(), |at| format!("streams in call {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_told_with_its_lane() {
        let result = |scope: &str| Entry::Result {
            scope: scope.into(),
            index: 0,
            attempt: 1,
            outcome: EffectOutcome::Ok { response: hapax_core::json::Json::null() },
            at_us: 0,
        };
        assert_eq!(told(&result("")), "call 0 answered null");
        assert_eq!(told(&result("left")), "call left/0 answered null");
    }
}
