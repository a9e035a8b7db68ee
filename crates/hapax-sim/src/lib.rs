//! hapax-sim
