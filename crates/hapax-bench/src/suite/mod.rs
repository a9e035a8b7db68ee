//! The whole suite: every case in a process of its own, in rounds, so that a busy minute of the machine falls on
//! the limits and on us alike.

mod agents;
mod cases;
mod child;
mod goals;
mod machine;
mod moves;
mod payloads;
mod readme;
mod requests;
mod rows;
mod servers;
mod starts;
mod svg;
mod table;
mod telemetry;
mod transfers;

use crate::{Result, args::SuiteOptions, clock, report::Report};
use cases::{Case, FILL_STEPS, LEASE_MS, Place, Sizes, thousands};
use child::{Call, Sample};
use machine::Machine;
use rows::Row;
use servers::{Database, Servers, Used};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    thread,
};
use table::Table;
use tempfile::TempDir;

/// What isn't in the README's table, page by page.
static TABLES: [&Table; 7] = [
    &transfers::TABLE,
    &requests::TABLE,
    &agents::TABLE,
    &telemetry::TABLE,
    &payloads::TABLE,
    &starts::TABLE,
    &moves::TABLE,
];

/// Everything that was measured, and where.
#[derive(Debug, serde::Serialize)]
struct Outcome {
    version: &'static str,
    quick: bool,
    machine: Machine,
    rows: Vec<Row>,
}

const COUNTED: &str = "fsyncs: calls of xSync in SQLite's VFS, counted in the timed runs themselves; on a server, its own \
                       statistics (`pg_stat_wal`, `Innodb_data_fsyncs`). CPU: of this process, and of the server's";
/// Processes that begin together are started this long before, in nanoseconds.
const HEAD_START_NS: u64 = 1_500_000_000;

/// Runs the suite and tells everybody.
pub(crate) fn run(options: &SuiteOptions) -> Result<()> {
    let sizes = Sizes::new(options.quick, options.long);
    let mut cases = cases::all(&sizes);
    if let Some(only) = &options.only {
        cases::keep(&mut cases, only);
    }
    let bench = Bench::new(options.folder.as_deref(), &sizes)?;
    let machine = Machine::read();
    let rows = rows::rows(&cases, &bench.measure(&cases, sizes.rounds)?);
    let machine = machine.loaded_until_now();
    let outcome = Outcome { version: env!("CARGO_PKG_VERSION"), quick: options.quick, machine, rows };
    tell(&outcome, options)
}

fn tell(outcome: &Outcome, options: &SuiteOptions) -> Result<()> {
    let notes = notes(outcome);
    let own = TABLES.iter().map(|table| table.text(&outcome.rows));
    let tables = [table::text(&outcome.rows)].into_iter().chain(own).filter(|table| !table.is_empty());
    println!("{}\n{}", tables.collect::<Vec<_>>().join("\n"), notes.join("\n"));
    let plot = svg::bars(&outcome.rows);
    if let Some(path) = &options.json {
        fs::write(path, serde_json::to_string_pretty(outcome)? + "\n")?;
    }
    if let Some(path) = &options.svg {
        fs::write(path, &plot)?;
    }
    if let Some(root) = &options.write {
        write(root, outcome, &plot, &notes)?;
    }
    Ok(())
}

/// What was measured goes where it is told; the rest stays as it is.
fn write(root: &Path, outcome: &Outcome, plot: &str, notes: &[String]) -> Result<()> {
    let rewrite = |page: &str, section: &str| -> Result<()> {
        let path = root.join(page);
        Ok(fs::write(&path, readme::replaced(&fs::read_to_string(&path)?, section)?)?)
    };
    if outcome.rows.iter().any(|row| !row.has_own_table()) {
        fs::write(root.join("docs/bench.svg"), plot)?;
        rewrite("README.md", &readme::section(&outcome.rows, notes))?;
    }
    for table in TABLES.iter().filter(|table| outcome.rows.iter().any(|row| table.holds(row))) {
        rewrite(&format!("docs/guide/{}.md", table.page), &table.section(&outcome.rows, &notes[0]))?;
    }
    Ok(())
}

fn notes(outcome: &Outcome) -> Vec<String> {
    let rounds = outcome.rows.iter().map(|row| row.samples.len()).max().unwrap_or(0);
    let sizes = if outcome.quick { "quick: sizes too small to judge by; " } else { "" };
    vec![
        format!("{sizes}medians of {rounds}; {}", outcome.machine),
        COUNTED.to_owned(),
        "limit: steps/s over those of the limit in the same round; steps of W3 are items".to_owned(),
    ]
}

type Samples = HashMap<String, Vec<Sample>>;

/// Where the databases are.
struct Bench {
    folder: TempDir,
    sizes: Sizes,
    servers: Servers,
}

impl Bench {
    fn new(folder: Option<&Path>, sizes: &Sizes) -> Result<Self> {
        let beside_us = std::env::current_exe()?.parent().map(Path::to_owned);
        let folder = folder.map(Path::to_owned).or(beside_us).unwrap_or_else(|| ".".into());
        let folder = tempfile::Builder::new().prefix("hapax-bench-").tempdir_in(folder)?;
        Ok(Self { folder, sizes: sizes.clone(), servers: Servers::default() })
    }

    fn measure(&self, cases: &[Case], rounds: usize) -> Result<Samples> {
        if cases.iter().any(|case| case.place == Place::Filled) {
            self.fill()?;
        }
        let mut samples = Samples::new();
        for round in 1..=rounds {
            for case in cases.iter().filter(|case| round == 1 || !case.is_long()) {
                let sample = self.sample(case)?;
                eprintln!("[{round}/{rounds}] {}", progress(case, &sample));
                samples.entry(case.id.clone()).or_default().push(sample);
            }
        }
        Ok(samples)
    }

    /// Older runs, once for all cases among them.
    fn fill(&self) -> Result<()> {
        eprintln!("filling a database with {} keys", thousands(self.sizes.fill_runs * FILL_STEPS));
        let store = format!("sqlite:{}", self.file("filled.db").display());
        let call = format!("--store {store} fill {} {FILL_STEPS}", self.sizes.fill_runs);
        let (report, _) = Call::new(call.split(' ')).run()?;
        eprintln!("filled in {:.1} s", report.wall_s);
        Ok(())
    }

    fn sample(&self, case: &Case) -> Result<Sample> {
        if let Some(from) = moves::from(case) {
            return self.sample_of_moves(case, from);
        }
        if let Some(database) = self.servers.database(case.place)? {
            return self.sample_on(&database, case);
        }
        let path = self.path(case);
        let store = match case.place {
            Place::Memory => "memory:".to_owned(),
            _ => format!("sqlite:{}", path.display()),
        };
        let sample = self.run(case, &store).and_then(|mut sample| {
            let has_file = case.place == Place::Sqlite && !case.is_limit();
            sample.disk_bytes = has_file.then(|| child::disk_bytes(&path)).transpose()?;
            Ok(sample)
        });
        if case.place == Place::Sqlite {
            child::remove(&path);
        }
        sample
    }

    /// A case on a server, whose tables are made before: what that costs isn't the case's.
    fn sample_on(&self, database: &Database, case: &Case) -> Result<Sample> {
        call(case, &database.url, "fill 1 40").run()?;
        let before = database.used()?;
        let mut sample = self.run(case, &database.url)?;
        let used = database.used()?.since(before);
        (sample.server, sample.disk_bytes) = (Some(used), (!case.is_limit()).then_some(used.disk_bytes));
        Ok(sample)
    }

    /// Runs are made in one store, and then the timed process moves them to another; what both stores use counts.
    fn sample_of_moves(&self, case: &Case, from: Place) -> Result<Sample> {
        let (old, new) = (self.home(from, "old.db")?, self.home(case.place, "new.db")?);
        call(case, &old.url(), &format!("fill {} {}", self.sizes.moved, moves::STEPS)).run()?;
        call(case, &new.url(), "fill 1 40").run()?;
        let (old_before, new_before) = (old.used()?, new.used()?);
        let (report, _) = call(case, &new.url(), &format!("migrate {}", old.url())).run()?;
        let (old_used, new_used) = (old.used()?.since(old_before), new.used()?.since(new_before));
        let in_files = report.extra_u64("fsyncs").unwrap_or_default();
        let server = Used {
            fsyncs: in_files + old_used.fsyncs + new_used.fsyncs,
            cpu_s: old_used.cpu_s + new_used.cpu_s,
            disk_bytes: new_used.disk_bytes,
        };
        old.remove();
        new.remove();
        Ok(Sample { report, restart_s: None, disk_bytes: Some(new_used.disk_bytes), server: Some(server) })
    }

    fn home(&self, place: Place, file: &str) -> Result<Home> {
        Ok(self.servers.database(place)?.map_or_else(|| Home::File(self.file(file)), Home::Server))
    }

    fn run(&self, case: &Case, store: &str) -> Result<Sample> {
        if case.is_crash() {
            return self.crash(case, store);
        }
        let report =
            if case.workers == 1 { call(case, store, &case.call).run()?.0 } else { fleet(case, store)? };
        Ok(Sample { report, restart_s: None, disk_bytes: None, server: None })
    }

    fn crash(&self, case: &Case, store: &str) -> Result<Sample> {
        let file = self.file("executed.txt");
        let steps = case.call.trim_start_matches("w5 ");
        call(case, store, &format!("w5 {steps} {} 100", file.display())).die()?;
        let (report, restart_s) = call(case, store, &format!("w5resume {steps} {}", file.display())).run()?;
        fs::remove_file(file)?;
        Ok(Sample { report, restart_s: Some(restart_s), disk_bytes: None, server: None })
    }

    fn path(&self, case: &Case) -> PathBuf {
        self.file(if case.place == Place::Filled { "filled.db" } else { "fresh.db" })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Where the runs are before they move, or after.
enum Home {
    File(PathBuf),
    Server(Database),
}

impl Home {
    fn url(&self) -> String {
        match self {
            Home::File(path) => format!("sqlite:{}", path.display()),
            Home::Server(database) => database.url.clone(),
        }
    }

    /// A file works in whoever has it open, who counts that himself.
    fn used(&self) -> Result<Used> {
        match self {
            Home::File(path) => Ok(Used { disk_bytes: child::disk_bytes(path)?, ..Used::default() }),
            Home::Server(database) => database.used(),
        }
    }

    fn remove(&self) {
        if let Home::File(path) = self {
            child::remove(path);
        }
    }
}

/// So many processes that begin at the same moment.
fn fleet(case: &Case, store: &str) -> Result<Report> {
    let begin = format!("--begin-at {} {}", clock::unix_ns() + HEAD_START_NS, case.call);
    let calls: Vec<Call> = (0..case.workers).map(|_| call(case, store, &begin)).collect();
    let reports: Result<Vec<Report>> = thread::scope(|scope| {
        let running: Vec<_> = calls.iter().map(|call| scope.spawn(|| call.run())).collect();
        let ended =
            running.into_iter().map(|thread| thread.join().map_err(|_| "a worker's thread panicked")?);
        ended.map(|ended| Ok(ended?.0)).collect()
    });
    reports.map(child::together)
}

fn call(case: &Case, store: &str, workload: &str) -> Call {
    let mut words = vec!["--store".to_owned(), store.to_owned()];
    if !case.is_limit() {
        words.extend(["--durability".to_owned(), case.durability.to_owned()]);
    }
    if case.is_crash() && case.place.is_server() {
        words.extend(["--lease".to_owned(), LEASE_MS.to_string()]);
    }
    words.extend(case.threads.into_iter().flat_map(|threads| ["--threads".to_owned(), threads.to_string()]));
    words.extend(workload.split(' ').map(str::to_owned));
    Call::new(words)
}

fn progress(case: &Case, sample: &Sample) -> String {
    let report = &sample.report;
    let rate = report.steps as f64 / report.wall_s;
    format!("{}: {} /s in {:.3} s", case.id, thousands(rate as u64), report.wall_s)
}
