//! Requests that take effect once, held against the same service without the layer: the cases, and their table.

use super::{
    cases::{Case, Place, Sizes},
    goals::Goal,
    rows::{Figures, Row},
    table::{Table, goals, short},
};

const PLACES: [Place; 4] = [Place::Memory, Place::Sqlite, Place::Postgres, Place::Mysql];
/// One client, and many at a time.
const CONNECTIONS: [(u64, &str); 2] = [(1, "requests-bare-1"), (64, "requests-bare-64")];

pub(super) static TABLE: Table = Table {
    ids: "requests",
    page: "requests",
    headings: &[
        "request",
        "store",
        "connections",
        "a second",
        "p50 ms",
        "p99 ms",
        "added p50 ms",
        "added p99 ms",
        "commits each",
        "goal",
    ],
    numbers_from: 2,
    line,
};

/// The bare service first: what the others are held against.
pub(super) fn cases(sizes: &Sizes) -> Vec<Case> {
    let mut cases = vec![];
    for ((connections, bare), count) in CONNECTIONS.into_iter().zip(sizes.requests) {
        let case = |id: String, place, asks: &str, goals| Case {
            id,
            title: title(asks).into(),
            place,
            durability: if asks == "bare" { "" } else { "strict" },
            threads: None,
            workers: 1,
            call: format!("requests {count} {connections} {asks}"),
            limit: (asks != "bare").then_some(bare),
            goals,
        };
        cases.push(case(bare.into(), Place::Memory, "bare", vec![]));
        for place in PLACES {
            for asks in ASKS {
                // There is nothing to be cached where all is in memory.
                if place != Place::Memory || !asks.ends_with("redis") {
                    let id = format!("requests-{}-{connections}-{}", asks.replace(' ', "-"), place.name());
                    cases.push(case(id, place, asks, goals_of(place, asks, connections)));
                }
            }
        }
    }
    cases
}

/// What is asked for, and whether answers are cached.
const ASKS: [&str; 4] = ["first", "first redis", "replay", "replay redis"];

fn title(asks: &str) -> &'static str {
    match asks {
        "first" => "first execution",
        "first redis" => "first execution, with Redis",
        "replay" => "replay",
        "replay redis" => "replay from Redis",
        _ => "without the layer",
    }
}

fn goals_of(place: Place, asks: &str, connections: u64) -> Vec<Goal> {
    match (place, asks) {
        (Place::Memory, _) => vec![],
        (Place::Postgres, "first" | "first redis") => vec![Goal::Commits(2.0)],
        // Of many at a time on a machine with few cores, most wait for each other.
        (_, "replay redis") if connections == 1 => vec![Goal::AddedP50Ms(0.3), Goal::Commits(0.0)],
        (_, "replay" | "replay redis") => vec![Goal::Commits(0.0)],
        _ => vec![],
    }
}

fn line(row: &Row, _: &[Row]) -> Vec<String> {
    let Figures { steps_per_s, p50_ms, p99_ms, added_p50_ms, added_p99_ms, commits, .. } = row.figures;
    let figure = |figure: Option<f64>| figure.map_or("-".into(), short);
    let connections = CONNECTIONS.iter().find(|(_, bare)| row.limit.unwrap_or(&row.id) == *bare);
    vec![
        row.title.clone(),
        if row.is_limit() { "-".into() } else { row.store.to_owned() },
        connections.map_or("-".into(), |(connections, _)| connections.to_string()),
        short(steps_per_s),
        short(p50_ms),
        short(p99_ms),
        figure(added_p50_ms),
        figure(added_p99_ms),
        figure(commits),
        goals(row),
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::goals::Verdict, *};

    #[test]
    fn what_the_layer_adds_is_told_beside_the_bare_service() {
        let row = |id: &str, limit: Option<&'static str>, figures| Row {
            id: id.into(),
            title: title(if limit.is_some() { "first" } else { "bare" }).into(),
            store: "postgres",
            durability: if limit.is_some() { "strict" } else { "" },
            limit,
            figures,
            verdicts: limit
                .map(|_| Verdict { goal: "<= 2 commits each".into(), met: true })
                .into_iter()
                .collect(),
            samples: vec![],
        };
        let bare = Figures { steps_per_s: 5000.0, p50_ms: 0.2, p99_ms: 0.4, ..Figures::default() };
        let added = Figures {
            steps_per_s: 250.0,
            p50_ms: 3.2,
            p99_ms: 9.4,
            added_p50_ms: Some(3.0),
            added_p99_ms: Some(9.0),
            commits: Some(2.0),
            ..Figures::default()
        };
        let rows = [
            row("requests-bare-64", None, bare),
            row("requests-first-64-postgres", Some("requests-bare-64"), added),
        ];
        let table = TABLE.section(&rows, "medians of 3");
        let last = "| first execution | postgres | 64 | 250 | 3.20 | 9.40 | 3.00 | 9.00 | 2.00 | met: <= 2 commits each |";
        assert_eq!(table.lines().nth(3), Some(last), "{table}");
        assert!(
            table
                .lines()
                .nth(2)
                .is_some_and(|line| line.starts_with("| without the layer | - | 64 | 5,000 |"))
        );
        assert_eq!((TABLE.text(&rows).lines().count(), TABLE.text(&[]).as_str()), (3, ""));
    }
}
