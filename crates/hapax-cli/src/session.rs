//! The engine that a command works with, and what several commands ask of it.

use crate::{args::Global, failure::Failure, keys::Keyed, output::Output, payloads::Payloads};
use hapax::{
    Engine, Error, GraphOutline, Options, Status,
    core::{
        checkpoint::Checkpoint,
        error::code,
        id::{Namespace, RunId, RunKey},
    },
};
#[cfg(feature = "mysql")]
use hapax_store::mysql::{MySqlOptions, MySqlStore};
#[cfg(feature = "postgres")]
use hapax_store::postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "mysql")]
use hapax_store::requests::MySqlRequests;
#[cfg(feature = "postgres")]
use hapax_store::requests::PostgresRequests;
use hapax_store::{
    ListFilter, MemoryStore, RunRecord, ShardedStore, SqliteOptions, SqliteStore, Store, StoreError,
    requests::{MemoryRequests, RequestStore, SqliteRequests},
};
use serde::{Deserialize, Serialize};
use std::{
    env,
    ffi::{OsStr, OsString},
    ops::RangeInclusive,
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

/// How often a run that begins anew each time is read.
const READINGS: usize = 20;
/// How often a run that is waited for is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The kinds of servers, whether or not they are built in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Postgres,
    MySql,
}

impl ServerKind {
    /// Whose address it is; `None`: no server's.
    pub(crate) fn of(url: &str) -> Option<Self> {
        match &*url.split_once("://")?.0.to_ascii_lowercase() {
            "postgres" | "postgresql" => Some(Self::Postgres),
            "mysql" | "mariadb" => Some(Self::MySql),
            _ => None,
        }
    }

    pub(crate) fn is_built_in(self) -> bool {
        match self {
            Self::Postgres => cfg!(feature = "postgres"),
            Self::MySql => cfg!(feature = "mysql"),
        }
    }
}

/// What a command works with.
pub(crate) struct Session<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) out: &'a Output,
    /// The program is a user's own, which holds graphs.
    pub(crate) embedded: bool,
    /// What was opened, as a child process is told of it.
    pub(crate) address: &'a Address,
}

/// A store and a tenant, as environment variables. Empty: the program's own, which only it knows.
pub(crate) type Address = Vec<(&'static str, OsString)>;

/// A run whose row can't be read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Damaged {
    pub(crate) run: String,
    pub(crate) error: String,
}

/// The damaged run because of which there is no list; the filter excepts it from now on.
pub(crate) fn without_damaged(filter: &mut ListFilter, error: &StoreError) -> Option<RunId> {
    match error {
        // An excepted run that is named again isn't what is damaged.
        StoreError::Corrupt { run, .. } if !filter.except.contains(&run.run) => {
            filter.except.push(run.run.clone());
            Some(run.run.clone())
        }
        _ => None,
    }
}

impl Session<'_> {
    /// The runs that can be read, and those that can't: one damaged row must not hide the others.
    pub(crate) async fn list(
        &self,
        mut filter: ListFilter,
    ) -> Result<(Vec<RunRecord>, Vec<Damaged>), Failure> {
        let mut damaged = vec![];
        loop {
            let error = match self.engine.list(filter.clone()).await {
                Ok(runs) => return Ok((runs, damaged)),
                Err(error) => error,
            };
            let Error::Store(store) = &error else { return Err(error.into()) };
            let Some(run) = without_damaged(&mut filter, store) else { return Err(error.into()) };
            damaged.push(Damaged { run: run.to_string(), error: error.to_string() });
        }
    }

    /// The registered graph of that name; of several versions the one that new runs are of.
    pub(crate) fn graph(&self, name: &str) -> Option<GraphOutline> {
        self.engine.graphs().into_iter().rfind(|graph| &*graph.name == name)
    }

    /// The registered graph that a run is bound to.
    pub(crate) fn shape(&self, record: &RunRecord) -> Option<GraphOutline> {
        let is_its =
            |graph: &GraphOutline| graph.name == record.graph && graph.fingerprint == record.fingerprint;
        self.engine.graphs().into_iter().rfind(is_its)
    }

    /// A run's row.
    pub(crate) async fn record(&self, run: &str) -> Result<RunRecord, Failure> {
        Ok(self.engine.record(run).await?)
    }

    /// The row of a run whose steps are to be read: one that has moved is told of as such, and not as damaged.
    pub(crate) async fn whole(&self, run: &str) -> Result<RunRecord, Failure> {
        let record = self.record(run).await?;
        record.demand_here()?;
        Ok(record)
    }

    /// Reads a run's steps and journal. One that begins anew meanwhile forgets what was to be read of it: what is missing then
    /// is no damage, and the run is read again.
    pub(crate) async fn in_one_history<T>(
        &self,
        run: &str,
        read: impl AsyncFn(&RunRecord) -> Result<T, Failure>,
    ) -> Result<(RunRecord, T), Failure> {
        let key = self.whole(run).await?.key;
        for _ in 0..READINGS {
            let began = self.first_step(&key).await?;
            let record = self.whole(run).await?;
            let outcome = read(&record).await;
            if self.first_step(&key).await? == began {
                return Ok((record, outcome?));
            }
        }
        let message = format!("run `{key}` began anew each of the {READINGS} times that it was read");
        Err(Failure::coded(code::STORE_RETRY, message)
            .cured_by("look again: it forgets its steps too soon to be read"))
    }

    /// The step that a run's history begins with.
    async fn first_step(&self, run: &RunKey) -> Result<Option<u64>, Failure> {
        let first = self.engine.store().checkpoints(run.clone(), 0, 1).await?;
        Ok(first.first().map(|first| first.step))
    }

    /// The steps of a run that must be there. The first ones may be gone: `continue_as` begins anew.
    pub(crate) async fn steps(&self, record: &RunRecord) -> Result<RangeInclusive<u64>, Failure> {
        Ok(self.first_step(&record.key).await?.unwrap_or(record.step)..=record.step)
    }

    /// The latest steps of a run, so many at the most. The checkpoint that a finished run ends with holds nothing to execute: it
    /// comes in addition.
    pub(crate) async fn latest_steps(
        &self,
        record: &RunRecord,
        most: u64,
    ) -> Result<RangeInclusive<u64>, Failure> {
        let oldest = *self.steps(record).await?.start();
        let last = self.checkpoint(record, record.step).await?;
        let end = u64::from(last.frontier_len == 0);
        Ok((record.step + 1).saturating_sub(most.saturating_add(end)).max(oldest)..=record.step)
    }

    /// The checkpoint of a step that must be there: [`in_one_history`](Self::in_one_history) knows whether it was forgotten.
    pub(crate) async fn checkpoint(&self, record: &RunRecord, step: u64) -> Result<Checkpoint, Failure> {
        let found = self.engine.store().checkpoint(record.key.clone(), step).await?;
        let corrupt =
            |what: &str| StoreError::Corrupt { run: record.key.clone(), step: Some(step), what: what.into() };
        let found = found.ok_or_else(|| corrupt("its checkpoint is missing"))?;
        if step == record.step && found.digest != record.digest {
            return Err(corrupt("its checkpoint isn't the one that the run's row names").into());
        }
        Ok(found)
    }

    /// Follows a run until it is over, or parked where only something else can move it.
    pub(crate) async fn follow(&self, run: &str) -> Result<Status, Failure> {
        loop {
            if let Ok(status) = tokio::time::timeout(LOOK, self.engine.wait(run)).await {
                return Ok(status?);
            }
            let status = self.engine.status(run).await?;
            if matches!(status, Status::Waiting { .. } | Status::Paused { .. } | Status::InDoubt) {
                return Ok(status);
            }
        }
    }

    /// The failure of a command that needs code which this program doesn't hold.
    pub(crate) fn no_code(&self, graph: &Arc<str>) -> Failure {
        let failure = Failure::from(Error::NotRegistered { graph: graph.clone() });
        if self.embedded {
            return failure.cured_by("register the graph before `hapax_cli::run`");
        }
        failure.cured_by(
            "this `hapax` holds no code of yours: start the program that registers the graph, \
             or build these commands into it with `hapax_cli::run`",
        )
    }
}

/// Opens the store that the flags or the environment name; one that takes no writes as well, if it is only read.
pub(crate) async fn open(
    global: &Global,
    only_reads: bool,
    must_exist: bool,
    keyed: &Keyed,
) -> Result<(Engine, Address), Failure> {
    let url = address(global)?;
    let namespace = namespace(global)?;
    let payloads = Payloads::from_env(keyed)?;
    let store =
        open_store(&url, must_exist, only_reads, payloads).await.map_err(|failure| failure.at(&url))?;
    let address = vec![("HAPAX_STORE", url), ("HAPAX_NAMESPACE", namespace.as_str().into())];
    let options = Options::default().finds_work(false).namespace(namespace);
    Ok((Engine::builder().options(options).with_store(store), address))
}

/// The store that the flags or the environment name.
pub(crate) fn address(global: &Global) -> Result<OsString, Failure> {
    let url = global.store.clone().or_else(|| env::var_os("HAPAX_STORE").filter(|url| !url.is_empty()));
    url.ok_or_else(|| {
        Failure::usage("no store is named")
            .cured_by("pass --store sqlite:path/to/file.db, or set HAPAX_STORE")
    })
}

/// The tenant that the flags or the environment name.
pub(crate) fn namespace(global: &Global) -> Result<Namespace, Failure> {
    // An empty variable is an unset one. An empty flag is a script's mistake: it must not reach another tenant.
    let set = || env::var_os("HAPAX_NAMESPACE").filter(|name| !name.is_empty());
    let named = global.namespace.clone().map(OsString::from);
    let Some(name) = named.or_else(set) else { return Ok(Namespace::default()) };
    let name = name.into_string().map_err(|name| {
        Failure::coded(code::INVALID_ID, format!("the namespace {name:?} in HAPAX_NAMESPACE is not UTF-8"))
    })?;
    Namespace::new(name).map_err(|error| Error::from(error).into())
}

/// Refuses to have runs go where they are gone when this process ends.
pub(crate) fn demand_lasting(url: &OsStr) -> Result<(), Failure> {
    let parts = url.as_bytes().strip_prefix(b"sharded:").unwrap_or(url.as_bytes());
    if !parts.split(|byte| *byte == b',').any(|part| part == b"memory:") {
        return Ok(());
    }
    let refused = Failure::usage("`memory:` is gone when this command ends, and what it was given with it");
    Err(refused.cured_by("name a store that lasts, such as sqlite:new.db"))
}

/// As the engine opens it, but for any path that the system knows. Commands open only what must exist: of a misspelt name
/// would come an empty store, and another program's database would get tables that nobody asked for.
pub(crate) async fn open_store(
    url: &OsString,
    must_exist: bool,
    only_reads: bool,
    payloads: Payloads,
) -> Result<Arc<dyn Store>, Failure> {
    let bytes = url.as_bytes();
    if bytes == b"memory:" {
        return Ok(MemoryStore::shared());
    }
    if let Some(path) = bytes.strip_prefix(b"sqlite:").filter(|path| !path.is_empty()) {
        let options = payloads.met_by(SqliteOptions::default().must_exist(must_exist));
        return Ok(SqliteStore::open(Path::new(OsStr::from_bytes(path)), options).await?);
    }
    if let Some(databases) = bytes.strip_prefix(b"sharded:").filter(|databases| !databases.is_empty()) {
        let mut shards = vec![];
        for database in databases.split(|byte| *byte == b',') {
            let database = OsStr::from_bytes(database).to_owned();
            shards.push(Box::pin(open_store(&database, must_exist, only_reads, payloads.clone())).await?);
        }
        return Ok(ShardedStore::open(shards).await?);
    }
    let url = url.to_string_lossy().into_owned();
    match ServerKind::of(&url) {
        #[cfg(feature = "postgres")]
        Some(ServerKind::Postgres) => {
            let options = PostgresOptions::default().must_exist(must_exist).allow_read_only(only_reads);
            Ok(PostgresStore::open(&url, payloads.met_by(options)).await?)
        }
        #[cfg(feature = "mysql")]
        Some(ServerKind::MySql) => {
            let options = MySqlOptions::default().must_exist(must_exist).allow_read_only(only_reads);
            Ok(MySqlStore::open(&url, payloads.met_by(options)).await?)
        }
        _ => Err(not_built_in(url)),
    }
}

/// The same for the requests of a service, whose table must be there.
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql")),
    expect(unused_variables, reason = "a file is opened in one way")
)]
pub(crate) async fn open_requests(
    url: &OsString,
    only_reads: bool,
) -> Result<Arc<dyn RequestStore>, Failure> {
    let bytes = url.as_bytes();
    if bytes == b"memory:" {
        return Ok(Arc::new(MemoryRequests::new()));
    }
    if let Some(path) = bytes.strip_prefix(b"sqlite:").filter(|path| !path.is_empty()) {
        let options = SqliteOptions::default().must_exist(true);
        let opened = SqliteRequests::open(Path::new(OsStr::from_bytes(path)), options).await;
        return Ok(opened.map_err(unopened)?);
    }
    let url = url.to_string_lossy().into_owned();
    match ServerKind::of(&url) {
        #[cfg(feature = "postgres")]
        Some(ServerKind::Postgres) => {
            let options = PostgresOptions::default().must_exist(true).allow_read_only(only_reads);
            Ok(PostgresRequests::open(&url, options).await.map_err(unopened)?)
        }
        #[cfg(feature = "mysql")]
        Some(ServerKind::MySql) => {
            let options = MySqlOptions::default().must_exist(true).allow_read_only(only_reads);
            Ok(MySqlRequests::open(&url, options).await.map_err(unopened)?)
        }
        _ => Err(not_built_in(url)),
    }
}

/// The failure of an address that these commands can't open. The library may be built with more stores than they are, so
/// the end of its message, which lists them, gives way to their own list.
fn not_built_in(url: String) -> Failure {
    let told = Error::BadUrl { url }.to_string();
    let refused = told.rsplit_once("; it has ").map_or(&*told, |(refused, _)| refused);
    let stores = [
        (true, "`sqlite:path/to/file.db`"),
        (ServerKind::Postgres.is_built_in(), "`postgres://user@host/database`"),
        (ServerKind::MySql.is_built_in(), "`mysql://user@host/database`"),
        (true, "`memory:`"),
        (true, "`sharded:` with several of these, parted by commas"),
    ];
    let stores: Vec<&str> = stores.into_iter().filter_map(|(has, address)| has.then_some(address)).collect();
    Failure::coded(code::BAD_URL, format!("{refused}; it has {}", stores.join(", ")))
}

/// The usual cure speaks of runs.
fn unopened(error: StoreError) -> Failure {
    let failure = Failure::from(error);
    match failure.code() {
        Some(code::CANNOT_OPEN) => failure.cured_by(
            "do what the message says, or mend the address; the table of requests is made by the service that takes them",
        ),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_refused_address_is_told_of_the_stores_that_these_commands_open() {
        for url in ["orders.db", "redis://ada:s3cret@cache/0"] {
            let refused = open_store(&url.into(), true, true, Payloads::default())
                .await
                .err()
                .expect("it is none")
                .message();
            assert!(
                refused.contains("is not the address of a store that is built in; it has `sqlite:"),
                "{refused}"
            );
            assert!(!refused.contains("s3cret"), "{refused}");
            for (server, scheme) in [(ServerKind::Postgres, "`postgres:"), (ServerKind::MySql, "`mysql:")] {
                assert_eq!(refused.contains(scheme), server.is_built_in(), "{refused}");
            }
        }
    }
}
