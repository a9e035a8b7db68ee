//! The service: one handler, with the layer around it or without.

use crate::Result;
use axum::{Json, Router, http::StatusCode, response::IntoResponse, routing::post, serve::ListenerExt};
use hapax_requests::{CacheOptions, CachedRequests, IdempotencyLayer, matched_path};
use hapax_vfs::syncs;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
};
use tokio::net::TcpListener;

const LISTENS: &str = "LISTENS ";
const SYNCS: &str = "SYNCS ";
/// Of a cache that lives no longer than the service.
const SECRET: [u8; 32] = [7; 32];

async fn charge(Json(asked): Json<Value>) -> impl IntoResponse {
    let charged = json!({ "charge": "ch_3Nq2b7LkdIwHu7ix", "cents": asked["cents"], "status": "succeeded" });
    (StatusCode::CREATED, Json(charged))
}

/// Serves until its input ends. Each line of it is answered with how often SQLite has synced.
pub(in crate::workloads) async fn serve(store: &str, layered: bool, redis: Option<&str>) -> Result<()> {
    let router = Router::new().route("/charges", post(charge));
    let router = match layered {
        false => router,
        true => {
            let mut store = hapax_store::requests::open(store).await?;
            if let Some(redis) = redis {
                store = CachedRequests::new(store, CacheOptions::new(redis, SECRET)?);
            }
            router.layer(IdempotencyLayer::new(store, |_| Some("merchant-7".into())).route(matched_path))
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{LISTENS}{}", listener.local_addr()?);
    thread::spawn(|| {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            println!("{SYNCS}{}", syncs());
        }
        std::process::exit(0);
    });
    // What fails to be sent at once is sent a moment later, and shows.
    let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
    Ok(axum::serve(listener, router).await?)
}

/// A service in a process of its own, which ends with this.
pub(super) struct Service {
    pub(super) address: String,
    child: Child,
    talk: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Service {
    pub(super) fn start(store: &str, layered: bool, redis: Option<&str>) -> Result<Self> {
        let how = if layered { "layer" } else { "bare" };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--store", store, "serve", how]).args(redis);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let said = child.stdout.take().ok_or("its output is piped")?;
        let input = child.stdin.take().ok_or("its input is piped")?;
        let mut service =
            Self { address: String::new(), child, talk: Mutex::new((input, BufReader::new(said))) };
        service.address = service.hear(LISTENS)?;
        Ok(service)
    }

    /// How often SQLite has synced there.
    pub(super) fn syncs(&self) -> Result<u64> {
        writeln!(self.talk.lock().unwrap_or_else(PoisonError::into_inner).0)?;
        Ok(self.hear(SYNCS)?.parse()?)
    }

    /// The rest of the line that it says next.
    fn hear(&self, beginning: &str) -> Result<String> {
        let mut line = String::new();
        self.talk.lock().unwrap_or_else(PoisonError::into_inner).1.read_line(&mut line)?;
        let rest = line.strip_prefix(beginning).ok_or_else(|| format!("the service said `{line}`"))?;
        Ok(rest.trim_end().to_owned())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
