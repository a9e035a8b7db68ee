//! `--metrics --otlp --log-format` of `hapax worker` and `hapax relay`: what others may see of their work.

use crate::{failure::Failure, session::Session};
use clap::{Args, ValueEnum};
use hapax::Coded;
use hapax_telemetry::{Logs, Telemetry};

/// What a worker or a relay shows to others.
#[derive(Debug, Args)]
#[command(next_help_heading = "Telemetry")]
pub(crate) struct Flags {
    /// Serve metrics for Prometheus at this address, under /metrics; a mere port is one of this machine alone
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Send traces to this collector: OTLP in gRPC, or in HTTP if the address has a path, such as /v1/traces
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Write what happens to the standard error, one object a line
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

/// How logs are written.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Json,
}

impl Flags {
    /// Begins what the flags ask for.
    pub(crate) async fn start(&self, session: &Session<'_>) -> Result<(Telemetry, Option<Logs>), Failure> {
        let refused = |error: hapax_telemetry::Error| Failure::coded(error.code(), error.to_string());
        let logs = self.log_format.map(|LogFormat::Json| hapax_telemetry::log_json(tracing::Level::INFO));
        let logs = logs.transpose().map_err(refused)?;
        let telemetry = Telemetry::builder();
        let telemetry = self.metrics.iter().fold(telemetry, |telemetry, at| telemetry.metrics(at));
        let telemetry = self.otlp.iter().fold(telemetry, |telemetry, url| telemetry.otlp(url));
        let telemetry = telemetry.start(session.engine).await.map_err(refused)?;
        if let Some(address) = telemetry.metrics_address() {
            session.out.remark(&format!("metrics at http://{address}/metrics"));
        }
        Ok((telemetry, logs))
    }
}
