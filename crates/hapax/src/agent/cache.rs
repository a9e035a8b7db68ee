//! What an agent remembers: the answer to each command, on disk, until the engine has it and the room is needed.
//!
//! Invariant: that a command was begun is durable before its work, its answer before it is sent. An answer that the engine
//! hasn't acknowledged is never forgotten.

use super::{Error, install::staging_of, protocol::Event};
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

/// Of the form of an entry.
const VERSION: u32 = 1;

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
    staging: Option<PathBuf>,
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
    #[serde(default)]
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

impl Entries {
    fn lose(&mut self, key: &str) {
        self.states.remove(key);
        self.acked.retain(|acked| acked != key);
    }
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
        Ok(Self { folder, staging: None, bound, entries, _lock: lock })
    }

    /// What is forgotten goes with its staging folder, which is in this one.
    pub(crate) fn staging(mut self, folder: &Path) -> Self {
        self.staging = Some(folder.into());
        self
    }

    /// Looks a command up; one that has no answer is begun now.
    pub fn begin(&self, key: &str) -> Result<Cached, Error> {
        match self.answer(key)? {
            Some((event, acked)) => Ok(Cached::Done { event, acked }),
            None if self.start(key)? => Ok(Cached::CutOff),
            None => Ok(Cached::New),
        }
    }

    /// The answer, and whether the engine has it for good.
    pub(crate) fn answer(&self, key: &str) -> Result<Option<(Event, bool)>, Error> {
        let known = lock(&self.entries).states.get(key).copied();
        match known {
            Some((State::Done, acked)) if !canary::on("agent_forgets") => {
                Ok(self.done(key)?.map(|event| (event, acked)))
            }
            _ => Ok(None),
        }
    }

    /// Notes that the work begins. `true`: it was begun before, and cut off.
    pub(crate) fn start(&self, key: &str) -> Result<bool, Error> {
        self.file(key)?;
        let before = {
            let mut entries = lock(&self.entries);
            entries.acked.retain(|acked| acked != key);
            // From here on nobody makes room at its cost.
            entries.states.insert(key.into(), (State::Started, false))
        };
        let written = self.write(key, State::Started, false, None);
        if written.is_err() {
            self.put_back(key, before);
        }
        written.map(|()| matches!(before, Some((State::Started, _))))
    }

    /// Nothing began after all.
    fn put_back(&self, key: &str, before: Option<(State, bool)>) {
        let mut entries = lock(&self.entries);
        match before {
            None => entries.lose(key),
            Some((state, acked)) => {
                entries.states.insert(key.into(), (state, acked));
                if acked {
                    entries.acked.push_back(key.into());
                }
            }
        }
    }

    /// An answer that is known is no use any more: the command is done again.
    pub fn begin_anew(&self, key: &str) -> Result<(), Error> {
        self.start(key).map(drop)
    }

    /// The command's answer, to be sent once this returns.
    pub fn finish(&self, key: &str, event: &Event) -> Result<(), Error> {
        self.write(key, State::Done, false, Some(event.clone()))?;
        self.make_room()
    }

    /// The command has no answer that is worth remembering.
    pub fn forget(&self, key: &str) -> Result<(), Error> {
        self.drop_from(&mut lock(&self.entries), key)
    }

    /// The entry goes first: an answer that is still there must not name files that are gone.
    fn drop_from(&self, entries: &mut Entries, key: &str) -> Result<(), Error> {
        entries.lose(key);
        remove(&self.file(key)?)?;
        let Some(staging) = self.staging.as_ref().map(|folder| staging_of(folder, key)) else {
            return Ok(());
        };
        if let Err(error) = clear(&staging) {
            eprintln!("`{}` can't be removed: {error}", staging.display());
        }
        Ok(())
    }

    /// The engine has the answer for good: it may go when the room is needed. A failure, or one that the engine can't use,
    /// goes at once, so that the command is done again if it comes again.
    pub fn ack(&self, key: &str, forget: bool) -> Result<(), Error> {
        let known = lock(&self.entries).states.get(key).copied();
        let Some((State::Done, is_acked)) = known else { return Ok(()) };
        if forget {
            return self.forget(key);
        }
        if is_acked {
            return Ok(());
        }
        let Some(event) = self.done(key)? else { return Ok(()) };
        if event.is_failed() {
            return self.forget(key);
        }
        self.write(key, State::Done, true, Some(event))?;
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
        let mut entries = lock(&self.entries);
        while entries.states.len() > self.bound {
            let Some(oldest) = entries.acked.pop_front() else {
                let bound = self.bound;
                eprintln!("more than {bound} answers wait for their acknowledgement: none is forgotten");
                return Ok(());
            };
            self.drop_from(&mut entries, &oldest)?;
        }
        Ok(())
    }

    /// The event of an entry that should have one. A corrupt entry counts as absent.
    fn done(&self, key: &str) -> Result<Option<Event>, Error> {
        let event = read(&self.file(key)?, key)?.and_then(|entry| entry.event);
        if event.is_none() {
            lock(&self.entries).lose(key);
        }
        Ok(event)
    }

    fn file(&self, key: &str) -> Result<PathBuf, Error> {
        match key.strip_prefix("ik:") {
            Some(hex) if is_hex(hex) => Ok(self.folder.join(format!("{hex}.json"))),
            _ => Err(Error::Protocol(format!("`{key}` isn't the key of a command"))),
        }
    }

    fn write(&self, key: &str, state: State, acked: bool, event: Option<Event>) -> Result<(), Error> {
        let path = self.file(key)?;
        let entry = Entry { v: VERSION, key: key.into(), state, acked, event };
        write_atomically(&path, &entry).map_err(|error| Error::ledger(&path, error))?;
        lock(&self.entries).states.insert(key.into(), (state, acked));
        Ok(())
    }
}

/// Removes a staging folder, whatever stands in its place.
pub(crate) fn clear(folder: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(folder) {
        Ok(meta) if !meta.is_dir() => fs::remove_file(folder),
        Ok(_) => fs::remove_dir_all(folder),
        Err(error) => Err(error),
    };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn is_hex(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
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

/// What is in the folder. Files that were never finished go.
fn load(folder: &Path) -> Result<Entries, Error> {
    let failed = |error| Error::ledger(folder, error);
    let (mut states, mut acked) = (HashMap::new(), vec![]);
    for file in fs::read_dir(folder).map_err(failed)? {
        let path = file.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "tmp") {
            match is_file(&path) {
                true => remove(&path)?,
                false => move_aside(&path, "it is no file")?,
            }
            continue;
        }
        let name =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".json"));
        let Some(key) = name.filter(|name| is_hex(name)).map(|hex| format!("ik:{hex}")) else { continue };
        if let Some(entry) = read(&path, &key)? {
            if entry.acked {
                let at = fs::metadata(&path).and_then(|meta| meta.modified()).map_err(failed)?;
                acked.push((at, key.clone()));
            }
            states.insert(key, (entry.state, entry.acked));
        }
    }
    acked.sort();
    Ok(Entries { states, acked: acked.into_iter().map(|(_, key)| key).collect() })
}

/// An entry; `None`: it is gone, or can't be understood. Then it is moved aside, for a person to look at.
fn read(path: &Path, key: &str) -> Result<Option<Entry>, Error> {
    if fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(None);
    }
    // A pipe would have us wait for ever, and a link may lead anywhere.
    if !is_file(path) {
        return move_aside(path, "it is no file").map(|()| None);
    }
    let text = fs::read(path).map_err(|error| Error::ledger(path, error))?;
    let reason = match serde_json::from_slice::<Entry>(&text) {
        Ok(entry) if entry.is_of(key) => return Ok(Some(entry)),
        Ok(_) => "it is no entry for this key".into(),
        Err(error) => error.to_string(),
    };
    move_aside(path, &reason).map(|()| None)
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file())
}

/// For a person to look at. What was moved there before goes, unless it is a folder.
fn move_aside(path: &Path, reason: &str) -> Result<(), Error> {
    eprintln!("`{}` counts as absent: {reason}", path.display());
    let named = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    let aside = named(".corrupt");
    let aside = if aside.is_dir() { named(&format!(".{}.corrupt", uuid::Uuid::now_v7())) } else { aside };
    fs::rename(path, aside).map_err(|error| Error::ledger(path, error))
}

impl Entry {
    fn is_of(&self, key: &str) -> bool {
        let is_whole = match self.state {
            State::Started => !self.acked,
            State::Done => self.event.as_ref().is_some_and(Event::is_terminal),
        };
        self.v == VERSION && self.key == key && is_whole
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::ledger(path, error)),
        _ => Ok(()),
    }
}

/// The old content or the new one, and durable when this returns.
pub(crate) fn write_atomically<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    // A name of its own: whatever stands at a fixed one might be no file.
    let aside = path.with_extension(format!("{}.tmp", uuid::Uuid::now_v7()));
    let mut file = File::create_new(&aside)?;
    let written = file
        .write_all(&serde_json::to_vec(value)?)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&aside, path));
    if written.is_err() {
        // It goes at the next start if it doesn't now.
        let _ = fs::remove_file(&aside);
    }
    written?;
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
        assert!(folder.path().join("01.json.corrupt").exists(), "somebody may want to look at it");
        assert!(!folder.path().join("02.tmp").exists());
        assert!(cache.begin("../../etc").is_err() && cache.begin("ik:../x").is_err());
    }

    #[test]
    fn a_corrupt_entry_counts_as_absent_and_is_moved_aside_also_while_the_agent_lives() {
        let corrupt = [
            r#"{"v":1,"key":"ik:01","sta"#,
            r#"{"v":2,"key":"ik:01","state":"started","acked":false,"event":null}"#,
            r#"{"v":1,"key":"ik:02","state":"started","acked":false,"event":null}"#,
            r#"{"v":1,"key":"ik:01","state":"done","acked":false,"event":null}"#,
        ];
        for text in corrupt {
            let folder = tempfile::tempdir().unwrap();
            let (file, aside) = (folder.path().join("01.json"), folder.path().join("01.json.corrupt"));
            fs::write(&file, text).unwrap();
            let cache = Cache::open(folder.path()).unwrap();
            assert!(cache.is_empty() && aside.exists() && !file.exists(), "{text}");
            cache.begin("ik:01").unwrap();
            cache.finish("ik:01", &event("success")).unwrap();
            fs::remove_file(&aside).unwrap();
            fs::write(&file, text).unwrap();
            cache.ack("ik:01", false).unwrap();
            assert_eq!(cache.begin("ik:01").unwrap(), Cached::New, "{text}");
            cache.finish("ik:01", &event("success")).unwrap();
            fs::write(&file, text).unwrap();
            assert_eq!(cache.begin("ik:01").unwrap(), Cached::New, "{text}");
            assert!(aside.exists());
        }
    }

    #[test]
    fn what_is_no_file_counts_as_absent_and_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("01.json")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("02.json")).unwrap();
        fs::create_dir(at("03.tmp")).unwrap();
        fs::create_dir(at("01.json.corrupt")).unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        assert!(cache.is_empty());
        for key in ["ik:01", "ik:02"] {
            assert_eq!(cache.begin(key).unwrap(), Cached::New);
            cache.finish(key, &event("success")).unwrap();
        }
        assert!(at("02.json.corrupt").is_symlink() && at("03.tmp.corrupt").is_dir());
    }

    #[test]
    fn what_is_forgotten_goes_with_its_staging_folder() {
        let (folder, staging) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let cache = Cache::with_bound(folder.path(), 1).unwrap().staging(staging.path());
        for key in ["01", "02", "03"] {
            fs::create_dir(staging.path().join(key)).unwrap();
            cache.begin(&format!("ik:{key}")).unwrap();
            cache.finish(&format!("ik:{key}"), &event("success")).unwrap();
        }
        let is_staged = |key: &str| staging.path().join(key).exists();
        cache.ack("ik:01", false).unwrap();
        assert!(!is_staged("01") && is_staged("02"), "it went for the others' room");
        cache.ack("ik:02", true).unwrap();
        assert!(!is_staged("02") && is_staged("03"));
    }
}
