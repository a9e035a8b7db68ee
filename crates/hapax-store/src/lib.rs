//! hapax-store
