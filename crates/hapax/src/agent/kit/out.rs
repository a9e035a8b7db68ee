//! The pipe to the engine.
//!
//! Invariant: a line is written whole, by one thread at a time. That nobody reads any more is seen once, by whoever writes.

use super::super::{clock_text, frame, protocol::Log};
use crate::gate::lock;
use hapax_store::clock::now_us;
use serde::Serialize;
use std::{
    io::{self, Write},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// The characters of a text for people; what is longer is cut.
pub(crate) const MOST_TEXT_CHARS: usize = 4000;

type OnLost = Box<dyn FnOnce() + Send>;

/// The way out.
pub(crate) struct Out {
    to: Mutex<Box<dyn Write + Send>>,
    on_lost: Mutex<Option<OnLost>>,
}

impl Out {
    pub(crate) fn new(to: impl Write + Send + 'static) -> Self {
        Self { to: Mutex::new(Box::new(to)), on_lost: Mutex::default() }
    }

    /// What is done, in a thread of its own, when nobody reads any more.
    pub(crate) fn on_lost(&self, leave: impl FnOnce() + Send + 'static) {
        *lock(&self.on_lost) = Some(Box::new(leave));
    }

    /// Writes a message; `false`: it is too large for a line.
    pub(crate) fn say<T: Serialize>(&self, message: &T) -> bool {
        let line = frame::line(message);
        line.map(|line| self.raw(&line)).is_ok()
    }

    /// Writes a message unless it isn't to be written any more: nothing comes behind what was written since then.
    pub(crate) fn say_unless<T: Serialize>(&self, stopped: &AtomicBool, message: &T) {
        if let Ok(line) = frame::line(message) {
            let mut out = lock(&self.to);
            if !stopped.load(Ordering::Acquire) {
                self.write(&mut **out, &line);
            }
        }
    }

    /// Writes bytes as they are.
    pub(crate) fn raw(&self, bytes: &[u8]) {
        self.write(&mut **lock(&self.to), bytes);
    }

    pub(crate) fn log(&self, level: &str, message: &str) {
        let (level, message, timestamp) = (known(level).into(), cut(message), clock_text(now_us()));
        self.say(&Log { level, message, fields: None, timestamp });
    }

    fn write(&self, out: &mut dyn Write, bytes: &[u8]) {
        let written: io::Result<()> = out.write_all(bytes).and_then(|()| out.flush());
        if written.is_err()
            && let Some(leave) = lock(&self.on_lost).take()
        {
            thread::spawn(leave);
        }
    }
}

/// As the engine takes a level that it doesn't know.
fn known(level: &str) -> &str {
    if ["debug", "info", "warn", "error"].contains(&level) { level } else { "info" }
}

/// A text that is no longer than people read.
pub(crate) fn cut(text: &str) -> String {
    text.chars().take(MOST_TEXT_CHARS).collect()
}
