//! An answer, as it is recorded.

use super::Error;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::header::HeaderMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;

/// What belongs to the connection and not to the answer, and what lets its holder in.
const UNRECORDED: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "set-cookie",
    "set-cookie2",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// An answer: live and replayed alike. All headers are recorded but cookies and those of the connection.
///
/// As JSON it is `{"status":200,"headers":[["etag","7"]],"body":"text"}`, with `{"base64":"…"}` for a body that is no
/// text; that is also what `hapax resolve --result` takes, where headers and body may be left out.
///
/// ```
/// use hapax::http;
/// let answer: http::Response = serde_json::from_str(r#"{"status":200,"body":"{\"id\":\"r-17\"}"}"#)?;
/// let receipt: serde_json::Value = answer.json()?;
/// assert_eq!((answer.status(), receipt["id"].as_str()), (200, Some("r-17")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    status: u16,
    #[serde(default)]
    headers: Vec<(String, String)>,
    #[serde(default)]
    body: Body,
}

/// The body goes to whoever asks for it, and not into logs.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Response({}, {} headers, {} bytes)", self.status, self.headers.len(), self.body.0.len())
    }
}

impl Response {
    pub(super) fn new(status: u16, headers: &HeaderMap, body: Vec<u8>) -> Self {
        let kept = headers.iter().filter(|(name, _)| !UNRECORDED.contains(&name.as_str()));
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let headers = kept.map(|(name, value)| (name.to_string(), text(value.as_bytes()))).collect();
        Self { status, headers, body: Body(body) }
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// The first header of this name, in whatever case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(header, _)| header.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All headers, with their names in lower case.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The body.
    pub fn bytes(&self) -> &[u8] {
        &self.body.0
    }

    /// The body as text, if it is UTF-8.
    pub fn text(&self) -> Result<&str, Error> {
        std::str::from_utf8(&self.body.0).map_err(|e| Error::Body(format!("the answer is no text: {e}")))
    }

    /// The body as JSON.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        let unfit = |e: serde_json::Error| Error::Body(format!("the answer does not fit its type: {e}"));
        serde_json::from_slice(&self.body.0).map_err(unfit)
    }
}

/// Text is recorded as text, for people and for size; everything else in base64.
#[derive(Clone, Default, PartialEq, Eq)]
struct Body(Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written<T> {
    Text(T),
    Base64 { base64: T },
}

/// Each character of a text takes at most two bytes more as JSON; one that would take more makes it none.
fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0).ok().filter(|text| is_plain(text)) {
            Some(text) => Written::Text(text).serialize(serializer),
            None => {
                Written::Base64 { base64: BASE64_STANDARD.encode(&self.0).as_str() }.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Written::<String>::deserialize(deserializer)? {
            Written::Text(text) => Ok(Self(text.into_bytes())),
            Written::Base64 { base64 } => BASE64_STANDARD.decode(base64).map(Self).map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::{json::Json, limits};
    use reqwest::header::HeaderValue;

    fn answer(body: &[u8]) -> Response {
        Response::new(200, &HeaderMap::new(), body.to_vec())
    }

    #[test]
    fn every_body_reads_back_as_it_came() {
        let all: Vec<u8> = (0..=255).collect();
        for (body, text) in [
            (&b""[..], true),
            (b"plain", true),
            ("caf\u{e9} \u{1f9ff}\r\n\t\"\\".as_bytes(), true),
            (b"\0", false),
            ("\u{7f}".as_bytes(), false),
            (&all, false),
            (b"\xff\xfe", false),
        ] {
            let json = Json::of(&answer(body)).unwrap();
            assert_eq!(json.read::<Response>().unwrap().bytes(), body);
            assert_eq!(!json.as_str().contains("base64"), text, "{json:?}");
        }
    }

    #[test]
    fn the_largest_body_fits_into_a_result() {
        for worst in [b'"', b'\n', 0, 0xff] {
            let json = Json::of(&answer(&vec![worst; limits::MAX_HTTP_BODY_BYTES])).unwrap();
            assert!(json.as_bytes().len() <= limits::MAX_PAYLOAD_BYTES - limits::HTTP_BODY_BYTES);
        }
    }

    #[test]
    fn cookies_and_what_belongs_to_the_connection_are_not_recorded() {
        let header = |name: &'static str| (name.parse().unwrap(), HeaderValue::from_static("x"));
        let headers = HeaderMap::from_iter(["etag", "set-cookie", "transfer-encoding", "x-id"].map(header));
        let answer = Response::new(200, &headers, vec![]);
        let mut names: Vec<_> = answer.headers().map(|(name, _)| name).collect();
        names.sort_unstable();
        assert_eq!(names, ["etag", "x-id"]);
        assert_eq!((answer.header("ETag"), answer.header("set-cookie")), (Some("x"), None));
    }

    #[test]
    fn a_body_that_is_not_what_was_expected_says_so() {
        assert!(matches!(answer(b"\xff").text(), Err(Error::Body(_))));
        assert!(matches!(answer(b"<html>").json::<u64>(), Err(Error::Body(_))));
        assert_eq!(answer(b"7").json::<u64>(), Ok(7));
    }
}
