//! A step's rows of the journal, read one after the other.

use super::{
    Call, LeftOut, Step,
    bounds::{CALLS, NAME, NOTES, Room, shortened},
};
use crate::words::told;
use hapax_core::{
    checkpoint::Checkpoint,
    journal::{EffectKind, EffectOutcome, Entry},
    key::Digest,
    order::PathHash,
};
use std::{collections::BTreeMap, sync::Arc};

/// A step that is being told.
pub(super) struct Telling {
    pub(super) step: Step,
    /// What its rows rest on.
    pub(super) base: Digest,
    nodes: BTreeMap<PathHash, String>,
    /// Where the calls are whose end hasn't come yet; `None`: left out.
    open: BTreeMap<(PathHash, Arc<str>, u32), Option<usize>>,
}

impl Telling {
    pub(super) fn of(checkpoint: &Checkpoint) -> Self {
        let items = || checkpoint.frontier.iter();
        let step = Step {
            step: checkpoint.step,
            label: checkpoint.label.as_ref().map(|label| shortened(label, NAME)),
            committed: false,
            nodes: items().map(|item| item.node.to_string()).collect(),
            items: checkpoint.frontier_len,
            calls: vec![],
            notes: vec![],
            changes: vec![],
            left_out: LeftOut::default(),
        };
        let nodes = items().map(|item| (item.path_hash, item.node.to_string())).collect();
        Self { step, base: checkpoint.digest, nodes, open: BTreeMap::new() }
    }

    fn node(&self, item: PathHash) -> String {
        self.nodes.get(&item).cloned().unwrap_or_else(|| item.to_string())
    }

    pub(super) fn tell(&mut self, item: PathHash, entry: &Entry, room: &mut Room) {
        match entry {
            Entry::Intent(intent) => {
                let mut call = self.call(item, &room.name(&intent.name), intent.attempt, intent.at_us);
                (call.kind, call.key) = (kind(intent.kind), Some(room.name(&intent.key)));
                let at = self.push(call, room);
                let before = self.open.insert((item, intent.scope.clone(), intent.index), at).flatten();
                if let Some(before) = before.and_then(|at| self.step.calls.get_mut(at)) {
                    before.again_us = Some(intent.at_us);
                }
            }
            Entry::Timer(timer) => {
                let mut call = self.call(item, "sleep", timer.attempt, timer.at_us);
                (call.kind, call.due_us) = ("timer", Some(timer.due_us));
                let at = self.push(call, room);
                self.open.insert((item, timer.scope.clone(), timer.index), at);
            }
            Entry::Result { scope, index, outcome, at_us, .. } => {
                match self.open.remove(&(item, scope.clone(), *index)) {
                    Some(at) => {
                        let call = at.and_then(|at| self.step.calls.get_mut(at));
                        call.into_iter().for_each(|call| call.end(outcome, *at_us, room));
                    }
                    None => self.note(item, entry, room),
                }
            }
            Entry::Seen(seen) => {
                let mut call = self.call(item, &room.name(&seen.name), seen.attempt, seen.at_us);
                call.kind = "seen";
                if let Some(call) = self.push(call, room).and_then(|at| self.step.calls.get_mut(at)) {
                    call.end(&seen.outcome, seen.at_us, room);
                }
            }
            // The state's changes tell it, and drafts of a stream are of no interest any more.
            Entry::ItemDone { .. } | Entry::Chunk(_) | Entry::Streams(_) => {}
            other => self.note(item, other, room),
        }
    }

    fn note(&mut self, item: PathHash, entry: &Entry, room: &mut Room) {
        if self.step.notes.len() == NOTES || room.is_full() {
            self.step.left_out.notes += 1;
            return;
        }
        let note = format!("{}: {}", self.node(item), told(entry));
        self.step.notes.push(room.value(&note));
    }

    /// Where the call is now; `None`: there was no room for it.
    fn push(&mut self, call: Call, room: &Room) -> Option<usize> {
        if self.step.calls.len() == CALLS || room.is_full() {
            self.step.left_out.calls += 1;
            return None;
        }
        self.step.calls.push(call);
        Some(self.step.calls.len() - 1)
    }

    fn call(&self, item: PathHash, name: &str, attempt: u32, began_us: i64) -> Call {
        Call {
            node: self.node(item),
            name: name.to_owned(),
            kind: "effect",
            attempt,
            key: None,
            began_us,
            due_us: None,
            ended_us: None,
            again_us: None,
            under_way: false,
            failed: false,
            answer: None,
        }
    }
}

impl Call {
    fn end(&mut self, outcome: &EffectOutcome, at_us: i64, room: &mut Room) {
        self.ended_us = Some(at_us);
        (self.failed, self.answer) = match outcome {
            EffectOutcome::Ok { response } => (false, Some(room.value(response.as_str()))),
            EffectOutcome::Err { code, message, .. } => {
                (true, Some(room.value(&format!("{code} {message}"))))
            }
        };
    }
}

fn kind(kind: EffectKind) -> &'static str {
    match kind {
        EffectKind::Read => "read",
        EffectKind::Write => "write",
        EffectKind::WriteAtMostOnce => "write at most once",
        EffectKind::Child => "child",
        EffectKind::Transaction => "transaction",
        _ => "effect",
    }
}

#[cfg(test)]
mod tests {
    use super::super::bounds::CHANGES;
    use super::*;
    use crate::json::{Change, raw};
    use hapax_core::{
        checkpoint::Draft,
        frontier::{Barriers, WorkItem},
        id::{NodeId, RunId},
        journal::{Intent, Seen},
        json::Json,
        key::sha256,
    };

    const ITEM: PathHash = PathHash(7);

    fn telling() -> Telling {
        let draft = Draft {
            step: 3,
            state: b"{}".to_vec().into(),
            state_version: 1,
            frontier: vec![WorkItem::child(ITEM, 0, NodeId::new("work").unwrap(), None)],
            barriers: Barriers::default(),
            seed: 0,
            io: sha256(b""),
            outbox: sha256(b""),
            label: None,
        };
        Telling::of(&draft.seal(&RunId::new("r").unwrap()))
    }

    fn intent(index: u32) -> Entry {
        Entry::Intent(Intent {
            scope: "".into(),
            index,
            attempt: 1,
            name: "pay".into(),
            kind: EffectKind::Write,
            request: sha256(b""),
            key: "fx:1".into(),
            at_us: 1,
            anew: false,
        })
    }

    fn answer(index: u32, text: &str) -> Entry {
        let outcome = EffectOutcome::Ok { response: Json::of(text).unwrap() };
        Entry::Result { scope: "".into(), index, attempt: 1, outcome, at_us: 2 }
    }

    fn seen(text: &str) -> Entry {
        Entry::Seen(Seen {
            scope: "".into(),
            index: 0,
            attempt: 1,
            name: "rate".into(),
            request: sha256(b""),
            outcome: EffectOutcome::Ok { response: Json::of(text).unwrap() },
            at_us: 1,
            began: None,
        })
    }

    #[test]
    fn what_a_step_has_too_much_of_is_left_out_and_counted() {
        let (mut telling, mut room) = (telling(), Room::default());
        let more = 3;
        for index in 0..CALLS as u32 + more {
            telling.tell(ITEM, &intent(index), &mut room);
        }
        (0..CALLS as u32 + more).for_each(|index| telling.tell(ITEM, &answer(index, "paid"), &mut room));
        (0..=NOTES).for_each(|_| telling.tell(ITEM, &Entry::Retried, &mut room));
        let change = || Change { path: "/log".into(), before: None, after: raw("1") };
        telling.step.take((0..CHANGES + 2).map(|_| change()).collect(), &mut room);
        let step = telling.step;
        assert_eq!((step.calls.len(), step.notes.len(), step.changes.len()), (CALLS, NOTES, CHANGES));
        assert_eq!(step.left_out.words().unwrap(), "left out: 3 calls, 1 note, 2 changes");
        assert!(step.calls.iter().all(|call| call.ended_us.is_some()), "an answer is told to its own call");
    }

    #[test]
    fn all_values_together_have_an_end() {
        let (mut telling, mut room) = (telling(), Room::default());
        let long = "é".repeat(1_000_000);
        telling.tell(ITEM, &seen(&long), &mut room);
        let told = telling.step.calls[0].answer.clone().unwrap();
        assert!(told.ends_with("… and 980002 more characters"), "it is cut by characters");
        while !room.is_full() {
            room.value(&long);
        }
        telling.tell(ITEM, &seen("short"), &mut room);
        assert_eq!((telling.step.calls.len(), telling.step.left_out.calls), (1, 1));
    }
}
