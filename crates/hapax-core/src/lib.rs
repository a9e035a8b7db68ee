//! hapax-core
