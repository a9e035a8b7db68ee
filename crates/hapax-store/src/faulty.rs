//! faulty
