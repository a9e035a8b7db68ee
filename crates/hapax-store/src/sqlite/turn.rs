//! Whose turn it is to write to a file, among all in this process who do: the writer of the runs in it, and transactions of
//! the user's.
//!
//! Invariant: one has the turn, and it is given in the order in which it was asked for. SQLite's own lock knows no order: who
//! finds it taken sleeps for milliseconds and looks again, so beside a file that is always written to it comes late or never.
//! However many wait, nobody gives up while the turn goes on; who has it for too long is no reason to wait for ever.

use super::queue::lock;
use std::{
    collections::{BTreeMap, VecDeque},
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, Mutex, Weak, mpsc},
    time::Duration,
};
use tokio::sync::oneshot;

/// The turns of the files that are open, by device and number.
static FILES: Mutex<BTreeMap<(u64, u64), Weak<Turns>>> = Mutex::new(BTreeMap::new());

/// The turns of one file.
#[derive(Default)]
pub(crate) struct Turns(Mutex<Line>);

#[derive(Default)]
struct Line {
    is_taken: bool,
    /// How often it was handed on.
    passed: u64,
    /// Empty while nobody has the turn.
    waiting: VecDeque<Waiter>,
}

enum Waiter {
    Task(oneshot::Sender<Turn>),
    Thread(mpsc::SyncSender<Turn>),
}

/// The turn; dropped, it is the next one's. `None`: it was handed on.
pub(crate) struct Turn(Option<Arc<Turns>>);

impl Turns {
    /// Those of this file, whatever its path.
    pub(crate) fn of(file: &Path) -> std::io::Result<Arc<Self>> {
        let found = std::fs::metadata(file)?;
        let mut files = lock(&FILES);
        files.retain(|_, turns| turns.strong_count() > 0);
        let known = files.entry((found.dev(), found.ino())).or_default();
        Ok(known.upgrade().unwrap_or_else(|| {
            let turns = Arc::<Self>::default();
            *known = Arc::downgrade(&turns);
            turns
        }))
    }

    /// The turn, if it is nobody's.
    pub(crate) fn take_at_once(self: &Arc<Self>) -> Option<Turn> {
        self.take_or(&mut lock(&self.0))
    }

    fn take_or(self: &Arc<Self>, line: &mut Line) -> Option<Turn> {
        (!std::mem::replace(&mut line.is_taken, true)).then(|| Turn(Some(self.clone())))
    }

    /// Waits for the turn; `None`: for so long nobody has handed it on.
    pub(crate) async fn take(self: &Arc<Self>, limit: Duration) -> Option<Turn> {
        let (mut waits, mut passed) = {
            let mut line = lock(&self.0);
            if let Some(turn) = self.take_or(&mut line) {
                return Some(turn);
            }
            let (gives, waits) = oneshot::channel();
            line.waiting.push_back(Waiter::Task(gives));
            (waits, line.passed)
        };
        loop {
            match tokio::time::timeout(limit, &mut waits).await {
                Ok(turn) => return turn.ok(),
                // A turn that comes too late is dropped with the channel, and so handed on.
                Err(_) if !self.went_on(&mut passed) => return None,
                Err(_) => {}
            }
        }
    }

    /// The same on a thread that may block.
    pub(super) fn wait(self: &Arc<Self>, limit: Duration) -> Option<Turn> {
        let (waits, mut passed) = {
            let mut line = lock(&self.0);
            if let Some(turn) = self.take_or(&mut line) {
                return Some(turn);
            }
            let (gives, waits) = mpsc::sync_channel(1);
            line.waiting.push_back(Waiter::Thread(gives));
            (waits, line.passed)
        };
        loop {
            match waits.recv_timeout(limit) {
                Ok(turn) => return Some(turn),
                Err(_) if !self.went_on(&mut passed) => return None,
                Err(_) => {}
            }
        }
    }

    /// Whether the turn was handed on since it was last looked.
    fn went_on(&self, passed: &mut u64) -> bool {
        let now = lock(&self.0).passed;
        std::mem::replace(passed, now) != now
    }
}

impl Waiter {
    /// Hands the turn over, unless nobody waits any more.
    fn give(self, turn: Turn) -> Result<(), Turn> {
        match self {
            Waiter::Task(gives) => gives.send(turn),
            Waiter::Thread(gives) => gives.send(turn).map_err(|refused| refused.0),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        loop {
            let next = {
                let mut line = lock(&turns.0);
                line.is_taken = !line.waiting.is_empty();
                line.passed += 1;
                line.waiting.pop_front()
            };
            match next.map(|next| next.give(Turn(Some(turns.clone())))) {
                None | Some(Ok(())) => return,
                Some(Err(mut unwanted)) => unwanted.0 = None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, poll};

    #[tokio::test]
    async fn the_turn_is_given_in_the_order_in_which_it_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("a.db"), folder.path().join("b.db"));
        std::fs::File::create(&file).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let (turns, same) = (Turns::of(&file).unwrap(), Turns::of(&link).unwrap());
        let first = turns.take_at_once().unwrap();
        assert!(same.take_at_once().is_none(), "whatever its path");
        let long = Duration::from_secs(60);
        let mut second = std::pin::pin!(same.take(long));
        assert!(poll!(&mut second).is_pending());
        let mut gone = Box::pin(turns.take(long));
        assert!(poll!(&mut gone).is_pending());
        let thread = std::thread::spawn({
            let turns = turns.clone();
            move || turns.wait(long).is_some()
        });
        while lock(&turns.0).waiting.len() < 3 {
            std::thread::yield_now();
        }
        drop(gone);
        drop(first);
        assert!(turns.take_at_once().is_none(), "it is the second one's");
        drop(second.now_or_never().unwrap());
        assert!(thread.join().unwrap(), "who went away is passed over");
        assert!(turns.take_at_once().is_some());
    }

    #[tokio::test]
    async fn who_waited_too_long_leaves_the_turn_to_others() {
        let turns = Arc::<Turns>::default();
        let first = turns.take_at_once().unwrap();
        assert!(turns.wait(Duration::ZERO).is_none());
        assert!(turns.take(Duration::ZERO).await.is_none());
        drop(first);
        assert!(turns.take_at_once().is_some());
    }
}
