//! The one state that all generated graphs share: a field for each way of combining what nodes wrote.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What generated nodes write to.
#[derive(hapax::State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Shows the order of the merge: one line per executed item.
    #[state(append)]
    pub log: Vec<String>,
    /// Grows with every item.
    #[state(sum)]
    pub total: u64,
    /// The highest draw or input so far.
    #[state(max)]
    pub high: u64,
    /// All draws and answers.
    #[state(union)]
    pub seen: BTreeSet<u64>,
    /// How often each node was visited; bounds the loops.
    #[state(merge)]
    pub visits: BTreeMap<String, u64>,
    /// Answers of the outside, by node.
    #[state(merge)]
    pub notes: BTreeMap<String, u64>,
    /// Replaced by its writer; two writers of one step conflict.
    pub last: Option<u64>,
}
