//! Real brokers, in good times and bad: nothing is lost, order is kept, and what comes twice has the same id.

#[path = "../common/mod.rs"]
mod common;
mod nats;
mod rabbitmq;
mod redis;
#[path = "../http/server.rs"]
#[allow(dead_code, reason = "the tests of HTTP use more of it")]
mod server;
mod shop;
mod webhook;

use common::Signal;
