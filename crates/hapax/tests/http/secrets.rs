//! Secrets: sent, and nowhere else.

use super::*;
use std::{fmt::Debug, path::Path, sync::Mutex};
use tracing::{Subscriber, field::Field, span};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

const CANARY: &str = "c4n4ry";

/// Everything that anybody logs, on every level.
#[derive(Clone, Default)]
struct Everything(Arc<Mutex<String>>);

impl Everything {
    fn note(&self, value: &dyn Debug) {
        self.0.lock().unwrap().push_str(&format!("{value:?}\n"));
    }
}

impl tracing::field::Visit for Everything {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        self.note(value);
    }
}

impl<S: Subscriber> Layer<S> for Everything {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        attributes.record(&mut self.clone());
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

impl log::Log for Everything {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        self.note(record.args());
    }

    fn flush(&self) {}
}

fn files(folder: &Path) -> Vec<u8> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.is_file()).flat_map(|path| std::fs::read(path).unwrap()).collect()
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn secretive(url: &str) -> Request {
    Request::post(&url.replace("http://", &format!("http://me:{CANARY}1@")))
        .header("cookie", &format!("{CANARY}2"))
        .header("X-Api-Key", &format!("{CANARY}3"))
        .secret_header("x-mine", &format!("{CANARY}4"))
        .secret_query("key", &format!("{CANARY}5"))
        .json("marker-of-the-request")
}

/// The other side repeats what it was told, then drops the connection, then answers; nothing of it is to be seen.
#[tokio::test]
async fn they_are_in_no_file_no_log_no_event_and_no_error() {
    let everything = Everything::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(everything.clone())).unwrap();
    log::set_boxed_logger(Box::new(everything.clone())).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let server = Server::new(|n, request| match n {
        0 => answer(500, &[], &format!("marker-of-the-error: {request:?}")),
        1 => Reply::Cut(vec![]),
        2 => answer(401, &[], &format!("bad login in {:?}", request.headers)),
        _ => ok("marker-of-the-answer"),
    });
    let folder = tempfile::tempdir().unwrap();
    let address = format!("sqlite:{}", folder.path().join("runs.db").display());
    let engine = Engine::builder().options(tries(3)).open(&address).await.unwrap();
    let (mut events, url) = (engine.events(), server.url("/x"));
    let flow = engine.register(sends(move || secretive(&url)), ()).await.unwrap();
    let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
    flow.retry("run").await.unwrap().wait().await.unwrap();
    // Large rows are packed in the file.
    let unpacked = journal(&engine.store()).await;
    engine.shutdown(Duration::from_secs(5)).await;

    let sent = format!("{:?}", server.received());
    for secret in ["bWU6YzRuNHJ5MQ", "c4n4ry2", "c4n4ry3", "c4n4ry4", "c4n4ry5"] {
        assert!(sent.contains(secret), "{secret} was sent");
    }
    let files = [files(folder.path()), unpacked.into_bytes()].concat();
    for marker in ["marker-of-the-error", "marker-of-the-answer"] {
        assert!(holds(&files, marker), "{marker} is recorded, so a secret would be found");
    }
    let mut told = format!("{error} {error:?} {:?}", secretive("http://a.example"));
    while let Ok(event) = events.try_recv() {
        told.push_str(&format!("{event:?}"));
    }
    assert!(told.contains("marker-of-the-error"), "{told}");
    let logged = everything.0.lock().unwrap().clone();
    assert!(logged.contains("attempt failed"), "{logged}");
    for secret in [CANARY, "bWU6YzRuNHJ5MQ"] {
        assert!(!holds(&files, secret), "{secret} is in a file");
        assert!(!told.contains(secret), "{secret} in {told}");
        assert!(!logged.contains(secret), "{secret} in {logged}");
    }
    assert!(!holds(&files, "marker-of-the-request"), "of the request only a hash is recorded");
}

#[test]
fn another_token_after_a_crash_is_the_same_request() {
    let server = deaf_at_first();
    let url = server.url("/charges");
    let request = |token: &'static str| {
        let url = url.clone();
        move || Request::post(&url).bearer(token).secret_query("sig", token).json(&4200)
    };
    assert_eq!(crash_and_go_on(&server, request("old"), request("new")).unwrap().log, ["200 paid"]);
    let received = server.received();
    assert_eq!(received[0].key(), received[1].key());
    assert_eq!(received[1].header("authorization"), Some("Bearer new"));
}
