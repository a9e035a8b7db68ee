//! Questions to people: asked once, answered in the form that was asked for, waited for without cost.
//!
//! Invariant: a question is durable before the run is parked, and an answer is addressed to one question: what doesn't fit
//! its schema is refused before it reaches the run, and what comes too late answers no other.

use crate::{
    Engine, Error,
    effects::EffectFuture,
    error::{EffectError, json},
    letters::only_letter,
    wait::Wait,
};
use hapax_core::{
    canary,
    error::{Code, Coded, code},
    id::{RunKey, check_name},
    journal::{self, EffectOutcome, Entry},
    json::Json,
    limits::MAX_PAYLOAD_BYTES,
    mailbox::{self, Letter, NewLetter, Posted},
};
use hapax_store::ListFilter;
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// A question to a person, with the form of its answer.
///
/// ```
/// use hapax::{Question, prelude::*};
/// use serde::{Deserialize, Serialize};
/// use serde_json::json;
///
/// #[derive(State, Clone, Default, Serialize, Deserialize)]
/// struct Refund { cents: u64, approved: bool }
/// const ASK: Node = Node::new("ask");
/// async fn ask(mut ctx: hapax::Ctx<Refund>) -> hapax::Result<RefundDelta> {
///     let question = Question::new(format!("Refund {} cents?", ctx.state().cents))
///         .schema(json!({ "type": "boolean" }));
///     let approved: bool = ctx.ask("refund", question).await?;
///     Ok(Refund::delta().approved(approved))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// let engine = Engine::open("memory:").await?;
/// let refunds = engine.register(Graph::new("refunds", 1, ASK).node(ASK, ask), ()).await?;
/// let refund = refunds.start("refund-7", Refund { cents: 900, approved: false }).await?;
/// let open = loop {
///     if let [open] = &engine.inbox().await?[..] { break open.clone() }
///     # tokio::task::yield_now().await;
/// };
/// assert_eq!(open.text, "Refund 900 cents?");
/// assert!(engine.answer("refund-7", "refund", &"perhaps").await.is_err()); // not a boolean
/// engine.answer("refund-7", "refund", &true).await?;
/// assert!(refund.wait().await?.approved);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Question {
    text: String,
    schema: Option<serde_json::Value>,
}

impl Question {
    /// What is asked.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), schema: None }
    }

    /// The JSON schema that an answer must fit.
    pub fn schema(mut self, schema: serde_json::Value) -> Self {
        self.schema = Some(schema);
        self
    }
}

/// A question that waits for its answer.
///
/// ```
/// use hapax::{Question, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Refund { approved: bool }
/// # const ASK: Node = Node::new("ask");
/// # async fn ask(mut ctx: hapax::Ctx<Refund>) -> hapax::Result<RefundDelta> {
/// #     let approved: bool = ctx.ask("refund", Question::new("Refund 900 cents?")).await?;
/// #     Ok(Refund::delta().approved(approved))
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = Engine::open("memory:").await?;
/// # let refunds = engine.register(Graph::new("refunds", 1, ASK).node(ASK, ask), ()).await?;
/// # let _refund = refunds.start("refund-7", Refund::default()).await?;
/// # while engine.inbox().await?.is_empty() { tokio::task::yield_now().await }
/// let open = engine.inbox().await?.remove(0);
/// assert_eq!(format!("{} of {}: {}", open.name, open.run, open.text), "refund of refund-7: Refund 900 cents?");
/// assert!(open.schema.is_none(), "any JSON will do");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Serialize)]
pub struct OpenQuestion {
    /// The run that asks.
    pub run: RunKey,
    /// The name under which it is answered.
    pub name: String,
    /// What is asked.
    pub text: String,
    /// The JSON schema of the answer.
    pub schema: Option<serde_json::Value>,
    /// When it was asked, in microseconds since 1970.
    pub asked_at_us: i64,
}

/// Why an answer was not taken.
///
/// ```
/// use hapax::{AnswerError, Error, Question, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Refund { approved: bool }
/// # const ASK: Node = Node::new("ask");
/// # async fn ask(mut ctx: hapax::Ctx<Refund>) -> hapax::Result<RefundDelta> {
/// #     let question = Question::new("Refund?").schema(serde_json::json!({ "type": "boolean" }));
/// #     let approved: bool = ctx.ask("refund", question).await?;
/// #     Ok(Refund::delta().approved(approved))
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = Engine::open("memory:").await?;
/// # let refunds = engine.register(Graph::new("refunds", 1, ASK).node(ASK, ask), ()).await?;
/// # let _refund = refunds.start("refund-7", Refund::default()).await?;
/// # while engine.inbox().await?.is_empty() { tokio::task::yield_now().await }
/// // The run asks for a boolean, under the name `refund`.
/// let Err(Error::Answer(rejected)) = engine.answer("refund-7", "refund", "perhaps").await else { unreachable!() };
/// assert!(matches!(*rejected, AnswerError::Rejected { .. }));
/// let Err(Error::Answer(unasked)) = engine.answer("refund-7", "discount", &true).await else { unreachable!() };
/// assert_eq!(unasked.to_string(), "run `refund-7` does not ask `discount`; it asks: refund");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// It doesn't fit the question's schema.
    #[error("the answer to `{name}` of run `{run}` is not what was asked for: {why}")]
    Rejected {
        /// The run.
        run: RunKey,
        /// The question.
        name: String,
        /// What doesn't fit, and where.
        why: String,
    },
    /// The run asks no such question.
    #[error("run `{run}` does not ask `{name}`{}", asks(open))]
    NoQuestion {
        /// The run.
        run: RunKey,
        /// What was answered.
        name: String,
        /// What it asks.
        open: Vec<String>,
    },
}

fn asks(open: &[String]) -> String {
    if open.is_empty() { "; it asks nothing".into() } else { format!("; it asks: {}", open.join(", ")) }
}

impl Coded for AnswerError {
    fn code(&self) -> Code {
        match self {
            AnswerError::Rejected { .. } => code::ANSWER_REJECTED,
            AnswerError::NoQuestion { .. } => code::NO_QUESTION,
        }
    }
}

impl EffectFuture<'_> {
    /// Asks, unless it was asked before, and waits for the answer.
    pub(crate) async fn question<T: DeserializeOwned>(
        &self,
        name: &str,
        question: Question,
    ) -> Result<T, EffectError> {
        let refuse = |code, message| self.error(code, message, false);
        check_name("question", name).map_err(|e| refuse(e.code(), e.to_string()))?;
        let Question { text, schema } = question;
        if let Some(schema) = &schema {
            jsonschema::validator_for(schema)
                .map_err(|e| refuse(code::ANSWER_REJECTED, format!("the schema of `{name}` is none: {e}")))?;
        }
        let size = text.len() + schema.as_ref().map_or(0, |schema| schema.to_string().len());
        if size > MAX_PAYLOAD_BYTES {
            let message = format!("the question `{name}` takes {size} bytes, more than {MAX_PAYLOAD_BYTES}");
            return Err(refuse(code::LIMIT, message));
        }
        let asked = self.ask(&(name, &text, &schema))?;
        if let Some(recorded) = asked.recorded {
            return self.recall(recorded).await;
        }
        let live = self.live().await;
        if !self.is_begun() {
            let schema =
                schema.as_ref().map(Json::of).transpose().map_err(|e| refuse(e.code(), e.to_string()))?;
            self.see_question(live, name, text, schema, &asked);
        }
        let item = &self.attempt.item;
        let subject = mailbox::answer(item.step, item.path_hash, self.scope, self.index);
        let busy = self.attempt.waits.busy();
        let read = async |letter: Letter| {
            let outcome = EffectOutcome::Ok { response: letter.payload };
            item.see([Entry::Took { letter: letter.number }, self.result(live, outcome.clone())]);
            outcome
        };
        let taken = self.attempt.with_store(live.mailbox.take(&live.gate, &subject, read)).await;
        match self.unless_halted(taken).await {
            Some(outcome) => self.replay(outcome),
            None => {
                drop(busy);
                self.attempt.waits.wait(Wait::Answer(subject)).await
            }
        }
    }
}

impl Engine {
    /// The questions that wait for a person, oldest run first.
    pub async fn inbox(&self) -> Result<Vec<OpenQuestion>, Error> {
        let statuses = vec!["waiting".into(), "in_doubt".into()];
        let parked = self.list(ListFilter { statuses, limit: usize::MAX, ..ListFilter::default() }).await?;
        let mut open = vec![];
        for record in parked.into_iter().rev() {
            if record.wake.letters.iter().any(|subject| mailbox::is_answer(subject)) {
                open.extend(self.questions(&record.key).await?);
            }
        }
        Ok(open)
    }

    /// What a run asks.
    async fn questions(&self, run: &RunKey) -> Result<Vec<OpenQuestion>, Error> {
        let open = self.asked(run).await?;
        let shown = |(_, question): (Arc<str>, journal::Question)| OpenQuestion {
            run: run.clone(),
            name: question.name,
            text: question.text,
            schema: question.schema.and_then(|schema| schema.read().ok()),
            asked_at_us: question.at_us,
        };
        Ok(open.into_iter().map(shown).collect())
    }

    /// The questions of a run that wait for their answers, oldest first, with the subjects of those.
    async fn asked(&self, run: &RunKey) -> Result<Vec<(Arc<str>, journal::Question)>, Error> {
        let loaded = self.shared.store.load(run.clone()).await?;
        let awaited = &loaded.record.wake.letters;
        let asked = loaded.journal.into_iter().filter_map(|row| match row.entry {
            Entry::Question(asked) => {
                Some((mailbox::answer(row.step, row.path_hash, &asked.scope, asked.index), asked))
            }
            _ => None,
        });
        Ok(asked.filter(|(subject, _)| awaited.contains(subject)).collect())
    }

    /// Answers a question of a run, by its name: of several that are open under it, the oldest. Durable when it answers;
    /// the run goes on where its code is registered.
    pub async fn answer<T: Serialize + ?Sized>(
        &self,
        run: &str,
        name: &str,
        answer: &T,
    ) -> Result<(), Error> {
        let key = self.key(run)?;
        let record = self.record(run).await?;
        record.demand_here()?;
        if record.status.is_final() {
            return Err(Error::AlreadyFinished { run: key, status: record.status.word() });
        }
        let asked = self.asked(&key).await?;
        let none = |open| AnswerError::NoQuestion { run: key.clone(), name: name.into(), open };
        let Some((subject, question)) = asked.iter().find(|(_, question)| question.name == name) else {
            return Err(none(asked.into_iter().map(|(_, question)| question.name).collect()).into());
        };
        let payload = json("the answer", answer)?;
        let schema = question.schema.as_ref().and_then(|schema| schema.read::<serde_json::Value>().ok());
        if let Some(schema) = schema.filter(|_| !canary::on("answer_unchecked")) {
            let value = payload.read().unwrap_or(serde_json::Value::Null);
            let rejected = |why| AnswerError::Rejected { run: key.clone(), name: name.into(), why };
            fits(&schema, &value).map_err(rejected)?;
        }
        // One letter for each question: of two who answer at once the second is told so.
        let (id, subject) = (only_letter(subject.to_string()), subject.clone());
        match self.post(run, NewLetter { id, subject, payload }).await? {
            Posted::New => Ok(()),
            Posted::Known => Err(none(vec![]).into()),
        }
    }
}

fn fits(schema: &serde_json::Value, answer: &serde_json::Value) -> Result<(), String> {
    let validator = jsonschema::validator_for(schema).map_err(|error| error.to_string())?;
    let misfits = validator.iter_errors(answer).map(|error| match error.instance_path().to_string() {
        at if at.is_empty() => error.to_string(),
        at => format!("{error} (at {at})"),
    });
    let misfits: Vec<String> = misfits.collect();
    if misfits.is_empty() { Ok(()) } else { Err(misfits.join("; ")) }
}
