//! The terminal while the view is live: looks, keys and frames, one after the other.
//!
//! Invariant: whoever gets the terminal from [`Screen`] gives it back, by whichever way it ends: its drop restores it, and a
//! panic does so before it speaks.

use super::{frame::draw, look, view::View};
use crate::{failure::Failure, session::Session};
use futures::{StreamExt, future::BoxFuture};
use hapax::Error;
use ratatui::{DefaultTerminal, crossterm::event::EventStream};
use std::io;
use tokio::time::MissedTickBehavior;

/// The terminal, while it is ours.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> io::Result<Self> {
        let opened = ratatui::try_init();
        if opened.is_err() {
            ratatui::restore();
        }
        opened.map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where there is no terminal any more, nothing is left to restore.
        let _ = ratatui::try_restore();
        let _ = self.0.show_cursor();
    }
}

/// Shows the store until somebody has had enough.
pub(crate) async fn show(session: &Session<'_>, mut view: View) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io("cannot use the terminal", &error);
    let mut screen = Screen::open().map_err(failed)?;
    let mut keys = EventStream::new();
    let mut ticks = tokio::time::interval(view.interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A store that takes long to answer stops neither the keys nor the frames.
    let mut looking: Option<BoxFuture<'_, Result<look::Look, Error>>> = None;
    loop {
        screen.0.draw(|frame| draw(frame, &view)).map_err(failed)?;
        let is_idle = looking.is_none();
        let seen = async {
            match &mut looking {
                Some(look) => look.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            key = keys.next() => match key {
                Some(Ok(event)) if view.handle(&event) => {}
                Some(Ok(_)) | None => return Ok(()),
                Some(Err(error)) => return Err(failed(error)),
            },
            look = seen => {
                looking = None;
                view.take(look);
            }
            _ = ticks.tick(), if is_idle && !view.paused => {
                looking = Some(Box::pin(look::look(session.engine, view.next())));
            }
        }
    }
}
