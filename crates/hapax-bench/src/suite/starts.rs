//! What flow control costs: starts on each of its terms, held against plain ones of the same store.

use super::cases::{Case, Place, Sizes, thousands};

/// Starts under way at the same time.
const IN_FLIGHT: u64 = 32;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
