//! Writes to a file or a pipe, which nobody can call off once they have begun.
//!
//! Invariant: they happen one after the other. One that is given up goes on, the next one waits for its end, and what it
//! has written after all isn't written again by this process.

use super::SinkError;
use hapax_core::{canary, limits};
use std::{collections::BTreeSet, io, thread, time::Duration};
use tokio::sync::{Mutex, oneshot};

/// Whose turn it is to write.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
    timeout: Duration,
}

#[derive(Debug, Default)]
struct State {
    under_way: Option<UnderWay>,
    /// Messages that were written after nobody waited for that any more.
    late: BTreeSet<String>,
}

#[derive(Debug)]
struct UnderWay {
    id: String,
    over: oneshot::Receiver<io::Result<()>>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self { state: Mutex::default(), timeout: limits::SINK_TIMEOUT }
    }

    /// Writes a message when it is its turn. Whoever is slow at the other end is slow for all of them, and none is to
    /// blame.
    pub(super) async fn write(
        &self,
        id: &str,
        write: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Result<(), SinkError> {
        let written = tokio::time::timeout(self.timeout, self.in_turn(id, write)).await;
        let late =
            |_| Err(SinkError::unavailable(format!("it takes longer than {:?} to write", self.timeout)));
        written.map_or_else(late, |written| written.map_err(SinkError::unavailable))
    }

    async fn in_turn(
        &self,
        id: &str,
        write: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let mut state = self.state.lock().await;
        if let Some((earlier, Ok(()))) = state.finish().await {
            state.late.insert(earlier);
        }
        if state.late.remove(id) && !canary::on("late_line_again") {
            return Ok(());
        }
        state.begin(id, write)?;
        state.finish().await.map_or(Ok(()), |(_, written)| written)
    }
}

impl State {
    /// In a thread of its own, which keeps neither other tasks nor the end of the program waiting.
    fn begin(&mut self, id: &str, write: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let (done, over) = oneshot::channel();
        // Perhaps nobody waits any more.
        let work = move || drop(done.send(write()));
        thread::Builder::new().name("hapax sink".into()).spawn(work)?;
        self.under_way = Some(UnderWay { id: id.to_owned(), over });
        Ok(())
    }

    /// Waits for the write that is under way, if there is one. Whoever stops waiting leaves it under way.
    async fn finish(&mut self) -> Option<(String, io::Result<()>)> {
        let under_way = self.under_way.as_mut()?;
        let written = (&mut under_way.over).await;
        let id = std::mem::take(&mut under_way.id);
        self.under_way = None;
        Some((id, written.unwrap_or_else(|_| Err(io::Error::other("the writing thread died")))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    /// The reader of a pipe pauses, and then reads on.
    #[tokio::test]
    async fn a_write_that_is_given_up_is_waited_for_and_not_done_twice() {
        let turns = Turns { timeout: Duration::from_millis(20), ..Turns::new() };
        let (resume, paused) = mpsc::channel::<()>();
        let (wrote, written) = mpsc::channel();
        let says = |text: &'static str| {
            let wrote = wrote.clone();
            move || wrote.send(text).map_err(io::Error::other)
        };
        let first = says("first");
        let blocked = move || paused.recv().map_err(io::Error::other).and_then(|()| first());
        let error = turns.write("msg:1", blocked).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        for id in ["msg:1", "msg:2"] {
            let error = turns.write(id, says("too early")).await.unwrap_err();
            assert!(error.is_unavailable(), "{error}");
        }
        resume.send(()).unwrap();
        let patient = Arc::new(Turns { timeout: Duration::from_secs(60), ..turns });
        patient.write("msg:2", says("second")).await.unwrap();
        patient.write("msg:1", says("first again")).await.unwrap();
        patient.write("msg:3", says("third")).await.unwrap();
        assert_eq!(written.try_iter().collect::<Vec<_>>(), ["first", "second", "third"]);
    }
}
