//! Answers of any size, and requests that are none.

use super::*;

async fn get(server: &Server, limit: usize) -> Result<Board, Error> {
    let url = server.url("/x");
    outcome(3, sends(move || Request::get(&url).max_body(limit))).await
}

#[tokio::test]
async fn an_answer_may_be_as_large_as_its_limit_and_no_larger() {
    let server = Server::new(|_, _| ok(&"x".repeat(100)));
    assert_eq!(get(&server, 100).await.unwrap().log[0].len(), "200 ".len() + 100);
    let error = get(&server, 99).await.unwrap_err();
    assert_eq!((error.code(), server.count()), (code::HTTP_TOO_LARGE, 2), "not asked for again: {error}");
    assert!(get(&Server::new(|_, _| ok("")), 0).await.is_ok());
}

#[tokio::test]
async fn reading_stops_at_the_limit_whatever_the_other_side_says_of_the_length() {
    let head = |length: &str| format!("HTTP/1.1 200 OK\r\n{length}\r\n").into_bytes();
    for length in ["transfer-encoding: chunked\r\n", "", "content-length: 99999999999\r\n"] {
        let reply = Reply::Endless(head(length));
        let server = Server::new(move |_, _| reply.clone());
        let error = get(&server, 10_000).await.unwrap_err();
        assert_eq!((error.code(), server.count()), (code::HTTP_TOO_LARGE, 1), "{error}");
        server.cut_off().await;
    }
}

#[tokio::test]
async fn an_error_is_told_even_if_its_body_never_ends() {
    let reply = Reply::Endless(b"HTTP/1.1 400 Bad\r\ntransfer-encoding: chunked\r\n\r\n".to_vec());
    let server = Server::new(move |_, _| reply.clone());
    let error = get(&server, 10_000).await.unwrap_err();
    let message = &failure(&error).node.as_ref().unwrap().message;
    assert!(message.contains("answered 400: xxx") && message.len() < 1200, "{message}");
    server.cut_off().await;
}

#[tokio::test]
async fn an_answer_that_ends_early_is_none() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec();
    let garbage = b"SMTP 220 hello\r\n\r\n".to_vec();
    for reply in [half, garbage] {
        let server = Server::new(move |n, _| if n == 0 { Reply::Cut(reply.clone()) } else { ok("whole") });
        assert_eq!(get(&server, 100).await.unwrap().log, ["200 whole"]);
        assert_eq!(server.count(), 2);
    }
}

#[tokio::test]
async fn nothing_is_unpacked() {
    let server = Server::new(|_, _| answer(200, &[("content-encoding", "gzip")], "\u{1f}packed"));
    assert_eq!(get(&server, 100).await.unwrap().log, ["200 \u{1f}packed"]);
    assert_eq!(server.received()[0].header("accept-encoding"), None);
}

#[tokio::test]
async fn the_length_that_a_head_tells_is_not_its_own() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".to_vec();
    let server = Server::new(move |_, _| Reply::Raw(head.clone()));
    let url = server.url("/x");
    assert_eq!(outcome(1, sends(move || Request::head(&url))).await.unwrap().log, ["200 "]);
}

#[tokio::test]
async fn a_request_that_is_none_is_told_and_neither_sent_nor_recorded() {
    let server = Server::new(|_, _| ok("fine"));
    let url = server.url("/x");
    let wrong: Vec<fn(&str) -> Request> = vec![
        |_| Request::get("/relative"),
        |_| Request::get("ftp://a.example"),
        |url| Request::get(url).header("a", "b\r\nc: d"),
        |url| Request::post(url).header("idempotency-key", "mine"),
        |url| Request::post(url).timeout(Duration::ZERO),
        |url| Request::post(url).max_body(usize::MAX),
    ];
    for request in wrong {
        let url = url.clone();
        let (engine, _, status) = stands(5, sends(move || request(&url))).await;
        let Status::Failed { error: failure } = status else { panic!("{status:?}") };
        assert_eq!(failure.code, code::HTTP_INVALID, "{failure}");
        let journal = journal(&engine.store()).await;
        assert!(!journal.contains("intent") && !journal.contains("result"), "{journal}");
    }
    assert_eq!((server.count(), server.connections()), (0, 0));
}

#[test]
fn a_root_that_is_no_certificate_is_refused() {
    for pem in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "nonsense"] {
        let refused = Client::builder().no_system_roots().root_certificate(pem).build().unwrap_err();
        assert_eq!(refused.code(), code::HTTP_INVALID, "{pem:?}: {refused}");
    }
}

#[test]
fn a_client_that_is_none_is_told() {
    let bare = || Client::builder().no_system_roots();
    for broken in [bare().connect_timeout(Duration::ZERO), bare().user_agent("two\nlines")] {
        assert_eq!(broken.build().unwrap_err().code(), code::HTTP_INVALID);
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_not_asked_for_again() {
    let server = Server::new(|_, _| ok("<html>"));
    let (url, client) = (server.url("/x"), client());
    let call = node!(
        [url, client] | ctx | {
            let cents: u64 = ctx.http("ask", &client, Request::get(&url)).await?.json()?;
            Ok::<_, NodeError>(Board::delta().total(cents))
        }
    );
    let error = outcome(5, Graph::new("calls", 1, CALL).node(CALL, call)).await.unwrap_err();
    assert_eq!((error.code(), server.count()), (code::HTTP_BODY, 1), "{error}");
}
