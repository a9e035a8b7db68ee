//! `hapax gc`: deletes finished runs by age and count.

use crate::{
    failure::Failure,
    output::clean,
    session::Session,
    view::{age, counted, parse_age},
};
use clap::Args;
use hapax_core::id::{Namespace, RunKey};
use hapax_store::GcPolicy;
use serde::Serialize;
use std::time::Duration;

const AFTER_HELP: &str = "\
A run that is not over is never deleted, nor one with an unsent message. A failed run that is deleted can't be retried. \
A deleted run's id is free: starting it again does its work again.

Examples:
  hapax gc --dry-run
  hapax gc --older-than 30d --keep 1000
  hapax gc --older-than 0s";

/// Deleted in one transaction; engines wait for no longer than that takes.
const BATCH: usize = 200;

/// Delete finished runs by age and count
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Gc {
    /// Only runs that last changed longer ago: a number with s, m, h, d or w
    #[arg(long, value_name = "AGE", default_value = "7d", value_parser = parse_age)]
    older_than: Duration,
    /// Keep this many of the newest finished runs, whatever their age
    #[arg(long, value_name = "N", default_value_t = 0)]
    keep: usize,
    /// Only tell what would be deleted
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    dry_run: bool,
    deleted: Vec<&'a str>,
    unsent: usize,
}

impl Gc {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let (deleted, unsent) = if self.dry_run {
            let report = session.engine.gc(self.policy(usize::MAX)).await?;
            (report.deleted, report.unsent)
        } else {
            self.delete(session).await?
        };
        let runs = deleted.iter().map(|key| key.run.as_str()).collect();
        let answer = Answer { dry_run: self.dry_run, deleted: runs, unsent };
        session.out.answer(&answer, || self.human(&answer))
    }

    async fn delete(&self, session: &Session<'_>) -> Result<(Vec<RunKey>, usize), Failure> {
        let progress = session.out.progress(None, "deleting");
        let mut deleted = vec![];
        loop {
            let report = session.engine.gc(self.policy(BATCH)).await?;
            let full = report.deleted.len() == BATCH;
            deleted.extend(report.deleted);
            progress.set_message(format!("{} runs", deleted.len()));
            if !full {
                progress.finish_and_clear();
                return Ok((deleted, report.unsent));
            }
        }
    }

    fn policy(&self, limit: usize) -> GcPolicy {
        GcPolicy {
            namespace: Namespace::default(),
            older_than: Some(self.older_than),
            keep_newest: self.keep,
            limit,
            dry_run: self.dry_run,
        }
    }

    fn human(&self, answer: &Answer<'_>) -> String {
        let mut text = String::new();
        if self.dry_run {
            text.extend(answer.deleted.iter().map(|run| format!("{}\n", clean(run))));
        }
        let count = answer.deleted.len();
        let verb = if self.dry_run { "would delete" } else { "deleted" };
        let runs = counted(count as u64, "finished run");
        text.push_str(&format!("{verb} {runs} older than {}\n", age(self.older_than)));
        match answer.unsent {
            0 => {}
            1 => text.push_str("1 more stays until its messages are sent\n"),
            many => text.push_str(&format!("{many} more stay until their messages are sent\n")),
        }
        text
    }
}
