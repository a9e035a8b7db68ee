//! Redirects: followed for reads, with secrets for nobody else; never for writes.

use super::*;

fn to(location: String) -> impl Fn(usize, &server::Received) -> Reply + Send + Sync + 'static {
    move |_, request| match request.target.as_str() {
        "/end" => ok("here"),
        _ => answer(302, &[("location", &location)], ""),
    }
}

#[tokio::test]
async fn a_read_is_followed() {
    for location in ["/end", "end", "../end"] {
        let server = Server::new(to(location.into()));
        let url = server.url("/start");
        let request = move || Request::get(&url).bearer("token");
        assert_eq!(outcome(1, sends(request)).await.unwrap().log, ["200 here"]);
        let received = server.received();
        assert_eq!(received.len(), 2);
        assert_eq!(received[1].header("authorization"), Some("Bearer token"), "it is the same host");
    }
}

#[tokio::test]
async fn a_write_is_not_followed() {
    for status in [301, 302, 303, 307, 308] {
        let server = Server::new(move |_, _| answer(status, &[("location", "/end")], ""));
        let url = server.url("/start");
        let error = outcome(3, sends(move || Request::post(&url))).await.unwrap_err();
        assert_eq!((error.code(), server.count()), (code::HTTP_STATUS, 1), "{status}: {error}");
    }
}

#[tokio::test]
async fn a_redirect_that_is_wanted_is_an_answer() {
    let server = Server::new(|_, _| answer(303, &[("location", "/orders/7")], ""));
    let (url, client) = (server.url("/orders"), client());
    let call = node!(
        [url, client] | ctx | {
            let answer = ctx.http("send", &client, Request::post(&url).accept(303)).await?;
            let read = ctx.http("read", &client, Request::get(&url).accept(303)).await?;
            assert_eq!(read.status(), 303);
            Ok::<_, NodeError>(Board::delta().log(answer.header("location").unwrap()))
        }
    );
    let board = outcome(1, Graph::new("calls", 1, CALL).node(CALL, call)).await.unwrap();
    assert_eq!((board.log, server.count()), (vec!["/orders/7".to_owned()], 2));
}

#[tokio::test]
async fn secrets_stay_with_whom_they_were_given_to() {
    let elsewhere =
        Server::new(|n, _| if n == 0 { answer(302, &[("location", "/end")], "") } else { ok("there") });
    // A login in the address is not the redirecting side's to choose.
    let location = elsewhere.url("/next").replace("http://", "http://eve:pass@");
    let server = Server::new(to(location));
    let url = server.url("/start").replace("http://", "http://me:login@");
    let request = move || {
        Request::get(&url)
            .header("cookie", "canary")
            .secret_header("x-mine", "canary")
            .secret_query("key", "canary")
            .header("x-plain", "told")
    };
    assert_eq!(outcome(1, sends(request)).await.unwrap().log, ["200 there"]);
    let first = &server.received()[0];
    assert_eq!((first.target.as_str(), first.header("x-mine")), ("/start?key=canary", Some("canary")));
    assert_eq!(first.header("authorization"), Some("Basic bWU6bG9naW4="));
    for request in elsewhere.received() {
        assert_eq!(request.header("x-plain"), Some("told"));
        assert!(!format!("{request:?}").contains("canary"), "{request:?}");
        assert_eq!(request.header("authorization"), None);
    }
}

#[tokio::test]
async fn a_circle_ends() {
    let server = Server::new(to("/start".into()));
    let url = server.url("/start");
    let error = outcome(1, sends(move || Request::get(&url))).await.unwrap_err();
    assert_eq!((error.code(), server.count()), (code::HTTP_STATUS, 11));
}

#[tokio::test]
async fn an_address_that_cannot_be_followed_is_not() {
    for location in ["ftp://a.example/x", "javascript:alert(1)", "http://", "http://a b/"] {
        let server = Server::new(to(location.into()));
        let url = server.url("/start");
        let error = outcome(1, sends(move || Request::get(&url))).await.unwrap_err();
        assert_eq!((error.code(), server.count()), (code::HTTP_STATUS, 1), "{location}");
    }
}
