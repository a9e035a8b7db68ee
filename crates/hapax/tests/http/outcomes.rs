//! What each status means, and when another attempt is made.

use super::*;
use hapax::{
    store::{Clock, MemoryStore},
    testing::Lab,
};

/// How often a server is asked that always answers with this status, and what becomes of the run.
async fn asked(
    status: u16,
    request: impl Fn(&str) -> Request + Clone + Send + Sync + 'static,
) -> (usize, String) {
    let server = Server::new(move |_, _| answer(status, &[], "because"));
    let url = server.url("/x");
    let outcome = outcome(3, sends(move || request(&url))).await;
    let told = match outcome {
        Ok(board) => board.log.join(""),
        Err(error) => failure(&error).code.clone(),
    };
    (server.count(), told)
}

#[tokio::test]
async fn only_what_may_pass_is_tried_again() {
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        assert_eq!(asked(status, Request::get).await, (3, "HX0081".into()), "{status}");
        assert_eq!(asked(status, Request::post).await, (3, "HX0081".into()), "{status}");
    }
    for status in [300, 304, 400, 401, 403, 404, 410, 422, 451, 499] {
        assert_eq!(asked(status, Request::get).await, (1, "HX0081".into()), "{status}");
        assert_eq!(asked(status, Request::post).await, (1, "HX0081".into()), "{status}");
    }
    // The first request with this key is still being worked on; without one it is a conflict like any other.
    assert_eq!(asked(409, Request::post).await, (3, "HX0081".into()));
    assert_eq!(asked(409, Request::get).await, (1, "HX0081".into()));
}

#[tokio::test]
async fn success_and_what_is_accepted_are_answers() {
    for status in [200, 201, 202, 203, 206] {
        assert_eq!(asked(status, Request::post).await, (1, format!("{status} because")));
    }
    for status in [303, 404, 409, 503] {
        let request = move |url: &str| Request::post(url).accept(status);
        assert_eq!(asked(status, request).await, (1, format!("{status} because")));
    }
}

#[tokio::test]
async fn an_error_names_the_status_and_what_was_said() {
    let server = Server::new(|_, _| answer(422, &[], "no such\naccount"));
    let url = server.url("/private/path?q=1");
    let error = outcome(1, sends(move || Request::post(&url))).await.unwrap_err();
    let told = failure(&error).node.as_ref().unwrap().message.clone();
    let origin = server.url("");
    assert_eq!(told, format!("send: POST {origin} answered 422: no such account"));
}

/// An answer that is a mistake of ours, such as an expired token, isn't kept: once mended, the run goes on.
#[tokio::test]
async fn a_mended_request_is_sent_again_with_the_same_key() {
    let server = Server::new(|_, request| match request.header("authorization") {
        Some("Bearer new") => ok("paid"),
        _ => answer(401, &[], "expired"),
    });
    let (url, tokens) = (server.url("/charges"), Diary::default());
    tokens.note("old");
    let request = {
        let tokens = tokens.clone();
        move || Request::post(&url).bearer(tokens.all().last().unwrap())
    };
    let (_, flow, status) = stands(3, sends(request)).await;
    assert!(matches!(status, Status::Failed { .. }), "{status:?}");
    tokens.note("new");
    assert_eq!(flow.retry("run").await.unwrap().wait().await.unwrap().log, ["200 paid"]);
    let received = server.received();
    assert_eq!((received.len(), received[0].key()), (2, received[1].key()));
}

/// A server that is busy once, with these headers; when its two requests came, in seconds by the run's clock.
async fn busy_once(headers: &'static [(&'static str, &'static str)]) -> Vec<i64> {
    let clock = Clock::manual();
    let (begun, diary) = (clock.now_us(), Diary::default());
    let server = {
        let (clock, diary) = (clock.clone(), diary.clone());
        Server::new(move |n, _| {
            diary.note(((clock.now_us() - begun) / 1_000_000).to_string());
            if n == 0 { answer(503, headers, "busy") } else { ok("paid") }
        })
    };
    let url = server.url("/charges");
    let lab = Lab::on(MemoryStore::with_clock(clock), tries(2));
    let flow = lab.engine().register(sends(move || Request::post(&url)), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    assert_eq!(lab.finish(&run).await.unwrap().log, ["200 paid"]);
    let received = server.received();
    assert_eq!((received.len(), received[0].key()), (2, received[1].key()));
    diary.all().iter().map(|at| at.parse().unwrap()).collect()
}

#[tokio::test]
async fn the_next_attempt_waits_as_long_as_the_other_side_asks_for() {
    assert_eq!(busy_once(&[]).await, [0, 0]);
    assert_eq!(busy_once(&[("retry-after", "120")]).await, [0, 120]);
    let date = [("date", "Sun, 15 Nov 2026 12:00:00 GMT"), ("retry-after", "Sun, 15 Nov 2026 12:05:00 GMT")];
    assert_eq!(busy_once(Box::leak(Box::new(date))).await, [0, 300]);
    assert_eq!(busy_once(&[("retry-after", "31536000")]).await, [0, 3600], "an hour at the most");
    assert_eq!(busy_once(&[("retry-after", "tomorrow")]).await, [0, 0]);
}

#[tokio::test]
async fn a_node_that_may_only_read_cannot_post() {
    let server = Server::new(|_, _| ok("fine"));
    for (request, fits) in [(Request::get as fn(&str) -> Request, true), (Request::post, false)] {
        let url = server.url("/x");
        let policy = NodePolicy::default().effects(hapax::Effects::Reads);
        let outcome = outcome(1, sends(move || request(&url)).policy(CALL, policy)).await;
        assert_eq!(outcome.is_ok(), fits);
    }
    assert_eq!(server.count(), 1);
}
