//! `hapax rotate`: puts every payload of a store under one key, beside whoever works.

use crate::{failure::Failure, keys::Keyed, output::clean, session::Session, view::counted};
use clap::Args;
use hapax_store::{
    Store,
    recode::{From, PayloadKeys},
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const AFTER_HELP: &str = "\
The keys are those of HAPAX_KEYS, or of the file that HAPAX_KEYS_FILE names: `name:base64` entries, the key that encrypts first. \
Workers go on meanwhile; give them the new key first, or what they write is left over. An interrupted rotation goes on \
where it was. A plain store is encrypted the same way.

Examples:
  hapax rotate --dry-run
  hapax rotate
  hapax rotate --to 2026-11
  hapax rotate --decrypt";

/// Passes at the most: workers may write under an older key meanwhile.
const PASSES: usize = 5;

/// Encrypt every payload of the store with one key
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Rotate {
    /// The key to encrypt with. Default: the first
    #[arg(long, value_name = "KEY", conflicts_with = "decrypt")]
    to: Option<String>,
    /// Decrypt everything instead
    #[arg(long)]
    decrypt: bool,
    /// Only count what would be rewritten
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Answer {
    dry_run: bool,
    rewritten: u64,
    /// What is not under the key that was asked for.
    left: u64,
    payloads: u64,
    keys: BTreeMap<String, u64>,
    plain: u64,
    unknown: u64,
    /// Keys that no payload is under.
    unused: Vec<String>,
    damaged: BTreeSet<String>,
}

impl Rotate {
    /// What the keys of the environment are for.
    pub(crate) fn keyed(&self) -> Keyed {
        if self.decrypt { Keyed::Plain } else { Keyed::To(self.to.clone()) }
    }

    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        if session.embedded && (self.decrypt || self.to.is_some()) {
            return Err(Failure::usage("this program opens its own store, with its own keys")
                .cured_by("leave the flag out, or use the stock `hapax`"));
        }
        let store = session.engine.store();
        let (mut rewritten, mut damaged) = (0, BTreeSet::new());
        if !self.dry_run {
            for _ in 0..PASSES {
                let done = pass(&*store, session, rewritten, &mut damaged).await?;
                rewritten += done;
                if done == 0 {
                    break;
                }
            }
        }
        let answer = self.answer(store.payload_keys().await?, rewritten, damaged);
        session.out.answer(&answer, || human(&answer))
    }

    fn answer(&self, keys: PayloadKeys, rewritten: u64, damaged: BTreeSet<String>) -> Answer {
        let PayloadKeys { payloads, under, plain, unknown, stale } = keys;
        let unused = under.iter().filter(|(_, count)| **count == 0).map(|(key, _)| key.clone()).collect();
        Answer {
            dry_run: self.dry_run,
            rewritten,
            left: stale,
            payloads,
            keys: under,
            plain,
            unknown,
            unused,
            damaged,
        }
    }
}

/// Goes through all payloads once; answers how many were rewritten.
async fn pass(
    store: &dyn Store,
    session: &Session<'_>,
    before: u64,
    damaged: &mut BTreeSet<String>,
) -> Result<u64, Failure> {
    let progress = session.out.progress(None, "rewriting");
    let (mut next, mut rewritten) = (Some(From::default()), 0);
    while let Some(from) = next {
        let batch = store.recode(from).await?;
        rewritten += batch.rewritten;
        damaged.extend(batch.damaged);
        progress.set_message(counted(before + rewritten, "payload"));
        next = batch.next;
    }
    progress.finish_and_clear();
    Ok(rewritten)
}

fn human(answer: &Answer) -> String {
    let mut text = match answer.dry_run {
        true => format!("would rewrite {}\n", counted(answer.left, "payload")),
        false => format!("rewrote {}\n", counted(answer.rewritten, "payload")),
    };
    for (key, count) in answer.keys.iter().filter(|(_, count)| **count > 0) {
        text.push_str(&format!("key {}: {}\n", clean(key), counted(*count, "payload")));
    }
    for (count, of) in [(answer.plain, "not encrypted"), (answer.unknown, "under keys that were not given")] {
        if count > 0 {
            text.push_str(&format!("{of}: {}\n", counted(count, "payload")));
        }
    }
    for damaged in &answer.damaged {
        text.push_str(&format!("damaged, left as it is: {}\n", clean(damaged)));
    }
    if !answer.dry_run && answer.left > 0 {
        let left = counted(answer.left, "payload");
        text.push_str(&format!("{left} left: give all workers these keys, then call it again\n"));
    } else if answer.unknown == 0 && !answer.dry_run {
        let unused = answer.unused.iter().map(|key| format!("key {} is not in use any more\n", clean(key)));
        text.extend(unused);
    }
    text
}
