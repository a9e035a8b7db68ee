//! The promises, in the order in which they are tried, each with the section of docs/protocol.md that states it.

/// A promise of an agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) section: &'static str,
}

macro_rules! rules {
    ($($name:ident = $id:literal, $section:literal, $title:literal;)*) => {
        $(pub(super) const $name: Rule = Rule { id: $id, title: $title, section: $section };)*
        /// All of them.
        pub(super) const ALL: &[Rule] = &[$($name),*];
    };
}

rules! {
    FIRST_HEARTBEAT = "heartbeat.first", "Heartbeats", "its first heartbeat comes when it starts";
    HEARTBEATS = "heartbeat.goes_on", "Heartbeats", "heartbeats go on, as often as it is told, and are counted";
    ANSWER = "command.answered", "Events", "a command gets an answer";
    ARTIFACTS = "command.artifacts", "Artifacts", "its files are staged, with the size and hash that it says";
    VERSION = "command.version", "Events", "the answer says which snapshot was worked on";
    WORKSPACE = "command.workspace", "Artifacts", "the workspace is left as it was";
    BUSY = "heartbeat.busy", "Heartbeats", "heartbeats go on while it works";
    DUPLICATE = "memory.duplicate", "Duplicates", "a duplicate gets the same answer, and nothing is done again";
    IN_FLIGHT = "memory.in_flight", "Duplicates", "a duplicate that comes meanwhile waits: one execution";
    ACKED = "memory.acked", "Acknowledgements", "after an acknowledgement a late duplicate is answered";
    KILLED_AFTER = "memory.killed_after", "The result cache", "killed behind its answer, it remembers it";
    KILLED_DURING = "memory.killed_during", "The result cache", "killed while it works, it does the work again";
    LONGEST = "line.longest", "Lines", "a line of 262,144 bytes is read, and unknown fields are ignored";
    PIECES = "line.pieces", "Lines", "a line that comes in pieces is one line";
    OVERSIZE = "line.oversize", "Lines", "a line that is too long is refused, and it goes on";
    UTF8 = "line.utf8", "Lines", "a line that isn't UTF-8 is refused, and it goes on";
    GARBAGE = "line.garbage", "Lines", "a line that isn't JSON is refused, and it goes on";
    KIND = "line.kind", "Lines", "a message of an unknown kind is refused, and it goes on";
    INCOMPLETE = "line.incomplete", "Lines", "a command without its action is refused, and it goes on";
    UNKNOWN_ACTION = "command.unknown_action", "Events", "an action that it doesn't know fails, and it goes on";
    WRONG_KEY = "command.wrong_key", "Keys", "a key that isn't the content's is refused";
    END_OF_INPUT = "end.input", "Starting and ending", "it ends when its input ends";
    SIGTERM = "end.sigterm", "Starting and ending", "it ends when it is asked to";
    ONLY_MESSAGES = "line.only_messages", "Lines", "it writes nothing but messages";
    ONE_ANSWER = "command.one_answer", "Events", "one answer for each command, and none for any other";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_rule_has_a_name_of_its_own() {
        let names: HashSet<&str> = ALL.iter().map(|rule| rule.id).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
