//! `hapax migrate`: moves runs between two stores, in flight too.
//!
//! Invariant: what is refused stays where it is and is told; whatever broke off is gone on with by the same call.

use crate::{
    args::Global,
    failure::Failure,
    keys::Keyed,
    output::{Output, clean},
    payloads::Payloads,
    session::{self, ServerKind, without_damaged},
    signals::EndRequests,
    view::{counted, parse_age},
};
use clap::Args;
use futures::{StreamExt as _, future::ready, stream};
use hapax::core::{
    error::{Coded as _, code},
    id::{Namespace, RunId, RunKey},
};
use hapax_store::{
    ListFilter, MemoryStore, RunRecord, Store, StoreError,
    house::{Load, Mover},
};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

const AFTER_HELP: &str = "\
A run moves with its parent and its children. It is shut in its old store, copied, read back and compared; then the old store \
says where it went, and the new one lets it go on. It is never in both. A crash, or Ctrl-C, leaves it in one of them: the same \
command goes on from there.

A run that a worker or a relay holds is left where it is and told of; --wait tries it again. Exits with 4 when some were held. \
Schedules, requests and inboxes stay: pause a schedule first, and add it to the new store. The old store keeps a word of \
where each run went, for whoever asks for it there; --forget leaves none.

Examples:
  hapax migrate --from sqlite:orders.db --to postgres://ada@db/orders
  hapax migrate --from sqlite:old.db --to sqlite:new.db --create
  hapax migrate --from sqlite:old.db --to sqlite:new.db --run order-42
  hapax migrate --from sqlite:old.db --to sqlite:new.db --dry-run
  hapax migrate --from sqlite:old.db --to sqlite:new.db --undo";

/// Families that are on their way at once.
const AT_ONCE: usize = 8;

/// How long a run that is held is left alone before it is asked for again.
const PAUSE: Duration = Duration::from_millis(250);

/// Move runs to another store, in flight too
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Migrate {
    /// The store that they are in
    #[arg(long, value_name = "URL")]
    from: OsString,
    /// The store that they go to
    #[arg(long, value_name = "URL")]
    to: OsString,
    /// Only this run and its family; any of them when given more than once
    #[arg(long = "run", value_name = "RUN")]
    runs: Vec<String>,
    /// Make the new store if it isn't there
    #[arg(long)]
    create: bool,
    /// How long to try again what is held: a number with s, m, h, d or w
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_age)]
    wait: Duration,
    /// Keep no word in the old store of where runs went
    #[arg(long)]
    forget: bool,
    /// These runs have arrived, ended and were deleted in the new store, before the old one had deleted what it has of them:
    /// let it do so
    #[arg(long, requires = "runs", conflicts_with_all = ["undo", "dry_run"])]
    swept: bool,
    /// These runs have arrived, and the new store has lost them since, before the old one had deleted what it has of them: let
    /// them arrive anew, as they left
    #[arg(long, requires = "runs", conflicts_with_all = ["undo", "dry_run", "swept"])]
    lost: bool,
    /// Only tell what would be moved
    #[arg(long, conflicts_with = "undo")]
    dry_run: bool,
    /// Call back what is on its way, and let it go on where it was
    #[arg(long, conflicts_with = "forget")]
    undo: bool,
}

#[derive(Debug, Default, Serialize)]
struct Answer {
    dry_run: bool,
    runs: u64,
    steps: u64,
    bytes: u64,
    seconds: f64,
    /// Runs that somebody holds.
    held: Vec<String>,
    /// Runs that moved to another place before.
    elsewhere: u64,
    /// Runs that can't be moved, and why.
    refused: BTreeMap<String, String>,
    /// Schedules that stay.
    schedules: usize,
}

/// Two stores, and what was asked for.
struct Move<'a> {
    command: &'a Migrate,
    out: &'a Output,
    from: Arc<dyn Store>,
    to: Arc<dyn Store>,
    mover: Mover,
    namespace: Namespace,
}

impl Migrate {
    pub(crate) async fn run_until(
        self,
        global: &Global,
        out: &Output,
        requests: &mut EndRequests,
    ) -> Result<(), Failure> {
        if global.store.is_some() {
            return Err(Failure::usage("--from and --to name the stores: leave out --store"));
        }
        let interrupted = Failure::coded(code::INTERRUPTED, "interrupted; nothing is lost")
            .cured_by("call it again: it goes on with what is on its way");
        tokio::select! {
            outcome = self.run(global, out) => outcome,
            () = requests.next() => Err(interrupted),
        }
    }

    async fn run(&self, global: &Global, out: &Output) -> Result<(), Failure> {
        let namespace = session::namespace(global)?;
        let open = |url: &OsString, must_exist| {
            let (url, only_reads) = (url.clone(), self.dry_run);
            async move {
                let payloads = Payloads::from_env(&Keyed::AsGiven)?;
                let store = session::open_store(&url, must_exist, only_reads, payloads).await;
                store.map_err(|failure| failure.at(&url))
            }
        };
        session::demand_lasting(&self.to)?;
        let from = open(&self.from, true).await?;
        let to = match open(&self.to, !self.create || self.dry_run).await {
            Err(failure) if self.create && self.dry_run && is_unmade(&failure) => {
                MemoryStore::shared() as Arc<dyn Store>
            }
            opened => opened?,
        };
        let (here, there) = (from.databases().await?, to.databases().await?);
        if here.iter().any(|database| there.contains(database)) {
            return Err(Failure::usage(
                "--from and --to name the same store, or one that is part of the other",
            ));
        }
        let mover = Mover::new(from.clone(), to.clone(), &place(&self.to));
        let mover = mover.forget(self.forget).swept(self.swept).lost(self.lost);
        let moving = Move { command: self, out, from: from.clone(), to: to.clone(), mover, namespace };
        let outcome = moving.run().await;
        from.close().await;
        to.close().await;
        outcome
    }
}

/// Whether a store can't be opened only since nobody has made it yet: a dry run leaves it so, and looks at the other one.
fn is_unmade(failure: &Failure) -> bool {
    let told = failure.message();
    let unmade = ["there is no such file", "it holds no runs of Hapax"];
    failure.code() == Some(code::CANNOT_OPEN) && unmade.iter().any(|why| told.contains(why))
}

/// Options of an address that are part of where the store is.
const WHERE: [&str; 6] = ["host=", "hostaddr=", "port=", "dbname=", "socket=", "schema="];

/// A store's address as others are told of it: without user and password, of its options only those that say where it is, and
/// the same from every folder.
fn place(url: &OsStr) -> String {
    if let Some(path) = url.as_bytes().strip_prefix(b"sqlite:") {
        let path = Path::new(OsStr::from_bytes(path));
        return format!("sqlite:{}", path.canonicalize().unwrap_or_else(|_| path.to_owned()).display());
    }
    if let Some(databases) = url.as_bytes().strip_prefix(b"sharded:") {
        let databases = databases.split(|byte| *byte == b',').map(|url| place(OsStr::from_bytes(url)));
        return format!("sharded:{}", databases.collect::<Vec<_>>().join(","));
    }
    let url = url.to_string_lossy();
    let Some((scheme, rest)) = url.split_once("://").filter(|_| ServerKind::of(&url).is_some()) else {
        return url.into_owned();
    };
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let says_where = |option: &&str| WHERE.iter().any(|name| option.starts_with(name));
    let options: Vec<_> = options.split('&').filter(says_where).collect();
    match options.is_empty() {
        true => format!("{scheme}://{rest}"),
        false => format!("{scheme}://{rest}?{}", options.join("&")),
    }
}

impl Move<'_> {
    async fn run(&self) -> Result<(), Failure> {
        let began = self.from.clock().now_us();
        let mut answer = Answer { dry_run: self.command.dry_run, ..Answer::default() };
        answer.schedules = self.from.schedules().list(self.namespace.clone()).await?.len();
        let (mut families, damaged) = self.families().await?;
        answer.refused = damaged;
        if self.command.undo {
            return self.call_back(&families, &answer).await;
        }
        if self.command.dry_run {
            look(&families, &mut answer);
        } else {
            let until =
                began.saturating_add(i64::try_from(self.command.wait.as_micros()).unwrap_or(i64::MAX));
            loop {
                families = self.carry(families, &mut answer).await?;
                if families.is_empty() || self.from.clock().now_us() >= until {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
            answer.held = families.iter().map(|family| family[0].key.run.to_string()).collect();
        }
        answer.seconds = (self.from.clock().now_us() - began) as f64 / 1e6;
        self.out.answer(&answer, || human(&answer))?;
        self.outcome(&answer)
    }

    /// The runs that can be read, and why others can't: one damaged row must not keep the others where they are.
    async fn runs(&self) -> Result<(Vec<RunRecord>, BTreeMap<RunId, String>), Failure> {
        let mut filter =
            ListFilter { namespace: self.namespace.clone(), limit: usize::MAX, ..ListFilter::default() };
        let mut damaged = BTreeMap::new();
        loop {
            let error = match self.from.list(filter.clone()).await {
                Ok(runs) => return Ok((runs, damaged)),
                Err(error) => error,
            };
            let why = format!("{}: {error}", error.code());
            let Some(run) = without_damaged(&mut filter, &error) else { return Err(error.into()) };
            damaged.insert(run, why);
        }
    }

    /// The runs that were asked for with their families, each family by itself, and those that can't be read.
    async fn families(&self) -> Result<(Vec<Vec<RunRecord>>, BTreeMap<String, String>), Failure> {
        let (records, mut damaged) = self.runs().await?;
        let parents: BTreeMap<RunId, Option<RunId>> =
            records.iter().map(|record| (record.key.run.clone(), record.parent.clone())).collect();
        let root = |run: &RunId| {
            let (mut at, mut seen) = (run.clone(), BTreeSet::new());
            while let Some(Some(parent)) = parents.get(&at)
                && parents.contains_key(parent)
                && seen.insert(at.clone())
            {
                at = parent.clone();
            }
            at
        };
        let named = self.named(|run| parents.contains_key(run) || damaged.contains_key(run))?;
        damaged.retain(|run, _| named.is_empty() || named.contains(run));
        let wanted: BTreeSet<RunId> = named.iter().map(&root).collect();
        let mut families: BTreeMap<RunId, Vec<RunRecord>> = BTreeMap::new();
        for record in records {
            let root = root(&record.key.run);
            if wanted.is_empty() || wanted.contains(&root) {
                families.entry(root).or_default().push(record);
            }
        }
        let damaged = damaged.into_iter().map(|(run, why)| (run.to_string(), why)).collect();
        Ok((families.into_values().collect(), damaged))
    }

    fn named(&self, is_there: impl Fn(&RunId) -> bool) -> Result<Vec<RunId>, Failure> {
        let read = |run: &String| {
            let id = RunId::new(run.as_str()).map_err(|error| Failure::from(hapax::Error::from(error)))?;
            match is_there(&id) {
                true => Ok(id),
                false => {
                    let run = RunKey { namespace: self.namespace.clone(), run: id };
                    Err(StoreError::NotFound { run }.into())
                }
            }
        };
        self.command.runs.iter().map(read).collect()
    }

    /// Moves families; answers those that are held.
    async fn carry(
        &self,
        families: Vec<Vec<RunRecord>>,
        answer: &mut Answer,
    ) -> Result<Vec<Vec<RunRecord>>, Failure> {
        let progress = self.out.progress(Some(families.len() as u64), "moving");
        let broken = AtomicBool::new(false);
        let carry = |family: Vec<RunRecord>| {
            let broken = &broken;
            async move {
                // Whatever broke would shut one family after the other.
                if broken.load(Relaxed) {
                    return None;
                }
                let carried = self.carry_family(&family).await;
                if carried.as_ref().is_err_and(is_for_all) {
                    broken.store(true, Relaxed);
                }
                let is_over =
                    matches!(&carried, Err(StoreError::Moved { .. })) && self.has_left(&family).await;
                Some((family, carried, is_over))
            }
        };
        let mut moving = pin!(stream::iter(families).map(carry).buffer_unordered(AT_ONCE).filter_map(ready));
        let (mut held, mut failed) = (vec![], None);
        while let Some((family, carried, is_over)) = moving.next().await {
            progress.inc(1);
            match carried {
                Ok(Load { runs, steps, bytes }) => {
                    answer.runs += runs;
                    answer.steps += steps;
                    answer.bytes += bytes;
                }
                Err(StoreError::Held { .. }) => held.push(family),
                Err(StoreError::Moved { .. }) if is_over => answer.elsewhere += family.len() as u64,
                // It was deleted since it was looked for.
                Err(StoreError::NotFound { .. }) => {}
                Err(error) if is_for_all(&error) => failed = failed.or(Some(error)),
                Err(error) => {
                    let halfway = matches!(error, StoreError::Moved { .. });
                    let cure =
                        if halfway { ", once its move there is over: name that place in --to" } else { "" };
                    let why = format!("{}: {error}{cure}", error.code());
                    answer.refused.insert(family[0].key.run.to_string(), why);
                }
            }
        }
        progress.finish_and_clear();
        failed.map_or(Ok(held), |error| Err(error.into()))
    }

    /// Moves one family. One that can't be moved goes on where it is.
    async fn carry_family(&self, family: &[RunRecord]) -> Result<Load, StoreError> {
        let run = &family.iter().find(|record| !has_moved(record)).unwrap_or(&family[0]).key;
        let carried = self.mover.carry(run.clone()).await;
        match &carried {
            // Nothing was shut here, or somebody else has shut it and goes on with it.
            Ok(_)
            | Err(
                StoreError::Held { .. }
                | StoreError::Moving { .. }
                | StoreError::Moved { .. }
                | StoreError::Fenced { .. },
            ) => {}
            Err(_) => {
                if let Err(error) = self.mover.call_back(run.clone()).await {
                    tracing::debug!(%error, run_id = %run, "it can't be called back");
                }
            }
        }
        carried
    }

    /// Whether the old store has nothing of a family any more but words of where it went: those moves are over.
    async fn has_left(&self, family: &[RunRecord]) -> bool {
        for record in family {
            let rows = self.from.checkpoints(record.key.clone(), 0, 1).await;
            if !rows.is_ok_and(|rows| rows.is_empty()) {
                return false;
            }
        }
        true
    }

    async fn call_back(&self, families: &[Vec<RunRecord>], answer: &Answer) -> Result<(), Failure> {
        let (mut runs, mut failed) = (0, None);
        for family in families {
            let shut: Vec<_> = family.iter().filter(|record| record.status.word() == "leaving").collect();
            let Some(first) = shut.first() else { continue };
            match self.mover.call_back(first.key.clone()).await {
                Ok(()) => runs += shut.len() as u64,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let given_up = self.give_up_leftovers().await?;
        let told = serde_json::json!({ "called_back": runs, "given_up": given_up });
        self.out.answer(&told, || {
            let back = format!("called back {}\n", counted(runs, "run"));
            match given_up {
                0 => back,
                left => format!("{back}gave up what had arrived of {}\n", counted(left, "run")),
            }
        })?;
        failed.map_or_else(|| self.outcome(answer), |error| Err(error.into()))
    }

    /// Gives up what is arriving in the new store of runs that go on in the old one: whoever called them back was killed before
    /// it came to that. Answers of how many.
    async fn give_up_leftovers(&self) -> Result<u64, Failure> {
        let filter = ListFilter {
            namespace: self.namespace.clone(),
            statuses: vec!["arriving".to_owned()],
            limit: usize::MAX,
            ..ListFilter::default()
        };
        let mut given_up = 0;
        for RunRecord { key, .. } in self.to.list(filter).await? {
            let named = self.command.runs.iter().any(|run| *run == key.run.as_str());
            if named || self.command.runs.is_empty() {
                given_up += u64::from(self.mover.give_up_leftover(key).await?);
            }
        }
        Ok(given_up)
    }

    fn outcome(&self, answer: &Answer) -> Result<(), Failure> {
        if let Some((run, why)) = answer.refused.first_key_value() {
            let many = counted(answer.refused.len() as u64, "family").replace("familys", "families");
            let told = format!("{many} can't be moved, such as that of `{run}`: {why}");
            return Err(Failure::coded(code::RUN_MOVING, told).cured_by("see each run's own error above"));
        }
        match answer.held.first().filter(|_| !self.command.dry_run) {
            None => Ok(()),
            Some(run) => {
                let told = format!("{} held, such as `{run}`", counted(answer.held.len() as u64, "run"));
                Err(Failure::coded(code::RUN_HELD, told).cured_by(
                    "call it again when its workers and relays are done with it, or pass --wait 1m",
                ))
            }
        }
    }
}

/// Whether what went wrong with one family would go wrong with each: a store itself is in trouble.
fn is_for_all(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Retry(_) | StoreError::Full(_) | StoreError::Unknown(_) | StoreError::Open { .. }
    )
}

fn has_moved(record: &RunRecord) -> bool {
    record.status.word() == "moved"
}

/// What would be moved, and what is held.
fn look(families: &[Vec<RunRecord>], answer: &mut Answer) {
    for family in families {
        match family.iter().find(|record| record.owner.is_some()) {
            Some(held) => answer.held.push(held.key.run.to_string()),
            None => {
                let here = family.iter().filter(|record| !has_moved(record));
                for record in here {
                    answer.runs += 1;
                    answer.steps += record.step + 1;
                }
            }
        }
    }
}

fn human(answer: &Answer) -> String {
    let verb = if answer.dry_run { "would move" } else { "moved" };
    let (runs, steps) = (counted(answer.runs, "run"), counted(answer.steps, "step"));
    let mut text = match answer.dry_run {
        true => format!("{verb} {runs} with {steps}\n"),
        false => format!("{verb} {runs} with {steps}: {} bytes in {:.1} s\n", answer.bytes, answer.seconds),
    };
    if let Some(run) = answer.held.first() {
        text.push_str(&format!(
            "{} held, such as {}\n",
            counted(answer.held.len() as u64, "run"),
            clean(run)
        ));
    }
    if answer.elsewhere > 0 {
        text.push_str(&format!("{} moved elsewhere before\n", counted(answer.elsewhere, "run")));
    }
    for (run, why) in &answer.refused {
        text.push_str(&format!("{} stays: {}\n", clean(run), clean(why)));
    }
    if answer.schedules > 0 {
        text.push_str(&format!(
            "{} stay: add them to the new store\n",
            counted(answer.schedules as u64, "schedule")
        ));
    }
    text
}
