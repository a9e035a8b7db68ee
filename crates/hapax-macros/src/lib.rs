//! hapax-macros
