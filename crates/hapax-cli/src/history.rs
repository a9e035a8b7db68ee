//! What a run did, step by step, as its checkpoints and its journal tell it.
//!
//! Invariant: nothing is shown as done that rests on a step which was lost: rows of another base than a step's checkpoint are
//! counted, and not told. What is too much to be told is counted as well, so that an account has a size that a screen and a
//! browser bear, however large the run is.

mod bounds;
pub(crate) mod html;
mod telling;
pub(crate) mod text;

use crate::{
    failure::Failure,
    json::{Change, changes, raw},
    session::Session,
    view::{RunView, counted, time},
};
use bounds::{CHANGES, Room};
use hapax::Secrets;
use hapax_core::commit::Status;
use hapax_store::RunRecord;
use serde::Serialize;
use serde_json::value::RawValue;
use telling::Telling;

/// Rows of the journal that are read at once.
const PAGE: usize = 256;

/// A run's account.
#[derive(Serialize)]
pub(crate) struct Account<'a> {
    #[serde(flatten)]
    pub(crate) run: RunView<'a>,
    #[serde(skip)]
    pub(crate) record: &'a RunRecord,
    /// The state now.
    pub(crate) state: Option<Box<RawValue>>,
    /// Steps that aren't told of: older ones, or deleted.
    pub(crate) untold: u64,
    /// Rows of the journal that steps left behind which were lost.
    pub(crate) lost_rows: u64,
    pub(crate) steps: Vec<Step>,
}

/// A step: the items that it executes, what they did, and what came of it.
#[derive(Serialize)]
pub(crate) struct Step {
    pub(crate) step: u64,
    pub(crate) label: Option<String>,
    /// Whether it is over; the latest one is under way, or will never be.
    pub(crate) committed: bool,
    /// The nodes of its first items.
    pub(crate) nodes: Vec<String>,
    pub(crate) items: usize,
    pub(crate) calls: Vec<Call>,
    /// What else was noted, in words.
    pub(crate) notes: Vec<String>,
    /// What it changed of the state.
    pub(crate) changes: Vec<Change>,
    /// What there was no room for.
    pub(crate) left_out: LeftOut,
}

/// How much of a step isn't told.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct LeftOut {
    pub(crate) calls: u64,
    pub(crate) notes: u64,
    pub(crate) changes: u64,
}

/// A call to the outside, or something that was seen of it.
#[derive(Serialize)]
pub(crate) struct Call {
    pub(crate) node: String,
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) attempt: u32,
    /// The key that its receiver got.
    pub(crate) key: Option<String>,
    pub(crate) began_us: i64,
    /// When a timer goes off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) due_us: Option<i64>,
    /// `None`: it is under way, or nobody heard how it ended.
    pub(crate) ended_us: Option<i64>,
    /// When it was made again, under the same key, since nobody had.
    pub(crate) again_us: Option<i64>,
    /// Its run goes on, so its end may still come.
    pub(crate) under_way: bool,
    pub(crate) failed: bool,
    /// What was answered, or why it failed.
    pub(crate) answer: Option<String>,
}

/// What is read of a run beside its row.
pub(crate) struct Past {
    state: Option<Box<RawValue>>,
    untold: u64,
    lost_rows: u64,
    steps: Vec<Step>,
}

impl<'a> Account<'a> {
    pub(crate) fn of(record: &'a RunRecord, past: Past) -> Self {
        let Past { state, untold, lost_rows, steps } = past;
        Self { run: RunView::of(record), record, state, untold, lost_rows, steps }
    }
}

impl Past {
    /// Of the latest steps.
    pub(crate) async fn read(session: &Session<'_>, record: &RunRecord, most: u64) -> Result<Self, Failure> {
        let secrets = session.engine.secrets(record);
        let first = *session.latest_steps(record, most).await?.start();
        let (mut tellings, mut room) = (vec![], Room::default());
        let mut checkpoint = session.checkpoint(record, first).await?;
        let state = loop {
            let (mut telling, before) = (Telling::of(&checkpoint), secrets.state_of(&checkpoint));
            if checkpoint.step == record.step {
                tellings.push(telling);
                break before;
            }
            checkpoint = session.checkpoint(record, checkpoint.step + 1).await?;
            telling.step.take(changes(&before, &secrets.state_of(&checkpoint)), &mut room);
            tellings.push(telling);
        };
        let lost_rows = read_journal(session, record, &secrets, &mut tellings, &mut room).await?;
        let mut steps: Vec<_> = tellings.into_iter().map(|telling| telling.step).collect();
        if is_live(&record.status) {
            steps.last_mut().into_iter().for_each(Step::go_on);
        }
        steps.pop_if(|last| last.items == 0);
        Ok(Self { state: raw(&state), untold: first, lost_rows, steps })
    }
}

/// Whether what is open may still end by itself.
fn is_live(status: &Status) -> bool {
    !status.is_final() && !matches!(status, Status::InDoubt | Status::Leaving { .. } | Status::Moved { .. })
}

/// Tells the journal's rows to their steps; how many there are of steps that were lost.
async fn read_journal(
    session: &Session<'_>,
    record: &RunRecord,
    secrets: &Secrets,
    tellings: &mut [Telling],
    room: &mut Room,
) -> Result<u64, Failure> {
    let store = session.engine.store();
    let (mut from, mut lost) = (0, 0);
    let first = tellings.first().map_or(0, |telling| telling.step.step);
    loop {
        let page = store.journal(record.key.clone(), from, PAGE).await?;
        let Some(last) = page.last() else { return Ok(lost) };
        from = last.seq + 1;
        for row in page {
            let at = row.step.checked_sub(first).and_then(|at| usize::try_from(at).ok());
            let Some(telling) = at.and_then(|at| tellings.get_mut(at)) else { continue };
            if telling.base != row.base {
                lost += 1;
                continue;
            }
            let entry = secrets.entry(row.entry);
            entry.each().iter().for_each(|entry| telling.tell(row.path_hash, entry, room));
        }
    }
}

impl Step {
    /// It is over, and changed this.
    fn take(&mut self, changes: Vec<Change>, room: &mut Room) {
        self.committed = true;
        for change in changes {
            match self.changes.len() < CHANGES && !room.is_full() {
                true => self.changes.push(room.change(change)),
                false => self.left_out.changes += 1,
            }
        }
    }

    /// Its run goes on with it.
    fn go_on(&mut self) {
        for call in &mut self.calls {
            call.under_way = call.ended_us.is_none() && call.again_us.is_none();
        }
    }
}

impl LeftOut {
    /// In words, if there is any.
    fn words(self) -> Option<String> {
        let all = [(self.calls, "call"), (self.notes, "note"), (self.changes, "change")];
        let some = all.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| counted(count, what));
        let some = some.collect::<Vec<_>>().join(", ");
        (!some.is_empty()).then(|| format!("left out: {some}"))
    }
}

impl Call {
    /// What came of it, in words.
    fn outcome(&self) -> String {
        match self {
            Self { answer: Some(answer), .. } => answer.clone(),
            Self { again_us: Some(_), .. } => "its answer was never heard; it was made again".into(),
            Self { due_us: Some(due), .. } => format!("until {}", time(*due)),
            Self { under_way: true, .. } => "under way".into(),
            _ => "its end is not known".into(),
        }
    }
}
