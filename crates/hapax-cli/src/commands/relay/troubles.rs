//! What keeps a relay from delivering, told once when it begins and once when it is over.

use crate::output::{clean, json_line};
use hapax::{
    Coded,
    outbox::{Delivery, SinkError},
};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

/// Whom a trouble concerns: a topic, or all of them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// The sink takes nothing.
    Down,
    /// It doesn't take this topic now.
    Busy(String),
    /// It has refused a message to this topic.
    Refused(String),
}

impl Trouble {
    fn of(topic: &str, error: &SinkError) -> Self {
        match () {
            () if error.is_unavailable() => Trouble::Down,
            () if error.is_busy() => Trouble::Busy(topic.to_owned()),
            () => Trouble::Refused(topic.to_owned()),
        }
    }

    fn topic(&self) -> Option<&str> {
        match self {
            Trouble::Down => None,
            Trouble::Busy(topic) | Trouble::Refused(topic) => Some(topic),
        }
    }
}

/// The troubles that have been told, and aren't over.
#[derive(Debug)]
pub(super) struct Troubles {
    told: Mutex<BTreeSet<Trouble>>,
    json: bool,
}

/// As a program reads it.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line<'a> {
    Waits { topic: Option<&'a str>, code: &'static str, why: String },
    Delivers { topic: Option<&'a str> },
    Dead { topic: &'a str, run: &'a str, id: &'a str, code: &'static str, why: String },
}

impl Troubles {
    pub(super) fn new(json: bool) -> Self {
        Self { told: Mutex::default(), json }
    }

    pub(super) fn begin(&self, topic: &str, error: &SinkError) {
        let trouble = Trouble::of(topic, error);
        let is_new = self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(trouble.clone());
        if is_new {
            self.tell(&Line::Waits { topic: trouble.topic(), code: error.code(), why: error.to_string() });
        }
    }

    /// A message to this topic was taken.
    pub(super) fn end(&self, topic: &str) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_empty() {
            return;
        }
        let over: Vec<Trouble> =
            told.extract_if(.., |trouble| trouble.topic().is_none_or(|about| about == topic)).collect();
        if let Some(first) = over.first() {
            self.tell(&Line::Delivers { topic: first.topic() });
        }
    }

    /// A message was given up.
    pub(super) fn dead(&self, message: &Delivery, error: &SinkError) {
        let Delivery { topic, run, id, .. } = message;
        let run = run.run.as_str();
        self.tell(&Line::Dead { topic, run, id, code: error.code(), why: error.to_string() });
    }

    /// What nobody can read is no failure.
    fn tell(&self, line: &Line<'_>) {
        let text = if self.json { json_line(line).unwrap_or_default() } else { line.human() + "\n" };
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}

impl Line<'_> {
    fn human(&self) -> String {
        let to =
            |topic: &Option<&str>| topic.map(|topic| format!(" to `{}`", clean(topic))).unwrap_or_default();
        match self {
            Line::Waits { topic, why, .. } => format!("warning: messages{} wait: {}", to(topic), clean(why)),
            Line::Delivers { topic } => format!("messages{} are delivered again", to(topic)),
            Line::Dead { topic, run, why, .. } => format!(
                "warning: a message of {} to `{}` is dead: {}; `hapax outbox --dead` lists it",
                clean(run),
                clean(topic),
                clean(why)
            ),
        }
    }
}
