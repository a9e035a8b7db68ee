//! What an engine promises, one file a promise; in one program, since each of its own would be built and linked alone.

#[path = "../common/mod.rs"]
mod common;

mod backpressure;
mod cancellation;
mod children;
mod composition;
mod conflicts;
mod contract;
mod crdts;
mod deadlocks;
mod decisions;
mod dynamic;
mod effects;
mod exactly_once;
mod flow_control;
mod forks;
mod hand_over;
mod lifecycle;
mod merge_order;
mod outbox;
mod randomness;
mod replay;
mod retries;
mod streams;
mod turns;
mod waiting;
