//! Runs as lines of JSON: the same runs are the same bytes, whichever store they came from.
//!
//! Invariant: nothing of a file enters a store before its last line was read and found right, and no run of it can be seen
//! before all of them are there.
//!
//! ```text
//! {"hapax_export":1}                                  what it is
//! {"run":{…}} {"letter":{…}} {"row":{…}} …            a run, then its pieces; runs by name
//! {"end":{"lines":…,"runs":…,"sha256":"…"}}           counts, and the SHA-256 of all bytes before this line
//! ```

mod vetting;

use self::vetting::Vetting;
use super::{Head, Load, Piece, Seal, is_same, mover::no_text};
use crate::{
    check::is_elsewhere,
    error::StoreError,
    store::{ListFilter, RunRecord, Store},
};
use hapax_core::{
    commit::Epoch,
    error::{Code, Coded, code},
    id::{Namespace, RunKey},
    json::Json,
    key::Digest,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{
    collections::BTreeSet,
    io::{self, BufRead, Seek, Write},
};

const FIRST: &str = r#"{"hapax_export":1}"#;

/// A line longer than any that is written.
const MAX_LINE: u64 = 1 << 30;

/// Why an export can't be written or read.
///
/// ```
/// use hapax_core::error::Coded;
/// use hapax_store::house::ExportError;
/// let cut = ExportError::Bad { line: 7, what: "the file ends before its last line".into() };
/// assert_eq!(cut.code(), "HX0184");
/// assert_eq!(cut.to_string(), "line 7: the file ends before its last line; nothing was imported");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The store couldn't do its part.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file can't be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file isn't a whole export.
    #[error("line {line}: {what}; nothing was imported")]
    Bad {
        /// Where.
        line: u64,
        /// What is wrong.
        what: String,
    },
}

impl Coded for ExportError {
    fn code(&self) -> Code {
        match self {
            ExportError::Store(error) => error.code(),
            ExportError::Io(_) => code::SYSTEM,
            ExportError::Bad { .. } => code::BAD_EXPORT,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunLine {
    run: Head,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    end: End,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    lines: u64,
    runs: u64,
    sha256: Digest,
}

/// Writes runs, each as of one moment. One that has moved or is arriving is refused: it isn't here.
///
/// ```
/// use hapax_store::{MemoryStore, Store, house, conformance::{Sample, sample::key}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, copy) = (MemoryStore::shared(), MemoryStore::shared());
/// store.create(Sample::run("order-42").build()).await?;
/// let mut file = vec![];
/// house::export(&*store, vec![key("order-42")], &mut file, |_| {}).await?;
///
/// house::import(&*copy, &mut std::io::Cursor::new(&file), |_| {}).await?;
/// let mut again = vec![];
/// house::export(&*copy, vec![key("order-42")], &mut again, |_| {}).await?;
/// assert_eq!(file, again);
/// # Ok(())
/// # }
/// ```
pub async fn export(
    store: &dyn Store,
    mut runs: Vec<RunKey>,
    out: &mut (dyn Write + Send),
    mut told: impl FnMut(Load) + Send,
) -> Result<Load, ExportError> {
    runs.sort();
    runs.dedup();
    let mut lines = Lines { out, digest: Sha256::new(), lines: 0 };
    lines.line(FIRST)?;
    let mut load = Load::default();
    for run in runs {
        let record =
            store.run(run.clone()).await?.ok_or_else(|| StoreError::NotFound { run: run.clone() })?;
        record.demand_here()?;
        let mut image = store.house().image(run).await?;
        lines.json(&RunLine { run: image.head.clone() })?;
        let mut seal = Seal::of(&image.head)?;
        while let Some(pieces) = image.next().await? {
            for piece in &pieces {
                seal.add(piece)?;
                lines.json(piece)?;
            }
        }
        load += seal.finish().1;
        told(load);
    }
    let Lines { out, digest, lines } = lines;
    let end = End { lines, runs: load.runs, sha256: Digest(digest.finalize().into()) };
    writeln!(out, "{}", text(&EndLine { end })?.as_str())?;
    out.flush()?;
    Ok(load)
}

fn text<T: Serialize>(value: &T) -> Result<Json, ExportError> {
    Json::of(value).map_err(|error| no_text(error).into())
}

/// What is written, and what binds it.
struct Lines<'o> {
    out: &'o mut (dyn Write + Send),
    digest: Sha256,
    lines: u64,
}

impl Lines<'_> {
    fn json<T: Serialize>(&mut self, value: &T) -> Result<(), ExportError> {
        self.line(text(value)?.as_str())
    }

    fn line(&mut self, text: &str) -> Result<(), ExportError> {
        let line = format!("{text}\n");
        self.digest.update(line.as_bytes());
        self.lines += 1;
        Ok(self.out.write_all(line.as_bytes())?)
    }
}

/// What an export holds.
///
/// ```
/// # use hapax_store::{MemoryStore, Store, house, conformance::{Sample, sample::key}};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = MemoryStore::shared();
/// # store.create(Sample::run("order-42").build()).await?;
/// # let mut file = vec![];
/// # house::export(&*store, vec![key("order-42")], &mut file, |_| {}).await?;
/// let contents: house::Contents = house::inspect(&mut &file[..])?;
/// assert_eq!((contents.runs.len(), contents.live.len()), (1, 1), "it isn't over");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Contents {
    /// Its runs.
    pub runs: BTreeSet<RunKey>,
    /// Those that aren't over: where they are imported they go on.
    pub live: BTreeSet<RunKey>,
    /// Their steps.
    pub steps: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Reads an export to its end, and refuses one that is damaged, cut or something else, or that no store can have written.
///
/// ```
/// use hapax_store::house::{ExportError, inspect};
/// let foreign = inspect(&mut &b"{\"name\":\"something else\"}\n"[..]);
/// assert!(matches!(foreign, Err(ExportError::Bad { line: 1, .. })));
/// ```
pub fn inspect(file: &mut dyn BufRead) -> Result<Contents, ExportError> {
    Ok(read_whole(file)?.0)
}

/// What an export holds, and the sum that binds it.
fn read_whole(file: &mut dyn BufRead) -> Result<(Contents, Digest), ExportError> {
    let mut contents = Contents::default();
    let mut reader = Reader::new(file);
    reader.first()?;
    let mut run: Option<Vetting> = None;
    loop {
        let part = reader.next()?;
        contents.bytes = reader.bytes;
        if let Part::Run(_) | Part::End(_) = part {
            run.take().map_or(Ok(()), Vetting::end).map_err(|what| reader.bad(what))?;
        }
        match part {
            Part::Run(head) => {
                let key = head.key();
                run = Some(Vetting::of(&head).map_err(|what| reader.bad(what))?);
                if !head.status.is_final() {
                    contents.live.insert(key.clone());
                }
                if !contents.runs.insert(key) {
                    return Err(reader.bad("a run comes twice"));
                }
            }
            Part::Piece(piece) => {
                contents.steps += u64::from(matches!(*piece, Piece::Checkpoint(_)));
                let run = run.as_mut().ok_or_else(|| reader.bad("a piece of a run comes before its run"))?;
                run.piece(*piece).map_err(|what| reader.bad(what))?;
            }
            Part::End(end) if end.runs != contents.runs.len() as u64 => {
                return Err(reader.bad("it counts other runs than there are"));
            }
            Part::End(end) => return Ok((contents, end.sha256)),
        }
    }
}

enum Part {
    Run(Box<Head>),
    Piece(Box<Piece>),
    End(End),
}

/// Reads lines, and says where something is wrong.
struct Reader<'f> {
    file: &'f mut dyn BufRead,
    digest: Sha256,
    line: u64,
    bytes: u64,
}

impl<'f> Reader<'f> {
    fn new(file: &'f mut dyn BufRead) -> Self {
        Self { file, digest: Sha256::new(), line: 0, bytes: 0 }
    }

    fn bad(&self, what: impl Into<String>) -> ExportError {
        ExportError::Bad { line: self.line.max(1), what: what.into() }
    }

    fn first(&mut self) -> Result<(), ExportError> {
        let line = self.read()?;
        if line == FIRST {
            self.take(&line);
            return Ok(());
        }
        let newer = line.starts_with(r#"{"hapax_export":"#);
        Err(self.bad(if newer {
            "a newer program wrote it: use that version of Hapax or a newer one"
        } else {
            "this is no export of Hapax: name a file that `hapax export` wrote"
        }))
    }

    fn read(&mut self) -> Result<String, ExportError> {
        let mut line = vec![];
        io::Read::take(&mut *self.file, MAX_LINE).read_until(b'\n', &mut line)?;
        self.line += 1;
        self.bytes += line.len() as u64;
        if line.pop() != Some(b'\n') {
            return Err(self.bad("the file ends before its last line: it was cut, export it again"));
        }
        String::from_utf8(line).map_err(|_| self.bad("it is not UTF-8: the file is damaged"))
    }

    fn take(&mut self, line: &str) {
        self.digest.update(line.as_bytes());
        self.digest.update(b"\n");
    }

    fn next(&mut self) -> Result<Part, ExportError> {
        let line = self.read()?;
        if line.starts_with(r#"{"end":"#) {
            return self.end(&line);
        }
        self.take(&line);
        let unreadable =
            |this: &Self, error: &dyn std::fmt::Display| this.bad(format!("it can't be read: {error}"));
        if line.starts_with(r#"{"run":"#) {
            let read: RunLine = serde_json::from_str(&line).map_err(|error| unreadable(self, &error))?;
            self.is_canonical(&read, &line)?;
            return Ok(Part::Run(Box::new(read.run)));
        }
        let piece: Piece = serde_json::from_str(&line).map_err(|error| unreadable(self, &error))?;
        self.is_canonical(&piece, &line)?;
        Ok(Part::Piece(Box::new(piece)))
    }

    /// One value has one text, so another text of it is somebody else's.
    fn is_canonical<T: Serialize>(&self, read: &T, line: &str) -> Result<(), ExportError> {
        match text(read)?.as_str() == line {
            true => Ok(()),
            false => Err(self.bad("it is not as Hapax writes it: the file was changed")),
        }
    }

    fn end(&mut self, line: &str) -> Result<Part, ExportError> {
        let read: EndLine =
            serde_json::from_str(line).map_err(|error| self.bad(format!("it can't be read: {error}")))?;
        let sum = Digest(self.digest.finalize_reset().into());
        if read.end.sha256 != sum || read.end.lines + 1 != self.line {
            return Err(self.bad("the lines before it are not those that were written: the file is damaged"));
        }
        if !self.file.fill_buf()?.is_empty() {
            return Err(self.bad("something follows the last line"));
        }
        Ok(Part::End(read.end))
    }
}

/// Takes the runs of an export in, all of them or none. A run that isn't over goes on here: make sure that it never does
/// where it came from.
///
/// ```
/// use hapax_store::{ListFilter, MemoryStore, Store, house, conformance::{Sample, sample::key}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (store, copy) = (MemoryStore::shared(), MemoryStore::shared());
/// # store.create(Sample::run("order-42").build()).await?;
/// # let mut file = vec![];
/// # house::export(&*store, vec![key("order-42")], &mut file, |_| {}).await?;
/// let cut = file[..file.len() / 2].to_vec();
/// assert!(house::import(&*copy, &mut std::io::Cursor::new(cut), |_| {}).await.is_err());
/// assert!(copy.list(ListFilter::default()).await?.is_empty());
/// assert_eq!(house::import(&*copy, &mut std::io::Cursor::new(file), |_| {}).await?.runs, 1);
/// # Ok(())
/// # }
/// ```
pub async fn import<F: BufRead + Seek + Send>(
    store: &dyn Store,
    file: &mut F,
    mut told: impl FnMut(Load) + Send,
) -> Result<Load, ExportError> {
    file.rewind()?;
    let (contents, sum) = read_whole(file)?;
    file.rewind()?;
    let mut intake = Intake::of(store, &contents, sum).await?;
    let load = match intake.take_in(file, &mut told).await {
        Ok(load) => load,
        Err(error) => {
            intake.give_up().await;
            return Err(error);
        }
    };
    if let Err(error) = store.house().open(intake.arrived.clone()).await {
        if intake.is_shut().await {
            intake.give_up().await;
        }
        return Err(error.into());
    }
    told(load);
    Ok(load)
}

/// A file that is taken in.
struct Intake<'s> {
    store: &'s dyn Store,
    /// What the nonces of its arrivals begin with: another import of the same file knows them by it.
    mark: u64,
    /// Another one broke off when it opened what had arrived, database by database.
    goes_on: bool,
    arrived: Vec<(RunKey, Epoch)>,
}

impl<'s> Intake<'s> {
    async fn of(store: &'s dyn Store, contents: &Contents, sum: Digest) -> Result<Self, StoreError> {
        let [a, b, c, d, e, f, g, h, ..] = sum.0;
        let mark = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let mut intake = Self { store, mark, goes_on: false, arrived: vec![] };
        let namespaces: BTreeSet<&Namespace> = contents.runs.iter().map(|run| &run.namespace).collect();
        for namespace in namespaces {
            let (namespace, statuses) = (namespace.clone(), vec!["arriving".to_owned()]);
            let arriving = ListFilter { namespace, statuses, limit: usize::MAX, ..ListFilter::default() };
            let arriving = store.list(arriving).await?;
            intake.goes_on |= arriving.iter().any(|run| intake.is_marked(run.epoch));
        }
        Ok(intake)
    }

    fn is_marked(&self, epoch: Epoch) -> bool {
        (epoch.nonce >> 64) as u64 == self.mark
    }

    /// Makes room for a run; `None`: an import that broke off has let it go on before.
    async fn begin(&mut self, head: Head) -> Result<Option<Arrival>, StoreError> {
        let (key, seal) = (head.key(), Seal::of(&head)?);
        let drawn = uuid::Uuid::new_v4().as_u128() >> 64;
        let epoch = Epoch { counter: head.epoch, nonce: u128::from(self.mark) << 64 | drawn };
        let arrives = self.store.house().arrive(head.clone(), epoch).await;
        let is_taken = matches!(arrives, Err(StoreError::ArrivalTaken { .. }));
        if is_taken && self.goes_on && self.has_it(&head, epoch).await? {
            return Ok(None);
        }
        arrives?;
        self.arrived.push((key.clone(), epoch));
        Ok(Some(Arrival { key, epoch, seal, waiting: vec![], weight: 0 }))
    }

    /// Whether the very run is open, and has not fallen behind what the file says of it.
    async fn has_it(&self, head: &Head, epoch: Epoch) -> Result<bool, StoreError> {
        let there = self.store.run(head.key()).await?;
        let is_open = |there: &RunRecord| !is_elsewhere(&there.status) && there.epoch.counter >= head.epoch;
        let new = head.clone().arriving(epoch);
        Ok(there.is_some_and(|there| is_open(&there) && is_same(&new, &there)))
    }

    /// Whether nothing of it goes on yet. If something does, the rest is to follow: the next import of the file sees to that.
    async fn is_shut(&self) -> bool {
        for (run, _) in &self.arrived {
            let there = self.store.run(run.clone()).await;
            if !there.is_ok_and(|there| there.is_none_or(|there| is_elsewhere(&there.status))) {
                return false;
            }
        }
        true
    }

    /// Takes back what has arrived; not the rest of what another import has let go on.
    async fn give_up(self) {
        let arrived = if self.goes_on { vec![] } else { self.arrived };
        for (run, epoch) in arrived {
            // What can't be taken back is arriving still: the next import goes on with it.
            let _ = self.store.house().give_up(run, epoch).await;
        }
    }

    /// Reads the file anew, and takes in what it holds.
    async fn take_in<F: BufRead + Send>(
        &mut self,
        file: &mut F,
        told: &mut (dyn FnMut(Load) + Send),
    ) -> Result<Load, ExportError> {
        let mut load = Load::default();
        let mut run: Option<Arrival> = None;
        let mut place = Place::default();
        while !place.at_end {
            for part in place.read_some(file)? {
                match part {
                    Part::Run(head) => {
                        if let Some(before) = run.take() {
                            load += before.finish(self.store).await?;
                            told(load);
                        }
                        run = self.begin(*head).await?;
                    }
                    Part::Piece(piece) => {
                        if let Some(run) = &mut run {
                            run.add(self.store, *piece).await?;
                        }
                    }
                    Part::End(_) => {}
                }
            }
        }
        if let Some(last) = run {
            load += last.finish(self.store).await?;
        }
        Ok(load)
    }
}

/// Lines that are read at once.
const SOME: usize = 64;

/// How far a file was read. A reader can't wait with the file in its hands, so it borrows it for a handful of lines.
#[derive(Default)]
struct Place {
    line: u64,
    digest: Sha256,
    bytes: u64,
    at_end: bool,
}

impl Place {
    fn read_some(&mut self, file: &mut dyn BufRead) -> Result<Vec<Part>, ExportError> {
        let digest = std::mem::take(&mut self.digest);
        let mut reader = Reader { file, digest, line: self.line, bytes: self.bytes };
        if self.line == 0 {
            reader.first()?;
        }
        let mut parts = vec![];
        while !self.at_end && parts.len() < SOME {
            let part = reader.next()?;
            self.at_end = matches!(part, Part::End(_));
            parts.push(part);
        }
        Reader { digest: self.digest, line: self.line, bytes: self.bytes, .. } = reader;
        Ok(parts)
    }
}

/// A run that is taken in.
struct Arrival {
    key: RunKey,
    epoch: Epoch,
    seal: Seal,
    waiting: Vec<Piece>,
    weight: usize,
}

/// Bytes of pieces that are written at once.
const BATCH_BYTES: usize = 1 << 20;

impl Arrival {
    async fn add(&mut self, store: &dyn Store, piece: Piece) -> Result<(), StoreError> {
        self.seal.add(&piece)?;
        self.weight += piece.weight();
        self.waiting.push(piece);
        if self.weight < BATCH_BYTES {
            return Ok(());
        }
        self.unpack(store).await
    }

    async fn unpack(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.weight = 0;
        let pieces = std::mem::take(&mut self.waiting);
        store.house().unpack(self.key.clone(), self.epoch, pieces).await
    }

    async fn finish(mut self, store: &dyn Store) -> Result<Load, StoreError> {
        self.unpack(store).await?;
        let (left, load) = self.seal.finish();
        Seal::demand(store, (&self.key, self.epoch), left).await?;
        Ok(load)
    }
}
