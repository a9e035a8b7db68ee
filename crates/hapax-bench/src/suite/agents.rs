//! Commands to agents, held against a bare pipe, and snapshots of a workspace: the cases, and their table.

use super::{
    cases::{Case, Place, Sizes, thousands},
    rows::{Figures, Row},
    table::{Table, short},
};

/// Agents that work at the same time.
const CREW: u64 = 8;
const FILES: u64 = 10_000;
const PIPE: &str = "agents-pipe";

pub(super) static TABLE: Table = Table {
    ids: "agents",
    page: "agents",
    headings: &["what", "store", "a second", "p50 ms", "p99 ms", "p50 beside the pipe's"],
    numbers_from: 2,
    line,
};

/// The bare pipe first: what the others are held against.
pub(super) fn cases(sizes: &Sizes) -> Vec<Case> {
    let case = |id: &str, title: String, durability, call: String, limit| Case {
        id: id.into(),
        title,
        place: Place::Sqlite,
        durability,
        threads: None,
        workers: 1,
        call,
        limit,
        goals: vec![],
    };
    let [piped, commands] = sizes.agents;
    let snapshot = |how: &str, words: &str| {
        let title = format!("snapshot of {} files, {words}", thousands(FILES));
        case(&format!("agents-snapshot-{how}"), title, "", format!("snapshot {FILES} {how}"), None)
    };
    let through = |id: &str, agents: u64| {
        let s = if agents == 1 { "" } else { "s at a time" };
        let (title, call) =
            (format!("command, {agents} agent{s}"), format!("agent-commands {commands} {agents}"));
        case(id, title, "pipelined", call, Some(PIPE))
    };
    vec![
        case(PIPE, "command over a bare pipe".into(), "", format!("agent-pipe {piped}"), None),
        case(
            "agents-cached",
            "answer from the agent's memory, over the pipe".into(),
            "",
            format!("agent-cached {piped}"),
            None,
        ),
        through("agents-one", 1),
        through("agents-many", CREW),
        snapshot("cold", "never seen"),
        snapshot("warm", "seen before"),
    ]
}

fn line(row: &Row, rows: &[Row]) -> Vec<String> {
    let pipe = rows.iter().find(|row| row.id == PIPE).map(|row| row.figures.p50_ms).filter(|p50| *p50 > 0.0);
    let Figures { steps_per_s, p50_ms, p99_ms, .. } = row.figures;
    let beside = pipe.filter(|_| row.limit.is_some()).map(|pipe| p50_ms / pipe);
    vec![
        row.title.clone(),
        if row.is_limit() { "-".into() } else { row.store.to_owned() },
        short(steps_per_s),
        short(p50_ms),
        short(p99_ms),
        beside.map_or("-".into(), |times| format!("{} x", short(times))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_held_against_the_bare_pipe() {
        let row = |id: &str, limit: Option<&'static str>, p50_ms| Row {
            id: id.into(),
            title: id.into(),
            store: "sqlite",
            durability: if limit.is_some() { "pipelined" } else { "" },
            limit,
            figures: Figures { steps_per_s: 250.0, p50_ms, p99_ms: 9.0, ..Figures::default() },
            verdicts: vec![],
            samples: vec![],
        };
        let rows = [row(PIPE, None, 0.5), row("agents-one", Some(PIPE), 3.0)];
        let table = TABLE.section(&rows, "medians of 3");
        assert_eq!(
            table.lines().nth(3),
            Some("| agents-one | sqlite | 250 | 3.00 | 9.00 | 6.00 x |"),
            "{table}"
        );
        assert_eq!((TABLE.text(&rows).lines().count(), TABLE.text(&[]).as_str()), (3, ""));
    }
}
