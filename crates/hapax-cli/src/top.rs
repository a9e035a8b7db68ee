//! A live view of a store: what is looked at, what follows from two looks, and how it is shown.
//!
//! Invariant: a frame is a pure function of a [`View`], and a view changes only by a look, a key or an error. Nothing of
//! it writes to the store.

mod frame;
mod look;
mod pulse;
mod screen;
mod view;

pub(crate) use screen::show;
pub(crate) use view::{Title, View};

use crate::{failure::Failure, output::Output, session::Session};
use hapax_core::error::code;
use look::{Answer, Lost};
use tokio::time::MissedTickBehavior;

/// Columns of a frame that nobody sees on a terminal.
const COLUMNS: u16 = 100;
/// As many as anybody has.
const MOST_COLUMNS: u16 = 1000;

/// One frame as text.
pub(crate) async fn once(session: &Session<'_>, mut view: View) -> Result<(), Failure> {
    view.take(Ok(look::look(session.engine, view.next()).await?));
    session.out.text(&frame::text(&view, columns(session.out)))
}

fn columns(out: &Output) -> u16 {
    out.width().map_or(COLUMNS, |width| u16::try_from(width).unwrap_or(MOST_COLUMNS).min(MOST_COLUMNS))
}

/// An object for each look, until somebody asks for the end.
pub(crate) async fn stream(session: &Session<'_>, mut view: View, once: bool) -> Result<(), Failure> {
    let mut ticks = tokio::time::interval(view.interval());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match look::look(session.engine, view.next()).await {
            Err(error) if once => return Err(error.into()),
            Err(error) => {
                let failure = Failure::from(error);
                let lost = Lost { code: failure.code().unwrap_or(code::SYSTEM), message: failure.message() };
                session.out.answer(&serde_json::json!({ "error": lost }), String::new)?;
            }
            Ok(look) => {
                view.take(Ok(look));
                session.out.answer(&Answer::of(&view), String::new)?;
            }
        }
        if once {
            return Ok(());
        }
    }
}
