//! The command line of Hapax, as a library.
//!
//! Only your own binary holds your nodes' code, so only it can execute them. [`run`] gives it every subcommand of
//! `hapax`; there `worker` works, `resume` and `retry` really go on, `replay` compares code and record, `graph` draws what is registered,
//! and `show` hides secret fields.
//!
//! ```no_run
//! use hapax::prelude::*;
//! # use serde::{Deserialize, Serialize};
//! # #[derive(State, Clone, Default, Serialize, Deserialize)]
//! # struct Order { sku: String }
//! # const RESERVE: Node = Node::new("reserve");
//! # async fn reserve(_: hapax::Ctx<Order>) {}
//!
//! #[tokio::main]
//! async fn main() -> hapax::Result<std::process::ExitCode> {
//!     // An operator's tool executes what it is told to, and doesn't look for more.
//!     let options = Options::default().finds_work(false);
//!     let store = std::env::var("HAPAX_STORE").unwrap_or_else(|_| "sqlite:orders.db".into());
//!     let engine = Engine::builder().options(options).open(&store).await?;
//!     engine.register(Graph::new("orders", 1, RESERVE).node(RESERVE, reserve), ()).await?;
//!     Ok(hapax_cli::run(engine).await)
//! }
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `commands` | one file per subcommand: its flags, its help, its work |
//! | `args`, `session` | what all of them share: global flags, the open engine |
//! | `keys`, `payloads` | what the environment says of how payloads are stored |
//! | `output`, `table`, `json`, `view` | how things are shown, to people and to programs |
//! | `history`, `words` | what a run did, step by step, on a terminal and as a page; entries of the journal in words |
//! | `sinks` | from an address to a sink of messages |
//! | `transactions` | what a journal tells of transactions in users' databases |
//! | `top` | a live view of a store, behind the feature `top` |
//! | `drawing` | a graph and the path of a run through it |
//! | `telemetry` | what others may see of a worker, with the feature `telemetry` |
//! | `demo` | orders that are paid through many kills |
//! | `failure`, `usage`, `signals` | errors with their cure, exit codes, requests to end |

mod args;
mod commands;
mod demo;
mod drawing;
mod failure;
mod history;
mod json;
mod keys;
mod output;
mod payloads;
mod session;
mod signals;
mod sinks;
mod table;
#[cfg(feature = "telemetry")]
mod telemetry;
#[cfg(feature = "top")]
mod top;
mod transactions;
mod usage;
mod view;
mod words;

use args::Cli;
use commands::Command;
use failure::Failure;
use hapax::Engine;
use output::Output;
use session::Session;
use signals::EndRequests;
use std::{ffi::OsString, process::ExitCode, time::Duration};

/// What a run in its last step may take when the command is over.
const FAREWELL: Duration = Duration::from_secs(5);

/// Gives a binary that holds its own graphs every subcommand, with the arguments of this process.
///
/// Register the graphs first. The engine is shut down when the command is done. Build it with
/// [`finds_work(false)`](hapax::Options::finds_work), unless looking at runs shall also take up those that nobody
/// holds; `replay`, which must not execute anything, is refused then. For `replay --against` let `HAPAX_STORE` name the
/// store.
///
/// ```
/// use hapax::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let options = Options::default().finds_work(false);
/// let engine = Engine::builder().options(options).open("memory:").await?;
/// // This process was called without a subcommand, so it is told what there is.
/// assert_eq!(hapax_cli::run(engine).await, std::process::ExitCode::from(2));
/// # Ok(())
/// # }
/// ```
pub async fn run(engine: Engine) -> ExitCode {
    run_from(engine, std::env::args_os()).await
}

/// As [`run`], with the arguments that are left of this process's own; the first is the program's name.
///
/// ```
/// # use hapax::prelude::*;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// let engine = Engine::open("memory:").await?;
/// let done = hapax_cli::run_from(engine, ["orders", "list"]).await;
/// assert_eq!(done, std::process::ExitCode::SUCCESS);
/// # Ok(())
/// # }
/// ```
pub async fn run_from(
    engine: Engine,
    args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> ExitCode {
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(code) => {
            engine.shutdown(FAREWELL).await;
            return code;
        }
    };
    let out = Output::new(&cli.global);
    let outcome = match cli.command {
        Command::Offline(command) => command.run(&out),
        Command::Demo(_) => Err(Failure::usage("the demo is part of the stock `hapax`: run it there")),
        // Where the requests are kept, the program's engine doesn't know.
        Command::Requests(command) => requests(&cli.global, command, &out).await,
        // Both its stores are named by its own flags.
        Command::Migrate(command) => migrate(&cli.global, command, &out).await,
        Command::Agent(command) => command.run_until(&out, hear).await,
        _ if cli.global.store.is_some() || cli.global.namespace.is_some() => {
            Err(Failure::usage("this program opens its own store: leave out --store and --namespace"))
        }
        Command::Online(mut command) => match command.begin(&out) {
            Ok(false) => {
                let session = Session { engine: &engine, out: &out, embedded: true, address: &vec![] };
                on(&session, command).await
            }
            done => done.map(drop),
        },
    };
    engine.shutdown(FAREWELL).await;
    out.exit(outcome)
}

/// The stock `hapax`: opens the store by `--store` or `HAPAX_STORE`.
///
/// ```
/// use std::process::ExitCode;
/// // This call is all that the binary's own `main` does. Here is no subcommand, so it says which there are.
/// assert_eq!(hapax_cli::main(), ExitCode::from(2));
/// ```
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(part) = demo::Part::from_args(&args) {
        return part.output().exit(part.run());
    }
    let cli = match parse(args) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let out = Output::new(&cli.global);
    let outcome = match cli.command {
        Command::Offline(command) => command.run(&out),
        Command::Demo(demo) => demo.run(&cli.global, &out),
        Command::Online(command) => stock(&cli.global, command, &out),
        Command::Requests(command) => {
            runtime().and_then(|runtime| runtime.block_on(requests(&cli.global, command, &out)))
        }
        Command::Migrate(command) => {
            runtime().and_then(|runtime| runtime.block_on(migrate(&cli.global, command, &out)))
        }
        Command::Agent(command) => {
            runtime().and_then(|runtime| runtime.block_on(command.run_until(&out, hear)))
        }
    };
    out.exit(outcome)
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::io("cannot start", &error))
}

fn stock(global: &args::Global, mut command: commands::Online, out: &Output) -> Result<(), Failure> {
    if command.begin(out)? {
        return Ok(());
    }
    runtime()?.block_on(async {
        let opened = session::open(global, command.only_reads(), !command.creates(), &command.keyed()).await;
        let (engine, address) = match opened {
            Err(failure) if command.is_doctor() => {
                commands::doctor::tell_unopened(&failure, out)?;
                return Err(failure);
            }
            opened => opened?,
        };
        let session = Session { engine: &engine, out, embedded: false, address: &address };
        let outcome = on(&session, command).await;
        engine.shutdown(FAREWELL).await;
        outcome.map_err(|failure| match address.first() {
            Some((_, url)) => failure.at(url),
            None => failure,
        })
    })
}

async fn on(session: &Session<'_>, command: commands::Online) -> Result<(), Failure> {
    command.run_until(session, &mut hear()?).await
}

async fn requests(
    global: &args::Global,
    command: commands::requests::Requests,
    out: &Output,
) -> Result<(), Failure> {
    command.run_until(global, out, &mut hear()?).await
}

async fn migrate(
    global: &args::Global,
    command: commands::migrate::Migrate,
    out: &Output,
) -> Result<(), Failure> {
    command.run_until(global, out, &mut hear()?).await
}

fn hear() -> Result<EndRequests, Failure> {
    let cannot = |error| Failure::io("cannot listen to signals", &error);
    signals::survive_file_limits().map_err(cannot)?;
    EndRequests::hear().map_err(cannot)
}

/// Reads the arguments; help, version and mistakes are answered here.
fn parse(args: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Cli, ExitCode> {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    usage::read(&args).map_err(|error| usage::refuse(&error, &args))
}
