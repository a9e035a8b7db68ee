//! Why a request has no answer, and whether another attempt makes sense.
//!
//! Invariant: only what proves that nothing was sent says so; and no text holds more of a URL than its origin.

use super::{Error, Request};
use crate::{NodeError, Unsent};
use hapax_core::{error::code, journal::EffectKind, limits};
use hapax_store::Clock;
use reqwest::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What came instead of an answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// It can't be sent.
    Invalid(Error),
    /// There was no connection, so nothing was sent.
    Unsent(String),
    /// The connection broke, before or while the answer came.
    Lost(String),
    /// Nothing came in time.
    Silent(Duration),
    /// The answer isn't a success.
    Status { status: u16, excerpt: String, retry_after: Option<Duration> },
    /// The answer's body is larger than this.
    TooLarge(usize),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Invalid(error)
    }
}

impl Failed {
    /// From the error of a request that was to be sent.
    pub(super) fn sending(error: &reqwest::Error) -> Self {
        if error.is_builder() {
            return Failed::Invalid(Error::Invalid(cause(error)));
        }
        // No byte of a request leaves before its connection stands, TLS and the proxy's tunnel included.
        if error.is_connect() { Failed::Unsent(cause(error)) } else { Failed::lost(error) }
    }

    /// From the error of an answer that had begun.
    pub(super) fn lost(error: &reqwest::Error) -> Self {
        Failed::Lost(cause(error))
    }

    /// From an answer that the request doesn't accept.
    pub(super) async fn status(request: &Request, mut response: reqwest::Response, clock: &Clock) -> Self {
        let (status, now) = (response.status().as_u16(), clock.now_us());
        let retry_after = retry_after(response.headers(), now);
        let excerpt = excerpt(request, &mut response).await;
        Failed::Status { status, excerpt, retry_after }
    }

    pub(super) fn into_error(self, request: &Request) -> NodeError {
        let what = request.what();
        let (code, message, retryable) = match self {
            Failed::Invalid(error) => {
                return NodeError::from(Unsent::new(error)).under(code::HTTP_INVALID).fatal();
            }
            Failed::Unsent(why) => {
                return NodeError::from(Unsent::new(format!("{what}: {why}"))).under(code::HTTP_NO_ANSWER);
            }
            Failed::Lost(why) => (code::HTTP_NO_ANSWER, format!("{what}: {why}"), true),
            Failed::Silent(time) => {
                (code::HTTP_NO_ANSWER, format!("{what}: no answer within {time:?}"), true)
            }
            Failed::Status { status, excerpt, retry_after } => {
                let message = format!("{what} answered {status}{excerpt}");
                let error = NodeError::coded(code::HTTP_STATUS, message, passes(status, request));
                // A write at most once is in doubt now: it waits for a person, not for the other side.
                let heeded = retry_after.filter(|_| request.kind_of_call() != EffectKind::WriteAtMostOnce);
                return heeded.into_iter().fold(error, NodeError::retry_after);
            }
            Failed::TooLarge(limit) => {
                (code::HTTP_TOO_LARGE, format!("{what}: the answer has more than {limit} bytes"), false)
            }
        };
        NodeError::coded(code, message, retryable)
    }
}

/// Whether another attempt may fare better. A 409 to a request with a key says that the first one is still being worked
/// on.
fn passes(status: u16, request: &Request) -> bool {
    match status {
        408 | 425 | 429 | 500..=599 => true,
        409 => request.kind_of_call() != EffectKind::Read,
        _ => false,
    }
}

/// The innermost cause: what happened, without what we were doing and where.
pub(crate) fn cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// How the answer's body begins, for people; secrets that it repeats are blacked out. It isn't waited for long: the
/// status is what counts.
async fn excerpt(request: &Request, response: &mut reqwest::Response) -> String {
    let wanted = limits::HTTP_EXCERPT_BYTES + request.longest_secret();
    let mut bytes = vec![];
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await
            && bytes.len() < wanted
        {
            bytes.extend_from_slice(&chunk[..chunk.len().min(wanted - bytes.len())]);
        }
    };
    let _in_time = tokio::time::timeout(limits::SHORT_WAIT, read).await;
    let text = request.blacked_out(String::from_utf8_lossy(&bytes).into_owned());
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = text.floor_char_boundary(limits::HTTP_EXCERPT_BYTES);
    if text.trim().is_empty() { String::new() } else { format!(": {}", text[..end].trim()) }
}

/// How long the other side wants to be left alone: seconds, or a date by its own clock where it tells that.
pub(crate) fn retry_after(headers: &HeaderMap, now_us: i64) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let date = |text: &str| httpdate::parse_http_date(text).ok();
    let wish = text(RETRY_AFTER)?;
    let pause = if !wish.is_empty() && wish.bytes().all(|byte| byte.is_ascii_digit()) {
        Duration::from_secs(wish.parse().unwrap_or(u64::MAX))
    } else {
        let ours = || UNIX_EPOCH + Duration::from_micros(now_us.try_into().unwrap_or(0));
        let now: SystemTime = text(DATE).and_then(date).unwrap_or_else(ours);
        date(wish)?.duration_since(now).unwrap_or_default()
    };
    Some(pause.min(limits::MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `retry-after` beside our own clock and, where there is one, a `date`.
    fn pause(wish: &str, ours: &str, theirs: Option<&str>) -> Option<u64> {
        let mut headers = HeaderMap::from_iter([(RETRY_AFTER, wish.parse().unwrap())]);
        headers.extend(theirs.map(|date| (DATE, date.parse().unwrap())));
        let ours = httpdate::parse_http_date(ours).unwrap().duration_since(UNIX_EPOCH).unwrap();
        retry_after(&headers, ours.as_micros() as i64).map(|pause| pause.as_secs())
    }

    const NOON: &str = "Sun, 15 Nov 2026 12:00:00 GMT";
    const LATER: &str = "Sun, 15 Nov 2026 12:10:00 GMT";

    #[test]
    fn a_wish_in_seconds_is_heard_up_to_an_hour() {
        for (wish, seconds) in
            [("0", 0), ("7", 7), (" 90 ", 90), ("3601", 3600), ("99999999999999999999999", 3600)]
        {
            assert_eq!(pause(wish, NOON, None), Some(seconds), "{wish}");
        }
    }

    #[test]
    fn a_date_is_measured_by_the_clock_of_whoever_names_it() {
        assert_eq!(pause(LATER, NOON, None), Some(600), "by our own when it tells none");
        assert_eq!(pause(LATER, "Sun, 15 Nov 2026 09:00:00 GMT", Some(NOON)), Some(600));
        assert_eq!(pause(NOON, LATER, None), Some(0), "a time that has passed");
        assert_eq!(pause("Sunday, 15-Nov-26 12:10:00 GMT", NOON, None), Some(600), "the old form");
        assert_eq!(pause("Fri, 01 Jan 2100 00:00:00 GMT", NOON, None), Some(3600));
    }

    #[test]
    fn nonsense_is_no_wish() {
        for wish in ["", "soon", "-5", "1.5", "Sun, 99 Nov 2026 12:00:00 GMT", "15 Nov 2026"] {
            assert_eq!(pause(wish, NOON, None), None, "{wish}");
        }
    }
}
