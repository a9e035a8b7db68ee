//! Services that take requests once, as real processes over one database: killed, frozen and cut off at every phase of a
//! request. Whatever happens, each request has one effect, one stored answer, and one key for its call to the outside.
//!
//! The tests' names carry the row of the table in the guide. What happens is waited for, never timed. With `HAPAX_LONG`
//! there are far more kills.

mod clocks;
mod down;
mod frozen;
mod kills;
mod shop;
