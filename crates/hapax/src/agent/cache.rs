//! What an agent remembers: the answer to each command, on disk, until the engine has it and the room is needed.
//!
//! Invariant: that a command was begun is durable before its work, its answer before it is sent. An answer that the engine
//! hasn't acknowledged is never forgotten.

use super::{Error, protocol::Event};
use crate::gate::lock;
use hapax_core::{canary, limits::AGENT_CACHE_ENTRIES};
use serde::{Deserialize, Serialize};
use std::{
    collections::{HashMap, VecDeque},
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

/// How long another process of the same agent is waited for: it may be about to end.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// An agent's memory, in a folder that is its own. One process has it at a time.
///
/// ```
/// use hapax::agent::{Cache, Cached};
/// # let folder = tempfile::tempdir()?;
/// # let json = r#"{"message_id":"m","correlation_id":"c","task_id":"T-1","from":{"agent_type":"builder"},
/// #   "event":"done","status":"success","payload":{},"artifacts":[],"occurred_at":"2026-01-01T00:00:00.000Z"}"#;
/// # let event: hapax::agent::protocol::Event = serde_json::from_str(json)?;
/// let key = "ik:00ff";
/// let cache = Cache::open(folder.path())?;
/// assert_eq!(cache.begin(key)?, Cached::New);
/// drop(cache); // it dies while it works
/// let cache = Cache::open(folder.path())?;
/// assert_eq!(cache.begin(key)?, Cached::CutOff, "do it again, from a clean start");
/// cache.finish(key, &event)?;
/// drop(cache); // it dies before it answers
/// assert_eq!(Cache::open(folder.path())?.begin(key)?, Cached::Done { event, acked: false });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    bound: usize,
    entries: Mutex<Entries>,
    /// Locked for as long as this process lives.
    _lock: File,
}

/// What is known of a command.
///
/// ```
/// use hapax::agent::{Cache, Cached};
/// # let folder = tempfile::tempdir()?;
/// assert_eq!(Cache::open(folder.path())?.begin("ik:00ff")?, Cached::New);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "none lives longer than its command")]
pub enum Cached {
    /// Nothing. From now on: that it was begun.
    New,
    /// It was begun, and cut off.
    CutOff,
    /// Its answer.
    Done {
        /// As it was sent, or would have been.
        event: Event,
        /// Whether the engine has it for good.
        acked: bool,
    },
}

/// A file of the cache.
#[derive(Serialize, Deserialize)]
struct Entry {
    v: u32,
    key: String,
    state: State,
    acked: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event: Option<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Started,
    Done,
}

#[derive(Debug, Default)]
struct Entries {
    states: HashMap<String, (State, bool)>,
    /// Those that may go, the oldest first.
    acked: VecDeque<String>,
}

impl Cache {
    /// Opens the memory in a folder, with the usual bound.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        Self::with_bound(folder, AGENT_CACHE_ENTRIES)
    }

    /// Opens it with a bound of its own for the number of answers.
    pub fn with_bound(folder: impl AsRef<Path>, bound: usize) -> Result<Self, Error> {
        let folder = folder.as_ref().to_owned();
        fs::create_dir_all(&folder).map_err(|error| Error::ledger(&folder, error))?;
        let lock = take_lock(&folder.join("lock"))?;
        let entries = Mutex::new(load(&folder)?);
        Ok(Self { folder, bound, entries, _lock: lock })
    }

    /// Looks a command up; one that has no answer is begun now.
    pub fn begin(&self, key: &str) -> Result<Cached, Error> {
        let known = lock(&self.entries).states.get(key).copied();
        match known {
            Some((State::Done, acked)) if !canary::on("agent_forgets") => {
                let entry = read(&self.file(key)?)?;
                let event =
                    entry.event.ok_or_else(|| Error::ledger(&self.folder, "an answer without its event"))?;
                Ok(Cached::Done { event, acked })
            }
            Some(_) => Ok(Cached::CutOff),
            None => {
                self.write(key, State::Started, false, None)?;
                Ok(Cached::New)
            }
        }
    }

    /// An answer that is known is no use any more: the command is done again.
    pub fn begin_anew(&self, key: &str) -> Result<(), Error> {
        lock(&self.entries).acked.retain(|acked| acked != key);
        self.write(key, State::Started, false, None)
    }

    /// The command's answer, to be sent once this returns.
    pub fn finish(&self, key: &str, event: &Event) -> Result<(), Error> {
        self.write(key, State::Done, false, Some(event.clone()))?;
        self.make_room()
    }

    /// The command has no answer that is worth remembering.
    pub fn forget(&self, key: &str) -> Result<(), Error> {
        let mut entries = lock(&self.entries);
        entries.states.remove(key);
        entries.acked.retain(|acked| acked != key);
        remove(&self.file(key)?)
    }

    /// The engine has the answer for good: it may go when the room is needed. A failure, or one that the engine can't use,
    /// goes at once, so that the command is done again if it comes again.
    pub fn ack(&self, key: &str, forget: bool) -> Result<(), Error> {
        let known = lock(&self.entries).states.get(key).copied();
        let Some((State::Done, false)) = known else {
            let is_dropped = forget && matches!(known, Some((State::Done, true)));
            return if is_dropped { self.forget(key) } else { Ok(()) };
        };
        let entry = read(&self.file(key)?)?;
        if forget || entry.event.as_ref().is_some_and(Event::is_failed) {
            return self.forget(key);
        }
        self.write(key, State::Done, true, entry.event)?;
        lock(&self.entries).acked.push_back(key.into());
        self.make_room()
    }

    /// How many commands it knows.
    pub fn len(&self) -> usize {
        lock(&self.entries).states.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn make_room(&self) -> Result<(), Error> {
        loop {
            let oldest = {
                let mut entries = lock(&self.entries);
                if entries.states.len() <= self.bound {
                    return Ok(());
                }
                entries.acked.pop_front()
            };
            let Some(oldest) = oldest else {
                eprintln!(
                    "more than {} answers wait for their acknowledgement: none is forgotten",
                    self.bound
                );
                return Ok(());
            };
            self.forget(&oldest)?;
        }
    }

    fn file(&self, key: &str) -> Result<PathBuf, Error> {
        let hex = key.strip_prefix("ik:").unwrap_or_default();
        if hex.is_empty() || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) || hex.len() > 128 {
            return Err(Error::Protocol(format!("`{key}` isn't the key of a command")));
        }
        Ok(self.folder.join(format!("{hex}.json")))
    }

    fn write(&self, key: &str, state: State, acked: bool, event: Option<Event>) -> Result<(), Error> {
        let path = self.file(key)?;
        let entry = Entry { v: 1, key: key.into(), state, acked, event };
        write_atomically(&path, &entry).map_err(|error| Error::ledger(&path, error))?;
        lock(&self.entries).states.insert(key.into(), (state, acked));
        Ok(())
    }
}

fn take_lock(path: &Path) -> Result<File, Error> {
    let failed = |error: io::Error| Error::ledger(path, error);
    let file = File::options().create(true).append(true).open(path).map_err(failed)?;
    for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOOK),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    Err(failed(io::Error::other("another process of this agent has it")))
}

/// What is in the folder. Files that were never finished go; so does one that can't be read: its command is done again.
fn load(folder: &Path) -> Result<Entries, Error> {
    let failed = |error| Error::ledger(folder, error);
    let (mut states, mut acked) = (HashMap::new(), vec![]);
    for file in fs::read_dir(folder).map_err(failed)? {
        let path = file.map_err(failed)?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("tmp") => remove(&path)?,
            Some("json") => match read(&path) {
                Ok(entry) => {
                    if entry.acked {
                        let at = fs::metadata(&path).and_then(|meta| meta.modified()).map_err(failed)?;
                        acked.push((at, entry.key.clone()));
                    }
                    states.insert(entry.key, (entry.state, entry.acked));
                }
                Err(error) => {
                    eprintln!("{error}: it is forgotten");
                    remove(&path)?;
                }
            },
            _ => {}
        }
    }
    acked.sort();
    Ok(Entries { states, acked: acked.into_iter().map(|(_, key)| key).collect() })
}

fn read(path: &Path) -> Result<Entry, Error> {
    let text = fs::read(path).map_err(|error| Error::ledger(path, error))?;
    serde_json::from_slice(&text).map_err(|error| Error::ledger(path, error))
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::ledger(path, error)),
        _ => Ok(()),
    }
}

/// The old content or the new one, and durable when this returns.
pub(crate) fn write_atomically<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let aside = path.with_extension("tmp");
    let mut file = File::create(&aside)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(status: &str) -> Event {
        let json = format!(
            r#"{{"message_id":"m","correlation_id":"c","task_id":"t","from":{{"agent_type":"a"}},"event":"e",
            "status":"{status}","payload":{{}},"artifacts":[],"occurred_at":"2026-01-01T00:00:00Z"}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn done(cache: &Cache, number: usize) -> bool {
        matches!(cache.begin(&format!("ik:{number:064x}")).unwrap(), Cached::Done { .. })
    }

    #[test]
    fn the_oldest_acknowledged_answer_goes_first_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let key = |number: usize| format!("ik:{number:064x}");
        let cache = Cache::with_bound(folder.path(), 3).unwrap();
        for number in 0..3 {
            cache.begin(&key(number)).unwrap();
            cache.finish(&key(number), &event("success")).unwrap();
        }
        cache.ack(&key(1), false).unwrap();
        cache.ack(&key(0), false).unwrap();
        assert!(done(&cache, 0) && done(&cache, 1), "a late duplicate is still answered");
        cache.begin(&key(3)).unwrap();
        cache.finish(&key(3), &event("success")).unwrap();
        assert_eq!(cache.len(), 3);
        assert!(
            done(&cache, 0) && done(&cache, 2) && done(&cache, 3),
            "the first that was acknowledged went"
        );
        for number in 4..7 {
            cache.begin(&key(number)).unwrap();
            cache.finish(&key(number), &event("success")).unwrap();
        }
        assert_eq!(cache.len(), 5, "those that the engine hasn't acknowledged stay, whatever the bound");
        drop(cache);
        assert_eq!(Cache::open(folder.path()).unwrap().len(), 5);
    }

    #[test]
    fn a_failure_that_the_engine_has_is_tried_again_when_it_comes_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        cache.begin("ik:01").unwrap();
        cache.finish("ik:01", &event("failed")).unwrap();
        assert!(matches!(cache.begin("ik:01").unwrap(), Cached::Done { .. }));
        cache.ack("ik:01", false).unwrap();
        assert_eq!(cache.begin("ik:01").unwrap(), Cached::New);
        cache.finish("ik:01", &event("success")).unwrap();
        cache.ack("ik:01", true).unwrap();
        assert_eq!(cache.begin("ik:01").unwrap(), Cached::New, "the engine couldn't use it");
        cache.ack("ik:77", false).unwrap();
    }

    #[test]
    fn a_half_written_file_is_no_answer() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("01.json"), b"{\"v\":1,\"key\":\"ik:01\",\"sta").unwrap();
        fs::write(folder.path().join("02.tmp"), b"{").unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        assert_eq!(cache.begin("ik:01").unwrap(), Cached::New);
        assert!(!folder.path().join("02.tmp").exists());
        assert!(cache.begin("../../etc").is_err() && cache.begin("ik:../x").is_err());
    }
}
