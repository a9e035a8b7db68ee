//! Bad input: whatever is wrong is refused early, by its code, with a message that says what to do.

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "sqlite")]
mod codes;
#[cfg(feature = "sqlite")]
mod files;
#[cfg(feature = "sqlite")]
mod full_disk;
mod names;
mod shapes;
mod sizes;
