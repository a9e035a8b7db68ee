//! Generated and chosen graphs, each with all that can go wrong; one file a promise.

mod children;
mod crash_boundaries;
mod gate;
mod independence;
mod outbox;
mod replays;
mod streams;
mod two_workers;
mod waits;
