//! What looking on costs: traces to a collector in a process of its own, which takes them and does nothing.

use crate::Result;
use axum::{Router, body::Bytes};
use hapax::Engine;
use hapax_telemetry::Telemetry;
use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    thread,
};
use tokio::net::TcpListener;

/// Takes whatever it is sent, until its input ends. It reads it whole: a connection with an unread request on it is closed.
pub(super) async fn sink() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        std::process::exit(0);
    });
    Ok(axum::serve(listener, Router::new().fallback(async |spans: Bytes| drop(spans))).await?)
}

/// An engine that is traced, and the collector; it ends with this.
pub(super) struct Watched {
    telemetry: Telemetry,
    sink: Child,
}

impl Watched {
    pub(super) async fn start(engine: &Engine) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--store", "memory:", "otlp-sink"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut sink = command.spawn()?;
        let mut address = String::new();
        BufReader::new(sink.stdout.take().ok_or("its output is piped")?).read_line(&mut address)?;
        let url = format!("http://{}/v1/traces", address.trim_end());
        let telemetry = Telemetry::builder().otlp(&url).queue(1 << 20).start(engine).await?;
        Ok(Self { telemetry, sink })
    }

    /// Has all spans exported; that none was lost is part of the measurement.
    pub(super) async fn end(self) -> Result<()> {
        self.telemetry.flush().await;
        let spans = self.telemetry.spans();
        if spans.dropped + spans.failed > 0 || spans.exported == 0 {
            return Err(format!("spans were lost: {spans:?}").into());
        }
        Ok(())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        let _ = self.sink.kill();
        let _ = self.sink.wait();
    }
}
