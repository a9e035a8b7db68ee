//! What the suite runs, as data: each case is one call of the driver, what it is held against, and its goals.

use super::{agents, goals::Goal, moves, payloads, requests, starts, telemetry, transfers};

/// Where a case's runs live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Memory,
    /// A fresh file.
    Sqlite,
    /// A file that holds many older runs already, the same one for all cases.
    Filled,
    /// A fresh database on a server of our own.
    Postgres,
    /// The same; MariaDB is what is started.
    Mysql,
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Place::Memory => "memory",
            Place::Sqlite | Place::Filled => "sqlite",
            Place::Postgres => "postgres",
            Place::Mysql => "mysql",
        }
    }

    pub(crate) fn is_server(self) -> bool {
        matches!(self, Place::Postgres | Place::Mysql)
    }
}

/// One call of the driver.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Case {
    /// Names the case for those that are held against it.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) place: Place,
    /// `strict`, `pipelined`, or nothing for a limit.
    pub(crate) durability: &'static str,
    pub(crate) threads: Option<usize>,
    /// Processes that do it at the same time.
    pub(crate) workers: usize,
    /// The workload with its numbers, as the driver wants them.
    pub(crate) call: String,
    /// The id of the limit that it is held against.
    pub(crate) limit: Option<&'static str>,
    pub(crate) goals: Vec<Goal>,
}

impl Case {
    pub(crate) fn is_limit(&self) -> bool {
        self.durability.is_empty()
    }

    /// A process that is killed, and one that goes on.
    pub(crate) fn is_crash(&self) -> bool {
        self.call.starts_with("w5")
    }

    /// Takes minutes, and tells the same every time.
    pub(crate) fn is_long(&self) -> bool {
        self.id == "long" || self.id == "timers"
    }
}

/// How much is done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sizes {
    pub(crate) rounds: usize,
    /// Older runs of 1,000 steps each.
    pub(crate) fill_runs: u64,
    w1: u64,
    w2_runs: u64,
    w3: u64,
    w4: u64,
    limit: u64,
    long: Option<u64>,
    calls: u64,
    /// How many, and the seconds over which they are due.
    timers: (u64, u64),
    /// One after the other, and many at a time.
    pub(super) transfers: [u64; 2],
    /// Over one connection, and over many.
    pub(super) requests: [u64; 2],
    /// Over a pipe, and through the engine.
    pub(super) agents: [u64; 2],
    /// Steps of one run, and runs of ten steps.
    pub(super) telemetry: [u64; 2],
    /// Steps with a large state, and small ones.
    pub(super) payloads: [u64; 2],
    /// Starts that nobody executes.
    pub(super) starts: u64,
    /// Runs that move to another store.
    pub(super) moved: u64,
}

/// Steps of each older run.
pub(crate) const FILL_STEPS: u64 = 1000;
const W1_SHORT: u64 = 200;
const W3_SHORT: u64 = 100;
const STATE_BYTES: usize = 102_400;

impl Sizes {
    pub(crate) fn new(quick: bool, long: bool) -> Self {
        let long = long.then_some(1_000_000);
        if quick {
            let (w1, w2_runs, w3, w4, limit) = (2000, 200, 10_000, 100, 400);
            let (calls, timers, transfers) = (10_000, (5000, 3), [100, 640]);
            let (requests, agents) = ([200, 640], [500, 80]);
            return Self {
                rounds: 1,
                fill_runs: 200,
                w1,
                w2_runs,
                w3,
                w4,
                limit,
                long,
                calls,
                timers,
                transfers,
                requests,
                agents,
                telemetry: [w1, w2_runs],
                payloads: [50, w1],
                starts: 500,
                moved: 100,
            };
        }
        let (w1, w2_runs, w3, w4, limit) = (20_000, 2000, 100_000, 1000, 10_000);
        let (calls, timers, transfers) = (100_000, (100_000, 60), [1000, 9600]);
        let (rounds, fill_runs, requests, agents) = (3, 2000, [2000, 9600], [10_000, 2000]);
        Self {
            rounds,
            fill_runs,
            w1,
            w2_runs,
            w3,
            w4,
            limit,
            long,
            calls,
            timers,
            transfers,
            requests,
            agents,
            telemetry: [w1, w2_runs],
            payloads: [300, w1],
            starts: 4000,
            moved: 1000,
        }
    }
}

/// The limits first: what the others are held against.
pub(crate) fn all(sizes: &Sizes) -> Vec<Case> {
    let mut cases = limits(sizes.limit);
    for place in [Place::Memory, Place::Sqlite] {
        for durability in ["strict", "pipelined"] {
            cases.extend(workloads(sizes, place, durability));
        }
    }
    cases.extend(journal(sizes));
    for place in [Place::Postgres, Place::Mysql] {
        cases.extend(server_limits(sizes, place));
        for durability in ["strict", "pipelined"] {
            cases.extend(on_server(sizes, place, durability));
        }
        cases.extend([1, 2, 4, 8].map(|workers| fleet(sizes, place, workers)));
    }
    cases.extend(transfers::cases(sizes));
    cases.extend(requests::cases(sizes));
    cases.extend(agents::cases(sizes));
    cases.extend(telemetry::cases(sizes));
    cases.extend(payloads::cases(sizes));
    cases.extend(starts::cases(sizes));
    cases.extend(moves::cases(sizes));
    cases.extend(sizes.long.map(long));
    cases
}

/// Keeps what is of one store, or of one kind, with whatever that is held against.
pub(crate) fn keep(cases: &mut Vec<Case>, only: &str) {
    let is_chosen = |case: &Case| case.place.name() == only || case.id.starts_with(only);
    let limits: Vec<&str> =
        cases.iter().filter(|case| is_chosen(case)).filter_map(|case| case.limit).collect();
    cases.retain(|case| is_chosen(case) || limits.contains(&case.id.as_str()));
}

/// Recorded calls, timers and replays.
fn journal(sizes: &Sizes) -> Vec<Case> {
    let case = |id: &str, title: String, durability, threads, call: String, goals| Case {
        id: id.into(),
        title,
        place: Place::Sqlite,
        durability,
        threads,
        workers: 1,
        call,
        limit: None,
        goals,
    };
    let Sizes { calls, timers: (timers, seconds), w1, .. } = *sizes;
    let reads = format!("reads {} 100", calls / 100);
    let due = format!("{} timers in {seconds} s", thousands(timers));
    vec![
        case("reads", "recorded reads".into(), "pipelined", Some(1), reads, vec![Goal::CpuUs(15.0)]),
        case(
            "writes",
            "recorded writes, one run".into(),
            "pipelined",
            None,
            format!("writes 1 {}", calls / 10),
            vec![Goal::FsyncsPerStep(2.01)],
        ),
        case(
            "writes-shared",
            "recorded writes, 32 runs".into(),
            "pipelined",
            None,
            format!("writes 32 {}", calls / 100),
            vec![Goal::FsyncsPerStep(1.0)],
        ),
        case(
            "timers",
            due,
            "pipelined",
            None,
            format!("timers {timers} {seconds}"),
            vec![Goal::P99Ms(100.0)],
        ),
        case(
            "replay",
            format!("replay of {} steps", thousands(w1)),
            "pipelined",
            Some(1),
            format!("replay {w1}"),
            vec![Goal::StepsPerCpuS(50_000.0)],
        ),
    ]
}

/// What others are held against.
fn limit(place: Place, id: &str, title: &str, call: String) -> Case {
    let (id, title) = (id.into(), title.into());
    Case { id, title, place, durability: "", threads: None, workers: 1, call, limit: None, goals: vec![] }
}

fn limits(count: u64) -> Vec<Case> {
    let limit = |id, title, call| limit(Place::Sqlite, id, title, call);
    vec![
        limit("fsync", "fdatasync", format!("limit-fsync {count}")),
        limit("row", "1 row a commit", format!("limit-rows {count} 1")),
        limit("rows", "100 rows a commit", format!("limit-rows {} 100", count / 4)),
        limit("step", "statements of 1 step a commit", format!("limit-steps {count} 1")),
        limit("steps", "statements of 256 steps a commit", format!("limit-steps {} 256", count / 20)),
    ]
}

fn workloads(sizes: &Sizes, place: Place, durability: &'static str) -> Vec<Case> {
    let sqlite = place == Place::Sqlite;
    let case = |id: &str, title: String, call: String| Case {
        id: format!("{id}-{}-{durability}", place.name()),
        title,
        place,
        durability,
        threads: (!sqlite).then_some(1),
        workers: 1,
        call,
        limit: None,
        goals: vec![],
    };
    let w2 = format!("w2 {} 10 32", sizes.w2_runs);
    let runs = thousands(sizes.w2_runs);
    let mut cases = vec![
        case("w1", format!("W1 {} steps", thousands(sizes.w1)), format!("w1 {}", sizes.w1)),
        case("w1-short", format!("W1 {W1_SHORT} steps"), format!("w1 {W1_SHORT}")),
        case("w2", format!("W2 {runs} runs x 10"), w2.clone()),
        case("w3-short", format!("W3 fork of {W3_SHORT}"), format!("w3 {W3_SHORT}")),
        case("w3", format!("W3 fork of {}", thousands(sizes.w3)), format!("w3 {}", sizes.w3)),
        case("w4a", "W4a 100 KB, counter".into(), format!("w4a {} {STATE_BYTES}", sizes.w4)),
        case("w4b", "W4b 100 KB, replaced".into(), format!("w4b {} {STATE_BYTES}", sizes.w4)),
    ];
    if sqlite {
        let keys = thousands(sizes.fill_runs * FILL_STEPS);
        let filled = case("w2-filled", format!("W2 among {keys} keys"), w2);
        cases.insert(3, Case { place: Place::Filled, ..filled });
        cases.push(case("w5", "W5 kill at 100 of 200".into(), "w5 200".into()));
    }
    cases.into_iter().map(with_goals).collect()
}

/// What the design demands, and the limit that a case is shown beside.
fn with_goals(mut case: Case) -> Case {
    let (limit, goals) = match case.id.as_str() {
        "w1-memory-strict" | "w1-memory-pipelined" => (None, vec![Goal::StepsPerS(100_000.0)]),
        "w1-sqlite-strict" => (Some("step"), vec![Goal::Ratio(0.8)]),
        "w1-short-sqlite-strict" => (Some("step"), vec![]),
        "w1-sqlite-pipelined" | "w2-sqlite-pipelined" | "w2-filled-sqlite-pipelined" => {
            (Some("row"), vec![Goal::RatioOrCpu { ratio: 8.0, cpu_us: 60.0 }])
        }
        "w2-sqlite-strict" | "w2-filled-sqlite-strict" | "w1-short-sqlite-pipelined" => (Some("row"), vec![]),
        "w3-short-sqlite-pipelined" => (None, vec![Goal::WallMs(5.0)]),
        "w3-sqlite-strict" | "w3-sqlite-pipelined" => (None, vec![Goal::PeakMb(300.0)]),
        "w4a-sqlite-strict" => (None, vec![Goal::MsPerStep(0.8), Goal::DiskPerStep(5000.0)]),
        "w4a-sqlite-pipelined" => (None, vec![Goal::MsPerStep(0.4), Goal::DiskPerStep(5000.0)]),
        "w5-sqlite-strict" | "w5-sqlite-pipelined" => (None, vec![Goal::WallMs(100.0), Goal::NoneTwice]),
        _ => (None, vec![]),
    };
    (case.limit, case.goals) = (limit, goals);
    case
}

/// Connections that insert at the same time.
const CONNECTIONS: u64 = 32;
/// How long a killed process keeps its runs, in milliseconds, and how soon after that they must be finished.
pub(crate) const LEASE_MS: u64 = 2000;
const TAKEOVER_MS: f64 = 200.0;

/// The ids of a server's limits: one connection, many, the statements of a step.
fn limit_ids(place: Place) -> [&'static str; 3] {
    match place {
        Place::Mysql => ["mysql-insert", "mysql-inserts", "mysql-step"],
        _ => ["pg-insert", "pg-inserts", "pg-step"],
    }
}

fn server_limits(sizes: &Sizes, place: Place) -> Vec<Case> {
    let [insert, inserts, step] = limit_ids(place);
    let count = sizes.limit;
    let limit = |id, title, call| limit(place, id, title, call);
    vec![
        limit(insert, "1 row a commit", format!("limit-inserts {count} 1")),
        limit(
            inserts,
            &format!("1 row a commit, {CONNECTIONS} connections"),
            format!("limit-inserts {} {CONNECTIONS}", count * 2),
        ),
        limit(step, "statements of 1 step a commit", format!("limit-steps {count} 1")),
    ]
}

/// What the design demands on servers; it names rates for PostgreSQL alone.
fn on_server(sizes: &Sizes, place: Place, durability: &'static str) -> Vec<Case> {
    let [_, inserts, step] = limit_ids(place);
    let (strict, postgres) = (durability == "strict", place == Place::Postgres);
    let case = |id: &str, title: String, call: String, limit, goals: Vec<Goal>| Case {
        id: format!("{id}-{}-{durability}", place.name()),
        title,
        place,
        durability,
        threads: None,
        workers: 1,
        call,
        limit,
        goals,
    };
    let w1 = if strict { sizes.w1 / 4 } else { sizes.w1 };
    let w1_goals = match (strict, postgres) {
        (true, _) => vec![Goal::Ratio(0.8)],
        (false, true) => vec![Goal::StepsPerS(15_000.0)],
        (false, false) => vec![],
    };
    let (w2_goals, w4_goals) = match (strict, postgres) {
        (true, _) => (vec![], vec![]),
        (false, true) => (
            vec![Goal::Ratio(1.15), Goal::StepsPerS(12_000.0), Goal::CpuUs(150.0)],
            vec![Goal::MsPerStep(0.5), Goal::DiskPerStep(5000.0)],
        ),
        (false, false) => (vec![Goal::Ratio(1.15)], vec![]),
    };
    let (runs, in_flight) = (sizes.w2_runs, CONNECTIONS);
    let w2 = format!("w2 {runs} 10 {in_flight}");
    let w5 = vec![Goal::WallMs(LEASE_MS as f64 + TAKEOVER_MS), Goal::NoneTwice];
    let w4a = format!("w4a {} {STATE_BYTES}", sizes.w4);
    vec![
        case("w1", format!("W1 {} steps", thousands(w1)), format!("w1 {w1}"), Some(step), w1_goals),
        case("w2", format!("W2 {} runs x 10", thousands(runs)), w2, Some(inserts), w2_goals),
        case("w4a", "W4a 100 KB, counter".into(), w4a, None, w4_goals),
        case("w5", format!("W5 kill at 100 of 200, lease {} s", LEASE_MS / 1000), "w5 200".into(), None, w5),
    ]
}

/// W2, shared by so many processes.
fn fleet(sizes: &Sizes, place: Place, workers: usize) -> Case {
    let runs = sizes.w2_runs;
    let each = runs / workers as u64;
    let s = if workers == 1 { "" } else { "s" };
    Case {
        id: format!("fleet-{workers}-{}", place.name()),
        title: format!("W2 {} runs x 10, {workers} worker{s}", thousands(runs)),
        place,
        durability: "pipelined",
        threads: None,
        workers,
        call: format!("w2 {each} 10 {CONNECTIONS}"),
        limit: Some(limit_ids(place)[1]),
        goals: vec![],
    }
}

fn long(steps: u64) -> Case {
    Case {
        id: "long".into(),
        title: format!("W1 {} steps", thousands(steps)),
        place: Place::Sqlite,
        durability: "pipelined",
        threads: None,
        workers: 1,
        call: format!("w1 {steps}"),
        limit: Some("row"),
        goals: vec![Goal::PeakGrowth(1.2)],
    }
}

/// 1234567 as 1,234,567.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Command, parse};
    use std::collections::HashSet;

    #[test]
    fn every_case_is_a_call_that_the_driver_understands() {
        for case in all(&Sizes::new(false, true)) {
            let file = if case.is_crash() { " f" } else { "" };
            let line = format!("--store memory: {}{file}", case.call);
            let parsed = parse(line.split(' ').map(str::to_owned));
            assert!(matches!(parsed, Ok(Command::Drive(_))), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn ids_are_unique_and_limits_exist() {
        let cases = all(&Sizes::new(true, true));
        let ids: HashSet<&str> = cases.iter().map(|case| case.id.as_str()).collect();
        assert_eq!(ids.len(), cases.len());
        assert!(cases.iter().filter_map(|case| case.limit).all(|limit| ids.contains(limit)));
    }

    #[test]
    fn what_is_kept_has_with_it_what_it_is_held_against() {
        let mut cases = all(&Sizes::new(true, false));
        keep(&mut cases, "mysql");
        let ids: HashSet<&str> = cases.iter().map(|case| case.id.as_str()).collect();
        assert!(cases.iter().filter_map(|case| case.limit).all(|limit| ids.contains(limit)));
        assert!(ids.contains("requests-bare-1") && !ids.contains("w1-sqlite-strict"));
    }

    #[test]
    fn every_goal_of_the_design_is_held_against_some_case() {
        let cases = all(&Sizes::new(true, true));
        let with = |id: &str| cases.iter().find(|case| case.id == id).unwrap().goals.len();
        for id in ["w1-sqlite-strict", "w1-memory-pipelined", "w2-filled-sqlite-pipelined", "long"] {
            assert_eq!(with(id), 1, "{id}");
        }
        assert_eq!((with("w4a-sqlite-pipelined"), with("w5-sqlite-strict")), (2, 2));
        assert_eq!(
            (with("w1-postgres-strict"), with("w2-mysql-pipelined"), with("w5-postgres-strict")),
            (1, 1, 2)
        );
    }

    #[test]
    fn numbers_are_grouped() {
        let all = [0, 999, 1000, 1_234_567].map(thousands);
        assert_eq!(all, ["0", "999", "1,000", "1,234,567"]);
    }
}
