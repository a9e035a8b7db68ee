//! The crash proof with real processes: what the victim reports, and what the harness makes of it.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Reporter`], [`Report`] | the victim says what it is doing, line by line |
//! | [`Observed`] | a store that reports what is submitted, durable and handed on |
//! | [`Phase`], [`Mark`], [`Scene`], [`Aim`], [`Trigger`] | what a kill hit, and what it is aimed at |
//! | [`Process`], [`Waits`] | a child that can't outlive its test; waits for what it does |
//! | [`ledger`], [`Party`] | the outside party, a process of its own |
//! | [`Seen`] | what must hold after every kill |

mod check;
pub mod ledger;
mod observed;
mod party;
mod phase;
mod process;
mod report;
mod waits;

pub use check::{History, Seen, copied, histories};
pub use observed::Observed;
pub use party::{Party, Stopped};
pub use phase::{Aim, Phase, Promised, Scene, Trigger};
pub use process::Process;
pub use report::{Body, Mark, Report, Reporter};
pub use waits::Waits;
