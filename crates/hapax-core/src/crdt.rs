//! The seam for conflict-free fields: `#[state(crdt)]` folds a delta in with [`Crdt::merge`].

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
