//! What a store finds when it looks at itself: facts, and whether they are as they must be.

/// One fact of a store's health.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// use hapax_store::{MemoryStore, Store, Verdict};
/// let facts = MemoryStore::shared().health().await?;
/// assert!(facts.iter().any(|fact| fact.verdict == Verdict::Unsafe), "memory dies with its process");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// What was looked at.
    pub name: &'static str,
    /// What was found.
    pub found: String,
    /// Whether that is as it must be.
    pub verdict: Verdict,
    /// What it means for whoever runs work on this store, and what to do about it.
    pub meaning: String,
}

/// Whether a fact is as it must be.
///
/// ```
/// use hapax_store::Verdict;
/// let found = [Verdict::Good, Verdict::Note, Verdict::Good];
/// // A store is as healthy as the worst of its facts.
/// assert_eq!(found.into_iter().max(), Some(Verdict::Note));
/// assert!(Verdict::Note < Verdict::Unsafe);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it must be.
    Good,
    /// Worth knowing: no crash of a process or of the machine loses anything, but something else might.
    Note,
    /// Work can be lost or done twice.
    Unsafe,
}
