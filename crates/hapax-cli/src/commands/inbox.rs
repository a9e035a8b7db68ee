//! `hapax inbox` and `hapax answer`: what runs ask people, and what people say.

use super::payload;
use crate::{
    failure::Failure,
    output::{clean, operands},
    session::Session,
};
use clap::Args;
use hapax::OpenQuestion;
use serde::Serialize;

const INBOX_HELP: &str = "\
Examples:
  hapax inbox
  hapax inbox --json | jq '.questions[] | .text'";

const ANSWER_HELP: &str = "\
The answer must fit the question's schema, which `hapax inbox` shows; else it is refused and the run still waits.

Examples:
  hapax answer refund-7 refund true
  hapax answer refund-7 reason '\"customer left\"'";

/// List the questions that wait for a person
#[derive(Debug, Args)]
#[command(after_help = INBOX_HELP)]
pub(crate) struct Inbox {}

#[derive(Serialize)]
struct Asked<'a> {
    run: &'a str,
    name: &'a str,
    text: &'a str,
    schema: Option<&'a serde_json::Value>,
    asked_at_us: i64,
}

impl<'a> Asked<'a> {
    fn of(question: &'a OpenQuestion) -> Self {
        Self {
            run: question.run.run.as_str(),
            name: &question.name,
            text: &question.text,
            schema: question.schema.as_ref(),
            asked_at_us: question.asked_at_us,
        }
    }
}

#[derive(Serialize)]
struct Questions<'a> {
    questions: Vec<Asked<'a>>,
}

impl Inbox {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let open = session.engine.inbox().await?;
        let questions = open.iter().map(Asked::of).collect();
        session.out.answer(&Questions { questions }, || {
            if open.is_empty() {
                return "nobody asks anything\n".into();
            }
            open.iter().map(describe).collect::<Vec<_>>().join("\n")
        })
    }
}

fn describe(question: &OpenQuestion) -> String {
    let (run, name) = (clean(question.run.run.as_str()), clean(&question.name));
    let mut text = format!("{run} asks {name}:\n  {}\n", clean(&question.text));
    if let Some(schema) = &question.schema {
        text.push_str(&format!("  the answer must fit {}\n", clean(&schema.to_string())));
    }
    let operands = operands(&[question.run.run.as_str(), &question.name]);
    text + &format!("  answer with: hapax answer {operands} JSON\n")
}

/// Answer a question of a run
#[derive(Debug, Args)]
#[command(after_help = ANSWER_HELP)]
pub(crate) struct Answer {
    /// The run
    run: String,
    /// The question's name
    name: String,
    /// The answer, as JSON
    #[arg(allow_hyphen_values = true, value_name = "JSON")]
    answer: String,
}

#[derive(Serialize)]
struct Answered<'a> {
    run: &'a str,
    name: &'a str,
}

impl Answer {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        session.engine.answer(&self.run, &self.name, &payload(&self.answer)?).await?;
        session.out.answer(&Answered { run: &self.run, name: &self.name }, || {
            format!("{} has its answer\n", clean(&self.run))
        })
    }
}
