//! How much an account tells. Characters are counted, and what is left out is said by its number.

use crate::json::{Change, raw};
use serde_json::value::RawValue;

/// Calls, notes and changes of one step at the most.
pub(super) const CALLS: usize = 500;
pub(super) const NOTES: usize = 500;
pub(super) const CHANGES: usize = 500;
/// Characters of one value at the most: an account is for people.
pub(super) const VALUE: usize = 20_000;
/// Characters of one name at the most.
pub(super) const NAME: usize = 300;
/// Characters of all values together, a little more with the last one.
const ALL: usize = 8_000_000;

/// The room that is left in an account.
#[derive(Debug)]
pub(super) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(ALL)
    }
}

impl Room {
    pub(super) fn is_full(&self) -> bool {
        self.0 == 0
    }

    /// A value, as much of it as fits.
    pub(super) fn value(&mut self, text: &str) -> String {
        self.taken(shortened(text, VALUE))
    }

    pub(super) fn name(&mut self, text: &str) -> String {
        self.taken(shortened(text, NAME))
    }

    /// A difference. A value that doesn't fit becomes a text with its beginning.
    pub(super) fn change(&mut self, change: Change) -> Change {
        let path = self.taken(change.path);
        let [before, after] = [change.before, change.after].map(|value| value.map(|value| self.json(value)));
        Change { path, before, after }
    }

    fn json(&mut self, value: Box<RawValue>) -> Box<RawValue> {
        let text = self.value(value.get());
        if text == value.get() {
            return value;
        }
        raw(&serde_json::Value::from(text).to_string()).unwrap_or_default()
    }

    fn taken(&mut self, text: String) -> String {
        self.0 = self.0.saturating_sub(text.len());
        text
    }
}

/// The beginning of a text, with how much of it is missing.
pub(super) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => {
            let (kept, rest) = text.split_at(end);
            format!("{kept}… and {} more characters", rest.chars().count())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_by_characters_and_says_how_many_are_missing() {
        assert_eq!(shortened("größe", 5), "größe");
        assert_eq!(shortened("größen", 5), "größe… and 1 more characters");
        let invisible = "\u{200b}".repeat(7);
        assert_eq!(shortened(&invisible, 2), "\u{200b}\u{200b}… and 5 more characters");
    }

    #[test]
    fn a_value_that_is_too_long_becomes_the_beginning_of_its_text() {
        let long = format!("[{}]", vec!["\"x\""; VALUE].join(","));
        let change = Change { path: "/log".into(), before: raw("[]"), after: raw(&long) };
        let cut = Room::default().change(change);
        assert_eq!(cut.before.unwrap().get(), "[]");
        let after: String = serde_json::from_str(cut.after.unwrap().get()).unwrap();
        assert!(after.starts_with("[\"x\",") && after.ends_with("… and 60001 more characters"), "{after}");
    }

    #[test]
    fn the_room_ends() {
        let mut room = Room::default();
        let value = "v".repeat(VALUE);
        let told = (0..).take_while(|_| !room.is_full() && room.value(&value) == value).count();
        assert_eq!(told, ALL / VALUE);
    }
}
