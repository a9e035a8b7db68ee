//! Receipts: what became of each command, one file for each, never overwritten.

use super::{
    Error,
    protocol::{Address, Event},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// A command that was answered, and whose answer is recorded and installed.
///
/// ```
/// use hapax::agent::receipt::Receipt;
/// # let folder = tempfile::tempdir()?;
/// # let json = r#"{"v":1,"idempotency_key":"ik:00ff","agent":{"agent_type":"builder"},"action":"implement",
/// #   "task_id":"T-1","namespace":"default","run":"run-1","step":0,"node":"build","snapshot_before":"snap-1",
/// #   "snapshot_after":"snap-2","recorded_at":"2026-01-01T00:00:00.000Z","event":{"message_id":"m",
/// #   "correlation_id":"c","task_id":"T-1","from":{"agent_type":"builder"},"event":"done","status":"success",
/// #   "payload":{},"artifacts":[],"occurred_at":"2026-01-01T00:00:00.000Z"}}"#;
/// # let receipt: Receipt = serde_json::from_str(json)?;
/// assert!(receipt.write(folder.path())?, "it is the first");
/// let other = Receipt { run: "run-2".into(), ..receipt.clone() };
/// assert!(!other.write(folder.path())?, "one for each command, and never overwritten");
/// assert_eq!(Receipt::read(folder.path(), "ik:00ff")?, Some(receipt));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The form of this file.
    pub v: u32,
    /// The command's key.
    pub idempotency_key: String,
    /// Who answered.
    pub agent: Address,
    /// What was done.
    pub action: String,
    /// What it is part of.
    pub task_id: String,
    /// The run's namespace.
    pub namespace: String,
    /// The run that asked.
    pub run: String,
    /// Its step.
    pub step: u64,
    /// Its node.
    pub node: String,
    /// The workspace that the command was about.
    pub snapshot_before: String,
    /// The workspace with what came of it.
    pub snapshot_after: String,
    /// The answer.
    pub event: Event,
    /// When this was written, RFC 3339.
    pub recorded_at: String,
}

fn file_of(folder: &Path, key: &str) -> PathBuf {
    folder.join(format!("{}.json", key.strip_prefix("ik:").unwrap_or(key)))
}

impl Receipt {
    /// Writes it, unless there is one: `false`. A reader sees it whole or not at all.
    pub fn write(&self, folder: &Path) -> Result<bool, Error> {
        let path = file_of(folder, &self.idempotency_key);
        let failed = |error: io::Error| Error::ledger(&path, error);
        if path.exists() {
            return Ok(false);
        }
        fs::create_dir_all(folder).map_err(failed)?;
        let text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        let aside = folder.join(format!(".{}.tmp", uuid::Uuid::new_v4()));
        let written = File::create_new(&aside).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            // Unlike a new name for it, a second name refuses to take another's place.
            fs::hard_link(&aside, &path)?;
            File::open(folder)?.sync_all()
        });
        let _ = fs::remove_file(&aside);
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// The receipt of a key, if there is one.
    pub fn read(folder: &Path, key: &str) -> Result<Option<Self>, Error> {
        let path = file_of(folder, key);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::ledger(&path, error)),
        };
        serde_json::from_slice(&text).map(Some).map_err(|error| Error::ledger(&path, error))
    }
}
