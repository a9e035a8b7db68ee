//! Transactions in a database of the user's, held against the same without an engine: the cases, and their table.

use super::{
    cases::{Case, Place, Sizes},
    goals::Goal,
    rows::{Figures, Row},
    table::{Table, goals, short},
};

/// How the outcome of a transaction is known, where that can be had, and how many times the bare one it may take when many
/// are in flight.
const STRATEGIES: [(&str, &[Place], f64); 3] =
    [("co-commit", &PLACES, 1.5), ("marker", &PLACES, 2.0), ("introspection", &[Place::Postgres], 2.2)];
const PLACES: [Place; 3] = [Place::Postgres, Place::Mysql, Place::Sqlite];
/// Transfers at a time.
const MANY: u64 = 32;
/// Transfers in a step where the step itself, which costs what any step does, is to count for little.
const FEW_STEPS: u64 = 10;

pub(super) static TABLE: Table = Table {
    ids: "transfer",
    page: "transactions",
    headings: &[
        "transfer",
        "database",
        "a second",
        "p50 ms",
        "p99 ms",
        "round trips",
        "fsyncs each",
        "p50 x bare",
        "x bare",
        "goal",
    ],
    numbers_from: 2,
    line,
};

/// The bare ones first: what the others are held against.
pub(super) fn cases(sizes: &Sizes) -> Vec<Case> {
    let mut cases = vec![];
    let [few, many] = sizes.transfers;
    for (count, in_flight, step) in [(few, 1, 1), (many, MANY, 1), (many, MANY, FEW_STEPS)] {
        for place in PLACES {
            let call = |how: &str| format!("transfers {count} {in_flight} {how} {step}");
            let title = |how: &str| match (in_flight, step) {
                (1, _) => format!("{how}, one by one"),
                (_, 1) => format!("{how}, {in_flight} in flight"),
                _ => format!("{how}, {in_flight} in flight, {step} in a step"),
            };
            let bare = bare(place, in_flight);
            let alone = Case {
                id: bare.into(),
                title: title("bare"),
                place,
                durability: "",
                threads: None,
                workers: 1,
                call: call("bare"),
                limit: None,
                goals: vec![],
            };
            cases.extend((step == 1).then_some(alone));
            let had = STRATEGIES.iter().filter(|(_, places, _)| places.contains(&place));
            cases.extend(had.map(|(how, _, times)| Case {
                id: format!("transfer-{how}-{in_flight}-{step}-{}", place.name()),
                title: title(how),
                place,
                durability: "pipelined",
                threads: None,
                workers: 1,
                call: call(how),
                limit: Some(bare),
                goals: if in_flight == MANY { vec![Goal::TimesLimit(*times)] } else { vec![] },
            }));
        }
    }
    cases
}

fn bare(place: Place, in_flight: u64) -> &'static str {
    match (place, in_flight) {
        (Place::Postgres, 1) => "transfer-bare-1-postgres",
        (Place::Postgres, _) => "transfer-bare-many-postgres",
        (Place::Mysql, 1) => "transfer-bare-1-mysql",
        (Place::Mysql, _) => "transfer-bare-many-mysql",
        (_, 1) => "transfer-bare-1-sqlite",
        _ => "transfer-bare-many-sqlite",
    }
}

fn line(row: &Row, rows: &[Row]) -> Vec<String> {
    let p50_of = |id: &str| rows.iter().find(|row| row.id == id).map(|row| row.figures.p50_ms);
    let Figures { steps_per_s, p50_ms, p99_ms, round_trips, fsyncs_per_step, ratio, .. } = row.figures;
    let bare_p50 = row.limit.and_then(p50_of).filter(|p50| *p50 > 0.0);
    let figure = |figure: Option<f64>| figure.map_or("-".into(), short);
    vec![
        row.title.clone(),
        row.store.to_owned(),
        short(steps_per_s),
        short(p50_ms),
        short(p99_ms),
        figure(round_trips),
        figure(fsyncs_per_step),
        figure(bare_p50.map(|bare| p50_ms / bare)),
        figure(ratio.map(f64::recip)),
        goals(row),
    ]
}

#[cfg(test)]
mod tests {
    use super::{super::goals::Verdict, *};

    fn row(id: &str, limit: Option<&'static str>, p50_ms: f64, ratio: Option<f64>) -> Row {
        let figures = Figures {
            steps_per_s: 250.0,
            p50_ms,
            p99_ms: 9.0,
            round_trips: Some(6.0),
            ratio,
            ..Figures::default()
        };
        Row {
            id: id.into(),
            title: "marker, 32 in flight".into(),
            store: "postgres",
            durability: if limit.is_some() { "pipelined" } else { "" },
            limit,
            figures,
            verdicts: limit.map(|_| Verdict { goal: "<= 2 x bare".into(), met: true }).into_iter().collect(),
            samples: vec![],
        }
    }

    #[test]
    fn a_transfer_is_held_against_the_bare_one() {
        let bare = bare(Place::Postgres, MANY);
        let rows = [row(bare, None, 4.0, None), row("transfer-marker", Some(bare), 7.0, Some(0.625))];
        let table = TABLE.section(&rows, "medians of 3");
        let last = "| marker, 32 in flight | postgres | 250 | 7.00 | 9.00 | 6.00 | - | 1.75 | 1.60 | met: <= 2 x bare |";
        assert_eq!(table.lines().nth(3), Some(last), "{table}");
        assert!(table.ends_with("|\n\nmedians of 3.\n"), "{table}");
        assert_eq!(TABLE.text(&rows).lines().count(), 3);
        assert_eq!(TABLE.text(&[]), "");
    }
}
