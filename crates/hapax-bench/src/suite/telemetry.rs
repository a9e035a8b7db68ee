//! What looking on costs: the same work with traces to a collector and without, with metrics and without, and the table.

use super::{
    cases::{Case, Place, Sizes},
    rows::Row,
    table::{Table, short},
};

pub(super) static TABLE: Table = Table {
    ids: "telemetry",
    page: "observability",
    headings: &["what", "store", "steps/s", "CPU µs a step", "CPU beside without"],
    numbers_from: 2,
    line,
};

/// Pieces of the work with and without metrics, by turns.
const PAIRS: u64 = 201;

/// The work with metrics, held against none; then untraced, and traced, held against the former.
pub(super) fn cases(sizes: &Sizes) -> Vec<Case> {
    let [w1, w2_runs] = sizes.telemetry;
    let works = [
        (Place::Memory, "memory-w1", "one run", format!("w1 {w1}")),
        (Place::Memory, "memory-w2", "many runs", format!("w2 {w2_runs} 10 32")),
        (Place::Sqlite, "sqlite-w1", "one run", format!("w1 {w1}")),
        (Place::Sqlite, "sqlite-w2", "many runs", format!("w2 {w2_runs} 10 32")),
    ];
    let case = |place, id: String, title: String, call| Case {
        id: format!("telemetry-{id}"),
        title,
        place,
        durability: "pipelined",
        threads: None,
        workers: 1,
        call,
        limit: None,
        goals: vec![],
    };
    let turns = |place: Place| {
        let (id, call) = (format!("turns-{}", place.name()), format!("turns {} {PAIRS}", (w1 / 10).max(1)));
        case(place, id, "one run, counted and not traced".into(), call)
    };
    let pair = |(place, id, title, call): (Place, &'static str, &str, String)| {
        let traced = format!("--telemetry {call}");
        [
            case(place, format!("off-{id}"), format!("{title}, untraced"), call),
            case(place, format!("on-{id}"), format!("{title}, traced"), traced),
        ]
    };
    [Place::Memory, Place::Sqlite].map(turns).into_iter().chain(works.into_iter().flat_map(pair)).collect()
}

fn line(row: &Row, rows: &[Row]) -> Vec<String> {
    let untraced = row.id.replace("-on-", "-off-");
    let untraced = rows.iter().find(|other| other.id == untraced && other.id != row.id);
    let cpu_us = row.figures.cpu_us_per_step;
    let beside = untraced.map(|other| cpu_us / other.figures.cpu_us_per_step).or(row.figures.cpu_beside);
    vec![
        row.title.clone(),
        row.store.to_owned(),
        short(row.figures.steps_per_s),
        short(cpu_us),
        beside.map_or("-".into(), |times| format!("{times:.3} x")),
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::rows::Figures, *};

    #[test]
    fn traced_work_is_held_against_the_same_work_untraced() {
        let row = |id: &str, cpu_us_per_step| Row {
            id: id.into(),
            title: id.into(),
            store: "memory",
            durability: "pipelined",
            limit: None,
            figures: Figures { steps_per_s: 250.0, cpu_us_per_step, ..Figures::default() },
            verdicts: vec![],
            samples: vec![],
        };
        let rows = [row("telemetry-off-memory-w1", 10.0), row("telemetry-on-memory-w1", 11.0)];
        let table = TABLE.section(&rows, "medians of 3");
        let traced = "| telemetry-on-memory-w1 | memory | 250 | 11.0 | 1.100 x |";
        assert_eq!(table.lines().nth(3), Some(traced), "{table}");
        assert_eq!((TABLE.text(&rows).lines().count(), TABLE.text(&[]).as_str()), (3, ""));
    }
}
