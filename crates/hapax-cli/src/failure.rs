//! What went wrong, with its cure and exit code.

use crate::{
    output::{BAD, FAINT, STRONG, clean},
    session::ServerKind,
    table::wrapped,
};
use anstyle::Style;
use hapax::{Coded, Error};
use hapax_core::error::{Code, code};
use hapax_store::{StoreError, house::ExportError};
use serde::Serialize;
use std::{error::Error as _, ffi::OsStr, io};

const FAILED: u8 = 1;
const USAGE: u8 = 2;
const STORE: u8 = 3;
const BUSY: u8 = 4;
const INTERRUPTED: u8 = 130;

/// Where the pages of the error codes are.
const PAGES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/errors/");

/// Why a command didn't do what it was asked for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error with a code.
    Coded { code: Code, message: String, cause: Option<String>, cure: Option<String>, exit: u8 },
    /// The answer itself said what is wrong.
    Told,
    /// The reader of our output went away; it has what it wanted.
    Closed,
}

/// What is told about a failure.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    code: Code,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cure: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page: Option<String>,
}

impl Failure {
    /// An error of the operating system.
    pub(crate) fn io(what: &str, error: &io::Error) -> Self {
        Failure::coded(code::SYSTEM, format!("{what}: {error}"))
    }

    /// An error while the answer was written.
    pub(crate) fn from_write(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::Closed;
        }
        Failure::io("cannot write the answer", error)
    }

    /// The command line doesn't fit.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::coded(code::USAGE, message)
    }

    /// An error with a code.
    pub(crate) fn coded(code: Code, message: impl Into<String>) -> Self {
        let cause = None;
        Failure::Coded { code, message: message.into(), cause, cure: None, exit: exit_of(code) }
    }

    /// Another cure than the code's usual one.
    pub(crate) fn cured_by(mut self, better: impl Into<String>) -> Self {
        if let Failure::Coded { cure, .. } = &mut self {
            *cure = Some(better.into());
        }
        self
    }

    /// At a store with this address: a cure that fits its kind.
    pub(crate) fn at(mut self, url: &OsStr) -> Self {
        if let Failure::Coded { code, cure, .. } = &mut self
            && cure.is_none()
        {
            let server = ServerKind::of(&url.to_string_lossy()).filter(|server| server.is_built_in());
            *cure = server
                .map_or_else(|| cure_of_file(code), |server| cure_of_server(code, server))
                .map(Into::into);
        }
        self
    }

    /// What lies behind it, where something does.
    pub(crate) fn caused_by(mut self, deeper: &str) -> Self {
        if let Failure::Coded { cause, .. } = &mut self
            && !deeper.trim().is_empty()
        {
            *cause = Some(deeper.trim().to_owned());
        }
        self
    }

    /// Its code, if it has one.
    pub(crate) fn code(&self) -> Option<Code> {
        match self {
            Failure::Coded { code, .. } => Some(code),
            _ => None,
        }
    }

    /// What went wrong, without its cure.
    pub(crate) fn message(&self) -> String {
        self.report().map(|report| report.message).unwrap_or_default()
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Closed => 0,
            Failure::Coded { exit, .. } => *exit,
            Failure::Told => FAILED,
        }
    }

    /// What is to be told, if anything is.
    pub(crate) fn report(&self) -> Option<Report> {
        match self {
            Failure::Told | Failure::Closed => None,
            Failure::Coded { code, message, cause, cure: better, .. } => Some(Report {
                code,
                message: message.clone(),
                cause: cause.clone(),
                cure: better.clone().or_else(|| Some(cure(code).into())),
                page: Some(format!("{PAGES}{code}.md")),
            }),
        }
    }
}

impl Report {
    /// As a person reads it, in lines of so many columns.
    pub(crate) fn human(&self, width: Option<usize>, paint: impl Fn(Style, &str) -> String) -> String {
        let head = format!("error[{}]", self.code);
        let parts = [
            ("", head.as_str(), BAD, Some(&self.message)),
            ("  ", "cause", STRONG, self.cause.as_ref()),
            ("  ", "cure", STRONG, self.cure.as_ref()),
            ("  ", "page", FAINT, self.page.as_ref()),
        ];
        let mut text = String::new();
        for (indent, name, style, said) in parts {
            let Some(said) = said else { continue };
            // An address is of use only in one piece.
            let width = width.filter(|_| name != "page");
            let room = width.map_or(usize::MAX, |width| width.saturating_sub(indent.len() + 2));
            let lines = wrapped(&format!("{name}: {}", clean(said)), room).join(&format!("\n{indent}  "));
            text.push_str(&format!("{indent}{}\n", lines.replacen(name, &paint(style, name), 1)));
        }
        text
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let mut failure = Failure::coded(error.code(), message.clone());
        if let Failure::Coded { cause, .. } = &mut failure {
            *cause = deepest(&error).filter(|cause| !message.contains(cause));
        }
        failure
    }
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Self {
        match error {
            ExportError::Store(error) => error.into(),
            ExportError::Io(error) => Failure::io("cannot read or write the export", &error),
            error => Failure::coded(error.code(), error.to_string()),
        }
    }
}

impl From<hapax::agent::Error> for Failure {
    fn from(error: hapax::agent::Error) -> Self {
        Failure::coded(error.code(), error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Error::from(error).into()
    }
}

fn deepest(error: &Error) -> Option<String> {
    let mut cause = error.source()?;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Some(cause.to_string())
}

fn exit_of(code: Code) -> u8 {
    match code {
        // Every name that a command checks is one that it was given.
        code::BAD_URL
        | code::SINK_INVALID
        | code::TELEMETRY
        | code::USAGE
        | code::BAD_KEYRING
        | code::BAD_DEPOT
        | code::INVALID_ID
        | code::BAD_CRON
        | code::BAD_ZONE
        | code::BAD_SCHEDULE => USAGE,
        code::INTERRUPTED => INTERRUPTED,
        code::RUN_HELD | code::STORE_RETRY | code::STORE_UNKNOWN | code::FENCED | code::KEYS_DIFFER => BUSY,
        code::CORRUPT
        | code::KEY_MISSING
        | code::NO_DEPOT
        | code::KEY_WRONG
        | code::NOT_ENCRYPTED
        | code::STORE_FULL
        | code::SCHEMA_TOO_NEW
        | code::CANNOT_OPEN
        | code::NETWORK_FILE_SYSTEM
        | code::SHARD_MAP
        | code::READ_ONLY => STORE,
        _ => FAILED,
    }
}

/// What to do, in one line; the code's page says more.
fn cure(code: Code) -> &'static str {
    match code {
        code::INVALID_ID => "use 1 to 255 bytes without control characters",
        code::NO_START | code::UNKNOWN_NODE => "add the node to the graph, or mend its name",
        code::DUPLICATE => "remove one, or give it another name or label",
        code::UNREACHABLE => "add an edge to it, or remove it",
        code::JOIN_CANNOT_FILL => "join only nodes that run without the join",
        code::NO_ROUTE => "add an edge that holds, or declare `.end(NODE)`; then `retry`",
        code::NO_PROGRESS => "see which branch did not reach the join: `show` and `graph --run`",
        code::MERGE_CONFLICT => "give the field a reducer that combines both, then `retry`",
        code::UNKNOWN_TARGET => "mend the name in `.goto` or `.fork`, then `retry`",
        code::LIMIT => "split the work or keep large data elsewhere",
        code::STATE_SHAPE => "deploy the version that wrote it, or declare an upgrade of the state",
        code::NOT_SERIALISABLE => "mend the JSON, or the type that makes it",
        code::OWN_HANDLER => "give the node a `Retry`, or another node as its handler",
        code::IMPURE => "let it depend on nothing but its arguments: no clock, no chance, no shared counter",
        code::UNSUPPORTED_VERSION => "deploy code that still has that version, or the newer code that has it",
        code::CANNOT_FORK => "`show RUN --step N` tells what is there: choose another step or field",
        code::NOT_ALONE => "join the branches first, and let the node after the join continue",
        code::NODE_FAILED => "mend what the message names, then `retry`: it goes on from the failed step",
        code::NODE_TIMEOUT => "raise the node's timeout, or make it faster; then `retry`",
        code::NODE_PANICKED => "mend the panic, then `retry`",
        code::BUDGET_EXCEEDED => "raise `run_budget`, then `retry`: it gives the run all of its time again",
        code::MAX_STEPS => "raise `max_steps`, or end the loop; then `retry`",
        code::CANCELLED => "start it again under another id",
        code::ALREADY_FINISHED => "nothing is left to do: `show` tells how it ended",
        code::RUN_EXISTS => "choose another id, or attach to the run",
        code::RUN_NOT_FOUND => {
            "look for it with `list`; it may live in another store or namespace, or be deleted"
        }
        code::GRAPH_MISMATCH => {
            "run the program version that started it, or declare its shape `.compatible(…)`"
        }
        code::RUN_HELD => "let that engine go on, or end it; its runs are free when it is gone",
        code::REPLAY_MISMATCH => {
            "deploy the code that recorded it; nodes must ask for the same things in the same order"
        }
        code::SHUT_DOWN => "open the store again",
        code::DEAD_HANDLE => "await recorded calls inside the node",
        code::NOT_REGISTERED => {
            "run this command with the program that registers the graph (`hapax_cli::run`)"
        }
        code::NOT_FAILED => "only a failed run can be retried; `resume` goes on with one that is under way",
        code::EFFECT_FAILED => "see the other side's answer in `show`, then `retry`",
        code::UNDECLARED_EFFECT => "declare the call in the node's policy, or move it to another node",
        code::NOT_IN_DOUBT => "`show` names the calls of a run in doubt; use one of their names or keys",
        code::BAD_DURATION => "compute the duration from two times that you check first",
        code::ANSWER_REJECTED => "`inbox` shows the question with its schema: answer again",
        code::NO_QUESTION => "`inbox` lists the open questions with their names",
        _ => cure_around(code),
    }
}

/// The same for what lies around runs: stores, the command line, other programs, the outbox.
fn cure_around(code: Code) -> &'static str {
    match code {
        code::STORE_RETRY => {
            "try again; if it stays, look for a process that holds the file, or whether the server can be reached"
        }
        code::STORE_UNKNOWN => "look with `show` whether it took effect",
        code::FENCED => "nothing: another engine goes on with it",
        code::CONFLICT => {
            "keep both digests and report it: two executions differ, so a node is not deterministic"
        }
        code::CORRUPT => "restore the store from a backup; `doctor` names what is damaged, if it opens",
        code::STORE_FULL => "make room on the disk, or delete finished runs with `gc`",
        code::SCHEMA_TOO_NEW => "use that version of Hapax or a newer one",
        code::CANNOT_OPEN => {
            "check the path and its permissions, or the server's address and what it said; a store is created by the \
             program whose runs it holds"
        }
        code::NETWORK_FILE_SYSTEM => "move the file to a local disk",
        code::READ_ONLY => {
            "give this user write permission for the file and its folder, or name the server that takes writes"
        }
        code::BAD_URL => {
            "use `sqlite:path/to/file.db`, `memory:`, or `postgres://…` and `mysql://…` in a build with `--features full`"
        }
        code::USAGE => "`--help` shows how it is used",
        code::SYSTEM => "check the path, its permissions and the room on the disk",
        code::BAD_PROGRAM => {
            "name a program that calls `hapax_cli::run`, with the graphs of these runs registered"
        }
        code::INTERRUPTED => "call it again: what is stored is whole",
        code::FINDS_WORK => "build its engine with `Options::default().finds_work(false)`",
        code::CLAIM_LOST => "nothing: another relay delivers them",
        code::SINK_INVALID => "correct what it names; the page lists the forms of addresses and secrets",
        code::TOPIC_UNFIT => "give the topic another sink or another name, then drop what is dead",
        code::NO_RECEIVER => "create the stream or queue; what waits is delivered then",
        code::SINK_FAILED => "mend the other side or the path; what waits is kept and delivered then",
        _ => cure_of_http(code),
    }
}

/// The cure at a file, where the usual one speaks of servers as well.
fn cure_of_file(code: Code) -> Option<&'static str> {
    match code {
        code::STORE_RETRY => Some("try again; if it stays, look for a process that holds the file"),
        code::CANNOT_OPEN => {
            Some("check the path and its permissions; a store is created by the program whose runs it holds")
        }
        code::READ_ONLY => Some("give this user write permission for the file and its folder"),
        _ => None,
    }
}

/// The cure at a server, where the usual one speaks of files as well.
fn cure_of_server(code: Code, server: ServerKind) -> Option<&'static str> {
    match (code, server) {
        (code::STORE_RETRY, _) => Some(
            "try again; if it stays, see whether the server runs, can be reached and allows one more session",
        ),
        (code::CORRUPT, _) => Some("restore the database from a backup; `doctor` names what is damaged"),
        (code::STORE_FULL, _) => Some("make room on the server's disk, or delete finished runs with `gc`"),
        (code::CANNOT_OPEN, _) => {
            Some("do what the message says; a store is created by the program whose runs it holds")
        }
        (code::READ_ONLY, _) => Some("name the server that takes writes, or let this one take them"),
        (code::BAD_URL, ServerKind::Postgres) => Some(
            "mend what the message names: `postgres://user:password@host:5432/database?sslmode=verify-full&sslrootcert=ca.pem`",
        ),
        (code::BAD_URL, ServerKind::MySql) => Some(
            "mend what the message names: `mysql://user:password@host:3306/database?ssl-mode=VERIFY_IDENTITY&ssl-ca=ca.pem`",
        ),
        _ => None,
    }
}

fn cure_of_http(code: Code) -> &'static str {
    match code {
        code::HTTP_INVALID => "mend the request or the client; nothing was sent",
        code::HTTP_STATUS => "mend what the answer complains of, then `retry`; or accept the status",
        code::HTTP_NO_ANSWER => "see whether the other side is up and trusted, then `retry`",
        code::HTTP_TOO_LARGE => "raise `max_body`, or ask for less; then `retry`",
        code::HTTP_BODY => "mend the type that it is read as, then `retry`",
        _ => cure_of_requests(code),
    }
}

/// What a client of a service is told, and what an operator meets.
fn cure_of_requests(code: Code) -> &'static str {
    match code {
        code::REQUEST_KEY_MISSING => {
            "send an `Idempotency-Key`: a string in quotes that no other request has"
        }
        code::REQUEST_KEY_INVALID => "send one `Idempotency-Key`: one string in quotes, of 1 to 255 bytes",
        code::REQUEST_NO_PRINCIPAL => "send what the service knows its clients by",
        code::REQUEST_NAME_INVALID => "shorten the principal or the route, and leave control characters out",
        code::REQUEST_BODY_BROKEN => "send the request again, whole and with the same key",
        code::REQUEST_BODY_TOO_LARGE => "send less, or raise `max_request_bytes`",
        code::REQUEST_MISMATCH => "send the first request again as it was, or this one with a key of its own",
        code::REQUEST_IN_FLIGHT => "send it again later with the same key, or let the service wait",
        code::REQUEST_STORE_DOWN => {
            "see whether the store of the requests is up; send it again with the same key"
        }
        code::REQUEST_ANSWER_TOO_LARGE => "answer with less, or raise `max_response_bytes`",
        code::REQUEST_LOST => "send it again later with the same key",
        code::REQUEST_UNREADABLE => "mend the request, and send it with a key of its own",
        code::REQUEST_NOT_FOUND => {
            "look for it with `requests list`; it may live in another store or namespace, or be swept"
        }
        _ => cure_of_agents(code),
    }
}

fn cure_of_agents(code: Code) -> &'static str {
    match code {
        code::AGENT_INVALID => "mend what the message names; nothing was sent",
        code::AGENT_TOO_LARGE => {
            "put what is large into files of the workspace, and their paths into the inputs"
        }
        code::AGENT_FAILED => "mend what the agent names, then `retry`",
        code::AGENT_DEAD => "read its last words and run it by hand (`hapax agent run -- CMD`), then `retry`",
        code::AGENT_TIMEOUT => "`retry` gets the answer when it is there; or raise the command's timeout",
        code::AGENT_PROTOCOL => {
            "have the agent write nothing but messages to its standard output (`hapax agent check -- CMD`), then `retry`"
        }
        code::AGENT_VERSION => "let nothing else change the workspace while runs use it",
        code::AGENT_ARTIFACT => {
            "mend how the agent stages and lists its files (`hapax agent check -- CMD`), then `retry`"
        }
        code::AGENT_OUTPUT_MISSING => "have the agent make and list it, or make it optional, then `retry`",
        code::AGENT_ROUNDS => "read the findings, then start a run with a clearer goal or with more rounds",
        code::AGENT_LOCKED => "end the other engine, or give the agent an id or a workspace of its own",
        code::WORKSPACE => "mend what the message names, then `retry`",
        code::LEDGER => "check the path, its permissions and the room on the disk",
        _ => cure_beside(code),
    }
}

/// Of what stands beside an engine: those who watch it, and those who receive.
fn cure_beside(code: Code) -> &'static str {
    match code {
        code::WATCHED => "start telemetry once for each engine",
        code::EVENT_SOURCE => "name a URI-reference without spaces, such as `/shop` or `urn:shop`",
        code::GRAPH_DESCRIPTION => "mend the description where the message points",
        code::BAD_TERMS => {
            "use up to four keys of 1 to 1000 slots, a priority from 0 to 100, and a debounce alone"
        }
        code::SINGLETON_TAKEN => "wait for the end of the run that it names, or cancel it",
        code::FLOW_NAME_ELSEWHERE => "give each graph names of its own",
        code::KEY_MISSING => "add that key to HAPAX_KEYS, or to the file that HAPAX_KEYS_FILE names",
        code::KEY_WRONG => "give the key that had this name when the store was written",
        code::NOT_ENCRYPTED => {
            "find out who wrote it; a store that is only becoming encrypted is read, and rotated, with keys that end with the word `plain`"
        }
        code::BAD_KEYRING => "give keys as `name:` and 32 random bytes in base64 (`openssl rand -base64 32`)",
        code::KEYS_DIFFER => {
            "give all programs on the store these keys in this order, restart them, then call it again"
        }
        code::NO_DEPOT => "name it: `Resting` among the store's options, or HAPAX_OBJECTS for the commands",
        code::BAD_DEPOT => {
            "name `s3://BUCKET/PREFIX`, with the variables of AWS's tools (AWS_REGION, AWS_ENDPOINT_URL, …), or `file:///FOLDER`"
        }
        code::TELEMETRY => "correct the address or the ratio that it names, or free the port",
        code::INBOX_NAME => "use 1 to 255 bytes without control characters for consumers and message ids",
        code::INBOX_NOT_DURABLE => {
            "set `PRAGMA synchronous = FULL` on the connection, before the transaction"
        }
        code::INBOX_NOT_THERE => "begin the transaction in the database that the inbox was opened in",
        code::RUN_MOVING => "call `migrate` again, which goes on with it, or `migrate --undo`",
        code::RUN_MOVED => "ask the store that the message names",
        code::COPY_DIFFERS => {
            "call `migrate` again; for a run that had arrived and is gone from its new store pass --swept, or --lost"
        }
        code::ARRIVAL_TAKEN => {
            "see which run it is with `show`, on both stores; delete one, or leave it where it is"
        }
        code::BAD_EXPORT => "export the runs again, and carry the file over whole",
        code::SHARD_MAP => "name the databases that the shards were made of, in their order",
        code::SHARD_SPLIT => "name it after what it is bound to, as in `order-42/parcel-1`",
        code => crate::commands::schedule::cure(code).unwrap_or("see the code's page"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_fits_a_narrow_terminal() {
        let report = Failure::coded(code::RUN_NOT_FOUND, "there is no run `order-43`").report().unwrap();
        let text = report.human(Some(40), |_, text| text.to_owned());
        let mut words = text.lines().filter(|line| line.contains(' ') && !line.contains("https://"));
        assert!(words.all(|line| line.len() <= 40), "{text}");
        assert!(text.contains("\n  cure: look for it with `list`; it\n    may live"), "{text}");
    }

    #[test]
    fn a_cure_fits_the_kind_of_store() {
        let codes = [code::STORE_RETRY, code::CORRUPT, code::STORE_FULL, code::CANNOT_OPEN, code::READ_ONLY];
        let cure = |code, url: &str| Failure::coded(code, "no").at(OsStr::new(url)).report().unwrap().cure;
        for code in codes {
            let told = cure(code, "sqlite:orders.db").unwrap();
            assert!(!told.contains("server"), "{code}: {told}");
            for url in
                ["postgres://db/orders", "POSTGRESQL://db/orders", "mysql://db/orders", "mariadb://db/orders"]
            {
                if ServerKind::of(url).unwrap().is_built_in() {
                    let told = cure(code, url).unwrap();
                    assert!(!told.contains("file") && !told.contains("path"), "{code}: {told}");
                }
            }
        }
        let own =
            Failure::coded(code::READ_ONLY, "no").cured_by("ask Ann").at(OsStr::new("postgres://db/orders"));
        assert_eq!(own.report().unwrap().cure.unwrap(), "ask Ann");
    }

    #[test]
    fn every_code_has_a_cure_of_its_own() {
        for code in code::ALL {
            assert_ne!(cure(code), "see the code's page", "{code}");
        }
    }
}
