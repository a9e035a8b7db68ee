//! `hapax tail`: what a run streams, as it comes, without the code of its graph.

use crate::{
    failure::Failure,
    output::{FAINT, clean},
    session::Session,
};
use clap::Args;
use hapax::{StreamChunk, StreamEvent, Superseded};

const AFTER_HELP: &str = "\
A text is printed as it is, anything else as JSON, each chunk on a line of its own. An item that is executed again streams \
again; a line that begins with `--` says whose chunks count no more. With --json each line is an object with a `cursor`, \
from which --from goes on.

Examples:
  hapax tail order-42
  hapax tail order-42 --follow
  hapax tail order-42 --follow --from 17 --json | jq .payload";

/// Show what a run has streamed
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Tail {
    /// The run
    run: String,
    /// Go on until the run is over
    #[arg(short, long)]
    follow: bool,
    /// Begin behind the event with this cursor
    #[arg(long, value_name = "CURSOR", default_value_t = 0)]
    from: u64,
}

impl Tail {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        session.whole(&self.run).await?;
        let tail = session.engine.tail(&self.run).from(self.from);
        let mut tail = if self.follow { tail } else { tail.so_far() };
        while let Some(event) = tail.next().await? {
            session.out.answer(&event, || line(session, &event))?;
        }
        if !self.follow && !session.record(&self.run).await?.status.is_final() {
            session.out.remark(&format!("the run is not over: --follow --from {} goes on", tail.cursor()));
        }
        Ok(())
    }
}

fn line(session: &Session<'_>, event: &StreamEvent) -> String {
    match event {
        StreamEvent::Chunk(chunk) => said(chunk),
        StreamEvent::Superseded(old) => format!("{}\n", session.out.paint(FAINT, &told(old))),
        _ => String::new(),
    }
}

/// A chunk's text. What could steer the terminal is escaped, except for the ends of its own lines.
fn said(chunk: &StreamChunk) -> String {
    let text = chunk.payload.read::<String>().unwrap_or_else(|_| chunk.payload.as_str().to_owned());
    text.split('\n').map(|line| format!("{}\n", clean(line))).collect()
}

fn told(old: &Superseded) -> String {
    let call = old.call.as_ref().map(|at| format!(", call {at}")).unwrap_or_default();
    let node = clean(old.node.as_str());
    format!("-- {node}{call}: attempt {} (epoch {}) was superseded", old.attempt, old.epoch)
}
