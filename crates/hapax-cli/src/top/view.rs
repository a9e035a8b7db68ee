//! What is shown: the latest look, what follows from it, and where the user stands in it.

use super::{look::Look, pulse::Pulse};
use crate::failure::Failure;
use hapax::Error;
use hapax_core::limits::MAX_COUNTED;
use hapax_store::{Census, CensusFilter, Fleet, RunRecord, outbox::Backlog};
use ratatui::crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use std::{cmp::Reverse, collections::VecDeque, time::Duration};

/// Runs of each status that are looked at.
const LIMIT: usize = 200;
/// How many looks back the curve goes.
const REMEMBERED: usize = 240;

/// What is looked at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Title {
    pub(crate) store: String,
    pub(crate) namespace: String,
}

/// The parts that can be scrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pane {
    Workers,
    Runs,
}

/// In which order runs are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Busiest,
    LongestUnchanged,
}

/// Everything that a frame shows.
pub(crate) struct View {
    pub(super) title: Title,
    interval: Duration,
    pub(super) colors: bool,
    look: Look,
    /// Whether the store has answered yet.
    pub(super) has_looked: bool,
    pulse: Option<Pulse>,
    /// Steps a second at the latest looks, the newest last.
    pub(super) curve: VecDeque<u64>,
    /// Why the latest look failed.
    pub(super) error: Option<String>,
    pub(super) paused: bool,
    pub(super) help: bool,
    pub(super) pane: Pane,
    pub(super) order: Order,
    pub(super) scrolled: [usize; 2],
}

impl View {
    pub(crate) fn new(title: Title, interval: Duration, colors: bool) -> Self {
        let look = Look { census: Census::default(), fleet: Fleet::default(), backlog: Backlog::default() };
        Self {
            title,
            interval,
            colors,
            look,
            has_looked: false,
            pulse: None,
            curve: VecDeque::new(),
            error: None,
            paused: false,
            help: false,
            pane: Pane::Runs,
            order: Order::Busiest,
            scrolled: [0; 2],
        }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    pub(super) fn look(&self) -> &Look {
        &self.look
    }

    pub(super) fn pulse(&self) -> Option<&Pulse> {
        self.pulse.as_ref()
    }

    /// What the next look asks for: what is new since this one, and what became of those that could go on.
    pub(super) fn next(&self) -> CensusFilter {
        let could_go_on = |run: &&RunRecord| matches!(run.status.word(), "running" | "pending");
        let follow =
            self.look.census.runs.iter().filter(could_go_on).map(|run| run.key.run.clone()).collect();
        let since_us = if self.has_looked { self.look.census.at_us } else { i64::MAX };
        CensusFilter { since_us, follow, limit: LIMIT, ..CensusFilter::default() }
    }

    /// Takes in a look. One that failed leaves the one before it, with word of the failure.
    pub(super) fn take(&mut self, look: Result<Look, Error>) {
        let look = match look {
            Ok(look) => look,
            Err(error) => {
                let failure = Failure::from(error);
                let code = failure.code().map(|code| format!("[{code}] ")).unwrap_or_default();
                self.error = Some(format!("{code}{}", failure.message()));
                return;
            }
        };
        self.error = None;
        self.pulse = self.has_looked.then(|| Pulse::between(&self.look, &look, LIMIT)).flatten();
        if let Some(pulse) = &self.pulse {
            self.curve.push_back(pulse.steps_per_s.round() as u64);
            while self.curve.len() > REMEMBERED {
                self.curve.pop_front();
            }
        }
        (self.look, self.has_looked) = (look, true);
    }

    /// The runs that aren't over, in the order in which they are shown.
    pub(super) fn runs(&self) -> Vec<&RunRecord> {
        let live = self.look.census.runs.iter().filter(|run| !run.status.is_final());
        let mut runs: Vec<&RunRecord> = live.collect();
        runs.sort_by_key(|run| (Reverse(self.weight(run)), run.updated_at_us, run.key.run.clone()));
        runs
    }

    /// What comes first; among equals that which has been without a change for longest.
    fn weight(&self, run: &RunRecord) -> u64 {
        let rate = self.pulse.as_ref().and_then(|pulse| pulse.of(&run.key.run)).unwrap_or_default();
        match self.order {
            Order::Busiest => (rate * 1000.0) as u64,
            Order::LongestUnchanged => 0,
        }
    }

    /// Does what a key asks for; false: to end.
    pub(super) fn handle(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if is_control => return false,
            KeyCode::Char('q') => return false,
            KeyCode::Esc if !self.help => return false,
            KeyCode::Esc => self.help = false,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => self.turn_order(),
            KeyCode::Tab | KeyCode::BackTab | KeyCode::Left | KeyCode::Right => self.turn_pane(),
            KeyCode::Up | KeyCode::Char('k') => self.scroll(-1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll(1),
            KeyCode::PageUp => self.scroll(-10),
            KeyCode::PageDown => self.scroll(10),
            KeyCode::Home => self.scroll(-(MAX_COUNTED as isize)),
            KeyCode::End => self.scroll(MAX_COUNTED as isize),
            _ => {}
        }
        true
    }

    fn turn_order(&mut self) {
        self.order = match self.order {
            Order::Busiest => Order::LongestUnchanged,
            Order::LongestUnchanged => Order::Busiest,
        };
        self.scrolled[Pane::Runs as usize] = 0;
    }

    fn turn_pane(&mut self) {
        self.pane = match self.pane {
            Pane::Workers => Pane::Runs,
            Pane::Runs => Pane::Workers,
        };
    }

    /// No further than to the last row.
    fn scroll(&mut self, by: isize) {
        let rows = match self.pane {
            Pane::Workers => self.look.fleet.holders.len(),
            Pane::Runs => self.runs().len(),
        };
        let at = &mut self.scrolled[self.pane as usize];
        *at = at.saturating_add_signed(by).min(rows.saturating_sub(1));
    }
}
