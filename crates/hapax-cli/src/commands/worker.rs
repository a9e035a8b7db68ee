//! `hapax worker`: takes up whatever runs there are, until it is asked to stop.

use crate::{
    failure::Failure,
    output::clean,
    session::Session,
    signals::EndRequests,
    view::{age, counted, parse_age},
};
use clap::Args;
use hapax::{Event, Status, Worker as Crew, WorkerReport, schedule::SchedulerOptions};
use hapax_core::error::code;
use serde::Serialize;
use std::time::Duration;
use tokio::sync::broadcast::{Receiver, error::RecvError};

const AFTER_HELP: &str = "\
Asked to stop, by SIGTERM or Ctrl-C, it takes no new run, lets the steps in flight commit, and gives all its runs back, so \
that other workers go on with them at once; asked a second time, it drops the steps in flight. Any number of workers may share a store. \
How many runs a worker holds at a time is an option of its engine. It also fires the schedules of its graphs: see `schedule`.

It needs the code of your graphs: it is a command of the program into which you build it with `hapax_cli::run`, here `orders`.

Examples:
  orders worker
  orders worker --drain 10s
  orders worker --json | jq -r 'select(.event == \"left\") | .run'";

/// Take up runs of the registered graphs, until interrupted
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Worker {
    /// How long steps in flight may take when it stops: a number with s, m, h, d or w
    #[arg(long, value_name = "AGE", default_value = "30s", value_parser = parse_age)]
    drain: Duration,
    #[cfg(feature = "telemetry")]
    #[command(flatten)]
    telemetry: crate::telemetry::Flags,
}

/// What happens, one line each.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Works { name: &'a str, graphs: Vec<String> },
    Claimed { run: &'a str, step: u64, taken_over: bool },
    Left { run: &'a str, status: &'static str },
    Stopped { finished: u64, handed_over: u64, lost: u64 },
}

impl Worker {
    pub(crate) async fn run(self, session: &Session<'_>, requests: &mut EndRequests) -> Result<(), Failure> {
        let graphs: Vec<String> =
            session.engine.graphs().iter().map(|graph| graph.name.to_string()).collect();
        if graphs.is_empty() {
            return Err(no_graphs(session));
        }
        #[cfg(feature = "telemetry")]
        let (telemetry, _logs) = self.telemetry.start(session).await?;
        let mut events = session.engine.events();
        let crew = Crew::new(session.engine.clone()).drain_within(self.drain);
        let name = crew.name().to_owned();
        say(session, &Line::Works { name: &name, graphs })?;
        session.out.remark(&format!("stops within {} when asked to", age(self.drain)));
        session.engine.scheduler(SchedulerOptions::default())?;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let asked_twice = async {
            requests.next().await;
            session.out.remark("stopping; asked again, it stops at once");
            // It may have stopped already, since nobody listens to what it says.
            let _ = stop.send(());
            requests.next().await;
        };
        let mut told_well = Ok(());
        let work = crew.run_until(async {
            tokio::select! {
                _ = stopped => {}
                failed = tell(session, &mut events) => told_well = failed,
            }
        });
        let work = async {
            let report = work.await;
            // What a collector doesn't take in that time is lost.
            #[cfg(feature = "telemetry")]
            let _ = tokio::time::timeout(self.drain, telemetry.shutdown()).await;
            report
        };
        let report = tokio::select! {
            report = work => report,
            () = asked_twice => {
                session.engine.shutdown(Duration::ZERO).await;
                return Err(at_once());
            }
        };
        told_well?;
        while let Ok(event) = events.try_recv() {
            tell_one(session, &event)?;
        }
        let WorkerReport { finished, handed_over, lost, .. } = report;
        say(session, &Line::Stopped { finished, handed_over, lost })
    }
}

/// Tells what happens, as long as anybody listens.
async fn tell(session: &Session<'_>, events: &mut Receiver<Event>) -> Result<(), Failure> {
    loop {
        match events.recv().await {
            Ok(event) => tell_one(session, &event)?,
            Err(RecvError::Lagged(missed)) => {
                session.out.remark(&format!("{} not shown", counted(missed, "event")));
            }
            Err(RecvError::Closed) => return Ok(()),
        }
    }
}

fn tell_one(session: &Session<'_>, event: &Event) -> Result<(), Failure> {
    match event {
        Event::RunClaimed { run, step, taken_over } => {
            say(session, &Line::Claimed { run: run.run.as_str(), step: *step, taken_over: *taken_over })
        }
        Event::RunEnded { run, status } => {
            say(session, &Line::Left { run: run.run.as_str(), status: standing(status) })
        }
        _ => Ok(()),
    }
}

/// A run that leaves while it runs is somebody else's from now on.
fn standing(status: &Status) -> &'static str {
    match status {
        Status::Running => "handed over",
        status => status.word(),
    }
}

fn say(session: &Session<'_>, line: &Line<'_>) -> Result<(), Failure> {
    session.out.answer(line, || match line {
        Line::Works { name, graphs } => format!("{} works on {}\n", clean(name), clean(&graphs.join(", "))),
        Line::Claimed { run, step, taken_over } => {
            let how = if *taken_over { ", taken over" } else { "" };
            format!("claimed  {}  at step {step}{how}\n", clean(run))
        }
        Line::Left { run, status } => format!("left     {}  {status}\n", clean(run)),
        Line::Stopped { finished, handed_over, lost } => {
            let lost = if *lost > 0 { format!(", {lost} lost") } else { String::new() };
            format!("stopped: {} finished, {handed_over} handed over{lost}\n", counted(*finished, "run"))
        }
    })
}

/// The failure of a worker that was asked to stop a second time, and didn't wait for its steps.
fn at_once() -> Failure {
    Failure::coded(code::INTERRUPTED, "stopped at once; steps in flight were dropped")
        .cured_by("nothing is to be done: other workers execute them again")
}

fn no_graphs(session: &Session<'_>) -> Failure {
    let failure =
        Failure::coded(code::NOT_REGISTERED, "this program holds no graph, so it can't work on any run");
    if session.embedded {
        return failure.cured_by("register the graphs before `hapax_cli::run`");
    }
    failure.cured_by(
        "start the program that registers your graphs, or build these commands into it with `hapax_cli::run`",
    )
}
