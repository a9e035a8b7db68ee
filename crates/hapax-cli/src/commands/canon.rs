//! `hapax canon`: the canonical form of a JSON text, as every key and digest sees it.

use crate::{failure::Failure, output::Output};
use clap::Args;
use hapax_core::{
    canonical::{self, CanonicalError},
    error::Coded,
};
use serde::Serialize;
use std::{
    fs,
    io::{self, Read},
    path::PathBuf,
};

const AFTER_HELP: &str = "\
Keys are sorted, whitespace goes, numbers are written as in RFC 8785, but integers keep all their digits.

Examples:
  hapax canon order.json
  echo '{\"b\": 1e2, \"a\": \"\\u0041\"}' | hapax canon";

/// Print the canonical form of a JSON text
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Canon {
    /// The file; `-`: standard input
    #[arg(value_name = "FILE", default_value = "-", allow_hyphen_values = true)]
    file: PathBuf,
}

#[derive(Serialize)]
struct Answer<'a> {
    canonical: &'a str,
}

impl Canon {
    pub(super) fn run(self, out: &Output) -> Result<(), Failure> {
        let canonical = canonical::from_slice(&self.read()?)
            .map_err(|error| Failure::coded(error.code(), format!("the input {}", wrong(&error))))?;
        out.answer(&Answer { canonical: &canonical }, || format!("{canonical}\n"))
    }

    fn read(&self) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![];
        let read = match self.file.as_os_str() == "-" {
            true => io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes),
            false => fs::read(&self.file),
        };
        read.map_err(|error| Failure::io(&format!("cannot read {}", self.file.display()), &error))
    }
}

/// The canonical form of a JSON argument.
pub(super) fn argument(name: &str, text: &str) -> Result<String, Failure> {
    canonical::from_text(text).map_err(|error| Failure::usage(format!("{name} {}", wrong(&error))))
}

/// Not every JSON text has a canonical form; most that have none are no JSON.
fn wrong(error: &CanonicalError) -> String {
    match error {
        CanonicalError::Syntax { .. } => format!("is not JSON: {error}"),
        _ => format!("has no canonical form: {error}"),
    }
}
