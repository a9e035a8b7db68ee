//! Entries that share a row: what a transaction says of itself in one go.
//!
//! Invariant: whoever reads a row reads [`JournalRow::entries`]; a row of several says what as many rows in their order would.

use super::{EffectKind, Entry, JournalRow};

/// Bytes of answers that share a row at the most: each may be as large as a row of its own may be.
const SHARED_BYTES: usize = 64 * 1024;

impl JournalRow {
    /// What the row says, in its order.
    ///
    /// ```
    /// use hapax_core::{journal::{Entry, JournalRow}, key::sha256, order::PathHash};
    /// let entry = Entry::Several(vec![Entry::Took { letter: 1 }, Entry::Took { letter: 2 }]);
    /// let row = JournalRow { seq: 0, base: sha256(b""), step: 1, path_hash: PathHash(7), entry };
    /// assert_eq!(row.entries().len(), 2);
    /// let row = JournalRow { entry: Entry::Retried, ..row };
    /// assert_eq!(row.entries(), [Entry::Retried]);
    /// ```
    pub fn entries(&self) -> &[Entry] {
        self.entry.each()
    }
}

impl Entry {
    /// What it says, in its order.
    ///
    /// ```
    /// use hapax_core::journal::Entry;
    /// assert_eq!(Entry::Retried.each(), [Entry::Retried]);
    /// ```
    pub fn each(&self) -> &[Entry] {
        match self {
            Entry::Several(entries) => entries,
            entry => std::slice::from_ref(entry),
        }
    }

    /// What an item writes in one go, as the entries of its rows: a transaction that begins among it shares one row with
    /// what comes before and after it, since a row costs a database more than what is in it.
    ///
    /// ```
    /// use hapax_core::journal::{EffectKind, Entry, Intent, TxNote, TxSaid};
    /// # use hapax_core::key::sha256;
    /// # let (name, key) = ("pay".into(), "fx:3b0f".into());
    /// # let (scope, index, attempt, request, at_us) = ("".into(), 0, 1, sha256(b""), 0);
    /// # let kind = EffectKind::Transaction;
    /// let intent = Intent { scope, index, attempt, name, kind, request, key, at_us, anew: false };
    /// let said = TxSaid::Begins { database: "shop".into(), strategy: "marker".into() };
    /// let note = TxNote { scope: "".into(), index, said, at_us };
    /// let rows = Entry::rows(vec![Entry::Intent(intent), Entry::Transaction(note)]);
    /// assert!(matches!(&rows[..], [Entry::Several(both)] if both.len() == 2));
    /// assert_eq!(Entry::rows(vec![Entry::Retried, Entry::Retried]).len(), 2, "nothing of a transaction");
    /// ```
    pub fn rows(entries: Vec<Entry>) -> Vec<Entry> {
        let begins = |entry: &Entry| matches!(entry, Entry::Intent(it) if it.kind == EffectKind::Transaction);
        let shares = entries.len() > 1
            && entries.iter().any(begins)
            && entries.iter().all(|entry| {
                matches!(
                    entry,
                    Entry::Intent(_) | Entry::Transaction(_) | Entry::Result { .. } | Entry::Seen(_)
                )
            })
            && entries.iter().map(Entry::answer_bytes).sum::<usize>() <= SHARED_BYTES;
        if shares { vec![Entry::Several(entries)] } else { entries }
    }
}
