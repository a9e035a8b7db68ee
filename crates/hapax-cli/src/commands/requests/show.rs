//! One request with all that its record holds.

use super::{Desk, Name, lease_left, millis, standing, style, unknown};
use crate::{
    failure::Failure,
    json::{indented, raw},
    output::{BAD, FAINT, Output, STRONG, clean},
    view::{age, ago, counted, time},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::Args;
use hapax_core::request::{Completion, Record, RecoveryPoint};
use serde::{Serialize, de::IgnoredAny};
use serde_json::value::RawValue;

const SHOW_HELP: &str = "\
The payload is shown as it is stored, JSON with line breaks; of one that is no text its size. With --json it is `text`, or \
`base64` where it is none. Headers that hold secrets by their nature, such as cookies, are hidden.

Examples:
  hapax requests show merchant-7 'POST /charges' 8e03978e
  hapax requests show merchant-7 'POST /charges' 8e03978e --json \\
      | jq -r .answer.payload.text";

/// The values of these are nobody else's business.
const SECRET: [&str; 4] = ["set-cookie", "cookie", "authorization", "proxy-authorization"];
const HIDDEN: &str = "[secret]";

/// Show one request: where it stands, how far it came, its answer
#[derive(Debug, Args)]
#[command(after_help = SHOW_HELP)]
pub(super) struct Show {
    #[command(flatten)]
    name: Name,
}

#[derive(Serialize)]
struct ShowAnswer<'a> {
    request: RequestView<'a>,
    answer: Option<AnswerView<'a>>,
}

#[derive(Serialize)]
struct RequestView<'a> {
    namespace: &'a str,
    principal: &'a str,
    method: &'a str,
    key: &'a str,
    hash: String,
    status: &'static str,
    attempt: u32,
    sequence: i64,
    lease_left_ms: Option<u64>,
    point: Option<PointView<'a>>,
    begun_at: String,
    claimed_at: String,
    expires_at: String,
}

#[derive(Serialize)]
struct PointView<'a> {
    name: &'a str,
    data: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct AnswerView<'a> {
    code: i32,
    headers: Vec<(&'a str, String)>,
    payload: PayloadView<'a>,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct PayloadView<'a> {
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

impl<'a> ShowAnswer<'a> {
    fn of(record: &'a Record, now_us: i64) -> Self {
        let left = lease_left(record.status(), record.lease_until_us, now_us);
        let point =
            |point: &'a RecoveryPoint| PointView { name: &point.name, data: raw(point.data.as_str()) };
        let request = RequestView {
            namespace: record.id.namespace().as_str(),
            principal: record.id.principal(),
            method: record.id.method(),
            key: record.id.key(),
            hash: record.hash.to_string(),
            status: record.status().word(),
            attempt: record.attempt,
            sequence: record.token.sequence,
            lease_left_ms: left.map(millis),
            point: record.point.as_ref().map(point),
            begun_at: time(record.created_at_us),
            claimed_at: time(record.token.updated_at_us),
            expires_at: time(record.expires_at_us),
        };
        Self { request, answer: record.completion.as_ref().map(AnswerView::of) }
    }
}

impl<'a> AnswerView<'a> {
    fn of(end: &'a Completion) -> Self {
        let text = str::from_utf8(&end.response_payload).ok();
        let payload = PayloadView {
            bytes: end.response_payload.len(),
            base64: text.is_none().then(|| STANDARD.encode(&end.response_payload)),
            text,
        };
        let error = end.error_message.as_deref();
        Self { code: end.response_code, headers: headers(end).collect(), payload, error }
    }
}

/// The headers of an answer, without what is secret.
fn headers(end: &Completion) -> impl Iterator<Item = (&str, String)> {
    end.response_headers.iter().map(|(name, value)| {
        let is_secret = SECRET.iter().any(|secret| name.eq_ignore_ascii_case(secret));
        let value = if is_secret { HIDDEN.into() } else { String::from_utf8_lossy(value).into_owned() };
        (name.as_str(), value)
    })
}

impl Show {
    pub(super) async fn run(self, desk: &Desk<'_>) -> Result<(), Failure> {
        let id = self.name.id(&desk.namespace)?;
        let record = desk.store.get(&id).await?.ok_or_else(|| unknown(&id))?;
        let now_us = desk.store.now_us().await?;
        desk.out.answer(&ShowAnswer::of(&record, now_us), || page(&record, now_us, desk.out))
    }
}

fn page(record: &Record, now_us: i64, out: &Output) -> String {
    let at = |at_us| format!("{} ({})", time(at_us), ago(at_us, now_us));
    let status = out.paint(style(record.status()), &standing(record.status()));
    let mut lines = vec![
        ("key", out.paint(STRONG, &clean(record.id.key()))),
        ("principal", clean(record.id.principal())),
        ("method", clean(record.id.method())),
        ("namespace", clean(record.id.namespace().as_str())),
        ("status", status),
        ("attempt", record.attempt.to_string()),
    ];
    match lease_left(record.status(), record.lease_until_us, now_us) {
        None => {}
        Some(left) if left.is_zero() => {
            lines.push(("lease", out.paint(BAD, "over") + ": whoever asks next takes it over"));
        }
        Some(left) => lines.push(("lease", format!("{} left", age(left)))),
    }
    lines.extend([
        ("begun", at(record.created_at_us)),
        ("claimed", at(record.token.updated_at_us)),
        ("expires", format!("{} ({})", time(record.expires_at_us), until(record.expires_at_us, now_us))),
    ]);
    if let Some(point) = &record.point {
        lines.extend([("point", clean(&point.name)), ("data", below(&indented(point.data.as_str())))]);
    }
    lines.extend(record.completion.iter().flat_map(|end| answer(end, out)));
    lines.push(("hash", record.hash.to_string()));
    let shown =
        |(name, value): &(&str, String)| format!("{} {value}\n", out.paint(FAINT, &format!("{name:<9}")));
    lines.iter().map(shown).collect()
}

fn answer(end: &Completion, out: &Output) -> Vec<(&'static str, String)> {
    let mut lines = vec![("code", end.response_code.to_string())];
    let headers: Vec<String> = headers(end).map(|(name, value)| format!("{name}: {value}")).collect();
    if !headers.is_empty() {
        lines.push(("headers", below(&headers.join("\n"))));
    }
    lines.push(("payload", payload(&end.response_payload)));
    lines.extend(end.error_message.iter().map(|error| ("error", out.paint(BAD, &clean(error)))));
    lines
}

fn payload(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok("") => "none".into(),
        Ok(text) if serde_json::from_str::<IgnoredAny>(text).is_ok() => below(&indented(&compact(text))),
        Ok(text) => below(text),
        Err(_) => format!("{}, no text", counted(bytes.len() as u64, "byte")),
    }
}

/// JSON without the whitespace between its parts; every other character stays.
fn compact(json: &str) -> String {
    let (mut quoted, mut escaped) = (false, false);
    let keeps = |c: &char| {
        let keeps = quoted || !c.is_ascii_whitespace();
        quoted = if quoted { escaped || *c != '"' } else { *c == '"' };
        escaped = quoted && *c == '\\' && !escaped;
        keeps
    };
    json.chars().filter(keeps).collect()
}

/// A value that may take several lines, under its name.
fn below(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(clean).collect();
    lines.join("\n          ")
}

/// How long until then, roughly.
fn until(at_us: i64, now_us: i64) -> String {
    let seconds = at_us.saturating_sub(now_us) / 1_000_000;
    match seconds {
        ..=0 => "over".into(),
        1..120 => format!("in {seconds}s"),
        120..7200 => format!("in {}m", seconds / 60),
        7200..172_800 => format!("in {}h", seconds / 3600),
        _ => format!("in {}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_loses_its_whitespace_and_nothing_else() {
        let json = "{ \"a b\" : [ 1.50 ,\n\"x \\\" y\" ] , \"c\\\\\" : \" \" }";
        assert_eq!(compact(json), r#"{"a b":[1.50,"x \" y"],"c\\":" "}"#);
        assert_eq!(payload(b"[ 1.50, 2 ]"), "[\n            1.50,\n            2\n          ]");
    }

    #[test]
    fn a_payload_is_shown_as_what_it_is() {
        assert_eq!(payload(b""), "none");
        assert_eq!(payload(b"one\x1b[2J\ntwo"), "one\\u{1b}[2J\n          two");
        assert_eq!(payload(b"\xff\x00"), "2 bytes, no text");
    }

    #[test]
    fn what_is_to_come_is_told_roughly() {
        assert_eq!(until(0, 0), "over");
        assert_eq!(until(119_000_000, 0), "in 119s");
        assert_eq!(until(86_400_000_000, 0), "in 24h");
    }
}
