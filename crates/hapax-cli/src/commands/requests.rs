//! `hapax requests`: what a service's clients have asked for by a key, and what an operator may do about it.
//!
//! Invariant: times are told by the database's clock, and no table is made where there is none.

mod show;

use crate::{
    args::Global,
    failure::Failure,
    output::{BAD, BUSY, GOOD, Output, WARN, clean},
    session,
    signals::EndRequests,
    table::{Cell, Table, cut_within},
    view::{age, ago, counted, parse_count, time},
};
use anstyle::Style;
use clap::{Args, Subcommand, ValueEnum};
use hapax::Error;
use hapax_core::{
    error::code,
    id::Namespace,
    request::{RequestId, Status},
};
use hapax_store::requests::{Listed, RequestFilter, RequestStore};
use serde::Serialize;
use std::{sync::Arc, time::Duration};

const AFTER_HELP: &str = "\
They are the records of services that use `hapax-requests`, in the database that --store names: a table of its own, which the \
service makes.

Examples:
  hapax requests list --status in-progress
  hapax requests show merchant-7 'POST /charges' 8e03978e
  hapax requests release merchant-7 'POST /charges' 8e03978e
  hapax requests sweep";

const LIST_HELP: &str = "\
LEASE is how long nobody else may execute the request, by the database's clock; once it is over, whoever asks next takes it \
over. Keys and principals of more than 40 columns are cut; --json and `show` have them whole.

Examples:
  hapax requests list
  hapax requests list --principal merchant-7 --method 'POST /charges'
  hapax requests list --status in-progress --status failed-retryable
  hapax requests list --json | jq -r '.requests[].key'";

const RELEASE_HELP: &str = "\
For a request whose execution hangs: its lease is prolonged as long as its process lives. Whoever executes it can't finish it \
any more, and what it writes with `finish_in` is rolled back; what it does elsewhere it does. Exits with 1 when it wasn't in \
progress.

Examples:
  hapax requests release merchant-7 'POST /charges' 8e03978e";

const SWEEP_HELP: &str = "\
In small batches, so that no service waits for long. What is being executed is kept, and a late sweep does no harm: a key that \
has expired begins a new request anyway. Those of all tenants are deleted, whatever --namespace says.

Examples:
  hapax requests sweep --dry-run
  hapax requests sweep
  hapax requests sweep --limit 100000";

/// Deleted in one transaction; services wait for no longer than that takes.
const BATCH: usize = 500;

/// A longer key or principal is cut in its middle, so that lines stay readable; a UUID is whole.
const WIDEST: usize = 40;

/// Show the requests that take effect once by their key; release or sweep them
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Requests {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(List),
    Show(show::Show),
    Release(Release),
    Sweep(Sweep),
}

/// List requests: those first that expire last
#[derive(Debug, Args)]
#[command(after_help = LIST_HELP)]
struct List {
    /// Only of whom
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Only of this method: the verb and the template of the route, or the full name of a gRPC method
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,
    /// Only those that stand there; any of them when given more than once
    #[arg(long = "status", value_name = "STATUS", value_enum, ignore_case = true)]
    statuses: Vec<StatusWord>,
    /// How many at the most
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse_count)]
    limit: usize,
}

/// Let a request that is in progress be tried again at once
#[derive(Debug, Args)]
#[command(after_help = RELEASE_HELP)]
struct Release {
    #[command(flatten)]
    name: Name,
}

/// Delete requests that have expired
#[derive(Debug, Args)]
#[command(after_help = SWEEP_HELP)]
struct Sweep {
    /// How many at the most; all by default
    #[arg(long, value_name = "N", value_parser = parse_count)]
    limit: Option<usize>,
    /// Only tell how many would be deleted
    #[arg(long)]
    dry_run: bool,
}

/// Which request.
#[derive(Debug, Args)]
struct Name {
    /// Who asked
    principal: String,
    /// For what: the verb and the template of the route, or the full name of a gRPC method
    method: String,
    /// The Idempotency-Key, without the quotes of its header
    key: String,
}

impl Name {
    fn id(&self, namespace: &Namespace) -> Result<RequestId, Failure> {
        let id = RequestId::new(namespace.clone(), &self.principal, &self.method, &self.key);
        id.map_err(|error| Error::from(error).into())
    }
}

/// Where a request can stand; also in the words that `--json` has for it.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum StatusWord {
    #[value(alias = "in_progress")]
    InProgress,
    Succeeded,
    #[value(alias = "failed_final")]
    FailedFinal,
    #[value(alias = "failed_retryable")]
    FailedRetryable,
}

impl From<StatusWord> for Status {
    fn from(word: StatusWord) -> Self {
        match word {
            StatusWord::InProgress => Status::InProgress,
            StatusWord::Succeeded => Status::Succeeded,
            StatusWord::FailedFinal => Status::FailedFinal,
            StatusWord::FailedRetryable => Status::FailedRetryable,
        }
    }
}

/// A status as it is asked for.
fn standing(status: Status) -> String {
    status.word().to_ascii_lowercase().replace('_', "-")
}

fn style(status: Status) -> Style {
    match status {
        Status::InProgress => BUSY,
        Status::Succeeded => GOOD,
        Status::FailedFinal => BAD,
        Status::FailedRetryable => WARN,
    }
}

/// What these commands work with.
struct Desk<'a> {
    store: Arc<dyn RequestStore>,
    namespace: Namespace,
    out: &'a Output,
}

impl Requests {
    /// Runs it until it is done, or somebody asks for its end.
    pub(crate) async fn run_until(
        self,
        global: &Global,
        out: &Output,
        end: &mut EndRequests,
    ) -> Result<(), Failure> {
        let url = session::address(global)?;
        let work = async {
            let (namespace, only_reads) = (session::namespace(global)?, self.only_reads());
            let store = session::open_requests(&url, only_reads).await?;
            self.run(&Desk { store, namespace, out }).await
        };
        tokio::select! {
            outcome = work => outcome.map_err(|failure| failure.at(&url)),
            () = end.next() => Err(Failure::coded(code::INTERRUPTED, "interrupted; nothing is lost")),
        }
    }

    fn only_reads(&self) -> bool {
        match &self.action {
            Action::List(_) | Action::Show(_) => true,
            Action::Release(_) => false,
            Action::Sweep(sweep) => sweep.dry_run,
        }
    }

    async fn run(self, desk: &Desk<'_>) -> Result<(), Failure> {
        match self.action {
            Action::List(list) => list.run(desk).await,
            Action::Show(show) => show.run(desk).await,
            Action::Release(release) => release.run(desk).await,
            Action::Sweep(sweep) => sweep.run(desk).await,
        }
    }
}

/// The failure of a command about a request that nobody has heard of.
fn unknown(id: &RequestId) -> Failure {
    Failure::coded(code::REQUEST_NOT_FOUND, format!("there is no request {id}"))
}

#[derive(Serialize)]
struct ListedView<'a> {
    namespace: &'a str,
    principal: &'a str,
    method: &'a str,
    key: &'a str,
    status: &'static str,
    attempt: u32,
    lease_left_ms: Option<u64>,
    point: Option<&'a str>,
    code: Option<i32>,
    error: Option<&'a str>,
    begun_at: String,
    expires_at: String,
}

impl<'a> ListedView<'a> {
    fn of(listed: &'a Listed, now_us: i64) -> Self {
        Self {
            namespace: listed.id.namespace().as_str(),
            principal: listed.id.principal(),
            method: listed.id.method(),
            key: listed.id.key(),
            status: listed.status.word(),
            attempt: listed.attempt,
            lease_left_ms: lease_left(listed.status, listed.lease_until_us, now_us).map(millis),
            point: listed.point.as_deref(),
            code: listed.response_code,
            error: listed.error_message.as_deref(),
            begun_at: time(listed.created_at_us),
            expires_at: time(listed.expires_at_us),
        }
    }
}

/// For how long nobody else may execute a request; `None`: nobody executes it.
fn lease_left(status: Status, until_us: i64, now_us: i64) -> Option<Duration> {
    let left = u64::try_from(until_us.saturating_sub(now_us)).unwrap_or(0);
    (status == Status::InProgress).then(|| Duration::from_micros(left))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Serialize)]
struct ListAnswer<'a> {
    requests: Vec<ListedView<'a>>,
    /// The limit was reached, so there may be more.
    more: bool,
}

impl List {
    async fn run(self, desk: &Desk<'_>) -> Result<(), Failure> {
        let filter = RequestFilter {
            namespace: desk.namespace.clone(),
            principal: self.principal,
            method: self.method,
            statuses: self.statuses.into_iter().map(Status::from).collect(),
            limit: self.limit.saturating_add(1),
        };
        let mut listed = desk.store.list(&filter).await?;
        let now_us = desk.store.now_us().await?;
        let more = listed.len() > self.limit;
        listed.truncate(self.limit);
        let requests = listed.iter().map(|one| ListedView::of(one, now_us)).collect();
        desk.out.answer(&ListAnswer { requests, more }, || table(&listed, now_us, desk.out))?;
        if more {
            desk.out.remark(&format!("--limit {} is reached: there are more", self.limit));
        }
        Ok(())
    }
}

fn table(listed: &[Listed], now_us: i64, out: &Output) -> String {
    if listed.is_empty() {
        return "no requests\n".into();
    }
    let head = ["KEY", "PRINCIPAL", "METHOD", "STATUS", "CODE", "ATTEMPT", "LEASE", "BEGUN", "ERROR"];
    let mut table = Table::new(&head);
    for one in listed {
        let lease = match lease_left(one.status, one.lease_until_us, now_us) {
            None => Cell::new(""),
            Some(left) if left.is_zero() => Cell::styled("over", BAD),
            Some(left) => Cell::styled(age(left), GOOD),
        };
        table.row(vec![
            Cell::new(cut_within(one.id.key(), WIDEST)),
            Cell::new(cut_within(one.id.principal(), WIDEST)),
            Cell::new(one.id.method()),
            Cell::styled(standing(one.status), style(one.status)),
            Cell::new(one.response_code.map(|code| code.to_string()).unwrap_or_default()),
            Cell::new(one.attempt.to_string()),
            lease,
            Cell::new(ago(one.created_at_us, now_us)),
            Cell::new(one.error_message.as_deref().unwrap_or_default()),
        ]);
    }
    table.render(out)
}

#[derive(Serialize)]
struct ReleaseAnswer<'a> {
    principal: &'a str,
    method: &'a str,
    key: &'a str,
    released: bool,
    status: &'static str,
}

impl Release {
    async fn run(self, desk: &Desk<'_>) -> Result<(), Failure> {
        let id = self.name.id(&desk.namespace)?;
        let released = desk.store.release(&id).await?;
        let status = match released {
            true => Status::FailedRetryable,
            false => desk.store.get(&id).await?.ok_or_else(|| unknown(&id))?.status(),
        };
        let Name { principal, method, key } = &self.name;
        let answer = ReleaseAnswer { principal, method, key, released, status: status.word() };
        desk.out.answer(&answer, || {
            let key = clean(key);
            match released {
                true => format!("{key} was in progress; it may be tried again\n"),
                false => format!("{key} wasn't in progress: it is {}\n", standing(status)),
            }
        })?;
        if released { Ok(()) } else { Err(Failure::Told) }
    }
}

#[derive(Serialize)]
struct SweepAnswer {
    dry_run: bool,
    deleted: u64,
    left: u64,
}

impl Sweep {
    async fn run(self, desk: &Desk<'_>) -> Result<(), Failure> {
        let deleted = match self.dry_run {
            true => 0,
            false => self.delete(desk).await?,
        };
        let left = desk.store.expired().await?;
        let would = left.min(self.limit.map_or(u64::MAX, |limit| limit as u64));
        let answer = match self.dry_run {
            true => SweepAnswer { dry_run: true, deleted: would, left: left - would },
            false => SweepAnswer { dry_run: false, deleted, left },
        };
        desk.out.answer(&answer, || answer.human())
    }

    async fn delete(&self, desk: &Desk<'_>) -> Result<u64, Failure> {
        let progress = desk.out.progress(None, "deleting");
        let limit = self.limit.map_or(u64::MAX, |limit| limit as u64);
        let mut deleted = 0;
        while deleted < limit {
            let batch = BATCH.min(usize::try_from(limit - deleted).unwrap_or(BATCH));
            let swept = desk.store.sweep(batch).await?;
            deleted += swept;
            progress.set_message(counted(deleted, "request"));
            // Fewer may just mean that another holds some of them, but none means that we are through.
            if swept == 0 {
                break;
            }
        }
        progress.finish_and_clear();
        Ok(deleted)
    }
}

impl SweepAnswer {
    fn human(&self) -> String {
        let verb = if self.dry_run { "would delete" } else { "deleted" };
        let left = match self.left {
            0 => String::new(),
            left => format!("; {left} more have expired"),
        };
        format!("{verb} {}{left}\n", counted(self.deleted, "expired request"))
    }
}
