//! The promises, in the order in which they are tried, each with the section of docs/protocol.md that states it.

/// A promise of an agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) section: &'static str,
}

macro_rules! rules {
    ($($name:ident = $id:literal, $section:ident, $title:literal;)*) => {
        $(pub(super) const $name: Rule = Rule { id: $id, title: $title, section: $section };)*
        /// All of them.
        pub(super) const ALL: &[Rule] = &[$($name),*];
    };
}

const HEARTBEAT: &str = "heartbeat (agent to engine)";
const EVENT: &str = "event (agent to engine)";
const ACK: &str = "ack (engine to agent)";
const MESSAGES: &str = "Messages";
const KEYS: &str = "Keys";
const CACHE: &str = "The result cache";
const STAGING: &str = "Staging and artifacts";
const LIMITS: &str = "Limits";
const ERRORS: &str = "Errors";
const SHUTDOWN: &str = "Shutdown";

rules! {
    FIRST_HEARTBEAT = "heartbeat.first", HEARTBEAT, "its first heartbeat comes when it starts";
    HEARTBEATS = "heartbeat.goes_on", HEARTBEAT, "heartbeats go on, as often as it is told, and are counted";
    ANSWER = "command.answered", EVENT, "a command gets an answer";
    ARTIFACTS = "command.artifacts", STAGING, "its files are staged, with the size and hash that it says";
    VERSION = "command.version", EVENT, "the answer says which snapshot was worked on";
    HARD_KEY = "command.hard_key", KEYS, "large numbers and characters beyond ASCII are no other key";
    BUSY = "heartbeat.busy", HEARTBEAT, "heartbeats go on while it works";
    DUPLICATE = "memory.duplicate", CACHE, "a duplicate gets the same answer, and nothing is done again";
    IN_FLIGHT = "memory.in_flight", CACHE, "a duplicate that comes meanwhile waits: one execution";
    ACKED = "memory.acked", ACK, "after an acknowledgement a late duplicate is answered";
    FORGOTTEN = "memory.forgotten", ACK, "told to forget its answer, it does the work again";
    KILLED_AFTER = "memory.killed_after", CACHE, "killed behind its answer, it remembers it";
    KILLED_DURING = "memory.killed_during", CACHE, "killed while it works, it does the work again";
    SECOND = "memory.second_process", CACHE, "a second process waits as long as the first one lives";
    LONGEST = "line.longest", LIMITS, "a line of 262,144 bytes is read, and unknown fields are ignored";
    PIECES = "line.pieces", MESSAGES, "a line that comes in pieces is one line";
    OVERSIZE = "line.oversize", ERRORS, "a line that is too long is refused, and it goes on";
    UTF8 = "line.utf8", ERRORS, "a line that isn't UTF-8 is refused, and it goes on";
    GARBAGE = "line.garbage", ERRORS, "a line that isn't JSON is refused, and it goes on";
    BLANK = "line.blank", ERRORS, "a blank line is refused, and it goes on";
    KIND = "line.kind", ERRORS, "a message of an unknown kind is refused, and it goes on";
    INCOMPLETE = "line.incomplete", ERRORS, "a command without its action is refused, and it goes on";
    UNKNOWN_ACTION = "command.unknown_action", ERRORS, "an action that it doesn't know fails, and it goes on";
    WRONG_KEY = "command.wrong_key", KEYS, "a key that isn't the content's is refused";
    END_OF_INPUT = "end.input", SHUTDOWN, "it ends when its input ends, and does no command that was cut off";
    SIGTERM = "end.sigterm", SHUTDOWN, "it ends when it is asked to";
    WORKSPACE = "command.workspace", STAGING, "the workspace is left as it was";
    ONLY_MESSAGES = "line.only_messages", MESSAGES, "it writes nothing but messages, with values that can be";
    ONE_ANSWER = "command.one_answer", EVENT, "one answer for each command, and none for any other";
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
