//! Whether a store can have written what an export says of a run.
//!
//! Invariant: what passes here every store can take in and work on. A checksum only says that a file is whole, not who wrote
//! it, so what a new run is asked is asked of a run in a file as well.

use super::super::{Head, Piece};
use crate::check::{
    check_about, check_checkpoint, check_items, check_letter, check_message, check_rows, is_elsewhere,
};
use hapax_core::{
    id::{RunKey, check_name},
    journal::JournalRow,
    json::Json,
    key::Digest,
    mailbox::NewLetter,
};

/// No count is as large. Databases keep them in 64 bits with a sign, and count on.
const MOST: u64 = 1 << 62;

/// A run of an export that is being read, with what its pieces must fit.
pub(super) struct Vetting {
    run: RunKey,
    step: u64,
    digest: Digest,
    next_seq: u64,
    has_latest: bool,
    last: Option<Place>,
}

/// Where a piece stands among those of its run: its kind, and up to two numbers.
type Place = (u8, u64, u64);

/// What is wrong with a line.
type Verdict = Result<(), String>;

impl Vetting {
    pub(super) fn of(head: &Head) -> Result<Self, String> {
        if is_elsewhere(&head.status) {
            return Err(format!("a run in an export can't be `{}`", head.status.word()));
        }
        check_name("graph name", &head.graph).map_err(|error| error.to_string())?;
        check_about(&head.tags, &head.terms).map_err(|error| error.to_string())?;
        head.wake.letters.iter().try_for_each(|subject| plain("a subject", subject))?;
        let counts = [
            ("step", head.step),
            ("epoch", head.epoch),
            ("next_seq", head.next_seq),
            ("used_us", head.used_us),
            // A time before 1970 is as wrong as one that is far too late.
            ("created_at_us", head.created_at_us.cast_unsigned()),
            ("updated_at_us", head.updated_at_us.cast_unsigned()),
            ("at_us", head.wake.at_us.unwrap_or_default().cast_unsigned()),
        ];
        counts.into_iter().try_for_each(|(what, count)| countable(what, count))?;
        if head.created_at_us == 0 {
            return Err("its `created_at_us` is 0, and no store has a run that old".into());
        }
        let Head { step, digest, next_seq, .. } = *head;
        Ok(Self { run: head.key(), step, digest, next_seq, has_latest: false, last: None })
    }

    pub(super) fn piece(&mut self, piece: Piece) -> Verdict {
        let place = Some(place(&piece));
        if self.last >= place {
            return Err("a piece comes twice, or not in its place".into());
        }
        self.last = place;
        match piece {
            Piece::Letter(letter) => {
                countable("number", letter.number)?;
                plain("a subject", &letter.subject)?;
                let payload = letter.payload.unwrap_or_else(Json::null);
                check_letter(&NewLetter { id: letter.id, subject: letter.subject, payload })
                    .map_err(|error| error.to_string())
            }
            Piece::Row(row) => {
                let row = JournalRow::from(row);
                countable("step", row.step)?;
                if row.seq >= self.next_seq {
                    let next = self.next_seq;
                    return Err(format!(
                        "row {} isn't before {next}, which is to be its run's next",
                        row.seq
                    ));
                }
                check_rows(&[row]).map_err(|error| error.to_string())
            }
            Piece::Message(post) => {
                let record = post.record(&self.run).map_err(|error| error.to_string())?;
                countable("step", record.place.step)?;
                plain("an error", record.error.as_deref().unwrap_or_default())?;
                check_message(&record.message).map_err(|error| error.to_string())
            }
            Piece::Checkpoint(step) => {
                let (checkpoint, next_seq) = step.checkpoint(&self.run).map_err(|error| error.to_string())?;
                if checkpoint.step > self.step || next_seq > self.next_seq {
                    return Err(format!("step {} goes beyond its run", checkpoint.step));
                }
                self.has_latest |= (checkpoint.step, checkpoint.digest) == (self.step, self.digest);
                plain("a label", checkpoint.label.as_deref().unwrap_or_default())?;
                check_checkpoint(&checkpoint).map_err(|error| error.to_string())
            }
            Piece::Page(page) => {
                countable("step", page.step)?;
                check_items(&page.items).map_err(|error| error.to_string())
            }
        }
    }

    /// After its last piece.
    pub(super) fn end(self) -> Verdict {
        match self.has_latest {
            true => Ok(()),
            false => Err(format!("the run before it, `{}`, lacks its latest step", self.run)),
        }
    }
}

/// Every store tells the pieces of a run in this order.
fn place(piece: &Piece) -> Place {
    match piece {
        Piece::Letter(letter) => (0, letter.number, 0),
        Piece::Row(row) => (1, row.seq(), 0),
        Piece::Message(post) => {
            let (step, position) = post.place();
            (2, step, position)
        }
        Piece::Checkpoint(step) => (3, step.step, 0),
        Piece::Page(page) => (3, page.step, page.page.into()),
    }
}

fn countable(what: &str, count: u64) -> Verdict {
    if count < MOST { Ok(()) } else { Err(format!("its `{what}` is larger than any can be")) }
}

/// Not every database takes a zero in a text.
fn plain(what: &str, text: &str) -> Verdict {
    if text.contains('\0') { Err(format!("{what} holds a zero byte")) } else { Ok(()) }
}
