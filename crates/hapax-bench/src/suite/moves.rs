//! How fast runs move from one store to another: the cases, and their table.

use super::{
    cases::{Case, Place, Sizes, thousands},
    rows::Row,
    table::{Table, short},
};

/// Of each run.
pub(super) const STEPS: u64 = 10;

const WAYS: [(Place, Place); 3] =
    [(Place::Sqlite, Place::Sqlite), (Place::Sqlite, Place::Postgres), (Place::Postgres, Place::Mysql)];

pub(super) static TABLE: Table = Table {
    ids: "migrate",
    page: "moving-house",
    headings: &["from", "to", "runs/s", "CPU µs a run", "p50 ms", "disk bytes a run"],
    numbers_from: 2,
    line,
};

/// The place of each is where the runs go.
pub(super) fn cases(sizes: &Sizes) -> Vec<Case> {
    let case = |(from, to): (Place, Place)| Case {
        id: format!("migrate-{}-{}", from.name(), to.name()),
        title: format!("{} runs of {STEPS} steps moved from {}", thousands(sizes.moved), from.name()),
        place: to,
        durability: "pipelined",
        threads: None,
        workers: 1,
        call: format!("migrate {}", from.name()),
        limit: None,
        goals: vec![],
    };
    WAYS.map(case).into()
}

/// Where the runs are that a case moves, if it does.
pub(super) fn from(case: &Case) -> Option<Place> {
    let word = case.call.strip_prefix("migrate ")?;
    WAYS.into_iter().map(|(from, _)| from).find(|from| from.name() == word)
}

fn line(row: &Row, _: &[Row]) -> Vec<String> {
    vec![
        row.id.split('-').nth(1).unwrap_or("-").to_owned(),
        row.store.to_owned(),
        short(row.figures.steps_per_s),
        short(row.figures.cpu_us_per_step),
        short(row.figures.p50_ms),
        row.figures.disk_bytes_per_step.map_or("-".into(), short),
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::rows::Figures, *};

    #[test]
    fn each_case_knows_where_its_runs_are() {
        let ways: Vec<_> =
            cases(&Sizes::new(true, false)).iter().map(|case| (from(case), case.place)).collect();
        assert_eq!(ways, WAYS.map(|(from, to)| (Some(from), to)));
    }

    #[test]
    fn a_line_says_from_where_to_where() {
        let figures = Figures {
            steps_per_s: 250.0,
            cpu_us_per_step: 800.0,
            p50_ms: 31.5,
            disk_bytes_per_step: Some(4096.0),
            ..Figures::default()
        };
        let row = Row {
            id: "migrate-sqlite-postgres".into(),
            title: "100 runs".into(),
            store: "postgres",
            durability: "pipelined",
            limit: None,
            figures,
            verdicts: vec![],
            samples: vec![],
        };
        let table = TABLE.section(&[row], "medians of 3");
        let line = "| sqlite | postgres | 250 | 800 | 31.5 | 4,096 |";
        assert_eq!(table.lines().nth(2), Some(line), "{table}");
    }
}
