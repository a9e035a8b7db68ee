//! Malformed headers, addresses and bodies, straight through the service: whatever comes is the client's mistake and
//! not the service's, and nothing executes without a claim. `HAPAX_LONG` takes 100,000 cases.

use crate::{probe::Probe, server::layer};
use bytes::Bytes;
use futures::stream;
use hapax_requests::{Claimed, KeyRule, LayerBody};
use hapax_store::requests::MemoryRequests;
use http::{HeaderName, HeaderValue, Method, Request, Response, Uri};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, TestRunner},
};
use std::{
    convert::Infallible,
    env, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Small, so that many bodies are over it.
const MAX_BODY: usize = 64;

const METHODS: [&str; 7] = ["POST", "PATCH", "PUT", "DELETE", "GET", "HEAD", "BREW"];

/// A request as it comes from a client that means no good.
#[derive(Debug, Clone)]
struct Sent {
    method: Method,
    path: String,
    headers: Vec<(HeaderName, Vec<u8>)>,
    /// Pieces; `None`: the connection breaks.
    body: Vec<Option<Vec<u8>>>,
}

/// Keys that are right, nearly right, and far from it. Few enough that some come again.
fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[ab]{1,2}".prop_map(String::into_bytes),
        "\"[ab\\\\\"]{0,4}\"?".prop_map(String::into_bytes),
        "[ -~]{0,12}".prop_map(String::into_bytes),
        "\"k{250,260}\"".prop_map(String::into_bytes),
        vec(any::<u8>(), 0..12),
    ]
}

fn header() -> impl Strategy<Value = (HeaderName, Vec<u8>)> {
    let content_type = prop_oneof![
        Just(b"application/json".to_vec()),
        Just(b"application/x+JSON;;".to_vec()),
        vec(any::<u8>(), 0..20),
    ];
    prop_oneof![
        4 => key().prop_map(|key| (HeaderName::from_static("idempotency-key"), key)),
        2 => content_type.prop_map(|value| (http::header::CONTENT_TYPE, value)),
        1 => vec(any::<u8>(), 0..300).prop_map(|value| (HeaderName::from_static("x-merchant"), value)),
        3 => Just((HeaderName::from_static("x-merchant"), b"ada".to_vec())),
        1 => "[0-9]{0,20}".prop_map(|length| (http::header::CONTENT_LENGTH, length.into_bytes())),
    ]
}

fn sent() -> impl Strategy<Value = Sent> {
    let method = prop_oneof![3 => Just("POST"), 1 => select(&METHODS[..])];
    let path = prop_oneof![
        4 => Just("/charges".to_owned()),
        1 => "/[ -~]{0,20}",
        1 => "/\\PC{0,10}",
        1 => "/p{240,260}",
    ];
    let piece = prop_oneof![
        4 => vec(any::<u8>(), 0..20).prop_map(Some),
        2 => "[{\\[\":,0-9.eE+\\-}\\]]{0,20}".prop_map(|json| Some(json.into_bytes())),
        1 => vec(any::<u8>(), 60..70).prop_map(Some),
        1 => Just(None),
    ];
    (method, path, vec(header(), 0..5), vec(piece, 0..4)).prop_map(|(method, path, headers, body)| {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        Sent { method, path, headers, body }
    })
}

type Body = StreamBody<stream::Iter<std::vec::IntoIter<io::Result<Frame<Bytes>>>>>;

/// `None`: no server would take it for a request.
fn request(sent: &Sent) -> Option<Request<Body>> {
    let frames = sent.body.iter().map(|piece| match piece {
        Some(piece) => Ok(Frame::data(Bytes::copy_from_slice(piece))),
        None => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
    });
    let mut request = Request::new(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())));
    *request.uri_mut() = sent.path.parse::<Uri>().ok()?;
    *request.method_mut() = sent.method.clone();
    for (name, value) in &sent.headers {
        request.headers_mut().append(name, HeaderValue::from_bytes(value).ok()?);
    }
    Some(request)
}

/// Counts executions: those that were claimed, and those that nobody asked to be.
#[derive(Default)]
struct Executed {
    claimed: AtomicUsize,
    unclaimed: AtomicUsize,
}

impl Executed {
    fn see<B>(&self, request: &Request<LayerBody<B>>) {
        let has_key = request.headers().contains_key("idempotency-key");
        let goes_by = match KeyRule::of_method(request.method()) {
            KeyRule::Required => false,
            KeyRule::Optional => !has_key,
            KeyRule::Ignored => true,
        };
        let is_claimed = request.extensions().get::<Claimed>().is_some();
        if is_claimed {
            self.claimed.fetch_add(1, SeqCst);
        } else if !goes_by {
            self.unclaimed.fetch_add(1, SeqCst);
        }
    }
}

#[test]
fn whatever_comes_is_answered_and_nothing_executes_without_a_claim() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let (store, executed) = (Probe::over(Arc::new(MemoryRequests::new())), Arc::new(Executed::default()));
    let seen = executed.clone();
    let handler = service_fn(move |request: Request<LayerBody<Body>>| {
        seen.see(&request);
        async { Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"done")))) }
    });
    let layer = layer(store.clone()).max_request_bytes(MAX_BODY);
    let service = layer.layer(handler);
    let cases = if env::var_os("HAPAX_LONG").is_some() { 100_000 } else { 20_000 };
    let config = Config { failure_persistence: None, ..Config::with_cases(cases) };
    let checked = TestRunner::new(config).run(&sent(), |sent| {
        let Some(request) = request(&sent) else { return Ok(()) };
        let mut service = service.clone();
        let answer = runtime.block_on(async { service.ready().await?.call(request).await });
        let status = answer.expect("it has no errors").status();
        prop_assert!(!status.is_server_error(), "{status}");
        prop_assert_eq!(executed.claimed.load(SeqCst), store.calls().granted);
        prop_assert_eq!(executed.unclaimed.load(SeqCst), 0);
        Ok(())
    });
    checked.unwrap_or_else(|failed| panic!("{failed}"));
    let stats = layer.stats();
    let all = [stats.executed, stats.replayed, stats.mismatches, stats.refused];
    assert!(all.iter().all(|count| *count > 0), "every decision was tried: {stats:?}");
}
