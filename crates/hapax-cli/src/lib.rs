//! The command line of Hapax.

pub mod demo;
