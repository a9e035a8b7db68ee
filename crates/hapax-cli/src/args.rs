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
    /// The store: `sqlite:path/to/file.db`, `memory:` or, where they are built in, `postgres://user@host/database` and
    /// `mysql://user@host/database`; several as one: `sharded:URL,URL`. Default: $HAPAX_STORE
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// As wide as a manual page is on a screen of eighty columns: what is longer is broken, and can't be pasted.
    const WIDTH: usize = 71;

    /// The commands of a line, as a shell parts them: by words, and by what comes between them.
    fn commands(line: &str) -> Vec<Vec<String>> {
        let (mut words, mut quoted) = (vec![String::new()], false);
        for c in line.chars() {
            match c {
                '\'' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                _ => words.last_mut().unwrap().push(c),
            }
        }
        assert!(!quoted, "a quote is open: {line}");
        let commands = words.split(|word| word == "|" || word == "&&");
        let told = |command: &[String]| {
            let words = command.iter().take_while(|word| *word != ">");
            words.skip_while(|word| word.starts_with("HAPAX_")).cloned().collect()
        };
        commands.map(told).collect()
    }

    /// The examples of a command and of those below it, each in one line.
    fn examples(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        let lines: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
        for line in &lines {
            assert!(line.len() <= WIDTH, "too wide: {line}");
        }
        let joined = lines.join("\n").replace("\\\n      ", "");
        let own = joined.lines().map(|line| line.trim_start().to_owned());
        own.chain(command.get_subcommands().flat_map(examples)).collect()
    }

    #[test]
    fn every_example_can_be_pasted_and_is_understood() {
        let mut cli = Cli::command();
        cli.build();
        let examples: Vec<String> =
            examples(&cli).into_iter().filter(|line| !line.starts_with('#')).collect();
        assert!(examples.len() > 50, "{examples:#?}");
        for line in examples {
            let ours = |command: &&Vec<String>| command[0] == "hapax" || command[0] == "orders";
            let commands = commands(&line);
            assert!(commands.iter().filter(ours).count() > 0, "{line}");
            for command in commands.iter().filter(ours) {
                assert!(Cli::try_parse_from(command).is_ok(), "{line}");
            }
        }
    }
}
