//! The HTTP effect against a server over real sockets: keys, records, and what a crash leaves.

#[path = "../common/mod.rs"]
mod common;
mod limits;
mod outcomes;
mod redirects;
mod secrets;
mod server;
#[cfg(feature = "test-tls")]
mod tls;
mod traced;

use common::*;
use hapax::{
    Coded, Error, Event, NodePolicy, Resolution, Status,
    core::{commit::Write as StoreWrite, error::code, journal::Entry, json::Json},
    http::{Client, Request, Response},
    prelude::*,
    store::Store,
};
use server::{Reply, Server, answer, ok};
use std::{sync::Arc, time::Duration};

const CALL: Node = Node::new("call");

fn client() -> Client {
    Client::builder().no_proxy().no_system_roots().build().unwrap()
}

/// A node that sends a request, and logs the answer's status and text.
fn sends(request: impl Fn() -> Request + Clone + Send + Sync + 'static) -> Graph<Board> {
    sends_with(&client(), request)
}

fn sends_with(
    client: &Client,
    request: impl Fn() -> Request + Clone + Send + Sync + 'static,
) -> Graph<Board> {
    let call = node!(
        [client, request] | ctx | {
            let answer = ctx.http("send", &client, request()).await?;
            Ok::<_, NodeError>(Board::delta().log(format!("{} {}", answer.status(), answer.text()?)))
        }
    );
    Graph::new("calls", 1, CALL).node(CALL, call)
}

fn tries(attempts: u32) -> Options {
    Options::default().retry(Retry::standard().attempts(attempts).backoff(|_| Duration::ZERO))
}

async fn outcome(attempts: u32, graph: Graph<Board>) -> Result<Board, Error> {
    let flow = engine(tries(attempts)).register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await
}

/// How a run stands once nobody executes it any more.
async fn stands(attempts: u32, graph: Graph<Board>) -> (Engine, hapax::Flow<Board>, Status) {
    let engine = engine(tries(attempts));
    let mut events = engine.events();
    let flow = engine.register(graph, ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap();
    hear(&mut events, |event| matches!(event, Event::RunEnded { .. })).await;
    let status = engine.status("run").await.unwrap();
    (engine, flow, status)
}

/// The journal of the run, as text.
async fn journal(store: &Arc<dyn Store>) -> String {
    let rows = store.journal(key("run"), 0, 1000).await.unwrap();
    serde_json::to_string(&rows.iter().map(|row| &row.entry).collect::<Vec<_>>()).unwrap()
}

#[tokio::test]
async fn a_write_carries_its_key_and_a_read_carries_none() {
    let server = Server::new(|_, _| ok("fine"));
    let (url, client) = (server.url("/x"), client());
    let call = node!(
        [url, client] | ctx | {
            for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] {
                ctx.http(method, &client, Request::new(method, &url)).await?;
            }
            ctx.http("search", &client, Request::post(&url).kind(Read)).await?;
            ctx.http("odd", &client, Request::post(&url).key_header("PayPal-Request-Id")).await?;
            Ok::<_, NodeError>(())
        }
    );
    outcome(1, Graph::new("calls", 1, CALL).node(CALL, call)).await.unwrap();
    let received = server.received();
    let keyed: Vec<_> = received.iter().map(|r| r.header("idempotency-key").is_some()).collect();
    assert_eq!(keyed, [false, false, true, true, true, true, false, false]);
    assert!(received[2].key().starts_with("fx:"), "as services take it today, without quotes");
    assert_ne!(received[2].key(), received[3].key());
    assert!(received[7].header("paypal-request-id").unwrap().starts_with("fx:"));
}

#[tokio::test]
async fn every_attempt_sends_the_same_request_with_the_same_key() {
    let server = Server::new(|n, _| if n < 2 { answer(503, &[], "busy") } else { ok("paid") });
    let url = server.url("/charges?a=1");
    let request = move || Request::post(&url).header("x-shop", "7").json(&[("b", 1), ("a", 2)]);
    assert_eq!(outcome(3, sends(request)).await.unwrap().log, ["200 paid"]);
    let received = server.received();
    assert_eq!(received.len(), 3);
    assert!(received.iter().all(|request| *request == received[0]));
    assert_eq!((received[0].method.as_str(), received[0].target.as_str()), ("POST", "/charges?a=1"));
    assert_eq!(received[0].header("content-type"), Some("application/json"));
    assert_eq!(received[0].body, br#"[["b",1],["a",2]]"#);
}

/// Starts a run whose request is never answered, and crashes; then goes on with another one.
fn crash_and_go_on(
    server: &Server,
    before: impl Fn() -> Request + Clone + Send + Sync + 'static,
    after: impl Fn() -> Request + Clone + Send + Sync + 'static,
) -> Result<Board, Error> {
    let store = memory();
    let process = Process::doomed(&store);
    process.run(async {
        let flow = process.engine(tries(1)).register(sends(before), ()).await.unwrap();
        flow.start("run", Board::default()).await.unwrap();
        server.heard().await;
    });
    process.crash();
    go_on(&store, sends(after))
}

fn deaf_at_first() -> Server {
    Server::new(|n, _| if n == 0 { Reply::Silence } else { ok("paid") })
}

#[test]
fn a_crash_before_the_answer_sends_the_same_key_again() {
    let server = deaf_at_first();
    let url = server.url("/charges");
    let request = move || Request::post(&url).json(&4200);
    assert_eq!(crash_and_go_on(&server, request.clone(), request).unwrap().log, ["200 paid"]);
    let received = server.received();
    assert_eq!((received.len(), received[0].key()), (2, received[1].key()));
}

#[test]
fn another_request_after_a_crash_is_refused_and_not_sent() {
    let server = deaf_at_first();
    let url = server.url("/charges");
    let request = |cents: u64| {
        let url = url.clone();
        move || Request::post(&url).json(&cents)
    };
    let error = crash_and_go_on(&server, request(4200), request(9900)).unwrap_err();
    assert_eq!((error.code(), server.count()), (code::REPLAY_MISMATCH, 1));
}

#[test]
fn a_recorded_answer_is_never_requested_again() {
    for request in [Request::get as fn(&str) -> Request, Request::post] {
        let (store, server) = (memory(), Server::new(|n, _| ok(&n.to_string())));
        let url = server.url("/x");
        let graph = |fails: u32| {
            let (client, url) = (client(), url.clone());
            let call = node!(
                [client, url] | ctx | {
                    let read = ctx.http("first", &client, request(&url)).await?;
                    // What rests on an answer makes it durable.
                    ctx.http("second", &client, Request::post(&url)).await?;
                    if ctx.attempt() <= fails { Err(NodeError::new("again")) } else { Ok(read) }
                        .and_then(|read| Ok(Board::delta().log(read.text()?)))
                }
            );
            Graph::new("calls", 1, CALL).node(CALL, call)
        };
        let first = Process::dying_before(&store, |write| matches!(write, StoreWrite::Step(_)));
        let engine = first.engine(tries(3));
        first.run_to_death(async {
            let flow = engine.register(graph(2), ()).await.unwrap();
            flow.start("run", Board::default()).await.unwrap();
        });
        let second = Process::healthy(&store);
        let board = second.run(async {
            let flow = second.engine(tries(3)).register(graph(0), ()).await.unwrap();
            flow.attach("run").await.unwrap().wait().await.unwrap()
        });
        assert_eq!(board.log, ["0"]);
        assert_eq!(server.count(), 2, "three attempts, a crash and another one");
    }
}

/// A port that refuses connections until it is opened; nobody else can take it meanwhile.
fn closed_port() -> tokio::net::TcpSocket {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket
}

#[tokio::test]
async fn a_refused_connection_proves_that_nothing_was_sent() {
    let port = closed_port();
    let url = format!("http://{}/charges", port.local_addr().unwrap());
    let port = Arc::new(std::sync::Mutex::new(Some(port)));
    let (client, opened) = (client(), Diary::default());
    let call = node!(
        [client, url, port, opened] | ctx | {
            if ctx.attempt() == 2 {
                let listener = port.lock().unwrap().take().unwrap().listen(8).unwrap().into_std().unwrap();
                listener.set_nonblocking(false).unwrap();
                Server::over(listener, "http", Ok, |_, _| ok("sent"));
                opened.note("opened");
            }
            let answer = ctx.http("send", &client, Request::post(&url).kind(WriteAtMostOnce)).await?;
            Ok::<_, NodeError>(Board::delta().log(answer.text()?))
        }
    );
    let graph = Graph::new("calls", 1, CALL).node(CALL, call);
    let (engine, _, status) = stands(2, graph).await;
    assert_eq!((status, opened.len()), (Status::Succeeded, 1), "not in doubt, and made again");
    let journal = journal(&engine.store()).await;
    assert!(journal.contains(r#""code":"HX0082""#) && journal.contains(r#""unsent":true"#), "{journal}");
}

#[tokio::test]
async fn a_request_that_may_have_arrived_is_never_sent_twice_at_most_once() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec();
    // It is in doubt at once, whatever the other side asks for.
    let later = answer(503, &[("retry-after", "3600")], "");
    for reply in [Reply::Cut(vec![]), Reply::Cut(half), answer(503, &[], ""), later, Reply::Silence] {
        let server = Server::new(move |_, _| reply.clone());
        let url = server.url("/charges");
        let request =
            move || Request::post(&url).kind(WriteAtMostOnce).timeout(Duration::from_secs(1)).json(&4200);
        let (engine, flow, status) = stands(5, sends(request)).await;
        assert_eq!(status, Status::InDoubt);
        server.heard().await;
        assert_eq!(server.count(), 1);
        // As an operator would write it.
        let told = Json::from_text(r#"{"status":200,"body":"r-17"}"#).unwrap();
        engine.resolve("run", "send", Resolution::Result(told)).await.unwrap();
        let board = flow.attach("run").await.unwrap().wait().await.unwrap();
        assert_eq!((board.log, server.count()), (vec!["200 r-17".to_owned()], 1));
    }
}

#[tokio::test]
async fn a_write_that_got_no_answer_is_sent_again_with_its_key() {
    for reply in [Reply::Cut(vec![]), Reply::Silence] {
        let server = Server::new(move |n, _| if n == 0 { reply.clone() } else { ok("paid") });
        let url = server.url("/charges");
        let request = move || Request::post(&url).timeout(Duration::from_millis(200));
        // On a slow machine more than the first may take too long.
        assert_eq!(outcome(50, sends(request)).await.unwrap().log, ["200 paid"]);
        let received = server.received();
        assert!(received.len() > 1 && received.iter().all(|request| request.key() == received[0].key()));
    }
}

#[tokio::test]
async fn connections_are_kept_but_not_for_what_must_not_be_in_doubt() {
    for (kind, connections) in [(Write, 1), (WriteAtMostOnce, 3)] {
        let server = Server::new(|_, _| ok("fine"));
        let (url, client) = (server.url("/x"), client());
        let call = node!(
            [url, client] | ctx | {
                for _ in 0..3 {
                    ctx.http("send", &client, Request::post(&url).kind(kind)).await?;
                }
                Ok::<_, NodeError>(())
            }
        );
        outcome(1, Graph::new("calls", 1, CALL).node(CALL, call)).await.unwrap();
        assert_eq!((server.count(), server.connections()), (3, connections));
    }
}

#[tokio::test]
async fn a_policys_own_key_is_sent_or_refused() {
    let server = Server::new(|_, _| ok("fine"));
    let url = server.url("/x");
    let graph = |policy| {
        sends({
            let url = url.clone();
            move || Request::post(&url)
        })
        .policy(CALL, policy)
    };
    let policy = NodePolicy::default().idempotency(|call| format!("{}/{}", call.run_id, call.name));
    outcome(1, graph(policy)).await.unwrap();
    assert_eq!(server.received()[0].key(), "run/send");
    let policy = NodePolicy::default().idempotency(|_| "two\nlines".into());
    let error = outcome(5, graph(policy)).await.unwrap_err();
    assert_eq!((error.code(), server.count()), (code::INVALID_ID, 1), "{error}");
}

#[tokio::test]
async fn the_record_holds_hash_and_answer() {
    let server = Server::new(|_, _| answer(201, &[("etag", "7"), ("set-cookie", "s=1")], "paid"));
    let url = server.url("/charges");
    let (engine, _, _) = stands(1, sends(move || Request::post(&url).json(&4200))).await;
    let rows = engine.store().journal(key("run"), 0, 10).await.unwrap();
    let Entry::Intent(intent) = &rows[0].entry else { panic!("{rows:?}") };
    let url = server.url("/charges");
    let body = hapax::core::key::sha256(b"4200");
    let request = format!(
        r#"{{"body":"{body}","headers":[["content-type","application/json"]],"method":"POST","url":"{url}"}}"#
    );
    assert_eq!(intent.request, hapax::core::key::sha256(request.as_bytes()));
    let Entry::Result { outcome: hapax::core::journal::EffectOutcome::Ok { response }, .. } = &rows[1].entry
    else {
        panic!("{rows:?}")
    };
    let response: Response = response.read().unwrap();
    assert_eq!((response.status(), response.text()), (201, Ok("paid")));
    assert_eq!((response.header("ETag"), response.header("set-cookie")), (Some("7"), None));
}
