//! What flow control costs: starts on each of its terms, held against plain ones of the same store, and the table.

use super::{
    cases::{Case, Place, Sizes, thousands},
    rows::Row,
    table::{Table, short},
};

/// Starts under way at the same time.
const IN_FLIGHT: u64 = 32;

pub(super) static TABLE: Table = Table {
    ids: "starts",
    page: "flow-control",
    headings: &["what", "store", "starts/s", "CPU µs a start", "starts/s beside plain"],
    numbers_from: 2,
    line,
};

/// The plain ones first: what the others are held against.
pub(super) fn cases(sizes: &Sizes) -> Vec<Case> {
    let places = [
        (Place::Sqlite, "starts-plain-sqlite"),
        (Place::Postgres, "starts-plain-postgres"),
        (Place::Mysql, "starts-plain-mysql"),
    ];
    let terms =
        [("plain", ""), ("key", " with a key"), ("rate", " at a rate"), ("priority", " with a priority")];
    let all = places.into_iter().flat_map(|place| terms.map(|term| (place, term)));
    let case = |((place, plain), (word, words)): ((Place, &'static str), (&str, &str))| Case {
        id: format!("starts-{word}-{}", place.name()),
        title: format!("{} starts{words}", thousands(sizes.starts)),
        place,
        durability: "pipelined",
        threads: None,
        workers: 1,
        call: format!("starts {word} {} {IN_FLIGHT}", sizes.starts),
        limit: (word != "plain").then_some(plain),
        goals: vec![],
    };
    all.map(case).collect()
}

fn line(row: &Row, _: &[Row]) -> Vec<String> {
    vec![
        row.title.clone(),
        row.store.to_owned(),
        short(row.figures.steps_per_s),
        short(row.figures.cpu_us_per_step),
        row.figures.ratio.map_or("-".into(), |times| format!("{} x", short(times))),
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::rows::Figures, *};

    #[test]
    fn each_start_on_terms_is_held_against_a_plain_one_of_its_store() {
        let cases = cases(&Sizes::new(true, false));
        let ids: Vec<&str> = cases.iter().map(|case| case.id.as_str()).collect();
        for case in &cases {
            let plain = case.limit.unwrap_or(&case.id);
            assert_eq!(plain, format!("starts-plain-{}", case.place.name()));
            assert!(ids.contains(&plain));
        }
        assert_eq!(cases.len(), 12);
    }

    #[test]
    fn a_line_says_how_many_there_are_beside_plain_ones() {
        let row = |id: &str, ratio| Row {
            id: id.into(),
            title: id.into(),
            store: "sqlite",
            durability: "pipelined",
            limit: None,
            figures: Figures { steps_per_s: 250.0, cpu_us_per_step: 90.0, ratio, ..Figures::default() },
            verdicts: vec![],
            samples: vec![],
        };
        let rows = [row("starts-plain-sqlite", None), row("starts-key-sqlite", Some(0.5))];
        let table = TABLE.section(&rows, "medians of 3");
        let key = "| starts-key-sqlite | sqlite | 250 | 90.0 | 0.50 x |";
        assert_eq!(table.lines().nth(3), Some(key), "{table}");
    }
}
