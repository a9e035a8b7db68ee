//! The trace that a request is part of goes with it, and into no record.

use super::*;
use hapax::watch::{Span, Watch, What};
use std::sync::Mutex;

#[derive(Default)]
struct Calls(Mutex<Vec<Span>>);

impl Watch for Calls {
    fn over(&self, span: Span) {
        if matches!(span.what, What::Call { .. }) {
            self.0.lock().unwrap().push(span);
        }
    }
}

async fn traceparents(
    watched: bool,
    request: impl Fn() -> Request + Clone + Send + Sync + 'static,
) -> Arc<Calls> {
    let (engine, calls) = (engine(tries(2)), Arc::new(Calls::default()));
    if watched {
        engine.watch(calls.clone()).unwrap();
    }
    let flow = engine.register(sends(request), ()).await.unwrap();
    flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert!(!journal(&engine.store()).await.contains("traceparent"));
    calls
}

#[tokio::test]
async fn a_traced_request_names_its_call_anew_with_each_attempt() {
    let server = Server::new(|n, _| if n == 0 { answer(503, &[], "busy") } else { ok("paid") });
    let url = server.url("/charges");
    let calls = traceparents(true, move || Request::post(&url)).await;
    let calls = calls.0.lock().unwrap();
    let expected: Vec<_> = calls.iter().map(|span| format!("00-{}-{}-01", span.trace, span.id)).collect();
    let received = server.received();
    let sent: Vec<_> = received.iter().map(|request| request.header("traceparent").unwrap()).collect();
    assert_eq!((sent.len(), sent), (2, expected.iter().map(String::as_str).collect()));
    assert_eq!(received[0].key(), received[1].key(), "it is no part of the key");
}

#[tokio::test]
async fn a_header_of_the_programs_own_is_left_alone_and_nobody_traces_unasked() {
    let server = Server::new(|_, _| ok("paid"));
    let (url, own) = (server.url("/charges"), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    traceparents(true, {
        let url = url.clone();
        move || Request::post(&url).header("traceparent", own)
    })
    .await;
    traceparents(false, move || Request::post(&url)).await;
    let received = server.received();
    assert_eq!((received[0].header("traceparent"), received[1].header("traceparent")), (Some(own), None));
}
