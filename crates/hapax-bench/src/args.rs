//! The command line: arguments in, one `Command` or one clear message out.

mod agents;

pub use agents::AgentCall;

use hapax::{Durability, store::db::Strategy};
use std::path::PathBuf;

/// How to call this program.
pub const USAGE: &str = "\
Usage: hapax-bench --store URL [--durability strict|pipelined] [--threads N] [--lease MS] [--begin-at NS] [--telemetry] [--blobs-over BYTES] [--encrypted] <workload>
       hapax-bench suite [--quick] [--long] [--only STORE] [--json FILE] [--svg FILE] [--write ROOT] [--folder FOLDER]

Workloads, each in this process; prints BEGIN, then RESULT {json}:
  w1 STEPS                     one run of trivial steps
  w2 RUNS STEPS IN_FLIGHT      many runs, so many of them at a time
  w3 ITEMS                     one run that forks and merges
  w4a STEPS BYTES              a large state of which a counter changes
  w4b STEPS BYTES              a large state that is replaced
  w5 STEPS FILE [DIE_AT]       a run that writes each step it executes to FILE; kills itself in that step
  w5resume STEPS FILE          goes on with it
  reads STEPS EACH             one run, each step of which makes so many recorded reads
  writes RUNS EACH             runs at the same time, each with so many recorded writes
  timers RUNS SECONDS          parked runs that are due one after the other
  starts TERMS COUNT IN_FLIGHT starts alone: plain, key, rate, priority or singleton
  replay STEPS                 a run made again from its record
  migrate FROM                 moves all runs of the store FROM to this one
  transfers COUNT IN_FLIGHT HOW [STEP]  transactions between accounts, so many at a time: bare, co-commit, marker,
                               introspection; so many in each step, or one
  requests COUNT CONNECTIONS HOW [redis]  requests to a service, over so many connections: bare, first, replay; with a cache
  serve HOW [REDIS_URL]        the service: bare or layer; until its input ends
  agent-pipe COUNT             commands to an agent over a bare pipe
  agent-cached COUNT           the same command again and again, answered from the agent's memory
  agent-commands COUNT AGENTS  commands through the engine, to so many agents at a time
  agent-serve HOW              the agent: bare, or with the kit; until its input ends
  snapshot FILES HOW           snapshots of a workspace: cold or warm
  turns STEPS PAIRS            runs of trivial steps, by turns with and without metrics
  otlp-sink                    a collector that takes spans and does nothing; until its input ends
  fill RUNS STEPS              fills a database
  limit-fsync COUNT            fdatasync alone
  limit-rows COMMITS ROWS      SQLite alone, rows of nothing in particular
  limit-steps COMMITS STEPS    the database alone, the very statements of a step; on a server, after `fill 1 40`
  limit-inserts COMMITS CONNS  a server alone, one row a commit, over so many connections

--threads 1 is one thread for everything but the store's; by default there is one for each core.
--lease MS is how long a killed process keeps its runs, where no lock of the system tells.
--telemetry sends traces of w1 and w2 to a collector in another process.
--blobs-over BYTES stores larger payloads beside their rows; --encrypted encrypts all of them. Not for memory.
--begin-at NS is when the timed part begins, since 1970, so that several processes begin together.

The suite runs all of them, several times, and prints a table:
  --quick          small sizes, once
  --long           also 1,000,000 steps in one run: does memory stay bounded?
  --only STORE     memory, sqlite, postgres or mysql alone; `transfer`: the transactions in users' databases,
                   `requests`: requests that take effect once; `agents`: commands to agents, and snapshots;
                   `telemetry`: what traces cost; `payloads`: large ones beside their rows, and encryption;
                   `starts`: what flow control costs; `migrate`: runs that move to another store
  --json FILE      everything that was measured
  --svg FILE       a plot
  --write ROOT     the plot to ROOT/docs/bench.svg, the tables into ROOT/README.md and the guides to transactions,
                   requests, agents, observability, large payloads, flow control and moving house
  --folder FOLDER  where the databases are; it decides which disk is measured";

/// What the caller asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// How to call this program.
    Help,
    /// One workload.
    Drive(Drive),
    /// All of them.
    Suite(SuiteOptions),
}

/// One workload and where it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Drive {
    /// Where the runs live.
    pub store: String,
    /// How far a run may go before its steps are on disk.
    pub durability: Durability,
    /// Threads of the runtime; none: one for each core.
    pub threads: Option<usize>,
    /// How long a killed process keeps its runs, in milliseconds.
    pub lease_ms: Option<u64>,
    /// When the timed part begins, in nanoseconds since 1970.
    pub begin_at_ns: Option<u64>,
    /// Whether it is traced.
    pub telemetry: bool,
    /// How payloads are stored.
    pub payloads: Payloads,
    /// What is done.
    pub workload: Workload,
}

/// How payloads are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Payloads {
    /// Those of more bytes lie beside their rows.
    pub blobs_over: Option<usize>,
    /// All of them are encrypted.
    pub encrypted: bool,
}

/// On which terms runs are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// On none.
    Plain,
    /// With a concurrency key, which ten of them share.
    Key,
    /// At a rate that none has to wait for.
    Rate,
    /// With a priority.
    Priority,
    /// Under a singleton's name of its own.
    Singleton,
}

/// What is done.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// One run of trivial steps.
    W1 {
        /// How many.
        steps: u64,
    },
    /// Many runs at a time.
    W2 {
        /// How many.
        runs: u64,
        /// Of how many steps each.
        steps: u64,
        /// How many at a time.
        in_flight: usize,
    },
    /// Starts that nobody executes.
    Starts {
        /// On which terms.
        start: Start,
        /// How many.
        count: u64,
        /// How many at a time.
        in_flight: usize,
    },
    /// One run that forks and merges.
    W3 {
        /// Into how many.
        items: u64,
    },
    /// A large state.
    W4 {
        /// Steps of one run.
        steps: u64,
        /// The state's size.
        bytes: usize,
        /// Whether all of it changes in each step, or only a counter.
        replaced: bool,
    },
    /// A run to be killed.
    W5 {
        /// Steps of one run.
        steps: u64,
        /// Where each body leaves a line.
        file: PathBuf,
        /// The body that kills this process.
        die_at: Option<u64>,
    },
    /// A run that was killed.
    W5Resume {
        /// Steps of one run.
        steps: u64,
        /// Where each body leaves a line.
        file: PathBuf,
    },
    /// One run that reads.
    Reads {
        /// Its steps.
        steps: u64,
        /// Reads in each.
        each: u64,
    },
    /// Runs that write at the same time.
    Writes {
        /// How many.
        runs: u64,
        /// Writes of each.
        each: u64,
    },
    /// Parked runs.
    Timers {
        /// How many.
        runs: u64,
        /// The time over which they are due.
        seconds: u64,
    },
    /// A run made again.
    Replay {
        /// Its steps.
        steps: u64,
    },
    /// Runs that move here.
    Migrate {
        /// The store that they are in.
        from: String,
    },
    /// Transactions in a database of the user's.
    Transfers {
        /// How many.
        count: u64,
        /// How many at a time.
        in_flight: u64,
        /// How the outcome of each is known; none: nobody asks, and there is no engine.
        strategy: Option<Strategy>,
        /// How many in each step.
        step: u64,
    },
    /// Requests to a service in a process of its own.
    Requests {
        /// How many.
        count: u64,
        /// Over how many.
        connections: u64,
        /// For what.
        asks: Asks,
        /// Whether there is a cache of answers.
        cached: bool,
    },
    /// That service.
    Serve {
        /// Whether requests take effect once.
        layered: bool,
        /// The Redis that caches answers.
        redis: Option<String>,
    },
    /// Commands to agents.
    Agents(AgentCall),
    /// Runs of trivial steps, by turns with and without metrics.
    Turns {
        /// Of each run.
        steps: u64,
        /// How many times two.
        pairs: u64,
    },
    /// A collector of spans.
    OtlpSink,
    /// Older runs for others to be measured among.
    Fill {
        /// How many.
        runs: u64,
        /// Of how many steps each.
        steps: u64,
    },
    /// The disk alone.
    LimitFsync {
        /// How often.
        count: u64,
    },
    /// SQLite alone.
    LimitRows {
        /// How many.
        commits: u64,
        /// In each.
        rows: u64,
    },
    /// A server alone.
    LimitInserts {
        /// How many.
        commits: u64,
        /// Over how many.
        connections: u64,
    },
    /// A database alone, with the statements of a step.
    LimitSteps {
        /// How many.
        commits: u64,
        /// In each.
        steps: u64,
    },
}

/// What clients of a service ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// For something new, of a service without the layer.
    Bare,
    /// For something new.
    First,
    /// For what was answered before.
    Replay,
}

/// What the whole suite does.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SuiteOptions {
    /// Small sizes, once.
    pub quick: bool,
    /// Also a run of 1,000,000 steps.
    pub long: bool,
    /// The only store that is measured, or how the names of the only cases begin.
    pub only: Option<String>,
    /// Where to put everything that was measured.
    pub json: Option<PathBuf>,
    /// Where to put the plot.
    pub svg: Option<PathBuf>,
    /// The tree whose README and plot are rewritten.
    pub write: Option<PathBuf>,
    /// Where the databases are.
    pub folder: Option<PathBuf>,
}

/// Reads the command line.
pub fn parse(args: impl Iterator<Item = String>) -> Result<Command, String> {
    let args: Vec<String> = args.collect();
    if args.is_empty() || args.iter().any(|arg| matches!(arg.as_str(), "-h" | "--help" | "help")) {
        return Ok(Command::Help);
    }
    match args.split_first() {
        Some((first, rest)) if first == "suite" => parse_suite(rest).map(Command::Suite),
        _ => parse_drive(&args).map(Command::Drive),
    }
}

fn parse_suite(args: &[String]) -> Result<SuiteOptions, String> {
    let mut options = SuiteOptions::default();
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        let mut value = || args.next().map(PathBuf::from).ok_or(format!("`{flag}` needs a path"));
        match flag.as_str() {
            "--only" => options.only = Some(value()?.display().to_string()),
            "--quick" => options.quick = true,
            "--long" => options.long = true,
            "--json" => options.json = Some(value()?),
            "--svg" => options.svg = Some(value()?),
            "--write" => options.write = Some(value()?),
            "--folder" => options.folder = Some(value()?),
            other => return Err(format!("`suite` has no option `{other}`")),
        }
    }
    Ok(options)
}

fn parse_drive(args: &[String]) -> Result<Drive, String> {
    let (mut store, mut durability, mut threads, mut words) = (None, Durability::default(), None, vec![]);
    let (mut lease_ms, mut begin_at_ns, mut telemetry, mut payloads) =
        (None, None, false, Payloads::default());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("`{arg}` needs a value"));
        match arg.as_str() {
            "--store" => store = Some(value()?.clone()),
            "--threads" => threads = Some(number(value()?)?.max(1) as usize),
            "--durability" => durability = parse_durability(value()?)?,
            "--telemetry" => telemetry = true,
            "--encrypted" => payloads.encrypted = true,
            "--blobs-over" => payloads.blobs_over = Some(number(value()?)? as usize),
            "--lease" => lease_ms = Some(number(value()?)?),
            "--begin-at" => begin_at_ns = Some(number(value()?)?),
            flag if flag.starts_with("--") => return Err(format!("there is no option `{flag}`")),
            word => words.push(word),
        }
    }
    let store = store.ok_or("`--store URL` is missing")?;
    let workload = parse_workload(&words)?;
    Ok(Drive { store, durability, threads, lease_ms, begin_at_ns, telemetry, payloads, workload })
}

fn parse_durability(word: &str) -> Result<Durability, String> {
    match word {
        "strict" => Ok(Durability::Strict),
        "pipelined" => Ok(Durability::Pipelined),
        other => Err(format!("durability is `strict` or `pipelined`, not `{other}`")),
    }
}

fn parse_workload(words: &[&str]) -> Result<Workload, String> {
    if let Some(call) = AgentCall::parse(words)? {
        return Ok(Workload::Agents(call));
    }
    Ok(match words {
        ["w1", steps] => Workload::W1 { steps: number(steps)? },
        ["w2", runs, steps, in_flight] => Workload::W2 {
            runs: number(runs)?,
            steps: number(steps)?,
            in_flight: number(in_flight)?.max(1) as usize,
        },
        ["w3", items] => Workload::W3 { items: number(items)? },
        [name @ ("w4a" | "w4b"), steps, bytes] => {
            Workload::W4 { steps: number(steps)?, bytes: number(bytes)? as usize, replaced: *name == "w4b" }
        }
        ["w5", steps, file] => Workload::W5 { steps: number(steps)?, file: file.into(), die_at: None },
        ["w5", steps, file, die_at] => {
            Workload::W5 { steps: number(steps)?, file: file.into(), die_at: Some(number(die_at)?) }
        }
        ["w5resume", steps, file] => Workload::W5Resume { steps: number(steps)?, file: file.into() },
        ["reads", steps, each] => Workload::Reads { steps: number(steps)?, each: number(each)? },
        ["writes", runs, each] => Workload::Writes { runs: number(runs)?, each: number(each)? },
        ["timers", runs, seconds] => Workload::Timers { runs: number(runs)?, seconds: number(seconds)? },
        ["starts", start, count, in_flight] => Workload::Starts {
            start: parse_start(start)?,
            count: number(count)?,
            in_flight: number(in_flight)?.max(1) as usize,
        },
        ["replay", steps] => Workload::Replay { steps: number(steps)? },
        ["migrate", from] => Workload::Migrate { from: (*from).to_owned() },
        ["transfers", count, in_flight, how, step @ ..] if step.len() < 2 => Workload::Transfers {
            count: number(count)?,
            in_flight: number(in_flight)?,
            strategy: parse_strategy(how)?,
            step: step.first().map_or(Ok(1), |step| number(step))?.max(1),
        },
        ["requests", count, connections, asks, cache @ ..] if matches!(cache, [] | ["redis"]) => {
            Workload::Requests {
                count: number(count)?,
                connections: number(connections)?,
                asks: parse_asks(asks)?,
                cached: !cache.is_empty(),
            }
        }
        ["serve", how @ ("bare" | "layer"), redis @ ..] if redis.len() < 2 => {
            let redis = redis.first().map(|url| (*url).to_owned());
            Workload::Serve { layered: *how == "layer", redis }
        }
        ["turns", steps, pairs] => Workload::Turns { steps: number(steps)?, pairs: number(pairs)? },
        ["otlp-sink"] => Workload::OtlpSink,
        ["fill", runs, steps] => Workload::Fill { runs: number(runs)?, steps: number(steps)? },
        ["limit-fsync", count] => Workload::LimitFsync { count: number(count)? },
        ["limit-rows", commits, rows] => {
            Workload::LimitRows { commits: number(commits)?, rows: number(rows)? }
        }
        ["limit-inserts", commits, connections] => {
            Workload::LimitInserts { commits: number(commits)?, connections: number(connections)? }
        }
        ["limit-steps", commits, steps] => {
            Workload::LimitSteps { commits: number(commits)?, steps: number(steps)? }
        }
        other => return Err(format!("there is no workload `{}`", other.join(" "))),
    })
}

fn parse_strategy(word: &str) -> Result<Option<Strategy>, String> {
    match word {
        "bare" => Ok(None),
        "marker" => Ok(Some(Strategy::Marker)),
        "introspection" => Ok(Some(Strategy::Introspection)),
        "co-commit" => Ok(Some(Strategy::CoCommit)),
        other => Err(format!(
            "transfers are `bare`, or by `co-commit`, `marker` or `introspection`, not `{other}`"
        )),
    }
}

fn parse_start(word: &str) -> Result<Start, String> {
    match word {
        "plain" => Ok(Start::Plain),
        "key" => Ok(Start::Key),
        "rate" => Ok(Start::Rate),
        "priority" => Ok(Start::Priority),
        "singleton" => Ok(Start::Singleton),
        other => Err(format!(
            "starts are `plain`, or with a `key`, a `rate`, a `priority` or a `singleton`, not `{other}`"
        )),
    }
}

fn parse_asks(word: &str) -> Result<Asks, String> {
    match word {
        "bare" => Ok(Asks::Bare),
        "first" => Ok(Asks::First),
        "replay" => Ok(Asks::Replay),
        other => Err(format!("requests are `bare`, `first` or `replay`, not `{other}`")),
    }
}

fn number(word: &str) -> Result<u64, String> {
    match word.replace(['_', ','], "").parse() {
        Ok(0) | Err(_) => Err(format!("`{word}` is not a positive number")),
        Ok(number) => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    fn drive(line: &str) -> Drive {
        match parsed(line) {
            Ok(Command::Drive(drive)) => drive,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn workloads_are_called_as_the_protocol_says() {
        let store = "sqlite:/tmp/a.db".to_owned();
        let w2 = Drive {
            store,
            durability: Durability::Pipelined,
            threads: None,
            lease_ms: None,
            begin_at_ns: None,
            telemetry: false,
            payloads: Payloads::default(),
            workload: Workload::W2 { runs: 200, steps: 10, in_flight: 32 },
        };
        assert_eq!(drive("--store sqlite:/tmp/a.db w2 200 10 32"), w2);
        let fleet = drive("--store x: --lease 2000 --begin-at 7 w1 1");
        assert_eq!((fleet.lease_ms, fleet.begin_at_ns), (Some(2000), Some(7)));
        let sealed = drive("--store x: --encrypted --blobs-over 4096 w1 1").payloads;
        assert_eq!(sealed, Payloads { blobs_over: Some(4096), encrypted: true });
        let strict = drive("--store sqlite:/tmp/a.db --durability strict --threads 1 w1 20_000");
        assert_eq!((strict.durability, strict.threads), (Durability::Strict, Some(1)));
        assert_eq!(strict.workload, Workload::W1 { steps: 20_000 });
        let w4 = drive("--store memory: w4b 100 102400").workload;
        assert_eq!(w4, Workload::W4 { steps: 100, bytes: 102_400, replaced: true });
        let w5 = drive("--store x: w5 200 f.txt 100").workload;
        let bare = drive("--store x: transfers 64 32 bare").workload;
        assert_eq!(bare, Workload::Transfers { count: 64, in_flight: 32, strategy: None, step: 1 });
        let replay = drive("--store x: requests 9600 64 replay redis").workload;
        let asked = Workload::Requests { count: 9600, connections: 64, asks: Asks::Replay, cached: true };
        assert_eq!(replay, asked);
        let serve = drive("--store x: serve layer redis://h").workload;
        assert_eq!(serve, Workload::Serve { layered: true, redis: Some("redis://h".into()) });
        let starts = drive("--store x: starts key 100 8").workload;
        assert_eq!(starts, Workload::Starts { start: Start::Key, count: 100, in_flight: 8 });
        assert_eq!(w5, Workload::W5 { steps: 200, file: "f.txt".into(), die_at: Some(100) });
    }

    #[test]
    fn the_suite_takes_its_options_in_any_order() {
        let options = SuiteOptions { quick: true, json: Some("a.json".into()), ..SuiteOptions::default() };
        assert_eq!(parsed("suite --json a.json --quick"), Ok(Command::Suite(options)));
    }

    #[test]
    fn a_mistake_is_named() {
        let message = |line| parsed(line).unwrap_err();
        assert_eq!(message("w1 200"), "`--store URL` is missing");
        assert_eq!(message("--store memory: w1"), "there is no workload `w1`");
        assert_eq!(message("--store memory: w1 0"), "`0` is not a positive number");
        assert_eq!(message("--store memory: --fast w1 1"), "there is no option `--fast`");
        assert!(message("--store memory: --durability none w1 1").contains("not `none`"));
        assert!(message("--store memory: transfers 1 1 luck").ends_with("not `luck`"));
        assert!(message("--store memory: requests 1 1 luck").ends_with("not `luck`"));
        assert_eq!(message("suite --slow"), "`suite` has no option `--slow`");
    }
}
