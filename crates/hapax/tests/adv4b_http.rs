//! Adversary 4b: the HTTP effect against raw sockets. Run with `--features http`.
#![cfg(feature = "http")]
#[path = "common/mod.rs"]
mod common;
use common::*;
use hapax::{Coded, Status, http::{Client, Request}, prelude::*};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CALL: Node = Node::new("call");

async fn serve(replies: Vec<&'static str>) -> (String, Diary) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let diary = Diary::default();
    let seen = diary.clone();
    tokio::spawn(async move {
        let mut replies = replies.into_iter();
        loop {
            let (mut s, _) = listener.accept().await.unwrap();
            let mut buf = vec![0; 65536];
            let n = s.read(&mut buf).await.unwrap_or(0);
            seen.note(String::from_utf8_lossy(&buf[..n]).to_string());
            if let Some(r) = replies.next() { let _ = s.write_all(r.as_bytes()).await; }
            let _ = s.shutdown().await;
        }
    });
    (url, diary)
}

async fn go(name: &str, attempts: u32, request: impl Fn() -> Request + Clone + Send + Sync + 'static) {
    let client = Client::builder().no_proxy().no_system_roots().build().unwrap();
    let engine = engine(Options::default().retry(Retry::standard().attempts(attempts).backoff(|_| Duration::ZERO)));
    let call = node!([client, request] |ctx| {
        let answer = ctx.http("send", &client, request()).await?;
        Ok::<_, NodeError>(Board::delta().log(format!("{} {:?}", answer.status(), answer.text().map(str::len).map_err(|e| e.to_string()))))
    });
    let flow = engine.register(Graph::new("calls", 1, CALL).node(CALL, call), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let r = tokio::time::timeout(Duration::from_secs(4), run.wait()).await;
    let line = match r { Ok(Ok(b)) => format!("{:?}", b.log), Ok(Err(e)) => format!("{} {}", e.code(), e.to_string().chars().take(220).collect::<String>()), Err(_) => format!("{:?} wake {:?}", engine.status("run").await, engine.record("run").await.unwrap().wake) };
    eprintln!("http {name}: {line}");
    if matches!(engine.status("run").await.unwrap(), Status::Succeeded) { engine.replay("run").await.unwrap().expect_same(); }
}

#[tokio::test]
async fn odd_answers() {
    for (name, reply) in [
        ("truncated", "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc"),
        ("negative retry", "HTTP/1.1 503 x\r\nretry-after: -5\r\ncontent-length: 0\r\n\r\n"),
        ("huge retry", "HTTP/1.1 503 x\r\nretry-after: 99999999999999999999999\r\ncontent-length: 0\r\n\r\n"),
        ("year retry", "HTTP/1.1 429 x\r\nretry-after: 31536000\r\ncontent-length: 0\r\n\r\n"),
        ("fraction retry", "HTTP/1.1 429 x\r\nretry-after: 1.5\r\ncontent-length: 0\r\n\r\n"),
        ("past retry", "HTTP/1.1 429 x\r\nretry-after: Wed, 21 Oct 2015 07:28:00 GMT\r\ncontent-length: 0\r\n\r\n"),
        ("huge length", "HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\nabc"),
        ("two lengths", "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\nabcde"),
        ("nothing", ""),
        ("garbage", "hello\r\n\r\n"),
        ("early", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        ("gzip", "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nok"),
        ("no content", "HTTP/1.1 204 x\r\n\r\n"),
        ("chunked cut", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"),
    ] {
        let (url, seen) = serve(vec![reply, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]).await;
        go(name, 2, move || Request::post(&url).json(&1)).await;
        let keys: Vec<_> = seen.all().iter().map(|r| r.lines().find(|l| l.to_lowercase().starts_with("idempotency-key")).unwrap_or("none").to_owned()).collect();
        let same = keys.iter().all(|k| *k == keys[0]);
        eprintln!("   {} requests, one key: {same}", keys.len());
        let (url, seen) = serve(vec![reply, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]).await;
        go(&format!("{name}, at most once"), 2, move || Request::post(&url).json(&1).kind(WriteAtMostOnce)).await;
        eprintln!("   {} requests", seen.len());
    }
}

#[tokio::test]
async fn odd_requests() {
    let (url, _) = serve(vec![]).await;
    for bad in ["", "http://", "ftp://x", "http://[::1", "file:///etc/passwd", "http://a b/", "http://x:99999/", "//x", "http://127.0.0.1:1/"] {
        let bad = bad.to_owned();
        go(&format!("{bad:?}"), 1, move || Request::get(&bad)).await;
    }
    let u = url.clone(); go("crlf header", 1, move || Request::get(&u).header("x", "a\r\nb: c")).await;
    let u = url.clone(); go("bad header name", 1, move || Request::get(&u).header("x y", "a")).await;
    let u = url.clone(); go("host header", 1, move || Request::get(&u).header("content-length", "7")).await;
    let u = url.clone(); go("timeout 0", 1, move || Request::get(&u).timeout(Duration::ZERO)).await;
    let u = url.clone(); go("timeout max", 1, move || Request::get(&u).timeout(Duration::MAX)).await;
    let u = url.clone(); go("body 0", 1, move || Request::get(&u).max_body(0)).await;
    let u = url.clone(); go("body max", 1, move || Request::get(&u).max_body(usize::MAX)).await;
    let u = url.clone(); go("method", 1, move || Request::new("P O", &u)).await;
    let u = url.clone(); go("own key", 1, move || Request::post(&u).header("Idempotency-Key", "x")).await;
    let u = url.clone(); go("accept 99", 1, move || Request::post(&u).accept(99)).await;
    let u = url.clone(); go("nan", 1, move || Request::post(&u).json(&f64::NAN)).await;
}
