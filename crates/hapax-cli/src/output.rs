//! Where answers go: text with colours for people, JSON for programs, errors beside them.
//!
//! Invariant: nothing here panics on a closed pipe; a reader that has seen enough ends the program quietly.

use crate::{
    args::{ColorWhen, Global},
    failure::Failure,
};
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::{
    env,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

/// The version of the JSON answers. It changes when a field changes its meaning or goes away.
pub(crate) const JSON_VERSION: u32 = 1;

/// How this invocation answers.
pub(crate) struct Output {
    json: bool,
    color: bool,
    color_errors: bool,
    width: Option<usize>,
    error_width: Option<usize>,
}

/// An answer with the version of its form.
#[derive(Serialize)]
struct Versioned<'a, T> {
    v: u32,
    #[serde(flatten)]
    answer: &'a T,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Self {
        Self {
            json: global.json,
            color: colors(global.color, io::stdout().is_terminal()),
            color_errors: colors(global.color, io::stderr().is_terminal()),
            width: width(io::stdout().is_terminal()),
            error_width: width(io::stderr().is_terminal()),
        }
    }

    /// A program reads the answer.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// The columns of the terminal; `None`: there is none, so nothing is cut.
    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    /// The same for standard error.
    pub(crate) fn error_width(&self) -> Option<usize> {
        self.error_width
    }

    /// Answers with JSON, or with the text that `human` makes.
    pub(crate) fn answer<T: Serialize>(
        &self,
        answer: &T,
        human: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if !self.json {
            return self.text(&human());
        }
        self.text(&json_line(answer).map_err(|error| Failure::io("cannot write JSON", &error.into()))?)
    }

    /// Writes a text as it is.
    #[allow(clippy::unused_self, reason = "all output goes through the one that was set up")]
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|error| Failure::from_write(&error))
    }

    /// A remark that isn't part of the answer.
    pub(crate) fn remark(&self, text: &str) {
        if !self.json {
            // A remark that nobody can read is no failure.
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }

    /// Whether remarks and pictures, which go to standard error, are painted.
    pub(crate) fn paints_remarks(&self) -> bool {
        self.color_errors
    }

    /// Whether answers are painted.
    #[cfg(feature = "top")]
    pub(crate) fn paints(&self) -> bool {
        self.color
    }

    /// Paints a text, where colours are wanted.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        paint(self.color, style, text)
    }

    /// A bar for work of known length, or a spinner; seen only on a terminal.
    pub(crate) fn progress(&self, length: Option<u64>, what: &'static str) -> ProgressBar {
        let bar = match length {
            _ if self.json => ProgressBar::hidden(),
            Some(length) => ProgressBar::new(length),
            None => ProgressBar::new_spinner(),
        };
        let template = match length {
            Some(_) => "{prefix} {wide_bar} {pos}/{len} {msg}",
            None => "{spinner} {prefix} {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(what);
        if length.is_none() {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        bar
    }

    /// Reports what went wrong, and gives the process its exit code.
    pub(crate) fn exit(&self, outcome: Result<(), Failure>) -> ExitCode {
        let Err(failure) = outcome else { return ExitCode::SUCCESS };
        if let Some(report) = failure.report() {
            let text = if self.json {
                let error = serde_json::json!({ "v": JSON_VERSION, "error": report });
                format!("{error}\n")
            } else {
                report.human(self.error_width, |style, text| paint(self.color_errors, style, text))
            };
            // Nobody is left to hear that stderr is closed.
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
        ExitCode::from(failure.exit_code())
    }
}

/// An answer for a program, ended.
pub(crate) fn json_line<T: Serialize>(answer: &T) -> serde_json::Result<String> {
    Ok(serde_json::to_string(&Versioned { v: JSON_VERSION, answer })? + "\n")
}

fn paint(color: bool, style: Style, text: &str) -> String {
    if color { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

fn colors(when: ColorWhen, terminal: bool) -> bool {
    match when {
        ColorWhen::Always => true,
        ColorWhen::Never => false,
        ColorWhen::Auto => {
            let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
            terminal && !is_set("NO_COLOR") && env::var_os("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

fn width(terminal: bool) -> Option<usize> {
    let told = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let seen = || {
        let (width, _) = terminal_size::terminal_size()?;
        terminal.then_some(usize::from(width.0))
    };
    told.or_else(seen).filter(|width| *width > 0)
}

/// Headings and names.
pub(crate) const STRONG: Style = Style::new().bold();
/// What is there for completeness.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// As it should be.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// On its way.
pub(crate) const BUSY: Style = AnsiColor::Cyan.on_default();
/// Worth a look.
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();
/// Wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Makes a text from elsewhere safe for a terminal: one line, no control characters, nothing that turns the order of
/// what is shown.
pub(crate) fn clean(text: &str) -> String {
    text.chars().flat_map(|c| if steers(c) { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Names as they are typed into a shell: the operands of a command that is offered as a hint.
pub(crate) fn operands(names: &[&str]) -> String {
    let dashes = if names.iter().any(|name| name.starts_with('-')) { "-- " } else { "" };
    format!("{dashes}{}", names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(" "))
}

/// One word for a shell, in quotes where it would read more out of it.
pub(crate) fn quoted(word: &str) -> String {
    let word = clean(word);
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Whether a character moves others instead of being shown: controls, line ends, and the marks of writing direction,
/// by which one run's name can look like another's.
pub(crate) fn steers(c: char) -> bool {
    let direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || direction || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_from_elsewhere_cannot_steer_the_terminal() {
        assert_eq!(clean("a\u{1b}[2Jb\nc é"), "a\\u{1b}[2Jb\\nc é");
        assert_eq!(clean("\u{9b}31m"), "\\u{9b}31m");
        assert_eq!(clean("order-\u{202e}24\u{2069}\u{2028}"), "order-\\u{202e}24\\u{2069}\\u{2028}");
    }

    #[test]
    fn a_hint_can_be_pasted_into_a_shell() {
        assert_eq!(operands(&["order-42@3", "größe"]), "order-42@3 größe");
        assert_eq!(operands(&["with space", ""]), "'with space' ''");
        assert_eq!(operands(&["it's $HOME"]), r"'it'\''s $HOME'");
        assert_eq!(operands(&["-x", "b"]), "-- -x b");
    }
}
