//! Real brokers, in good times and bad: nothing is lost, order is kept, and what comes twice has the same id.

mod nats;
mod shop;
