//! `hapax fork`: a new run that goes on from any step of another.

use super::payload;
use crate::{
    failure::Failure,
    output::{clean, operands, quoted},
    session::Session,
};
use clap::Args;
use hapax::core::{error::code, json::Json};
use serde::Serialize;

const AFTER_HELP: &str = "\
The fork has the state, the frontier and the random numbers of that step. What the step's items have recorded is theirs in \
the fork too and isn't called again; what comes after is called under the fork's own keys. With --set the step is made anew. \
In the middle of a write it is refused: that might be done twice. The same fork twice is one run.

Examples:
  hapax fork order-42@3
  hapax fork order-42@0 --as what-if --set cents=10 --set 'sku=\"anvil\"'
  hapax fork order-42@2 --set items.0.count=2";

/// Make a new run that goes on from a step of another
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Fork {
    /// The run and its step, counted from 0
    #[arg(value_name = "RUN@STEP", value_parser = parse_place)]
    place: Place,
    /// The new run's name; without it, RUN@STEP
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,
    /// Set a field of the state, such as `cents=10`, `items.0.sku="anvil"` or `/items/0/sku="anvil"`
    #[arg(long, value_name = "PATH=JSON")]
    set: Vec<String>,
}

/// A step of a run.
#[derive(Debug, Clone)]
struct Place {
    run: String,
    step: u64,
}

/// A run's name may hold an `@` itself, as forks' names do: the last one counts.
fn parse_place(text: &str) -> Result<Place, String> {
    let wrong = || format!("`{text}` is not of the form RUN@STEP, such as order-42@3");
    let (run, step) = text.rsplit_once('@').filter(|(run, _)| !run.is_empty()).ok_or_else(wrong)?;
    Ok(Place { run: run.to_owned(), step: step.parse().map_err(|_| wrong())? })
}

/// A path and what is to be there.
fn parse_set(text: &str) -> Result<(&str, Json), Failure> {
    let split = text.split_once('=').filter(|(path, _)| !path.is_empty());
    let (path, value) =
        split.ok_or_else(|| Failure::usage(format!("`{text}` is not of the form PATH=JSON")))?;
    let cure = || {
        let text = format!("{path}={}", serde_json::Value::from(value));
        format!("quote a text: --set {}", quoted(&text))
    };
    Ok((path, payload(value).map_err(|failure| failure.cured_by(cure()))?))
}

#[derive(Serialize)]
struct Answer<'a> {
    run: &'a str,
    from: &'a str,
    step: u64,
}

impl Fork {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let Place { run, step } = &self.place;
        let mut fork = hapax::Fork::at(run, *step);
        for set in &self.set {
            let (path, value) = parse_set(set)?;
            fork = fork.set(path, &value)?;
        }
        if let Some(name) = &self.name {
            fork = fork.named(name);
        }
        let graph = session.record(run).await?.graph;
        let key = session.engine.fork(fork).await.map_err(|error| self.failure(error))?;
        let answer = Answer { run: key.run.as_str(), from: run, step: *step };
        session.out.answer(&answer, || {
            let (new, from, graph) = (clean(answer.run), clean(run), clean(&graph));
            let operand = operands(&[answer.run]);
            format!(
                "{new} goes on from step {step} of {from}\n\
                 an engine with graph {graph} takes it up within a second; else `resume {operand}` in the program that holds it\n"
            )
        })
    }

    fn failure(&self, error: hapax::Error) -> Failure {
        use hapax::Coded as _;
        let Place { run, step } = &self.place;
        let shape = error.code() == code::STATE_SHAPE && !self.set.is_empty();
        let failure = Failure::from(error);
        if !shape {
            return failure;
        }
        let show = format!("show --step {step} {}", operands(&[run]));
        failure.cured_by(format!("set what the field can hold: `{show}` tells what is there"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_at_parts_run_and_step() {
        let place = parse_place("order@home@2@13").unwrap();
        assert_eq!((place.run.as_str(), place.step), ("order@home@2", 13));
        for text in ["order", "order@", "order@-1", "order@two", "@", "@1"] {
            assert!(parse_place(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_may_hold_the_sign_that_parts_it_from_its_path() {
        let (path, value) = parse_set(r#"word="a=b""#).unwrap();
        assert_eq!((path, value.as_str()), ("word", r#""a=b""#));
        for text in ["word", "=1", "word=", "word=x"] {
            assert!(parse_set(text).is_err(), "{text}");
        }
    }
}
