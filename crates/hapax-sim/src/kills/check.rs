//! What must hold after every kill, found out on a copy of the files while the victim is dead.
//!
//! The copy leaves the repair of the original to the victim's next life, as after a real crash.

use super::{Scene, ledger::Call};

use hapax::core::{
    commit::Status,
    id::RunKey,
    journal::{EffectKind, EffectOutcome, Entry, JournalRow},
    key::{Digest, StepKey},
    order::PathHash,
};
use hapax_store::{
    ListFilter, RunRecord, Store,
    sqlite::{SqliteOptions, SqliteStore},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Key and digest of every step of a run.
pub type History = Vec<(StepKey, Digest)>;

/// What the checks so far have seen: nothing of it may change.
#[derive(Debug, Default)]
pub struct Seen {
    histories: BTreeMap<String, History>,
    finished: BTreeSet<String>,
    next_seqs: BTreeMap<String, u64>,
    /// The keys whose intents are durable.
    intents: BTreeSet<String>,
    /// What was recorded as the answer to a key.
    answers: BTreeMap<String, String>,
    /// How often a key had come to the outside when it was found settled: it never comes again.
    settled: BTreeMap<String, usize>,
    /// Calls may fail, and runs may wait.
    restless: bool,
}

/// A call among those of its run.
type Site = (Digest, PathHash, Arc<str>, u32);

impl Seen {
    /// For work in which calls fail and runs wait.
    pub fn of_restless_work() -> Self {
        Self { restless: true, ..Self::default() }
    }

    /// The latest durable step of a run.
    pub fn step(&self, run: &str) -> Option<u64> {
        self.histories.get(run).map(|history| history.len() as u64 - 1)
    }

    /// Checks the files of a dead victim. `calls` is what the outside party has seen, `scene` the life that has just
    /// ended.
    ///
    /// # Panics
    ///
    /// If a promise was broken.
    pub async fn check(&mut self, db: &Path, calls: &[Call], scene: &Scene) {
        let copy = tempfile::tempdir().expect("a folder for the copy");
        let store = open(&copied(db, copy.path())).await;
        for record in runs(&store).await {
            if !self.finished.contains(record.key.run.as_str()) {
                self.check_run(&store, record).await;
            }
        }
        store.close().await;
        self.check_promises(scene);
        self.check_calls(calls);
    }

    async fn check_run(&mut self, store: &Arc<SqliteStore>, record: RunRecord) {
        let run = record.key.run.to_string();
        let loaded = store.load(record.key.clone()).await.expect("the run can be loaded");
        assert_eq!(loaded.record.step, loaded.checkpoint.step, "{run}: the row names another step");
        assert_eq!(loaded.record.digest, loaded.checkpoint.digest, "{run}: the row names another digest");
        let history = history(store, &record).await;
        let before = self.histories.remove(&run).unwrap_or_default();
        assert!(history.starts_with(&before), "{run}: a committed step is gone or has changed");
        let next_seq = self.next_seqs.insert(run.clone(), record.next_seq).unwrap_or(0);
        assert!(record.next_seq >= next_seq, "{run}: durable journal rows are gone");
        self.take_journal(&journal(store, record.key).await);
        self.histories.insert(run.clone(), history);
        match record.status {
            Status::Pending | Status::Running => {}
            Status::Succeeded => drop(self.finished.insert(run)),
            Status::Waiting { .. } if self.restless => {}
            other => panic!("{run} is {other:?}"),
        }
    }

    /// Learns what the journal says of calls to the outside.
    fn take_journal(&mut self, rows: &[JournalRow]) {
        let mut keys: HashMap<Site, String> = HashMap::new();
        let mut failed: HashMap<(Digest, PathHash), (u32, String)> = HashMap::new();
        for (at, row) in rows.iter().enumerate() {
            assert_eq!(row.seq, at as u64, "the journal has a gap");
            let site = |scope: &Arc<str>, index| (row.base, row.path_hash, scope.clone(), index);
            match &row.entry {
                Entry::Intent(intent) => {
                    let same_key = |before: &String| *before == intent.key;
                    let before = keys.insert(site(&intent.scope, intent.index), intent.key.clone());
                    assert!(
                        before.as_ref().is_none_or(same_key),
                        "two keys for one call: {before:?}, {intent:?}"
                    );
                    if intent.kind == EffectKind::Write {
                        self.intents.insert(intent.key.clone());
                    }
                    // Whoever goes on behind an error has acted upon it.
                    if let Some((_, key)) =
                        failed.remove(&(row.base, row.path_hash)).filter(|(index, _)| intent.index > *index)
                    {
                        self.settled.entry(key).or_insert(usize::MAX);
                    }
                }
                Entry::Result { scope, index, outcome: EffectOutcome::Ok { response }, .. } => {
                    // A timer and a child have no key that the outside knows.
                    let key = keys.get(&site(scope, *index)).filter(|key| self.intents.contains(*key));
                    assert!(self.restless || key.is_some(), "a result has its intent before it");
                    if let Some(key) = key.cloned() {
                        self.settled.entry(key.clone()).or_insert(usize::MAX);
                        self.answers.insert(key, response.read().expect("a receipt is a text"));
                    }
                }
                Entry::Result { scope, index, .. } if self.restless => {
                    let key = keys.get(&site(scope, *index)).expect("a result has its intent before it");
                    failed.insert((row.base, row.path_hash), (*index, key.clone()));
                }
                Entry::ItemDone { .. } => {}
                _ if self.restless => {}
                other => panic!("nothing fails here, yet the journal says {other:?}"),
            }
        }
    }

    /// What the store called durable is there, and so is what nodes were shown.
    fn check_promises(&self, scene: &Scene) {
        for (run, promised) in &scene.promised {
            let step = self.step(run).unwrap_or_else(|| panic!("{run} was promised and is gone"));
            assert!(step >= promised.step, "{run}: step {} was promised, {step} is there", promised.step);
            let next_seq = self.next_seqs[run];
            assert!(next_seq >= promised.next_seq, "{run}: durable journal rows are gone");
        }
        let recorded: BTreeSet<_> = self.answers.values().collect();
        let early = scene.saw.iter().find(|answer| !recorded.contains(answer));
        assert_eq!(early, None, "a node was shown an answer that was not durable");
    }

    /// What the outside saw rests on a durable record, and what is recorded was really said.
    fn check_calls(&mut self, calls: &[Call]) {
        let (mut said, mut counts) = (BTreeMap::new(), BTreeMap::<&str, usize>::new());
        for call in calls {
            *counts.entry(&call.key).or_default() += 1;
            assert!(self.intents.contains(&call.key), "no durable intent for {call:?}");
            let receipt = call.receipt();
            let before = said.insert(&call.key, receipt.clone());
            assert!(before.is_none_or(|before| before == receipt), "two requests under one key: {call:?}");
        }
        for (key, answer) in &self.answers {
            assert_eq!(said.get(key), Some(answer), "the recorded answer to {key} was never given");
        }
        for (key, before) in &mut self.settled {
            let count = counts.get(key.as_str()).copied().unwrap_or(0);
            assert!(count <= *before, "{key} was settled, and called again");
            *before = count;
        }
    }
}

/// Copies a database of a dead process with its log. The index of the log is left out: it is worthless after a crash.
///
/// # Panics
///
/// If a file can't be copied.
pub fn copied(db: &Path, folder: &Path) -> PathBuf {
    let copy = folder.join("copy.db");
    for suffix in ["", "-wal"] {
        let with_suffix = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
        let from = with_suffix(db);
        if from.exists() {
            fs::copy(from, with_suffix(&copy)).expect("the files can be copied");
        }
    }
    copy
}

async fn open(db: &Path) -> Arc<SqliteStore> {
    let store = SqliteStore::open(db, SqliteOptions::default()).await.expect("the copy can be opened");
    let connection = rusqlite::Connection::open(db).expect("the copy can be opened");
    let verdict = connection.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    assert_eq!(verdict.as_deref(), Ok("ok"), "SQLite finds the file damaged");
    store
}

async fn runs(store: &Arc<SqliteStore>) -> Vec<RunRecord> {
    let filter = ListFilter { limit: 1_000_000, ..ListFilter::default() };
    store.list(filter).await.expect("the runs can be listed")
}

async fn history(store: &Arc<SqliteStore>, record: &RunRecord) -> History {
    let mut history = vec![];
    for step in 0..=record.step {
        let checkpoint = store.checkpoint(record.key.clone(), step).await;
        let checkpoint = checkpoint.expect("every checkpoint is intact").expect("no step is missing");
        history.push((checkpoint.key, checkpoint.digest));
    }
    history
}

async fn journal(store: &Arc<SqliteStore>, run: RunKey) -> Vec<JournalRow> {
    store.journal(run, 0, 100_000).await.expect("the journal can be read")
}

/// Every run of a database: its steps, where it stands, and its final state as JSON.
///
/// # Panics
///
/// If a run can't be read.
pub async fn histories(db: &Path) -> BTreeMap<String, (History, Status, Vec<u8>)> {
    let copy = tempfile::tempdir().expect("a folder for the copy");
    let store = open(&copied(db, copy.path())).await;
    let mut all = BTreeMap::new();
    for record in runs(&store).await {
        let history = history(&store, &record).await;
        let state = store.load(record.key.clone()).await.expect("the run can be loaded").checkpoint.state;
        all.insert(record.key.run.to_string(), (history, record.status, state.to_vec()));
    }
    store.close().await;
    all
}
