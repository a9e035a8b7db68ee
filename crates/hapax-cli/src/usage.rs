//! The arguments are read, or told why not, in the form of every other error.

use crate::{
    args::{Cli, ColorWhen, Global},
    failure::Failure,
    output::{Output, quoted},
};
use clap::{
    ColorChoice, CommandFactory, FromArgMatches, ValueEnum,
    error::{ContextKind, ContextValue, ErrorKind},
};
use serde::Serialize;
use std::{
    ffi::OsString,
    io::{self, Write},
    process::ExitCode,
};

/// The answer to `--version --json`.
#[derive(Serialize)]
struct Version {
    version: &'static str,
}

/// Reads the arguments.
pub(crate) fn read(args: &[OsString]) -> Result<Cli, clap::Error> {
    let choice = match color(args) {
        ColorWhen::Auto => ColorChoice::Auto,
        ColorWhen::Always => ColorChoice::Always,
        ColorWhen::Never => ColorChoice::Never,
    };
    let mut command = Cli::command().color(choice);
    let matches = command.try_get_matches_from_mut(args).map_err(|error| match error.kind() {
        ErrorKind::InvalidSubcommand => help(&mut command, args).unwrap_or(error),
        _ => error,
    })?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The help that `help COMMAND --json` asks for: clap's own command takes names and no flags.
fn help(command: &mut clap::Command, args: &[OsString]) -> Option<clap::Error> {
    let names = args.iter().filter(|arg| *arg != "--json");
    let error = command.try_get_matches_from_mut(names).err()?;
    (error.kind() == ErrorKind::DisplayHelp).then_some(error)
}

/// The colours that are asked for, which must be known before the arguments can be read.
fn color(args: &[OsString]) -> ColorWhen {
    let apart = args.windows(2).filter(|pair| pair[0] == "--color").filter_map(|pair| pair[1].to_str());
    let joined = args.iter().filter_map(|arg| arg.to_str()?.strip_prefix("--color="));
    let mut asked = apart.chain(joined).filter_map(|word| ColorWhen::from_str(word, false).ok());
    asked.next().unwrap_or(ColorWhen::Auto)
}

/// Tells why the arguments were not taken, or gives the help that they asked for.
pub(crate) fn refuse(error: &clap::Error, args: &[OsString]) -> ExitCode {
    let json = args.iter().any(|arg| arg == "--json");
    // What else the arguments wanted is unknown: they could not be read.
    let global = Global { store: None, namespace: None, json, color: color(args) };
    let out = Output::new(&global);
    if error.kind() == ErrorKind::DisplayVersion && json {
        return out.exit(out.answer(&Version { version: env!("CARGO_PKG_VERSION") }, String::new));
    }
    let asks_for_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && !json;
    if !error.use_stderr() || asks_for_help {
        return print(error, &out);
    }
    out.exit(Err(failure(error, args)))
}

fn print(error: &clap::Error, out: &Output) -> ExitCode {
    match error.print().and_then(|()| io::stdout().flush()) {
        Err(why) if !error.use_stderr() => out.exit(Err(Failure::from_write(&why))),
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX)),
    }
}

/// The message, and as its cure what clap offers: something similar, or else how it is used.
fn failure(error: &clap::Error, args: &[OsString]) -> Failure {
    let dashed = Dashed::of(error, args);
    let text = error.render().to_string();
    let text = dashed.as_ref().map_or(text.clone(), |dashed| dashed.made_whole(&text));
    let text = without_logins(&text);
    let mut paragraphs = text.split("\n\n");
    let message = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "which command? none is named".into(),
        _ => one_line(paragraphs.next().unwrap_or_default()).trim_start_matches("error: ").to_owned(),
    };
    let failure = Failure::usage(message);
    match dashed.and_then(|dashed| dashed.cure()).or_else(|| paragraphs.find_map(helps)) {
        Some(cure) => failure.cured_by(cure),
        None => failure,
    }
}

/// An argument in the wrong place is repeated, and it may be an address: who is named before its `@` isn't.
fn without_logins(text: &str) -> String {
    let mut parts = text.split("://");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let address = part.find(char::is_whitespace).unwrap_or(part.len());
        let place = part[..address].rfind('@').map_or(0, |at| at + 1);
        let login = if place > 0 { "…@" } else { "" };
        format!("{text}://{login}{}", &part[place..])
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The cure in a paragraph of clap's, if it holds one.
fn helps(part: &str) -> Option<String> {
    if let Some(usage) = part.trim().strip_prefix("Usage: ") {
        return Some(format!("use it as `{}`", one_line(usage)));
    }
    one_line(part).strip_prefix("tip: ").map(|tip| tip.replace(" tip: ", "; "))
}

/// A value with a `-` in front, which clap took for flags, letter by letter.
struct Dashed<'a> {
    /// The flag that clap doesn't know.
    part: &'a str,
    /// The argument that it begins.
    whole: &'a str,
    /// The argument before.
    before: &'a str,
}

impl<'a> Dashed<'a> {
    fn of(error: &'a clap::Error, args: &'a [OsString]) -> Option<Self> {
        let Some(ContextValue::String(part)) = error.get(ContextKind::InvalidArg) else { return None };
        let pairs = args.windows(2).filter_map(|pair| Some((pair[0].to_str()?, pair[1].to_str()?)));
        let mut unknown = pairs.filter(|(_, arg)| arg.starts_with(part) && part.starts_with('-'));
        let (before, whole) = unknown.next().filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
        Some(Self { part, whole, before })
    }

    /// Clap's words, about all of it.
    fn made_whole(&self, text: &str) -> String {
        let Self { part, whole, .. } = self;
        text.replace(&format!("'{part}'"), &format!("'{whole}'"))
            .replace(&format!("'-- {part}'"), &format!("'-- {whole}'"))
    }

    /// Behind a flag that takes a value, it was meant as one.
    fn cure(&self) -> Option<String> {
        let flag = self.before.strip_prefix("--").filter(|flag| takes_value(&Cli::command(), flag))?;
        let value = quoted(self.whole);
        Some(format!("join a value that begins with `-` to its flag: `--{flag}={value}`"))
    }
}

/// Whether a flag of any command has a value.
fn takes_value(command: &clap::Command, flag: &str) -> bool {
    let mut own = command.get_arguments().filter(|arg| arg.get_long() == Some(flag));
    own.any(|arg| arg.get_action().takes_values())
        || command.get_subcommands().any(|command| takes_value(command, flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(args: &[&str]) -> String {
        let args: Vec<OsString> = ["hapax"].iter().chain(args).map(Into::into).collect();
        let error = read(&args).unwrap_err();
        failure(&error, &args).report().unwrap().human(None, |_, text| text.to_owned())
    }

    #[test]
    fn an_address_in_the_wrong_place_is_repeated_without_its_password() {
        for (text, shown) in [
            ("argument 'redis://:p4ss@w0rd@127.0.0.1/0' found", "argument 'redis://…@127.0.0.1/0' found"),
            ("a://b c@d nats://me:x@y and ://", "a://b c@d nats://…@y and ://"),
            ("no address, me@home", "no address, me@home"),
        ] {
            assert_eq!(without_logins(text), shown);
        }
    }

    #[test]
    fn what_is_missing_is_named_with_the_usage() {
        let told = told(&["show"]);
        let expected = "error[HX0060]: the following required arguments were not provided: <RUN>\n  \
                        cure: use it as `hapax show <RUN>`\n";
        assert!(told.starts_with(expected), "{told}");
    }

    #[test]
    fn something_similar_is_offered() {
        assert!(
            told(&["lst"]).contains("\n  cure: a similar subcommand exists: 'list'\n"),
            "{}",
            told(&["lst"])
        );
    }

    #[test]
    fn possible_values_are_part_of_the_message() {
        let told = told(&["list", "--color", "blue"]);
        assert!(told.contains("[possible values: auto, always, never]\n"), "{told}");
        assert!(told.contains("\n  cure: `--help` shows how it is used\n"), "{told}");
    }

    #[test]
    fn a_value_that_begins_with_a_dash_is_joined_to_its_flag() {
        let value = told(&["fork", "order-42@1", "--as", "-da sh"]);
        assert!(value.starts_with("error[HX0060]: unexpected argument '-da sh' found\n"), "{value}");
        assert!(value.contains(" to its flag: `--as='-da sh'`\n"), "{value}");
        let joined = ["hapax", "fork", "order-42@1", "--as=-da sh"].map(OsString::from);
        assert!(read(&joined).is_ok());
        let operand = told(&["show", "-dash"]);
        assert!(operand.contains("\n  cure: to pass '-dash' as a value, use '-- -dash'\n"), "{operand}");
        let switch = told(&["list", "--json", "-x"]);
        assert!(switch.contains("\n  cure: use it as `hapax list [OPTIONS]`\n"), "{switch}");
    }

    #[test]
    fn the_colours_are_known_before_the_rest() {
        let asked = |args: &[&str]| color(&args.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(asked(&["hapax", "--color", "never", "list"]), ColorWhen::Never);
        assert_eq!(asked(&["hapax", "list", "--color=always"]), ColorWhen::Always);
        assert_eq!(asked(&["hapax", "--color", "blue"]), ColorWhen::Auto);
    }
}
