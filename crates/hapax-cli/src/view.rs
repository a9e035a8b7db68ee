//! Runs as they are shown: the same facts for people and for programs.

use crate::output::{BAD, BUSY, FAINT, GOOD, WARN};
use anstyle::Style;
use hapax::{RunFailure, Status};
use hapax_core::key::Digest;
use hapax_store::RunRecord;
use jiff::Timestamp;
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

/// A run's row for programs.
#[derive(Debug, Serialize)]
pub(crate) struct RunView<'a> {
    run: &'a str,
    namespace: &'a str,
    graph: &'a str,
    fingerprint: Digest,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a RunFailure>,
    step: u64,
    digest: Digest,
    epoch: u64,
    owner: Option<&'a str>,
    cancel_requested: bool,
    used_us: u64,
    tags: &'a BTreeMap<String, String>,
    created_at: String,
    updated_at: String,
}

impl<'a> RunView<'a> {
    pub(crate) fn of(record: &'a RunRecord) -> Self {
        Self {
            run: record.key.run.as_str(),
            namespace: record.key.namespace.as_str(),
            graph: &record.graph,
            fingerprint: record.fingerprint,
            status: record.status.word(),
            detail: detail(&record.status),
            failure: failure(&record.status),
            step: record.step,
            digest: record.digest,
            epoch: record.epoch.counter,
            owner: record.owner.as_deref(),
            cancel_requested: record.cancel_requested,
            used_us: record.used_us,
            tags: &record.tags,
            created_at: time(record.created_at_us),
            updated_at: time(record.updated_at_us),
        }
    }
}

/// Why a run failed.
pub(crate) fn failure(status: &Status) -> Option<&RunFailure> {
    match status {
        Status::Failed { error } => Some(error),
        _ => None,
    }
}

/// What a parked run waits for, or where one goes that doesn't stay.
fn detail(status: &Status) -> Option<String> {
    let word = match status {
        Status::Waiting { on } => serde_json::to_value(on),
        Status::Paused { by } => serde_json::to_value(by),
        Status::Leaving { to, .. } | Status::Moved { to, .. } => return Some(format!("to {to}")),
        _ => return None,
    };
    word.ok().and_then(|word| word.as_str().map(str::to_owned))
}

/// Where a run stands, in a few words.
pub(crate) fn standing(record: &RunRecord) -> String {
    let word = record.status.word();
    match (detail(&record.status), failure(&record.status)) {
        _ if record.cancel_requested && !record.status.is_final() => format!("{word} (to be cancelled)"),
        (Some(detail), _) => format!("{word} ({detail})"),
        (_, Some(failure)) => format!("{word} ({})", failure.code),
        _ => word.to_owned(),
    }
}

/// The colour of a status.
pub(crate) fn style(status: &Status) -> Style {
    match status {
        Status::Succeeded => GOOD,
        Status::Running => BUSY,
        Status::Failed { .. } | Status::InDoubt => BAD,
        Status::Cancelled => FAINT,
        _ => WARN,
    }
}

/// A time as RFC 3339 in UTC.
pub(crate) fn time(at_us: i64) -> String {
    Timestamp::from_microsecond(at_us).map_or_else(|_| at_us.to_string(), |time| format!("{time:.6}"))
}

/// How long ago, roughly.
pub(crate) fn ago(at_us: i64, now_us: i64) -> String {
    let passed = now_us.saturating_sub(at_us).max(0).unsigned_abs();
    format!("{} ago", roughly(Duration::from_micros(passed)))
}

/// A duration to its first digits.
pub(crate) fn roughly(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Tags as `k=v` pairs.
pub(crate) fn tags(tags: &BTreeMap<String, String>) -> String {
    tags.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// A duration such as `90s`, `15m`, `12h`, `7d` or `2w`.
pub(crate) fn parse_age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not an age; use a number with s, m, h, d or w, such as 7d");
    let split = text.len() - text.chars().next_back().map_or(0, char::len_utf8);
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

/// How many at the most, or at a time: none at all is nothing to ask for.
pub(crate) fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("`{text}` is not a number from 1 on"))
}

/// A number of things, in words that fit it.
pub(crate) fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// An age as it is said.
pub(crate) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let units = [(604_800, "w"), (86_400, "d"), (3600, "h"), (60, "m")];
    let exact = units.iter().find(|(unit, _)| seconds >= *unit && seconds.is_multiple_of(*unit));
    exact.map_or_else(|| format!("{seconds}s"), |(unit, name)| format!("{}{name}", seconds / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_read_as_they_are_said() {
        for text in ["0s", "90s", "15m", "12h", "6d", "2w"] {
            assert_eq!(age(parse_age(text).unwrap()), text);
        }
        for text in ["", "7", "d", "-1d", "7 d", "7é", "99999999999999999w"] {
            assert!(parse_age(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_count_begins_at_one_and_is_said_in_fitting_words() {
        assert_eq!(parse_count("50"), Ok(50));
        for text in ["0", "-1", "", "x", "99999999999999999999"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
        assert_eq!([0, 1, 2].map(|count| counted(count, "call")), ["0 calls", "1 call", "2 calls"]);
    }

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(time(1_700_000_000_000_000), "2023-11-14T22:13:20.000000Z");
        assert_eq!(ago(0, 59_999_999), "59s ago");
        assert_eq!(ago(0, 7_200_000_000), "2h ago");
    }
}
