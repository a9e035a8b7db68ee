//! The answers that the layer gives by itself: problem details by RFC 9457.
//!
//! Invariant: a refusal tells a client what to do next, and nothing of the service's inside.

use bytes::Bytes;
use hapax_core::{
    error::{Code, code},
    request::{Completion, Outcome},
};
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};
use serde_json::json;
use std::time::Duration;

const PROBLEM_JSON: &str = "application/problem+json";

/// Each code has a page there.
const PAGES: &str = "https://github.com/hapax-rs/hapax/blob/main/docs/errors";

/// A healthy execution ends long before its lease, so nobody is told to wait for all of it.
const LONGEST_RETRY_AFTER: u64 = 5;

/// Why a request isn't answered by its handler.
#[derive(Debug)]
pub(crate) enum Refusal {
    MissingKey,
    BadKey(&'static str),
    NoPrincipal,
    BadName(String),
    BrokenBody,
    LargeBody { limit: usize },
    OtherRequest,
    InFlight { left: Duration },
    StoreDown,
    LargeAnswer { limit: usize },
    Lost,
}

impl Refusal {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Refusal::MissingKey | Refusal::BadKey(_) | Refusal::BadName(_) | Refusal::BrokenBody => {
                StatusCode::BAD_REQUEST
            }
            Refusal::NoPrincipal => StatusCode::FORBIDDEN,
            Refusal::LargeBody { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::OtherRequest => StatusCode::UNPROCESSABLE_ENTITY,
            Refusal::InFlight { .. } => StatusCode::CONFLICT,
            Refusal::StoreDown => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::LargeAnswer { .. } | Refusal::Lost => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) fn code(&self) -> Code {
        match self {
            Refusal::MissingKey => code::REQUEST_KEY_MISSING,
            Refusal::BadKey(_) => code::REQUEST_KEY_INVALID,
            Refusal::NoPrincipal => code::REQUEST_NO_PRINCIPAL,
            Refusal::BadName(_) => code::REQUEST_NAME_INVALID,
            Refusal::BrokenBody => code::REQUEST_BODY_BROKEN,
            Refusal::LargeBody { .. } => code::REQUEST_BODY_TOO_LARGE,
            Refusal::OtherRequest => code::REQUEST_MISMATCH,
            Refusal::InFlight { .. } => code::REQUEST_IN_FLIGHT,
            Refusal::StoreDown => code::REQUEST_STORE_DOWN,
            Refusal::LargeAnswer { .. } => code::REQUEST_ANSWER_TOO_LARGE,
            Refusal::Lost => code::REQUEST_LOST,
        }
    }

    /// One word for it: the heading of the guide, and the decision in a span.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Refusal::MissingKey => "missing-key",
            Refusal::BadKey(_) => "bad-key",
            Refusal::NoPrincipal => "no-principal",
            Refusal::BadName(_) => "bad-name",
            Refusal::BrokenBody => "broken-body",
            Refusal::LargeBody { .. } => "large-body",
            Refusal::OtherRequest => "other-request",
            Refusal::InFlight { .. } => "in-flight",
            Refusal::StoreDown => "store-down",
            Refusal::LargeAnswer { .. } => "large-answer",
            Refusal::Lost => "lost",
        }
    }

    pub(crate) fn title(&self) -> &'static str {
        match self {
            Refusal::MissingKey => "The Idempotency-Key is missing",
            Refusal::BadKey(_) => "The Idempotency-Key is no key",
            Refusal::NoPrincipal => "It is not known who asks",
            Refusal::BadName(_) => "The request has no name that could be kept",
            Refusal::BrokenBody => "The body could not be read to its end",
            Refusal::LargeBody { .. } => "The body is too large",
            Refusal::OtherRequest => "The key was used for another request",
            Refusal::InFlight { .. } => "The request is under way",
            Refusal::StoreDown => "It is not known how the request stands",
            Refusal::LargeAnswer { .. } => "The request was executed, and its answer is too large to be kept",
            Refusal::Lost => "The execution of the request broke off",
        }
    }

    pub(crate) fn detail(&self) -> String {
        match self {
            Refusal::MissingKey => {
                "This request needs one: a string in quotes that no other request has.".into()
            }
            Refusal::BadKey(why) => format!("It {why}. Send one string in quotes."),
            Refusal::NoPrincipal => "A key belongs to whoever drew it.".into(),
            Refusal::BadName(why) => why.clone(),
            Refusal::BrokenBody => "Nothing was executed.".into(),
            Refusal::LargeBody { limit } => format!("It has more than {limit} bytes. Nothing was executed."),
            Refusal::OtherRequest => {
                "Send the first request again as it was, or this one with a key of its own.".into()
            }
            Refusal::InFlight { .. } | Refusal::StoreDown | Refusal::Lost => {
                "Try again later, with the same key.".into()
            }
            Refusal::LargeAnswer { limit } => {
                format!("It has more than {limit} bytes. Under this key the request isn't executed again.")
            }
        }
    }

    fn body(&self) -> Bytes {
        let body = json!({
            "type": format!("{PAGES}/{}.md", self.code()),
            "code": self.code(),
            "title": self.title(),
            "status": self.status().as_u16(),
            "detail": self.detail(),
        });
        Bytes::from(body.to_string())
    }

    /// Whole seconds, as the header has them.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        match self {
            Refusal::InFlight { left } => {
                Some(left.as_millis().div_ceil(1000).clamp(1, LONGEST_RETRY_AFTER.into()) as u64)
            }
            Refusal::StoreDown | Refusal::Lost => Some(1),
            _ => None,
        }
    }

    /// What the client is told.
    pub(crate) fn response(&self) -> Response<Bytes> {
        let mut response = Response::new(self.body());
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// The same as the end of an execution.
    pub(crate) fn completion(&self, status: Outcome) -> Completion {
        Completion {
            status,
            response_code: self.status().as_u16().into(),
            response_headers: vec![(CONTENT_TYPE.as_str().into(), PROBLEM_JSON.into())],
            response_payload: self.body().into(),
            error_message: Some(self.title().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_a_code_and_the_guide_a_heading_for_it() {
        let mut codes = vec![];
        let guide = include_str!("../../../docs/guide/requests.md");
        let left = Duration::ZERO;
        for refusal in [
            Refusal::MissingKey,
            Refusal::BadKey(""),
            Refusal::NoPrincipal,
            Refusal::BadName(String::new()),
            Refusal::BrokenBody,
            Refusal::LargeBody { limit: 0 },
            Refusal::OtherRequest,
            Refusal::InFlight { left },
            Refusal::StoreDown,
            Refusal::LargeAnswer { limit: 0 },
            Refusal::Lost,
        ] {
            let (heading, row) = (format!("\n### {}\n", refusal.word()), format!("(#{})", refusal.word()));
            assert!(guide.contains(&heading), "{heading}");
            let row = guide.lines().find(|line| line.starts_with('|') && line.contains(&row)).expect("a row");
            assert!(row.contains(refusal.status().as_str()), "{row}");
            assert_eq!(row.contains("Retry-After"), refusal.retry_after().is_some(), "{row}");
            assert!(row.contains(&format!("[{0}](../errors/{0}.md)", refusal.code())), "{row}");
            let body: serde_json::Value = serde_json::from_slice(&refusal.body()).expect("JSON");
            assert_eq!(body["code"], refusal.code());
            let page = format!("/docs/errors/{}.md", refusal.code());
            assert!(body["type"].as_str().is_some_and(|kind| kind.ends_with(&page)), "{body}");
            codes.push(refusal.code());
        }
        assert!(codes.iter().all(|code| code::ALL.contains(code)));
        assert_eq!(
            codes.iter().collect::<std::collections::BTreeSet<_>>().len(),
            codes.len(),
            "each its own"
        );
    }

    #[test]
    fn a_refusal_names_its_status_and_how_long_to_wait() {
        let after = |refusal: Refusal| refusal.response().headers().get(RETRY_AFTER).cloned();
        assert_eq!(after(Refusal::InFlight { left: Duration::ZERO }), Some(HeaderValue::from(1)));
        assert_eq!(
            after(Refusal::InFlight { left: Duration::from_millis(1001) }),
            Some(HeaderValue::from(2))
        );
        assert_eq!(
            after(Refusal::InFlight { left: Duration::MAX }),
            Some(HeaderValue::from(LONGEST_RETRY_AFTER))
        );
        assert_eq!(after(Refusal::OtherRequest), None, "it would never help");
        let response = Refusal::LargeBody { limit: 7 }.response();
        let body: serde_json::Value = serde_json::from_slice(response.body()).expect("JSON");
        assert_eq!((response.status().as_u16(), &body["status"]), (413, &json!(413)));
    }
}
