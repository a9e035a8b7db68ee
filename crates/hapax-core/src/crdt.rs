//! Conflict-free fields: `#[state(crdt)]` folds a delta in with [`Crdt::merge`], and ready types to use there.
//!
//! | type | what concurrent writes become |
//! |---|---|
//! | [`GCounter`], [`PnCounter`] | a count that only grows; one that goes up and down |
//! | [`Lww`], [`Max`], [`Min`] | the value that was written last; the largest, the smallest |
//! | [`GSet`], [`OrSet`] | all that was added; all that was added and not taken out by somebody who knew of it |
//! | [`CrdtMap`] | each key's values, merged |
//!
//! Invariant: every merge is commutative, associative and idempotent, so what was told in another order, or twice, is
//! the same in the end. All of them serialize to one form for one value, and what has a member too many isn't read.
//!
//! An edit doesn't change a value: it answers what to write, `Board::delta().likes(state.likes.added(&replica, 1))`. It
//! names a [`Replica`]: who writes.
//!
//! Several edits of one field are chained, so that each knows of those before it. Two that both begin with the state are edits
//! side by side under one name, which are lost:
//!
//! ```
//! # use hapax_core as hapax;
//! use hapax_core::{crdt::{OrSet, PnCounter, Replica}, state::State};
//! # use serde::{Deserialize, Serialize};
//! #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
//! # #[state(crate = hapax)]
//! struct Board {
//!     #[state(crdt)] tags: OrSet<String>,
//!     #[state(crdt)] stock: PnCounter,
//! }
//! let (mut board, ann) = (Board::default(), Replica::from("ann"));
//! let tags = board.tags.added("red".into(), &ann).added("blue".into(), &ann);
//! board.apply(Board::delta().tags(tags).stock(board.stock.added(&ann, 5).removed(&ann, 2)));
//! assert_eq!((board.tags.iter().count(), board.stock.value()), (2, 3));
//!
//! let [old, new] = [board.tags.added("old".into(), &ann), board.tags.added("new".into(), &ann)];
//! board.apply(Board::delta().tags(old).tags(new));
//! assert_eq!(board.tags.iter().count(), 2, "neither: both are ann's third addition");
//! ```

mod counter;
mod map;
mod register;
mod set;

pub use counter::{GCounter, PnCounter};
pub use map::CrdtMap;
pub use register::{Lww, Max, Min};
pub use set::{GSet, OrSet};

use crate::order::PathHash;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// A value with a merge that is commutative, associative and idempotent.
///
/// ```
/// use hapax_core::crdt::Crdt;
///
/// /// Only ever grows.
/// struct High(u64);
/// impl Crdt for High {
///     fn merge(&mut self, other: Self) {
///         self.0 = self.0.max(other.0);
///     }
/// }
/// let mut high = High(3);
/// high.merge(High(9));
/// high.merge(High(9));
/// assert_eq!(high.0, 9);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no CRDT merge",
    label = "`#[state(crdt)]` needs a type that implements `Crdt`"
)]
pub trait Crdt {
    /// Takes in what another replica knows.
    fn merge(&mut self, other: Self);
}

/// Who writes. No two writers of one step may share a name: edits side by side under one name are lost.
///
/// An item's path is such a name, unique in its run: `Replica::from(ctx.path_hash())`. A counter or set keeps a number
/// for every name that ever wrote to it; where only one item of a node runs at a time, the node's name keeps that small.
///
/// ```
/// use hapax_core::{crdt::{GCounter, Replica}, order::PathHash};
/// let none = GCounter::default();
/// assert_eq!(none.added(&Replica::from("paris"), 2).value(), 2);
/// assert_eq!(none.added(&Replica::from(PathHash::ROOT), 2).value(), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Replica(Arc<str>);

impl From<&str> for Replica {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<PathHash> for Replica {
    fn from(path: PathHash) -> Self {
        Self(path.to_string().into())
    }
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far each replica has counted.
type Counts = BTreeMap<Replica, u64>;

/// Of each replica the larger count.
fn take_in(counts: &mut Counts, others: Counts) {
    for (by, count) in others {
        let known = counts.entry(by).or_default();
        *known = count.max(*known);
    }
}
