//! Requests that take effect once: [`tower`] layers for axum, hyper and tonic, by the `Idempotency-Key` header.
//!
//! Invariant: no handler of a request with a key runs without a claim in the store, and no answer of it is sent that
//! the store doesn't have.
//!
//! ```
//! use axum::{Json, Router, body::Body, http::StatusCode, routing::post};
//! use hapax_requests::{IdempotencyLayer, matched_path};
//! use hapax_store::requests::MemoryRequests;
//! use http::Request;
//! use std::sync::Arc;
//! use tower::ServiceExt;
//!
//! async fn charge(Json(cents): Json<u64>) -> (StatusCode, String) {
//!     // Here money moves.
//!     (StatusCode::CREATED, format!("charged {cents} cents"))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Arc::new(MemoryRequests::new());
//! let layer = IdempotencyLayer::new(store, |parts| {
//!     Some(parts.headers.get("x-merchant")?.to_str().ok()?.to_owned()) // yours is what authentication says
//! })
//! .route(matched_path);
//! let service = Router::new().route("/charges", post(charge)).layer(layer.clone());
//!
//! for replayed in [false, true] {
//!     let request = Request::post("/charges")
//!         .header("idempotency-key", "\"8e03978e\"")
//!         .header("x-merchant", "merchant-7")
//!         .header("content-type", "application/json")
//!         .body(Body::from("4200"))?;
//!     let answer = service.clone().oneshot(request).await?;
//!     assert_eq!(answer.status(), StatusCode::CREATED);
//!     assert_eq!(answer.headers().contains_key("idempotency-replayed"), replayed);
//! }
//! assert_eq!((layer.stats().executed, layer.stats().replayed), (1, 1));
//! # Ok(())
//! # }
//! ```
//!
//! | feature | brings |
//! |---|---|
//! | `axum` | `matched_path`, and nested routers are heeded |
//! | `tonic` | `GrpcIdempotencyLayer`: the same for gRPC |
//! | `redis` | `CachedRequests`: finished requests are answered from Redis, and the database remains the truth |
//!
//! The guide has [the whole of it](https://github.com/hapax-rs/hapax/blob/main/docs/guide/requests.md): every answer,
//! every hook, and what remains impossible.
//!
//! | file | what it holds |
//! |---|---|
//! | `service` | the layer for HTTP and its service |
//! | `policy` `options` | what a service decides for itself |
//! | `arrive` | a request from its head to its claim |
//! | `execute` | **the flow**: claim, execute, finish |
//! | `answer` | from an answer to what is stored of it |
//! | `dialect` `over_http` | what differs between protocols; HTTP's own |
//! | `claimed` | the handler's own view of its claim |
//! | `key` `problem` `stats` | the header, the refusals, the counters |
//! | `grpc` | the layer for gRPC and what is its own, behind the feature `tonic` |
//! | `cache` | a read cache of finished requests in Redis, behind the feature `redis` |
//! | `runs` | requests that start a run, with the feature `engine` |

mod answer;
mod arrive;
#[cfg(feature = "redis")]
mod cache;
mod claimed;
mod dialect;
mod execute;
#[cfg(feature = "tonic")]
mod grpc;
mod key;
mod options;
mod over_http;
mod policy;
mod problem;
#[cfg(feature = "engine")]
mod runs;
mod service;
mod stats;

#[cfg(feature = "redis")]
pub use cache::{CacheOptions, CacheStats, CachedRequests};
pub use claimed::Claimed;
#[cfg(feature = "tonic")]
pub use grpc::{GrpcIdempotency, GrpcIdempotencyLayer, outcome_of_code};
#[cfg(feature = "axum")]
pub use policy::matched_path;
pub use policy::{KeyRule, OnConflict, outcome_of};
#[cfg(feature = "engine")]
pub use runs::{Requests, RunRequests, RunStatus, StartRun, run_id};
pub use service::{Idempotency, IdempotencyLayer, LayerBody};
pub use stats::Stats;

/// The guide's programs compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/requests.md")]
struct Guide;
