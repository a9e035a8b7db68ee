//! A request: what is sent, what of it is recorded, and how its answer is taken.
//!
//! Invariant: a secret enters neither the recorded form nor any text. So it may change between two attempts.

use super::{Error, client::Sent};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hapax_core::{canonical, journal::EffectKind, key::sha256, limits};
use percent_encoding::percent_decode_str;
use reqwest::{
    Method, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use serde::Serialize;
use std::{fmt, time::Duration};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Headers whose values are secret under whatever method they are set.
const SECRET: [&str; 5] = ["authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"];

/// Headers that say how the request is framed, which is not the caller's to say.
const FRAMING: [&str; 7] =
    ["connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade"];

/// A request, to be sent with [`Ctx::http`](crate::Ctx::http).
///
/// What it is (method, address, headers, body) is recorded as a hash: a re-run that sends another one is refused as a
/// `ReplayMismatch`. Secrets are left out of it, and what it allows ([`timeout`](Self::timeout),
/// [`max_body`](Self::max_body), [`accept`](Self::accept)) isn't part of it: both may change between attempts. A mistake
/// is told when it is sent, with the code HX0080, and nothing leaves.
///
/// ```
/// use hapax::{http, prelude::*};
/// use std::time::Duration;
/// let charge = http::Request::post("https://psp.example/charges")
///     .bearer("a token") // secret, like every `authorization` and `cookie`
///     .secret_header("x-signature", "0b31")
///     .form([("amount", "4200"), ("currency", "eur")])
///     .timeout(Duration::from_secs(10))
///     .kind(WriteAtMostOnce); // never sent twice; without this, sent again with the same key
/// assert_eq!(format!("{charge:?}"), "Request(POST https://psp.example)");
/// ```
#[derive(Clone)]
pub struct Request {
    method: Method,
    /// Without what is secret about it.
    url: Url,
    /// That of a login in the address.
    password: Option<String>,
    secret_query: Vec<(String, String)>,
    headers: Vec<Header>,
    body: Vec<u8>,
    kind: Option<EffectKind>,
    accepted: Vec<u16>,
    timeout: Duration,
    max_body: usize,
    key_header: HeaderName,
    mistake: Option<String>,
}

#[derive(Clone)]
struct Header {
    name: HeaderName,
    value: HeaderValue,
}

/// What identifies a request, as far as it is recorded.
#[derive(Serialize)]
pub(super) struct Recorded<'a> {
    method: &'a str,
    url: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: Option<String>,
}

/// Neither the path, which may be a secret of its own, nor headers.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({})", self.what())
    }
}

macro_rules! methods {
    ($($name:ident $method:ident,)*) => {
        $(
            #[doc = concat!("A ", stringify!($method), " request.")]
            pub fn $name(url: &str) -> Self {
                Self::with(Method::$method, url)
            }
        )*
    };
}

impl Request {
    methods! {
        get GET,
        head HEAD,
        post POST,
        put PUT,
        patch PATCH,
        delete DELETE,
    }

    /// A request with any other method.
    pub fn new(method: &str, url: &str) -> Self {
        match method.parse() {
            Ok(Method::CONNECT) => Self::with(Method::CONNECT, url).wrong("CONNECT is for proxies"),
            Ok(method) => Self::with(method, url),
            Err(_) => Self::with(Method::GET, url).wrong(format!("{method:?} is not a method")),
        }
    }

    fn with(method: Method, address: &str) -> Self {
        let (url, mistake) = match checked_url(address) {
            Ok(url) => (url, None),
            Err(mistake) => (Url::parse("http://invalid").expect("a URL"), Some(mistake)),
        };
        let login = login(&url);
        let request = Self {
            method,
            url: without_login(url),
            password: login.as_ref().map(|(_, password)| password.clone()),
            secret_query: vec![],
            headers: vec![],
            body: vec![],
            kind: None,
            accepted: vec![],
            timeout: limits::HTTP_TIMEOUT,
            max_body: limits::HTTP_BODY_BYTES,
            key_header: IDEMPOTENCY_KEY,
            mistake,
        };
        let Some((user, password)) = login else { return request };
        let basic = BASE64_STANDARD.encode(format!("{user}:{password}"));
        request.secret_header("authorization", &format!("Basic {basic}"))
    }

    /// Keeps the first mistake: the others may follow from it.
    fn wrong(mut self, what: impl Into<String>) -> Self {
        self.mistake.get_or_insert(what.into());
        self
    }

    /// Adds to the address's query.
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.url.query_pairs_mut().append_pair(name, value);
        self
    }

    /// Adds to the address's query what is neither recorded nor logged.
    pub fn secret_query(mut self, name: &str, value: &str) -> Self {
        self.secret_query.push((name.into(), value.into()));
        self
    }

    /// Adds a header. The values of `authorization`, `cookie`, `proxy-authorization`, `x-api-key` and `x-auth-token` are
    /// secret, as by [`secret_header`](Self::secret_header).
    pub fn header(self, name: &str, value: &str) -> Self {
        let secret = SECRET.iter().any(|secret| secret.eq_ignore_ascii_case(name));
        self.with_header(name, value, secret)
    }

    /// Adds a header that is neither recorded nor logged, nor sent to another host when a read is redirected. For what
    /// lets its holder in, and for what changes with every attempt, such as a trace id.
    pub fn secret_header(self, name: &str, value: &str) -> Self {
        self.with_header(name, value, true)
    }

    /// `authorization: Bearer` and this token.
    pub fn bearer(self, token: &str) -> Self {
        self.secret_header("authorization", &format!("Bearer {token}"))
    }

    fn with_header(mut self, name: &str, value: &str, secret: bool) -> Self {
        let Ok(header) = name.parse::<HeaderName>() else {
            return self.wrong(format!("{name:?} is not the name of a header"));
        };
        let Ok(mut value) = HeaderValue::from_str(value) else {
            return self.wrong(format!("the value of header `{name}` holds a character that no header may"));
        };
        value.set_sensitive(secret);
        self.headers.push(Header { name: header, value });
        self
    }

    /// Sends this as JSON, in its canonical form: the same bytes on every attempt.
    pub fn json<T: Serialize + ?Sized>(self, value: &T) -> Self {
        match canonical::to_vec(value) {
            Ok(bytes) => self.body("application/json", bytes),
            Err(e) => self.wrong(format!("the body cannot be written as JSON: {e}")),
        }
    }

    /// Sends these as the fields of a form.
    pub fn form<K: AsRef<str>, V: AsRef<str>>(self, fields: impl IntoIterator<Item = (K, V)>) -> Self {
        let mut form = form_urlencoded::Serializer::new(String::new());
        let body = form.extend_pairs(fields).finish();
        self.body("application/x-www-form-urlencoded", body)
    }

    /// Sends these bytes. A `content-type` header of your own counts instead of this one.
    pub fn body(mut self, content_type: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.body = bytes.into();
        if self.has(&CONTENT_TYPE) { self } else { self.header("content-type", content_type) }
    }

    /// What kind of call it is: `Read` for GET, HEAD, OPTIONS and TRACE, else `Write`, unless this says otherwise.
    pub fn kind(mut self, kind: EffectKind) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Takes this status as an answer too: it is recorded, and never asked for again.
    pub fn accept(mut self, status: u16) -> Self {
        if !(100..=999).contains(&status) {
            return self.wrong(format!("{status} is not the status of an answer"));
        }
        self.accepted.push(status);
        self
    }

    /// The time from the first byte sent to the last received, connection and redirects included. Default: 20 s. It should
    /// be less than the node's, which is 30 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many bytes the answer's body may have. Default: 1 MiB; at most 7 MiB.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// The header that carries a write's key, for services with a name of their own. Default: `Idempotency-Key`.
    pub fn key_header(mut self, name: &str) -> Self {
        match name.parse() {
            Ok(name) => {
                self.key_header = name;
                self
            }
            Err(_) => self.wrong(format!("{name:?} is not the name of a header")),
        }
    }

    /// What is wrong with it, if anything is.
    pub(super) fn check(&self) -> Result<(), Error> {
        let named = |name: &HeaderName| self.has(name);
        let framing = FRAMING.iter().find(|name| self.headers.iter().any(|header| header.name == **name));
        let mistake = if let Some(mistake) = &self.mistake {
            mistake.clone()
        } else if let Some(name) = framing {
            format!("header `{name}` is set by the client")
        } else if named(&self.key_header) || named(&IDEMPOTENCY_KEY) {
            format!("header `{}` carries the call's own key", self.key_header)
        } else if self.headers.iter().filter(|header| header.name == AUTHORIZATION).count() > 1 {
            "it has two `authorization` headers; a login in the URL is one".into()
        } else if self.timeout.is_zero() || self.timeout > limits::MAX_HTTP_TIMEOUT {
            format!("a timeout of {:?} is not between nothing and an hour", self.timeout)
        } else if self.max_body > limits::MAX_HTTP_BODY_BYTES {
            let most = limits::MAX_HTTP_BODY_BYTES;
            format!("an answer of {} bytes cannot be recorded, only one of {most}", self.max_body)
        } else if self.kind == Some(EffectKind::Child) {
            "a request starts no child".into()
        } else {
            return Ok(());
        };
        Err(Error::Invalid(format!("the request cannot be sent: {mistake}")))
    }

    fn has(&self, name: &HeaderName) -> bool {
        self.headers.iter().any(|header| header.name == *name)
    }

    pub(super) fn recorded(&self) -> Recorded<'_> {
        let public = self.headers.iter().filter(|header| !header.value.is_sensitive());
        let pairs = public.filter_map(|header| Some((header.name.as_str(), header.value.to_str().ok()?)));
        let mut headers: Vec<_> = pairs.collect();
        // By name alone: the order of one header's values says something.
        headers.sort_by_key(|(name, _)| *name);
        let body = (!self.body.is_empty()).then(|| sha256(&self.body).to_string());
        Recorded { method: self.method.as_str(), url: self.url.as_str(), headers, body }
    }

    /// The request for people.
    pub(super) fn what(&self) -> String {
        format!("{} {}", self.method, self.url.origin().ascii_serialization())
    }

    pub(super) fn method(&self) -> Method {
        self.method.clone()
    }

    pub(super) fn payload(&self) -> Vec<u8> {
        self.body.clone()
    }

    pub(super) fn time(&self) -> Duration {
        self.timeout
    }

    pub(super) fn body_limit(&self) -> usize {
        self.max_body
    }

    pub(super) fn kind_of_call(&self) -> EffectKind {
        let safe = matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        self.kind.unwrap_or(if safe { EffectKind::Read } else { EffectKind::Write })
    }

    /// Whether redirects are followed. Only those methods stay what they are on the way.
    pub(super) fn follows(&self) -> bool {
        self.kind_of_call() == EffectKind::Read && matches!(self.method, Method::GET | Method::HEAD)
    }

    pub(super) fn accepts(&self, status: u16) -> bool {
        (200..300).contains(&status) || self.accepted.contains(&status)
    }

    /// The address with its secrets.
    pub(super) fn full_url(&self) -> Url {
        let mut url = self.url.clone();
        if !self.secret_query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.secret_query);
        }
        url
    }

    /// The headers, with the key of a write and the trace that it is part of; secrets only for whom they were given to.
    pub(super) fn headers(&self, sent: Sent<'_>, trusted: bool) -> Result<HeaderMap, Error> {
        let told = self.headers.iter().filter(|header| trusted || !header.value.is_sensitive());
        let mut headers: HeaderMap = told.map(|header| (header.name.clone(), header.value.clone())).collect();
        if self.kind_of_call() != EffectKind::Read {
            let unfit = |_| Error::Invalid("the key that the node's policy gives fits no header".into());
            headers.insert(self.key_header.clone(), HeaderValue::from_str(sent.key).map_err(unfit)?);
        }
        if let Some(value) = sent.traceparent.and_then(|value| HeaderValue::from_str(value).ok()) {
            // The program's own comes first, whoever it traces for.
            headers.entry(TRACEPARENT).or_insert(value);
        }
        Ok(headers)
    }

    /// What is secret about it, and the parts of that which are.
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let sensitive = self.headers.iter().filter(|header| header.value.is_sensitive());
        let headers = sensitive.filter_map(|header| header.value.to_str().ok());
        // The scheme of an `authorization` is none, and what follows it is one by itself.
        let headers = headers.flat_map(|value| [Some(value), value.split_once(' ').map(|(_, rest)| rest)]);
        let query = self.secret_query.iter().map(|(_, value)| value.as_str());
        headers.flatten().chain(query).chain(self.password.as_deref()).filter(|secret| !secret.is_empty())
    }

    pub(super) fn longest_secret(&self) -> usize {
        self.secrets().map(str::len).max().unwrap_or(0)
    }

    /// A text of the other side's without the secrets that it repeats.
    pub(super) fn blacked_out(&self, text: String) -> String {
        self.secrets().fold(text, |text, secret| text.replace(secret, "***"))
    }
}

/// The address, without what is never sent.
fn checked_url(address: &str) -> Result<Url, String> {
    let mut url = Url::parse(address).map_err(|e| format!("its URL is not one: {e}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("its URL begins with `{}:`, not with `http:` or `https:`", url.scheme()));
    }
    url.set_fragment(None);
    Ok(url)
}

/// The user and password of an address, if it holds them.
fn login(url: &Url) -> Option<(String, String)> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let (user, password) = (url.username(), url.password());
    (!user.is_empty() || password.is_some()).then(|| (decoded(user), decoded(password.unwrap_or_default())))
}

fn without_login(mut url: Url) -> Url {
    // Only URLs without a host refuse.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "s3cr3t-canary";

    fn sent(key: &str) -> Sent<'_> {
        Sent { key, traceparent: None }
    }

    fn recorded(request: &Request) -> String {
        String::from_utf8(canonical::to_vec(&request.recorded()).unwrap()).unwrap()
    }

    #[test]
    fn what_is_recorded_is_the_request_without_its_secrets() {
        let plain = || Request::post("https://psp.example/charges?a=1#top").header("X-Shop", "7").json(&[1]);
        let digest = sha256(b"[1]");
        assert_eq!(
            recorded(&plain()),
            format!(
                r#"{{"body":"{digest}","headers":[["content-type","application/json"],["x-shop","7"]],"method":"POST","url":"https://psp.example/charges?a=1"}}"#
            )
        );
        let secrets = plain()
            .bearer(TOKEN)
            .header("Cookie", TOKEN)
            .header("X-API-Key", TOKEN)
            .secret_header("x-mine", TOKEN)
            .secret_query("key", TOKEN)
            .timeout(Duration::from_secs(1))
            .max_body(5)
            .accept(404);
        assert_eq!(recorded(&secrets), recorded(&plain()));
        assert_eq!(secrets.full_url().as_str(), "https://psp.example/charges?a=1&key=s3cr3t-canary");
        for another in [
            plain().header("x-shop", "8"),
            plain().json(&[2]),
            plain().query("b", "2"),
            plain().form([("a", "b")]),
        ] {
            assert_ne!(recorded(&another), recorded(&plain()));
        }
    }

    #[test]
    fn the_order_of_headers_does_not_count_but_that_of_their_values_does() {
        let get = || Request::get("https://a.example");
        let one = get().header("b", "1").header("a", "2").header("a", "3");
        assert_eq!(recorded(&one), recorded(&get().header("a", "2").header("b", "1").header("A", "3")));
        assert_ne!(recorded(&one), recorded(&get().header("b", "1").header("a", "3").header("a", "2")));
    }

    #[test]
    fn a_login_in_the_address_is_a_secret() {
        let request = Request::get(&format!("https://alice:{TOKEN}@a.example/x"));
        assert_eq!(request.check(), Ok(()));
        assert!(!recorded(&request).contains("alice") && !recorded(&request).contains(TOKEN));
        assert_eq!(request.full_url().as_str(), "https://a.example/x");
        let decoded = Request::get("https://alice:a%3Ab%20c@a.example").headers(sent(""), true).unwrap();
        assert_eq!(decoded["authorization"], format!("Basic {}", BASE64_STANDARD.encode("alice:a:b c")));
        assert!(request.header("authorization", "Basic x").check().is_err());
    }

    #[test]
    fn nothing_secret_is_in_any_text() {
        let secret = Request::post(&format!("https://me:{TOKEN}@a.example/{TOKEN}?key={TOKEN}"))
            .secret_header("x-mine", TOKEN)
            .secret_query("key", TOKEN);
        let broken = [
            secret.clone().secret_header("x-mine", &format!("{TOKEN}\n")),
            secret.clone().header("bad name", TOKEN),
            Request::get(&format!("https://{TOKEN}:{TOKEN}@")),
            Request::get(&format!("/{TOKEN}")),
        ];
        for request in broken.iter().chain([&secret]) {
            let told = format!("{request:?} {:?}", request.check());
            assert!(!told.contains(TOKEN), "{told}");
        }
    }

    #[test]
    fn secrets_that_an_answer_repeats_are_blacked_out() {
        let request =
            Request::get("https://me:passw0rd@a.example").secret_query("key", TOKEN).bearer("tok-1");
        let text = request.blacked_out(format!("no such token: tok-1, key {TOKEN}, Bearer tok-1, passw0rd"));
        assert_eq!(text, "no such token: ***, key ***, ***, ***");
    }

    #[test]
    fn the_kind_follows_the_method_unless_it_is_said() {
        use EffectKind::{Read, Write, WriteAtMostOnce};
        for (method, kind, follows) in [
            ("GET", Read, true),
            ("HEAD", Read, true),
            ("OPTIONS", Read, false),
            ("POST", Write, false),
            ("DELETE", Write, false),
            ("PURGE", Write, false),
        ] {
            let request = Request::new(method, "https://a.example");
            assert_eq!((request.kind_of_call(), request.follows()), (kind, follows), "{method}");
        }
        let search = Request::post("https://a.example").kind(Read);
        assert_eq!((search.kind_of_call(), search.follows()), (Read, false));
        let write = Request::get("https://a.example/fire").kind(WriteAtMostOnce);
        assert_eq!((write.kind_of_call(), write.follows()), (WriteAtMostOnce, false));
    }

    #[test]
    fn mistakes_are_told_before_anything_is_sent() {
        let get = |url: &str| Request::get(url);
        let fine = || get("https://a.example");
        for (request, told) in [
            (get("/charges"), "relative URL without a base"),
            (get("charges.example/x"), "relative URL without a base"),
            (get(""), "relative URL without a base"),
            (get("https://"), "empty host"),
            (get("http://a b/"), "invalid international domain name"),
            (get("https://a.example:99999"), "invalid port number"),
            (get("file:///etc/passwd"), "begins with `file:`"),
            (get("javascript:alert(1)"), "begins with `javascript:`"),
            (Request::new("GET /", "https://a.example"), "is not a method"),
            (Request::new("", "https://a.example"), "is not a method"),
            (Request::new("CONNECT", "https://a.example"), "CONNECT is for proxies"),
            (fine().header("", "x"), "is not the name of a header"),
            (fine().header("a\r\nb", "x"), "is not the name of a header"),
            (fine().header("a", "x\r\nb: c"), "the value of header `a`"),
            (fine().header("Idempotency-Key", "mine"), "carries the call's own key"),
            (fine().secret_header("idempotency-key", "mine"), "carries the call's own key"),
            (fine().key_header("x-id").header("X-Id", "mine"), "header `x-id` carries"),
            (fine().key_header("x id"), "is not the name of a header"),
            (fine().header("Content-Length", "5"), "is set by the client"),
            (fine().header("transfer-encoding", "chunked"), "is set by the client"),
            (fine().accept(99), "99 is not the status of an answer"),
            (fine().timeout(Duration::ZERO), "a timeout of 0ns"),
            (fine().timeout(Duration::MAX), "is not between nothing and an hour"),
            (fine().max_body(usize::MAX), "cannot be recorded"),
            (fine().json(&f64::NAN), "cannot be written as JSON"),
            (fine().kind(EffectKind::Child), "starts no child"),
            (get("/").header("", "x").timeout(Duration::ZERO), "relative URL without a base"),
        ] {
            let Err(error) = request.check() else { panic!("{told}: not noticed") };
            assert!(error.to_string().contains(told), "{error}, not {told}");
        }
        let most = fine().max_body(limits::MAX_HTTP_BODY_BYTES).timeout(limits::MAX_HTTP_TIMEOUT);
        assert_eq!(most.check(), Ok(()));
    }

    #[test]
    fn a_key_that_fits_no_header_is_refused() {
        let request = Request::post("https://a.example");
        assert!(request.headers(sent("fx:1"), true).unwrap().contains_key("idempotency-key"));
        assert!(matches!(request.headers(sent("two\nlines"), true), Err(Error::Invalid(_))));
        assert!(
            !Request::get("https://a.example")
                .headers(sent("fx:1"), true)
                .unwrap()
                .contains_key("idempotency-key")
        );
    }
}
