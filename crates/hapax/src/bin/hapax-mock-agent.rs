//! The mock agent as a program: its script is the first argument, as JSON or as the path of a file that holds it.

use hapax::agent::mock::{Script, run};
use std::{fs, process::ExitCode};

fn script() -> Result<Script, Box<dyn std::error::Error>> {
    let argument = std::env::args().nth(1).unwrap_or_else(|| "{}".into());
    let text = if argument.trim_start().starts_with('{') { argument } else { fs::read_to_string(argument)? };
    Ok(serde_json::from_str(&text)?)
}

fn main() -> ExitCode {
    let played = script().and_then(|script| Ok(run(script)?));
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
