//! Engines and agents that are killed again and again.

use crate::{
    record::{self, Record},
    site::{Kit, Said, Site},
};
use hapax::{
    agent::flows::Work,
    core::{order::PathHash, rng::Rng},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    hash::{BuildHasher, Hasher, RandomState},
    hint,
};

/// A kill comes up to so many turns of a loop behind what it is aimed at: some milliseconds.
const TURNS: u64 = 100_000;

fn kills(few: u32, many: u32) -> u32 {
    if env::var_os("HAPAX_LONG").is_some() { many } else { few }
}

/// Random numbers whose seed is printed, and may be given.
pub(crate) fn rng(test: &str) -> Rng {
    let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("{test}: HAPAX_SEED={seed}");
    Rng::for_item(seed, 0, PathHash::ROOT, test)
}

/// Up to some milliseconds.
fn a_moment(rng: &mut Rng) {
    (0..rng.below(TURNS)).for_each(|_| hint::spin_loop());
}

/// What a run comes to when nobody is killed.
struct Undisturbed {
    snapshot_id: String,
    end: Work,
    keys: BTreeSet<String>,
    /// How much was said.
    lines: u64,
}

impl Undisturbed {
    fn of(kit: Kit) -> Self {
        let (site, mut seen) = (Site::new(kit), Seen::default());
        let foreman = site.foreman();
        let mut lines = 0;
        loop {
            let said = site.next();
            lines += 1;
            seen.hear(&said);
            if said == Said::Gone {
                break;
            }
        }
        assert!(foreman.wait().success(), "the undisturbed run fails");
        seen.settle(&site, true, 0);
        assert!(seen.executions.values().all(|processes| processes.len() == 1), "each once: {seen:?}");
        let keys = seen.record.answers.keys().cloned().collect();
        let snapshot_id = site.workspace().snapshot().expect("a snapshot").id;
        Self { snapshot_id, end: record::end(&site), keys, lines }
    }
}

/// What was seen of a site so far.
#[derive(Debug, Default)]
struct Seen {
    record: Record,
    /// The processes that worked on each key.
    executions: BTreeMap<String, Vec<i32>>,
    /// How often a key was worked on when its answer was found recorded: it never is again.
    settled: BTreeMap<String, usize>,
    is_done: bool,
}

impl Seen {
    fn hear(&mut self, said: &Said) {
        match said {
            Said::Agent { pid, point, key } if point == "begin" => {
                let processes = self.executions.entry(key.clone()).or_default();
                assert!(!processes.contains(pid), "{key} was begun twice by one process");
                processes.push(*pid);
            }
            Said::Foreman(line) if line == "done" => self.is_done = true,
            Said::Foreman(line) => assert!(!line.starts_with("retrying"), "{line}"),
            _ => {}
        }
    }

    /// Looks at what is on record after a kill.
    fn settle(&mut self, site: &Site, is_dead: bool, torn_by: u64) {
        if is_dead {
            site.rest().iter().for_each(|said| self.hear(said));
        }
        let record = Record::read(site, is_dead, torn_by);
        record.must_follow(&self.record);
        for (key, count) in &self.settled {
            assert_eq!(
                self.executions[key].len(),
                *count,
                "{key} was worked on after its answer was recorded"
            );
        }
        if is_dead {
            // Whoever works is dead, and what it said was heard: from now on the count stands.
            for key in record.settled() {
                self.settled.insert(key.clone(), self.executions[&key].len());
            }
        }
        self.record = record;
    }

    /// How often work was done again.
    fn repeated(&self) -> usize {
        self.executions.values().map(|processes| processes.len() - 1).sum()
    }

    /// All is as if nothing had happened.
    fn must_equal(&self, site: &Site, undisturbed: &Undisturbed) {
        self.record.must_be_complete();
        assert_eq!(self.record.answers.keys().cloned().collect::<BTreeSet<_>>(), undisturbed.keys);
        assert_eq!(self.executions.keys().cloned().collect::<BTreeSet<_>>(), undisturbed.keys);
        assert_eq!(site.workspace().snapshot().expect("a snapshot").id, undisturbed.snapshot_id);
        assert_eq!(record::end(site), undisturbed.end);
    }
}

/// One life of the foreman, which is killed behind the n-th thing that is said; `false`: it was done before.
fn life(site: &Site, seen: &mut Seen, nth: u64, rng: &mut Rng) -> bool {
    let foreman = site.foreman();
    let mut heard = 0;
    loop {
        let said = site.next();
        seen.hear(&said);
        heard += 1;
        if said == Said::Gone {
            break;
        }
        if heard == nth {
            a_moment(rng);
            foreman.kill();
        }
    }
    let status = foreman.wait();
    assert!(seen.is_done || heard >= nth, "the foreman failed by itself: {status}");
    site.until_alone();
    seen.settle(site, true, rng.next_u64());
    !seen.is_done
}

fn engines_are_killed(kit: Kit, wanted: u32) {
    let (undisturbed, mut rng) = (Undisturbed::of(kit), rng("engines"));
    let (mut killed, mut runs, mut repeated, mut commands) = (0, 0, 0, 0);
    while killed < wanted {
        let (site, mut seen) = (Site::new(kit), Seen::default());
        loop {
            // Once there were enough kills, it is left in peace.
            let nth = if killed < wanted { 1 + rng.below(undisturbed.lines / 3) } else { u64::MAX };
            if !life(&site, &mut seen, nth, &mut rng) {
                break;
            }
            killed += 1;
        }
        seen.must_equal(&site, &undisturbed);
        (runs, repeated, commands) = (runs + 1, repeated + seen.repeated(), commands + seen.executions.len());
    }
    println!("{killed} engines killed in {runs} runs: {commands} commands, {repeated} executions repeated");
}

fn agents_are_killed(kit: Kit, wanted: u32) {
    let (undisturbed, mut rng) = (Undisturbed::of(kit), rng("agents"));
    let (mut killed, mut runs, mut repeated, mut commands) = (0, 0, 0, 0);
    let mut struck = BTreeMap::<String, u32>::new();
    while killed < wanted {
        let (site, mut seen) = (Site::new(kit), Seen::default());
        let foreman = site.foreman();
        let mut until = rng.below(8);
        loop {
            let said = site.next();
            seen.hear(&said);
            match said {
                Said::Gone => break,
                Said::Agent { pid, point, .. } if until == 0 && killed < wanted => {
                    a_moment(&mut rng);
                    if site.kill_agent(pid) {
                        (killed, until) = (killed + 1, rng.below(8));
                        *struck.entry(point).or_default() += 1;
                        seen.settle(&site, false, rng.next_u64());
                    }
                }
                Said::Agent { .. } => until = until.saturating_sub(1),
                Said::Foreman(_) => {}
            }
        }
        assert!(foreman.wait().success(), "the foreman fails");
        site.until_alone();
        seen.settle(&site, true, rng.next_u64());
        seen.must_equal(&site, &undisturbed);
        (runs, repeated, commands) = (runs + 1, repeated + seen.repeated(), commands + seen.executions.len());
    }
    println!("{killed} agents killed in {runs} runs, behind {struck:?}");
    println!("{commands} commands, {repeated} executions repeated");
    assert!(repeated > 0, "no kill hit any work");
}

#[test]
fn an_engine_that_is_killed_again_and_again_has_each_command_done_once() {
    engines_are_killed(Kit::Rust, kills(60, 300));
}

#[test]
fn agents_that_are_killed_again_and_again_do_each_command_once() {
    agents_are_killed(Kit::Rust, kills(60, 300));
}

#[test]
fn an_engine_of_python_agents_that_is_killed_again_and_again_has_each_command_done_once() {
    engines_are_killed(Kit::Python, kills(12, 100));
}

#[test]
fn python_agents_that_are_killed_again_and_again_do_each_command_once() {
    agents_are_killed(Kit::Python, kills(12, 100));
}
