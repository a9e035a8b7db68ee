//! The flags that every command shares. Help, man page and completions all come from these definitions.

use crate::commands::Command;
use clap::{Args, Parser, ValueEnum, builder::Styles};
use std::ffi::OsString;

const AFTER_HELP: &str = "\
Exit codes:
  0    done
  1    what was asked for failed, a run diverges, or something is unsafe
  2    the command line was not understood
  3    the store cannot be opened, read or written
  4    another engine is at work there: try again later
  130  interrupted

Every error has a code such as HX0028 and a page docs/errors/HX0028.md with cause and cure.

Examples:
  hapax --store sqlite:orders.db list --status failed
  HAPAX_STORE=sqlite:orders.db hapax show order-42
  hapax fork order-42@3 --set cents=10
  hapax graph --run order-42 --format svg > order-42.svg
  hapax doctor";

/// Durable execution: look at runs, draw them, cancel, retry, resume, replay and fork them, check the store.
#[derive(Debug, Parser)]
#[command(name = "hapax", version, after_help = AFTER_HELP, max_term_width = 100)]
#[command(styles = Styles::styled(), propagate_version = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// The store: `sqlite:path/to/file.db` or `memory:`. Default: $HAPAX_STORE
    #[arg(long, global = true, help_heading = "Global options", value_name = "URL")]
    pub(crate) store: Option<OsString>,
    /// The tenant whose runs are seen. Default: $HAPAX_NAMESPACE, or `default`
    #[arg(long, global = true, help_heading = "Global options", value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    /// Answer in JSON, for programs; its form is named by its field `v`
    #[arg(long, global = true, help_heading = "Global options")]
    pub(crate) json: bool,
    /// When to use colours; `auto`: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, help_heading = "Global options", value_name = "WHEN", value_enum, default_value_t = ColorWhen::Auto)]
    pub(crate) color: ColorWhen,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    Auto,
    Always,
    Never,
}
