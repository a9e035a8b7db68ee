//! What is on record of a run's commands: its journal, exported as a ledger, and the receipts.

use crate::site::Site;
use hapax::{
    Engine, Options,
    agent::{flows::Work, ledger, receipt::Receipt},
    core::journal::{EffectOutcome, Entry},
};
use hapax_sim::{crafts, kills::copied};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// What is on record.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Record {
    /// The keys of all commands that may have been sent, each with the answers that are recorded.
    pub(crate) answers: BTreeMap<String, Vec<String>>,
    /// The receipts' bytes by key.
    pub(crate) receipts: BTreeMap<String, String>,
    /// `succeeded` when the run is over.
    pub(crate) status: Option<String>,
}

impl Record {
    /// Reads a place whose foreman is dead or alive. `torn_by` bytes are cut off the ledger's end, to see that it bears
    /// that.
    pub(crate) fn read(site: &Site, is_dead: bool, torn_by: u64) -> Self {
        let copy = tempfile::tempdir().expect("a folder");
        // The repair of the original is left to the next life, as after a real crash.
        let db = if is_dead { copied(&site.db(), copy.path()) } else { site.db() };
        let (answers, status) = if db.exists() { exported(&db, torn_by) } else { Default::default() };
        Self { answers, receipts: receipts(site), status }
    }

    /// Nothing that was on record may change or go.
    pub(crate) fn must_follow(&self, before: &Self) {
        for (key, receipt) in &before.receipts {
            assert_eq!(self.receipts.get(key), Some(receipt), "a receipt was overwritten, or is gone");
        }
        for (key, answers) in &before.answers {
            let now = self.answers.get(key).expect("a durable intent is gone");
            assert!(now.starts_with(answers), "a recorded answer changed: {answers:?}, {now:?}");
        }
    }

    /// The keys whose answers are recorded.
    pub(crate) fn settled(&self) -> BTreeSet<String> {
        self.answers.iter().filter(|(_, answers)| !answers.is_empty()).map(|(key, _)| key.clone()).collect()
    }

    /// Each command has one answer and one receipt.
    pub(crate) fn must_be_complete(&self) {
        assert_eq!(self.status.as_deref(), Some("succeeded"));
        let twice = self.answers.iter().find(|(_, answers)| answers.len() != 1);
        assert_eq!(twice, None, "a command has no answer, or several");
        assert!(self.answers.keys().eq(self.receipts.keys()), "{:?}", self.receipts.keys());
    }
}

fn receipts(site: &Site) -> BTreeMap<String, String> {
    let Ok(files) = fs::read_dir(site.workspace().receipts()) else { return BTreeMap::new() };
    let files = files.map(|file| file.expect("a file").path());
    // What isn't whole has another name.
    let whole = files.filter(|file| file.extension().is_some_and(|extension| extension == "json"));
    whole
        .map(|file| {
            let text = fs::read_to_string(file).expect("a receipt can be read");
            let receipt: Receipt = serde_json::from_str(&text).expect("a receipt is whole");
            (receipt.idempotency_key, text)
        })
        .collect()
}

type Answers = BTreeMap<String, Vec<String>>;

#[tokio::main(flavor = "current_thread")]
async fn exported(db: &Path, torn_by: u64) -> (Answers, Option<String>) {
    let options = Options::default().finds_work(false);
    let url = format!("sqlite:{}", db.display());
    let engine = Engine::builder().options(options).open(&url).await.expect("the store opens");
    let Ok(status) = engine.status(crafts::RUN).await else { return Default::default() };
    let folder = tempfile::tempdir().expect("a folder");
    let files = ledger::export(&engine, crafts::RUN, folder.path()).await.expect("the ledger is written");
    let whole = ledger::read(&files.events).expect("the ledger can be read");
    assert_eq!((whole.lines.len() as u64, whole.is_torn), (files.lines, false));
    tear(&files.events, torn_by);
    let torn = ledger::read(&files.events).expect("a torn ledger can be read");
    assert!(whole.lines.starts_with(&torn.lines), "what is left of a ledger is what it was");
    assert!(whole.lines.is_empty() || torn.lines.len() < whole.lines.len());
    let answers = answers(whole.lines.into_iter().map(|line| line.entry));
    engine.shutdown(std::time::Duration::from_secs(10)).await;
    (answers, Some(status.word().into()))
}

/// Cuts some of the last line off, its end at least.
fn tear(file: &Path, by: u64) {
    let text = fs::read(file).expect("a file");
    let Some(line) = text.strip_suffix(b"\n") else { return };
    let last = line.rsplit(|byte| *byte == b'\n').next().map_or(0, <[u8]>::len) as u64;
    let file = fs::File::options().write(true).open(file).expect("a file");
    file.set_len(text.len() as u64 - 1 - by % last.max(1)).expect("it gets shorter");
}

/// The answers that are recorded for each command, by its key.
fn answers(entries: impl Iterator<Item = Entry>) -> Answers {
    let (mut all, mut open) = (Answers::new(), BTreeMap::new());
    let entries = entries.flat_map(|entry| match entry {
        Entry::Several(entries) => entries,
        entry => vec![entry],
    });
    for entry in entries {
        match entry {
            Entry::Intent(intent) if intent.key.starts_with("ik:") => {
                all.entry(intent.key.clone()).or_default();
                open.insert(intent.index, intent.key);
            }
            // One item runs at a time, so that its index tells which call an answer belongs to.
            Entry::Result { index, outcome: EffectOutcome::Ok { response }, .. } => {
                if let Some(key) = open.remove(&index) {
                    all.entry(key).or_default().push(response.as_str().to_owned());
                }
            }
            Entry::Result { outcome, .. } => panic!("nothing fails here: {outcome:?}"),
            _ => {}
        }
    }
    all
}

/// The state in which the run ended.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn end(site: &Site) -> Work {
    let options = Options::default().finds_work(false);
    let url = format!("sqlite:{}", site.db().display());
    let engine = Engine::builder().options(options).open(&url).await.expect("the store opens");
    let run = engine.record(crafts::RUN).await.expect("the run is there");
    let loaded = engine.store().load(run.key).await.expect("the run can be loaded");
    serde_json::from_slice(&loaded.checkpoint.state).expect("a state of that form")
}
