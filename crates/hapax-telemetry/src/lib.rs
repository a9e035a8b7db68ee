//! What runs do, for those who look on: traces over OTLP, metrics for Prometheus, logs in JSON.
//!
//! Invariant: nothing that an engine does waits for it. What doesn't fit into the queue is dropped and counted; what a
//! collector doesn't take is lost and counted.
//!
//! ```
//! use hapax::prelude::*;
//! use hapax_telemetry::Telemetry;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> hapax::Result<()> {
//! let engine = Engine::open("memory:").await?;
//! let telemetry = Telemetry::builder().otlp("http://127.0.0.1:4317").metrics("127.0.0.1:0").start(&engine).await?;
//! assert!(telemetry.metrics_address().is_some_and(|address| address.ip().is_loopback()));
//! # drop(telemetry);
//! # Ok(())
//! # }
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`Telemetry`], [`Builder`], [`Error`] | sets it all up, and ends it |
//! | `spans`, `queue` | what is told of, and what is said of it; the queue |
//! | `wire`, `otlp`, `sdk` | spans in bytes; the ways to a collector; spans for other exporters |
//! | `numbers`, `sample`, `endpoint` | metrics as Prometheus reads them; what only the store knows; where they are served |
//! | [`json_logs`], `logs`, `aside` | a layer of `tracing-subscriber` that writes a line for each event; lines for a reader who may stand still |

mod aside;
mod endpoint;
mod logs;
mod numbers;
mod otlp;
mod queue;
mod sample;
mod sdk;
mod spans;
mod telemetry;
mod wire;

pub use aside::Logs;
pub use logs::{JsonLogs, json_logs, log_json};
pub use queue::SpanCounts;
pub use telemetry::{Builder, Error, Telemetry};

/// OpenTelemetry's own types, in the version that is used here.
pub use {opentelemetry, opentelemetry_sdk};
