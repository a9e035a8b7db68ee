//! A command line that clap refuses, told in the form of every other error.

use crate::{
    args::{ColorWhen, Global},
    failure::Failure,
    output::Output,
};
use clap::error::ErrorKind;
use std::{ffi::OsString, process::ExitCode};

/// Tells why the arguments were not taken, or gives the help that they asked for.
pub(crate) fn refuse(error: &clap::Error, args: &[OsString]) -> ExitCode {
    let json = args.iter().any(|arg| arg == "--json");
    let asks_for_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand && !json;
    if !error.use_stderr() || asks_for_help {
        // A reader that went away wants no more.
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX));
    }
    // What else the arguments wanted is unknown: they could not be read.
    let global = Global { store: None, namespace: None, json, color: ColorWhen::Auto };
    Output::new(&global).exit(Err(failure(error)))
}

/// The message, and as its cure what clap offers: something similar, or else how it is used.
fn failure(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    let message = match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "which command? none is named".into(),
        _ => paragraphs.next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    };
    let helps = |part: String| {
        let tip = part.strip_prefix("tip: ").map(|tip| tip.replace(" tip: ", "; "));
        tip.or_else(|| part.strip_prefix("Usage: ").map(|usage| format!("use it as `{usage}`")))
    };
    let failure = Failure::usage(message);
    match paragraphs.find_map(helps) {
        Some(cure) => failure.cured_by(cure),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    fn told(args: &[&str]) -> String {
        let error = Cli::try_parse_from(["hapax"].iter().chain(args)).unwrap_err();
        failure(&error).report().unwrap().human(None, |_, text| text.to_owned())
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
}
