//! The subcommands, one file each: its flags, its help with examples, its work.
//!
//! A new command is one file and one line in an enum below.

pub(crate) mod agent;
mod cancel;
mod canon;
mod completions;
pub(crate) mod doctor;
mod export;
mod flow;
mod fork;
mod gc;
mod graph;
mod history;
mod import;
mod inbox;
mod key;
mod ledger;
mod list;
mod man;
pub(crate) mod migrate;
mod outbox;
mod receipts;
mod relay;
mod replay;
pub(crate) mod requests;
mod resolve;
mod resume;
mod retry;
#[cfg(feature = "encryption")]
mod rotate;
pub(crate) mod schedule;
mod show;
mod signal;
mod snapshot;
mod tail;
#[cfg(feature = "top")]
mod top;
mod transactions;
pub(crate) mod worker;
pub(crate) mod workers;

use crate::{
    demo::Demo, failure::Failure, keys::Keyed, output::Output, session::Session, signals::EndRequests,
};
use clap::Subcommand;
use hapax::core::{error::code, json::Json};

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// With a store.
    #[command(flatten)]
    Online(Online),
    /// Without one, and without a runtime.
    #[command(flatten)]
    Offline(Offline),
    Requests(requests::Requests),
    Migrate(migrate::Migrate),
    Agent(agent::Agent),
    Demo(Demo),
}

/// Commands that work on a store.
#[derive(Debug, Subcommand)]
pub(crate) enum Online {
    List(list::List),
    Show(show::Show),
    Tail(tail::Tail),
    Graph(graph::Graph),
    History(history::History),
    Resume(resume::Resume),
    Retry(retry::Retry),
    Cancel(cancel::Cancel),
    Replay(replay::Replay),
    Fork(fork::Fork),
    Signal(signal::Signal),
    Inbox(inbox::Inbox),
    Answer(inbox::Answer),
    Resolve(resolve::Resolve),
    Transactions(transactions::Transactions),
    Outbox(outbox::Outbox),
    Relay(relay::Relay),
    Schedule(schedule::Schedule),
    Flow(flow::Flow),
    Worker(worker::Worker),
    Workers(workers::Workers),
    #[cfg(feature = "top")]
    Top(top::Top),
    Ledger(ledger::Ledger),
    Gc(gc::Gc),
    #[cfg(feature = "encryption")]
    Rotate(rotate::Rotate),
    Export(export::Export),
    Import(import::Import),
    Doctor(doctor::Doctor),
}

/// Commands that need nothing but their arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum Offline {
    Canon(canon::Canon),
    Key(key::Key),
    Snapshot(snapshot::Snapshot),
    Receipts(receipts::Receipts),
    Completions(completions::Completions),
    Man(man::Man),
}

impl Online {
    /// Runs it until it is done, or somebody asks for its end. A worker hears that itself: it has something to hand over.
    pub(crate) async fn run_until(
        self,
        session: &Session<'_>,
        requests: &mut EndRequests,
    ) -> Result<(), Failure> {
        if let Online::Worker(command) = self {
            return command.run(session, requests).await;
        }
        let interrupted = self.interrupted();
        tokio::select! {
            outcome = self.run(session) => outcome,
            () = requests.next() => Err(interrupted),
        }
    }

    async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        match self {
            Online::List(command) => command.run(session).await,
            Online::Show(command) => command.run(session).await,
            Online::Tail(command) => command.run(session).await,
            Online::Graph(command) => command.run(session).await,
            Online::History(command) => command.run(session).await,
            Online::Resume(command) => command.run(session).await,
            Online::Retry(command) => command.run(session).await,
            Online::Cancel(command) => command.run(session).await,
            Online::Replay(command) => command.run(session).await,
            Online::Fork(command) => command.run(session).await,
            Online::Signal(command) => command.run(session).await,
            Online::Inbox(command) => command.run(session).await,
            Online::Answer(command) => command.run(session).await,
            Online::Resolve(command) => command.run(session).await,
            Online::Transactions(command) => command.run(session).await,
            Online::Outbox(command) => command.run(session).await,
            Online::Relay(command) => command.run(session).await,
            Online::Schedule(command) => command.run(session).await,
            Online::Flow(command) => command.run(session).await,
            Online::Worker(_) => unreachable!("it hears requests to end by itself"),
            Online::Workers(command) => command.run(session).await,
            #[cfg(feature = "top")]
            Online::Top(command) => command.run(session).await,
            Online::Ledger(command) => command.run(session).await,
            Online::Gc(command) => command.run(session).await,
            #[cfg(feature = "encryption")]
            Online::Rotate(command) => command.run(session).await,
            Online::Export(command) => command.run(session).await,
            Online::Import(command) => command.run(session).await,
            Online::Doctor(command) => command.run(session).await,
        }
    }

    /// What is said when the user has had enough of it.
    fn interrupted(&self) -> Failure {
        let failure = Failure::coded(code::INTERRUPTED, "interrupted; nothing is lost");
        match self {
            Online::Resume(_) | Online::Retry(_) => failure.cured_by("`resume` goes on with it"),
            Online::Tail(_) => {
                failure.cured_by("call it again; --from begins behind a cursor, which --json shows")
            }
            Online::Relay(_) => failure
                .cured_by("start it again: what waits is delivered then, perhaps the last message once more"),
            _ => failure,
        }
    }

    /// Whether it changes nothing, so that a store that takes no writes will do.
    #[allow(clippy::match_same_arms, reason = "an alternative of a pattern can't depend on a feature")]
    pub(crate) fn only_reads(&self) -> bool {
        match self {
            Online::List(_)
            | Online::Show(_)
            | Online::Tail(_)
            | Online::Graph(_)
            | Online::History(_)
            | Online::Replay(_)
            | Online::Inbox(_)
            | Online::Transactions(_)
            | Online::Flow(_)
            | Online::Workers(_)
            | Online::Ledger(_)
            | Online::Export(_)
            | Online::Doctor(_) => true,
            #[cfg(feature = "top")]
            Online::Top(_) => true,
            Online::Outbox(command) => command.only_reads(),
            Online::Schedule(command) => command.only_reads(),
            _ => false,
        }
    }

    /// What the keys of the environment are for.
    pub(crate) fn keyed(&self) -> Keyed {
        match self {
            #[cfg(feature = "encryption")]
            Online::Rotate(command) => command.keyed(),
            _ => Keyed::AsGiven,
        }
    }

    /// Does what needs no store, before one is opened or made. `true`: that was all.
    pub(crate) fn begin(&mut self, out: &Output) -> Result<bool, Failure> {
        match self {
            Online::Import(command) => command.begin(out),
            _ => Ok(false),
        }
    }

    /// Whether the store may be one that isn't there yet.
    pub(crate) fn creates(&self) -> bool {
        matches!(self, Online::Import(command) if command.creates())
    }

    pub(crate) fn is_doctor(&self) -> bool {
        matches!(self, Online::Doctor(_))
    }
}

impl Offline {
    pub(crate) fn run(self, out: &Output) -> Result<(), Failure> {
        match self {
            Offline::Canon(command) => command.run(out),
            Offline::Key(command) => command.run(out),
            Offline::Snapshot(command) => command.run(out),
            Offline::Receipts(command) => command.run(out),
            Offline::Completions(command) => command.run(out),
            Offline::Man(command) => command.run(out),
        }
    }
}

/// A payload from the command line.
fn payload(text: &str) -> Result<Json, Failure> {
    Json::from_text(text).map_err(|error| {
        Failure::usage(format!(
            "{text:?} is not JSON: {error}; a text needs quotes of its own, as in '\"yes\"'"
        ))
    })
}
