//! `hapax doctor`: what the store promises here and now, and whether what it holds is intact.

use crate::{
    failure::Failure,
    output::{BAD, FAINT, GOOD, Output, STRONG, WARN, clean},
    session::{Damaged, Session},
    table::{cut, folded},
    view::roughly,
};
use clap::Args;
use hapax::Coded;
use hapax_core::error::code;
use hapax_store::{Fact, ListFilter, RunRecord, Store, StoreError, Verdict};
use serde::Serialize;
use std::time::Duration;

const AFTER_HELP: &str = "\
Exits with 1 when something is unsafe, with 3 or 4 when the store can't be opened.

Examples:
  hapax doctor
  hapax doctor --checkpoints 10000
  hapax doctor --nats nats://127.0.0.1:4222 --topic shop.orders
  hapax doctor --json | jq '.facts[] | select(.verdict == \"unsafe\")'";

/// A message that has waited for longer waits for somebody.
const OLD: Duration = Duration::from_secs(300);
/// Rows of a journal that are read at once.
const PAGE: usize = 1000;

/// What the verdicts take, with a gap.
const VERDICT: usize = 8;
/// What the names take at the least.
const NAMES: usize = 12;
/// Where it begins on a screen that has too little room beside the other two: below them.
const NARROW_INDENT: usize = 2;
/// As much as it should have.
const ROOM: usize = 24;

/// Check the store: durability in force, schema, file system, digests
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Doctor {
    /// How many of the latest checkpoints are verified against their digests
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    checkpoints: u64,
    /// Also ask this NATS how long its streams know the ids of messages that came
    #[arg(long, value_name = "URL", requires = "topics")]
    nats: Option<String>,
    /// A topic, with the prefix that its relay has; its stream is asked for
    #[arg(long = "topic", value_name = "TOPIC", requires = "nats")]
    topics: Vec<String>,
}

#[derive(Serialize)]
struct Answer {
    safe: bool,
    facts: Vec<FactView>,
}

#[derive(Serialize)]
struct FactView {
    name: String,
    found: String,
    verdict: &'static str,
    meaning: String,
}

impl Doctor {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let progress = session.out.progress(None, "checking");
        let mut facts = match session.engine.store().health().await {
            Ok(facts) => facts,
            Err(error @ StoreError::Corrupt { .. }) => vec![unreadable("settings", &error)],
            Err(error) => return Err(error.into()),
        };
        facts.extend(self.digests(session).await);
        if let Some(url) = &self.nats {
            facts.extend(streams(url, &self.topics).await?);
        }
        facts.extend(undelivered(session).await);
        progress.finish_and_clear();
        if tell(&facts, session.out)? { Ok(()) } else { Err(Failure::Told) }
    }

    /// Verifies the latest steps of the newest runs, and their rows and journals on the way.
    async fn digests(&self, session: &Session<'_>) -> Vec<Fact> {
        let limit = usize::try_from(self.checkpoints).unwrap_or(usize::MAX);
        let (mut runs, unread) = match session.list(ListFilter { limit, ..ListFilter::default() }).await {
            Ok(listed) => listed,
            Err(error) if error.code() == Some(code::CORRUPT) => {
                return vec![damaged("runs", error.message())];
            }
            Err(error) => return vec![unknown("runs", error.message())],
        };
        // The steps of the others aren't here, which is no damage.
        runs.retain(|run| run.demand_here().is_ok());
        let (store, mut verified) = (session.engine.store(), 0);
        let row = |run: &Damaged| damaged("run", format!("[{}] {}", code::CORRUPT, run.error));
        let mut facts: Vec<Fact> = unread.iter().map(row).collect();
        for run in &runs {
            let mut step = Some(run.step);
            while let Some(at) = step.filter(|_| verified < self.checkpoints) {
                // The latest step is read as a worker reads it: with its row and journal.
                let intact = match at == run.step {
                    true => store.load(run.key.clone()).await.map(|_| true),
                    false => store.checkpoint(run.key.clone(), at).await.map(|found| found.is_some()),
                };
                match intact {
                    Ok(true) => verified += 1,
                    // Older steps may be gone on purpose.
                    Ok(false) => break,
                    Err(error) => facts.push(unreadable("checkpoint", &error)),
                }
                step = at.checked_sub(1);
            }
            if let Err(error) = read_journal(&*store, run).await {
                facts.push(unreadable("journal", &error));
            }
        }
        facts.push(Fact {
            name: "digests",
            found: format!("{verified} checkpoints in {} runs", runs.len()),
            verdict: Verdict::Good,
            meaning: "each matches its digest: nothing was changed since it was committed".into(),
        });
        facts
    }
}

/// How long the streams of topics know what came: when a relay dies, another one may deliver again what it had delivered.
#[cfg(feature = "nats")]
async fn streams(url: &str, topics: &[String]) -> Result<Vec<Fact>, Failure> {
    let sink = hapax::outbox::NatsSink::connect(url).await.map_err(|error| crate::sinks::failure(&error))?;
    let mut facts = vec![];
    for topic in topics {
        facts.push(match sink.stream(topic).await {
            Ok(stream) => window(topic, &stream),
            Err(error) => Fact {
                name: "stream",
                found: format!("{topic}: [{}] {error}", error.code()),
                verdict: Verdict::Note,
                meaning: "messages to it wait until it is there".into(),
            },
        });
    }
    Ok(facts)
}

#[cfg(feature = "nats")]
fn window(topic: &str, stream: &hapax::outbox::NatsStream) -> Fact {
    let (name, seconds) = (&stream.name, stream.duplicate_window.as_secs_f64());
    let (verdict, meaning) = match stream.remembers_enough() {
        true => (Verdict::Good, "what a relay delivers again is dropped: it arrives once"),
        false => (Verdict::Note, "what a relay delivers again late is stored twice; two minutes are enough"),
    };
    let found = format!("{topic}: {name} knows ids for {seconds} s");
    Fact { name: "stream", found, verdict, meaning: meaning.into() }
}

#[cfg(not(feature = "nats"))]
async fn streams(_: &str, _: &[String]) -> Result<Vec<Fact>, Failure> {
    Err(crate::sinks::lacks("nats"))
}

/// Messages that a person or a relay must look after.
async fn undelivered(session: &Session<'_>) -> Vec<Fact> {
    let backlog = match session.engine.backlog().await {
        Ok(backlog) => backlog,
        Err(error) => return vec![unknown("outbox", Failure::from(error).message())],
    };
    let note = |found, meaning: &str| Fact {
        name: "outbox",
        found,
        verdict: Verdict::Note,
        meaning: meaning.into(),
    };
    let mut facts = vec![];
    if !backlog.dead.is_none() {
        let found = format!("dead messages: {}", backlog.dead);
        facts.push(note(
            found,
            "refused too often, and kept with their runs: see `hapax outbox --dead`, then retry or drop them",
        ));
    }
    if backlog.lag() > OLD {
        let found =
            format!("messages that wait: {}, the oldest for {}", backlog.pending, roughly(backlog.lag()));
        facts.push(note(found, "no relay delivers them, or their receiver refuses them: see `hapax outbox`"));
    }
    facts
}

/// Reads a journal whole; each row is checked on the way.
async fn read_journal(store: &dyn Store, run: &RunRecord) -> Result<(), StoreError> {
    let mut from = 0;
    while let Some(last) = store.journal(run.key.clone(), from, PAGE).await?.last() {
        from = last.seq + 1;
    }
    Ok(())
}

/// Tells that a store can't even be opened: just what a doctor is asked about.
pub(crate) fn tell_unopened(failure: &Failure, out: &Output) -> Result<(), Failure> {
    let (found, meaning) =
        (failure.message(), "nothing in it can be used as long as it can't be opened".into());
    tell(&[Fact { name: "opening", found, verdict: Verdict::Unsafe, meaning }], out).map(drop)
}

/// Prints the facts; answers whether all is safe.
fn tell(facts: &[Fact], out: &Output) -> Result<bool, Failure> {
    let safe = facts.iter().all(|fact| fact.verdict != Verdict::Unsafe);
    let answer = Answer { safe, facts: facts.iter().map(view).collect() };
    out.answer(&answer, || human(facts, safe, out))?;
    Ok(safe)
}

fn unreadable(name: &'static str, error: &StoreError) -> Fact {
    let found = format!("[{}] {error}", error.code());
    if matches!(error, StoreError::Corrupt { .. }) { damaged(name, found) } else { unknown(name, found) }
}

fn unknown(name: &'static str, found: String) -> Fact {
    let meaning = "it could not be read now, so nothing is known of it: try again".into();
    Fact { name, found, verdict: Verdict::Unsafe, meaning }
}

fn damaged(name: &'static str, found: String) -> Fact {
    let meaning = "it is never used as it is: the run stops there; restore the store from a backup".into();
    Fact { name, found, verdict: Verdict::Unsafe, meaning }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Good => "good",
        Verdict::Note => "note",
        Verdict::Unsafe => "unsafe",
    }
}

fn view(fact: &Fact) -> FactView {
    FactView {
        name: fact.name.to_owned(),
        found: fact.found.clone(),
        verdict: word(fact.verdict),
        meaning: fact.meaning.clone(),
    }
}

fn human(facts: &[Fact], safe: bool, out: &Output) -> String {
    let width = out.width().unwrap_or(usize::MAX);
    let names = facts.iter().map(|fact| fact.name.len()).fold(NAMES, usize::max);
    let mut text: String = facts.iter().map(|fact| paragraph(fact, names, width, out)).collect();
    let (style, verdict) =
        if safe { (GOOD, "the store is safe to use") } else { (BAD, "something is unsafe") };
    text.push('\n');
    for line in folded(verdict, width) {
        text.push_str(&format!("{}\n", out.paint(style, &line)));
    }
    text
}

/// A fact: verdict, name, what was found, and below it what that means.
fn paragraph(fact: &Fact, names: usize, width: usize, out: &Output) -> String {
    let style = match fact.verdict {
        Verdict::Good => GOOD,
        Verdict::Note => WARN,
        Verdict::Unsafe => BAD,
    };
    // Where the third column begins.
    let wide = VERDICT + names + 2;
    let is_narrow = width < wide + ROOM;
    let indent = if is_narrow { NARROW_INDENT } else { wide };
    let room = width.saturating_sub(indent).max(1);
    let verdict = out.paint(style, &format!("{:<6}", word(fact.verdict)));
    let found = folded(&clean(&fact.found), room).join(&format!("\n{:indent$}", ""));
    let mut text = if is_narrow {
        let name = out.paint(STRONG, &cut(fact.name, width.saturating_sub(VERDICT)));
        format!("{verdict}  {name}\n{:indent$}{found}\n", "")
    } else {
        format!("{verdict}  {}  {found}\n", out.paint(STRONG, &format!("{:<names$}", fact.name)))
    };
    for line in folded(&clean(&fact.meaning), room) {
        text.push_str(&format!("{:indent$}{}\n", "", out.paint(FAINT, &line)));
    }
    text
}
