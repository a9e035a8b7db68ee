//! The upgrade gate: another program replays, and this one judges what it says.
//!
//! Invariant: a report is used only if it is about this store's runs, each told by its name and the time of its start.

use super::{Replayed, Report};
use crate::{
    failure::Failure,
    session::{Address, Session},
    view::time,
};
use hapax_core::error::code;
use hapax_store::{ListFilter, RunRecord, SqliteOptions, SqliteStore, Store as _};
use serde::Deserialize;
use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    path::Path,
    process::{Output, Stdio},
};

/// The form of answers that is understood here.
const VERSION: u64 = 1;

/// Lets the program replay one run, or all in flight.
pub(super) async fn replay(
    program: &Path,
    one: Option<&RunRecord>,
    session: &Session<'_>,
) -> Result<Report, Failure> {
    let progress = session.out.progress(None, "replaying");
    progress.set_message(program.display().to_string());
    let program = Program(program);
    let expected = match one {
        Some(record) => vec![record.clone()],
        None => in_flight(session).await?,
    };
    let rehearsed = program.rehearse(session).await?;
    let report = match one {
        // It heeds no address, and has replayed already what there is.
        None if !rehearsed.runs.is_empty() => rehearsed,
        None => program.ask(None, session.address).await?,
        Some(record) => program.ask(Some(record.key.run.as_str()), session.address).await?,
    };
    program.looked_at(&report, expected, one.is_none(), session).await?;
    progress.finish_and_clear();
    Ok(report)
}

async fn in_flight(session: &Session<'_>) -> Result<Vec<RunRecord>, Failure> {
    // Those that can't be read are in the program's report.
    Ok(session.list(ListFilter::in_flight()).await?.0)
}

/// A program that holds graphs' code.
struct Program<'a>(&'a Path);

/// An error as a program tells it.
#[derive(Deserialize)]
struct Told {
    error: Error,
}

#[derive(Deserialize)]
struct Error {
    code: Option<String>,
    message: String,
    cause: Option<String>,
    cure: Option<String>,
}

impl Program<'_> {
    /// Asks on an empty store. A program that takes up runs by itself says so here, where it finds none.
    async fn rehearse(&self, session: &Session<'_>) -> Result<Report, Failure> {
        let cannot = |error| Failure::io("cannot make a folder for an empty store", &error);
        let folder = tempfile::tempdir().map_err(cannot)?;
        let path = folder.path().join("empty.db");
        SqliteStore::open(&path, SqliteOptions::default()).await?.close().await;
        let mut url = OsString::from("sqlite:");
        url.push(&path);
        let mut address = session.address.clone();
        address.push(("HAPAX_STORE", url));
        self.ask(None, &address).await
    }

    /// Has the program replay what an address names.
    async fn ask(&self, run: Option<&str>, address: &Address) -> Result<Report, Failure> {
        let mut command = tokio::process::Command::new(self.0);
        command.args(["replay", "--json"]);
        match run {
            Some(run) => command.args(["--", run]),
            None => command.arg("--all"),
        };
        command.envs(address.iter().map(|(name, value)| (name, value)));
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.map_err(|error| {
            Failure::io(&format!("cannot start {self}"), &error)
                .cured_by("name a program that this user can execute; one in this folder begins with `./`")
        })?;
        self.heard(&output)
    }

    fn heard(&self, output: &Output) -> Result<Report, Failure> {
        let said = serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default();
        let version = said.get("v").and_then(serde_json::Value::as_u64);
        if let Some(version) = version.filter(|version| *version != VERSION) {
            return Err(self
                .unusable(format!("it answers in version {version} of the report"))
                .cured_by(OTHER));
        }
        let ended = matches!(output.status.code(), Some(0 | 1));
        match serde_json::from_value::<Report>(said) {
            Ok(report) if version.is_some() && ended => Ok(report),
            _ => Err(self.failed(output)),
        }
    }

    /// Why there is no report.
    fn failed(&self, output: &Output) -> Failure {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let Ok(Told { error }) = serde_json::from_str(last) else {
            let failure = self.unusable(format!("it gave no report and ended with {}", output.status));
            return failure.caused_by(last);
        };
        let known = error.code.and_then(|told| code::ALL.iter().copied().find(|code| *code == told));
        let failure = match known {
            // It has the commands, and not this one.
            None | Some(code::USAGE) => return self.unusable(error.message).cured_by(OTHER),
            Some(code) => Failure::coded(code, format!("{self}: {}", error.message)),
        };
        let failure = failure.caused_by(error.cause.as_deref().unwrap_or_default());
        match (known, error.cure) {
            (Some(code::NOT_REGISTERED), _) => {
                failure.cured_by("register the graph in that program before `hapax_cli::run`")
            }
            (Some(code::RUN_NOT_FOUND), _) => self.elsewhere("the run is not there"),
            (_, Some(cure)) => failure.cured_by(cure),
            _ => failure,
        }
    }

    /// Whether the report is about this store: every run in it is here, and none that is here throughout is missing.
    async fn looked_at(
        &self,
        report: &Report,
        mut expected: Vec<RunRecord>,
        all: bool,
        session: &Session<'_>,
    ) -> Result<(), Failure> {
        let mut known: HashMap<String, String> = expected.iter().map(told_by).collect();
        if all {
            let after = in_flight(session).await?;
            let now: HashSet<&str> = after.iter().map(|record| record.key.run.as_str()).collect();
            expected.retain(|record| now.contains(record.key.run.as_str()));
            known.extend(after.iter().map(told_by));
        }
        let named = report.runs.iter().map(|run| &run.run).chain(report.damaged.iter().map(|run| &run.run));
        let named: HashSet<&str> = named.map(String::as_str).collect();
        if let Some(missing) = expected.iter().find(|record| !named.contains(record.key.run.as_str())) {
            return Err(self.elsewhere(&format!("run `{}` is missing in its report", missing.key.run)));
        }
        for Replayed { run, created_at, .. } in &report.runs {
            let here = match known.get(run) {
                Some(here) => Some(here.clone()),
                // It came and went meanwhile.
                None => session.engine.record(run).await.ok().map(|record| told_by(&record).1),
            };
            if here.as_ref() != Some(created_at) {
                return Err(self.elsewhere(&format!("its run `{run}` is not in this store")));
            }
        }
        Ok(())
    }

    fn unusable(&self, why: impl Into<String>) -> Failure {
        Failure::coded(code::BAD_PROGRAM, format!("{self} can't replay: {}", why.into()))
    }

    fn elsewhere(&self, why: &str) -> Failure {
        let message = format!("{self} looked into another store: {why}");
        Failure::coded(code::BAD_PROGRAM, message).cured_by(
            "let it open the store that HAPAX_STORE names, and the namespace of HAPAX_NAMESPACE, as told to it here",
        )
    }
}

/// For programs with other commands than these.
const OTHER: &str = "build it with this version of `hapax_cli`";

impl std::fmt::Display for Program<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`", self.0.display())
    }
}

/// What a run is told by.
fn told_by(record: &RunRecord) -> (String, String) {
    (record.key.run.to_string(), time(record.created_at_us))
}
