//! A run's journal as files: `events/<run>.ndjson` and `state/run.json`, for people and their tools.
//!
//! Invariant: what is exported is what is durable. Whoever reads it bears a last line that was torn by a crash or a copy.

use super::Error as AgentError;
use crate::{Engine, Error, Secrets};
use hapax_core::{
    commit::Status,
    id::RunId,
    journal::{Entry, JournalRow},
    json::Json,
    key::{Digest, sha256},
    order::PathHash,
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
};

use super::frame::{Frame, LineReader};

/// Rows that are read at a time.
const PAGE: usize = 256;

/// No line of a ledger is longer: the limit of a journal's row, with room for what is around it.
const LINE_BYTES: usize = hapax_core::limits::MAX_PAYLOAD_BYTES * 4;

/// A line of a ledger.
///
/// ```
/// use hapax::agent::ledger::Line;
/// # let base = hapax::core::key::sha256(b"");
/// let text = format!(r#"{{"v":1,"seq":0,"step":0,"item":"7","base":"{base}","entry":"retried"}}"#);
/// let line: Line = serde_json::from_str(&text)?;
/// assert_eq!((line.seq, line.item.0), (0, 7));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The form of this line.
    pub v: u32,
    /// Its place in the run's journal.
    pub seq: u64,
    /// The step whose frontier holds the item.
    pub step: u64,
    /// The item.
    pub item: PathHash,
    /// The checkpoint that it builds on; rows of any other than a committed one were left by steps that were lost.
    pub base: Digest,
    /// What happened.
    pub entry: Entry,
}

/// Where a run stands.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::prelude::*;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Note { text: String, #[state(secret)] pin: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(_: hapax::Ctx<Note>) -> NoteDelta { Note::delta().text("once").pin("1234") }
/// # let (folder, engine) = (tempfile::tempdir()?, Engine::open("memory:").await?);
/// # let notes = engine.register(Graph::new("notes", 1, WRITE).node(WRITE, write), ()).await?;
/// notes.start("note-1", Note::default()).await?.wait().await?;
/// let files = hapax::agent::ledger::export(&engine, "note-1", folder.path()).await?;
/// let state: hapax::agent::ledger::RunState = serde_json::from_slice(&std::fs::read(files.state)?)?;
/// assert_eq!((state.status.word(), state.step), ("succeeded", 1));
/// assert_eq!(state.state.as_str(), r#"{"pin":"[secret]","text":"once"}"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunState {
    /// The form of this file.
    pub v: u32,
    /// The run's namespace.
    pub namespace: String,
    /// The run.
    pub run: String,
    /// Its graph.
    pub graph: String,
    /// How it stands.
    pub status: Status,
    /// Its latest step.
    pub step: u64,
    /// Binds that step.
    pub digest: Digest,
    /// The nodes that run next, the first thousand or so.
    pub next: Vec<String>,
    /// Its state, without what is secret.
    pub state: Json,
}

/// The files of an export.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let engine = hapax::Engine::open("memory:").await?;
/// let missing = hapax::agent::ledger::export(&engine, "no-such-run", std::path::Path::new("x")).await;
/// assert!(missing.is_err() && !std::path::Path::new("x").exists());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// The journal.
    pub events: PathBuf,
    /// Where the run stands.
    pub state: PathBuf,
    /// How many lines the journal has.
    pub lines: u64,
}

/// A ledger that was read.
///
/// ```
/// use hapax::agent::ledger::read;
/// # let (folder, base) = (tempfile::tempdir()?, hapax::core::key::sha256(b""));
/// # let file = folder.path().join("run-1.ndjson");
/// # let line = format!(r#"{{"v":1,"seq":0,"step":0,"item":"7","base":"{base}","entry":"retried"}}"#);
/// std::fs::write(&file, format!("{line}\n{}", &line[..20]))?; // its writer died
/// let ledger = read(&file)?;
/// assert!(ledger.lines.len() == 1 && ledger.is_torn);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ledger {
    /// All lines that are whole.
    pub lines: Vec<Line>,
    /// Whether the last one was torn.
    pub is_torn: bool,
}

/// Writes what is durable of a run into a folder: its journal as `events/<run>.ndjson`, and where it stands as
/// `state/run.json`. Each is whole when it is there. Secret fields of graphs that are registered are hidden.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # use hapax::{agent::ledger, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Note { text: String }
/// # const WRITE: Node = Node::new("write");
/// # async fn write(mut ctx: hapax::Ctx<Note>) -> hapax::Result<()> {
/// #     Ok(ctx.effect("print", Write, "once", async |_| Ok::<_, NodeError>(())).await?)
/// # }
/// # let (folder, engine) = (tempfile::tempdir()?, Engine::open("memory:").await?);
/// # let notes = engine.register(Graph::new("notes", 1, WRITE).node(WRITE, write), ()).await?;
/// notes.start("note-1", Note::default()).await?.wait().await?;
/// let files = ledger::export(&engine, "note-1", folder.path()).await?;
/// assert!(files.events.ends_with("events/note-1.ndjson"));
/// assert_eq!(ledger::read(&files.events)?.lines.len() as u64, files.lines);
/// # Ok(())
/// # }
/// ```
pub async fn export(engine: &Engine, run: &str, folder: &Path) -> Result<Exported, crate::NodeError> {
    let record = engine.record(run).await?;
    let secrets = engine.secrets(&record);
    let store = engine.store();
    let loaded = store.load(record.key.clone()).await.map_err(Error::from)?;
    let failed = |path: &Path, error: io::Error| AgentError::ledger(path, error);
    let (events, state) = (folder.join("events"), folder.join("state"));
    for made in [&events, &state] {
        fs::create_dir_all(made).map_err(|error| failed(made, error))?;
    }
    let (events, state) = (events.join(file_name(&record.key.run)), state.join("run.json"));
    let mut file = Aside::new(&events).map_err(|error| failed(&events, error))?;
    let (mut from, mut lines) = (0, 0);
    loop {
        let page = store.journal(record.key.clone(), from, PAGE).await.map_err(Error::from)?;
        let Some(last) = page.last() else { break };
        (from, lines) = (last.seq + 1, lines + page.len() as u64);
        page.into_iter()
            .try_for_each(|row| file.line(&line(row, &secrets)))
            .map_err(|e| failed(&events, e))?;
    }
    file.finish().map_err(|error| failed(&events, error))?;
    let stands = RunState {
        v: 1,
        namespace: loaded.record.key.namespace.to_string(),
        run: loaded.record.key.run.to_string(),
        graph: loaded.record.graph.to_string(),
        status: loaded.record.status,
        step: loaded.checkpoint.step,
        digest: loaded.checkpoint.digest,
        next: loaded.checkpoint.frontier.iter().map(|item| item.node.to_string()).collect(),
        state: Json::from_text(&secrets.state_of(&loaded.checkpoint)).unwrap_or_else(|_| Json::null()),
    };
    let mut file = Aside::new(&state).map_err(|error| failed(&state, error))?;
    file.line(&stands).and_then(|()| file.finish()).map_err(|error| failed(&state, error))?;
    Ok(Exported { events, state, lines })
}

/// Reads a ledger. A last line without its end is left out; any other line that isn't one is an error.
///
/// ```
/// use hapax::{Coded, agent::ledger::read};
/// assert_eq!(read("no/such/file.ndjson").unwrap_err().code(), "HX0131");
/// ```
pub fn read(path: impl AsRef<Path>) -> Result<Ledger, AgentError> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|error| AgentError::ledger(path, error))?;
    let mut frames = LineReader::with_limit(BufReader::new(file), LINE_BYTES);
    let mut ledger = Ledger { lines: vec![], is_torn: false };
    while let Some(frame) = frames.next().map_err(|error| AgentError::ledger(path, error))? {
        match frame {
            Frame::Torn(_) => ledger.is_torn = true,
            Frame::TooLong(_) => return Err(AgentError::ledger(path, "a line is longer than any can be")),
            Frame::Line(line) => {
                let place = ledger.lines.len() + 1;
                let line = serde_json::from_slice(&line)
                    .map_err(|error| AgentError::ledger(path, format!("line {place}: {error}")))?;
                ledger.lines.push(line);
            }
        }
    }
    Ok(ledger)
}

fn line(row: JournalRow, secrets: &Secrets) -> Line {
    let JournalRow { seq, base, step, path_hash, entry } = row;
    Line { v: 1, seq, step, item: path_hash, base, entry: secrets.entry(entry) }
}

/// The run's name where it can be a file's, else a hash of it.
fn file_name(run: &RunId) -> String {
    let name = run.as_str();
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '@' | ':' | '+' | '=');
    if name.len() <= 200 && !name.starts_with('.') && name.chars().all(fits) {
        return format!("{name}.ndjson");
    }
    format!("run-{}.ndjson", &sha256(name.as_bytes()).to_string()[..16])
}

/// A file that takes its place when it is whole.
struct Aside {
    file: BufWriter<File>,
    aside: PathBuf,
    place: PathBuf,
}

impl Aside {
    fn new(place: &Path) -> io::Result<Self> {
        let aside = place.with_file_name(format!(".{}.tmp", uuid::Uuid::new_v4()));
        Ok(Self { file: BufWriter::new(File::create_new(&aside)?), aside, place: place.into() })
    }

    fn line<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        serde_json::to_writer(&mut self.file, value)?;
        self.file.write_all(b"\n")
    }

    fn finish(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.aside, &self.place)?;
        File::open(self.place.parent().unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        // It has another name, unless it was never whole.
        let _ = fs::remove_file(&self.aside);
    }
}
