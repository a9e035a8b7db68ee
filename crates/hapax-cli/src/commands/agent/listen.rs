//! What the engine says about its agents: logs, standard error, deaths. It says so to `tracing`; here it is heard.

use std::fmt::{Debug, Write as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// Whose words are heard.
const TARGET: &str = "hapax::agent";

/// Something that was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) level: &'static str,
    pub(super) message: String,
    /// More of it, as `name=value`.
    pub(super) fields: String,
    /// A line of the agent's standard error.
    pub(super) is_stderr: bool,
}

/// From now on everything is heard; nothing, if the program has ears of its own already.
pub(super) fn listen() -> UnboundedReceiver<Said> {
    let (sender, said) = unbounded_channel();
    // Then it comes to where that program's logs go.
    let _ = tracing::subscriber::set_global_default(Ear(sender));
    said
}

struct Ear(UnboundedSender<Said>);

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == TARGET
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        let level = level(*event.metadata().level());
        let Words { message, fields, stderr } = words;
        let is_stderr = stderr.is_some();
        // Nobody listens any more when the command is over.
        let _ = self.0.send(Said { level, message: stderr.unwrap_or(message), fields, is_stderr });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        _ => "debug",
    }
}

#[derive(Default)]
struct Words {
    message: String,
    fields: String,
    stderr: Option<String>,
}

impl Words {
    fn take(&mut self, name: &str, value: String) {
        match name {
            "message" => self.message = value,
            "stderr" => self.stderr = Some(value),
            // There is one agent, and its log's fields are named already.
            "agent" => {}
            "fields" => self.fields.push_str(&value),
            _ => {
                let gap = if self.fields.is_empty() { "" } else { " " };
                // A text takes whatever is written to it.
                let _ = write!(self.fields, "{gap}{name}={value}");
            }
        }
    }
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.take(field.name(), format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_about_agents_is_heard_and_nothing_else() {
        let (sender, mut said) = unbounded_channel();
        tracing::subscriber::with_default(Ear(sender), || {
            tracing::info!(target: "hapax::agent", agent = "builder", fields = r#"{"n":1}"#, "hello");
            tracing::info!(target: "elsewhere", "not this");
            tracing::debug!(target: "hapax::agent", stderr = %"oh no");
            tracing::warn!(target: "hapax::agent", agent = "builder", deaths = 2, "an agent died");
        });
        let mut all = vec![];
        while let Ok(one) = said.try_recv() {
            all.push((one.level, one.message, one.fields, one.is_stderr));
        }
        let text = |level, message: &str, fields: &str, is_stderr| {
            (level, message.to_owned(), fields.to_owned(), is_stderr)
        };
        let expected = [
            text("info", "hello", r#"{"n":1}"#, false),
            text("debug", "oh no", "", true),
            text("warn", "an agent died", "deaths=2", false),
        ];
        assert_eq!(all, expected);
    }
}
