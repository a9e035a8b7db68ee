//! `hapax rotate`: puts every payload of a store under one key, beside whoever works.

use crate::{failure::Failure, keys::Keyed, output::clean, session::Session, view::counted};
use clap::Args;
use hapax_core::error::code;
use hapax_store::{
    Store,
    recode::{From, PayloadKeys},
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

const AFTER_HELP: &str = "\
The keys are those of HAPAX_KEYS, or of the file that HAPAX_KEYS_FILE names: `name:base64` entries, the key that encrypts first. \
Workers go on meanwhile; give them the new key first, or what they write is left over. An interrupted rotation goes on \
where it was. A store that was never encrypted becomes so when the keys end with the word `plain`. Without it, a payload that isn't \
encrypted ends the rotation and stays as it is: somebody put it there who had no key.

Exits with 3 when payloads are damaged or not encrypted, which stay as they are, and with 4 when somebody wrote others meanwhile that aren't \
under the key.

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
        session.out.answer(&answer, || human(&answer))?;
        outcome(&answer)
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

impl Answer {
    /// What could be rewritten, and is not under the key: somebody wrote it meanwhile.
    fn written_meanwhile(&self) -> u64 {
        if self.dry_run { 0 } else { self.left.saturating_sub(self.damaged.len() as u64) }
    }
}

/// Whether all is under the key now.
fn outcome(answer: &Answer) -> Result<(), Failure> {
    if let Some(first) = answer.damaged.first() {
        let many = counted(answer.damaged.len() as u64, "payload");
        let told = format!("{many} can't be read and stay as they are, such as {}", clean(first));
        return Err(Failure::coded(code::CORRUPT, told).cured_by(
            "restore their runs from a backup, or delete them; keep the keys until then, and rotate again",
        ));
    }
    match answer.written_meanwhile() {
        0 => Ok(()),
        left => {
            let left = counted(left, "payload");
            let told = format!("the rotation is not complete: {left} under other keys, written meanwhile");
            Err(Failure::coded(code::KEYS_DIFFER, told))
        }
    }
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
    let meanwhile = answer.written_meanwhile();
    if meanwhile > 0 {
        text.push_str(&format!("written meanwhile under other keys: {}\n", counted(meanwhile, "payload")));
    }
    if answer.left == 0 && answer.unknown == 0 && !answer.dry_run {
        let unused = answer.unused.iter().map(|key| format!("key {} is not in use any more\n", clean(key)));
        text.extend(unused);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(left: u64, damaged: &[&str]) -> Answer {
        Answer {
            dry_run: false,
            rewritten: 7,
            left,
            payloads: 9,
            keys: BTreeMap::from([("new".into(), 9 - left), ("old".into(), left)]),
            plain: 0,
            unknown: 0,
            unused: vec![],
            damaged: damaged.iter().map(|&what| what.into()).collect(),
        }
    }

    #[test]
    fn what_was_not_rotated_is_told_with_its_reason_and_is_no_success() {
        outcome(&answer(0, &[])).unwrap();
        let differ = outcome(&answer(2, &[])).unwrap_err();
        assert_eq!((differ.code(), differ.exit_code()), (Some(code::KEYS_DIFFER), 4));
        assert!(differ.message().contains("2 payloads under other keys"), "{differ:?}");
        let damaged = answer(1, &["hapax_letters default/order-1/1"]);
        let refused = outcome(&damaged).unwrap_err();
        assert_eq!((refused.code(), refused.exit_code()), (Some(code::CORRUPT), 3));
        assert!(!human(&damaged).contains("meanwhile"), "the keys of workers have nothing to do with it");
        outcome(&Answer { dry_run: true, ..answer(2, &[]) }).unwrap();
    }
}
