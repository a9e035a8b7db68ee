//! What large payloads cost where they lie, and what encryption costs: the same work each way, and the table.

use super::{
    cases::{Case, Place, Sizes},
    rows::Row,
    table::{Table, short},
};

pub(super) static TABLE: Table = Table {
    ids: "payloads",
    page: "large-payloads",
    headings: &["what", "store", "steps/s", "CPU µs a step", "steps/s beside plain"],
    numbers_from: 2,
    line,
};
/// The name of what the others are held against.
const PLAIN: &str = "plain";

/// The work with everything in its row and plain, and each other way, held against the former.
pub(super) fn cases(sizes: &Sizes) -> Vec<Case> {
    let [steps, small] = sizes.payloads;
    let large = format!("w4b {steps} 102400");
    let huge = format!("w4b {} 2097152", steps.div_ceil(10));
    let ways = [
        (PLAIN, "in its row", ""),
        ("4k", "beside it over 4 KiB", "--blobs-over 4096 "),
        ("64k", "beside it over 64 KiB", "--blobs-over 65536 "),
        ("1m", "beside it over 1 MiB", "--blobs-over 1048576 "),
        ("sealed", "in its row, encrypted", "--encrypted "),
    ];
    let works = [
        ("large", "100 KB, replaced", large),
        ("huge", "2 MB, replaced", huge),
        ("small", "small steps", format!("w1 {small}")),
    ];
    let mut cases = vec![];
    for place in [Place::Sqlite, Place::Postgres, Place::Mysql] {
        for (work, title, call) in &works {
            // A threshold says nothing of what is always under it.
            let some = ways.iter().filter(|(way, ..)| *work != "small" || matches!(*way, PLAIN | "sealed"));
            cases.extend(some.map(|(way, words, flags)| Case {
                id: format!("payloads-{way}-{work}-{}", place.name()),
                title: format!("{title}, {words}"),
                place,
                durability: "pipelined",
                threads: None,
                workers: 1,
                call: format!("{flags}{call}"),
                limit: None,
                goals: vec![],
            }));
        }
    }
    cases
}

fn line(row: &Row, rows: &[Row]) -> Vec<String> {
    let way = row.id.split('-').nth(1).unwrap_or_default();
    let plain = row.id.replacen(way, PLAIN, 1);
    let plain = rows.iter().find(|other| other.id == plain && way != PLAIN);
    let beside = plain.map(|other| row.figures.steps_per_s / other.figures.steps_per_s);
    vec![
        row.title.clone(),
        row.store.to_owned(),
        short(row.figures.steps_per_s),
        short(row.figures.cpu_us_per_step),
        beside.map_or("-".into(), |times| format!("{} x", short(times))),
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::rows::Figures, *};

    #[test]
    fn each_way_is_held_against_the_same_work_in_its_row() {
        let row = |id: &str, steps_per_s| Row {
            id: id.into(),
            title: id.into(),
            store: "sqlite",
            durability: "pipelined",
            limit: None,
            figures: Figures { steps_per_s, cpu_us_per_step: 10.0, ..Figures::default() },
            verdicts: vec![],
            samples: vec![],
        };
        let rows = [row("payloads-plain-large-sqlite", 200.0), row("payloads-4k-large-sqlite", 100.0)];
        let table = TABLE.section(&rows, "medians of 3");
        let beside = "| payloads-4k-large-sqlite | sqlite | 100 | 10.0 | 0.50 x |";
        assert_eq!(table.lines().nth(3), Some(beside), "{table}");
        assert_eq!((TABLE.text(&rows).lines().count(), TABLE.text(&[]).as_str()), (3, ""));
    }
}
