//! Agents with real processes: the engine and the agents are killed at whatever point; each command counts once, and the
//! workspace ends as if nothing had happened. What is said is as the schemas say, and canonical JSON is what others make of it.
//!
//! What happens is waited for, never timed. With `HAPAX_LONG` there are far more kills.

mod canonical;
mod kills;
mod record;
mod schemas;
mod site;
mod wire;
