//! The laws of the ready CRDTs, for whatever replicas can come to know; what each means, held against a plain model; and that
//! the words of graphs from values mean the same.

use hapax_core::{
    crdt::{Crdt, CrdtMap, GCounter, GSet, Lww, Max, Min, OrSet, PnCounter, Replica},
    dynamic::{Dynamic, DynamicDelta, Reduce},
    json::Json,
    state::State,
};
use proptest::{collection::vec, prelude::*};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

const REPLICAS: usize = 3;

/// All of them, as a user would have them in one state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct All {
    grow: GCounter,
    count: PnCounter,
    last: Lww<u8>,
    high: Max<u8>,
    low: Min<u8>,
    seen: GSet<u8>,
    tags: OrSet<(u8, bool)>,
    map: CrdtMap<String, PnCounter>,
    sets: CrdtMap<String, OrSet<u8>>,
    votes: CrdtMap<String, GCounter>,
    titles: CrdtMap<String, Lww<u8>>,
    highs: CrdtMap<String, Max<u8>>,
    lows: CrdtMap<String, Min<u8>>,
    marks: CrdtMap<String, GSet<u8>>,
}

/// What each of its fields is called where there are no types.
const WORDS: [(&str, Reduce); 14] = [
    ("grow", Reduce::GCounter),
    ("count", Reduce::PnCounter),
    ("last", Reduce::Lww),
    ("high", Reduce::MaxRegister),
    ("low", Reduce::MinRegister),
    ("seen", Reduce::GSet),
    ("tags", Reduce::OrSet),
    ("map", Reduce::Counters),
    ("sets", Reduce::OrSets),
    ("votes", Reduce::GCounters),
    ("titles", Reduce::Registers),
    ("highs", Reduce::MaxRegisters),
    ("lows", Reduce::MinRegisters),
    ("marks", Reduce::GSets),
];

impl Crdt for All {
    fn merge(&mut self, other: Self) {
        self.grow.merge(other.grow);
        self.count.merge(other.count);
        self.last.merge(other.last);
        self.high.merge(other.high);
        self.low.merge(other.low);
        self.seen.merge(other.seen);
        self.tags.merge(other.tags);
        self.map.merge(other.map);
        self.sets.merge(other.sets);
        self.votes.merge(other.votes);
        self.titles.merge(other.titles);
        self.highs.merge(other.highs);
        self.lows.merge(other.lows);
        self.marks.merge(other.marks);
    }
}

/// What a replica does next.
#[derive(Debug, Clone)]
enum Act {
    Add(u8),
    Remove(u8),
    /// Hears all that another knows.
    Hear(usize),
}

fn acts() -> impl Strategy<Value = Vec<(usize, Act)>> {
    let act = prop_oneof![
        3 => (0..6u8).prop_map(Act::Add),
        2 => (0..6u8).prop_map(Act::Remove),
        2 => (0..REPLICAS).prop_map(Act::Hear),
    ];
    vec((0..REPLICAS, act), 0..40)
}

fn replica(number: usize) -> Replica {
    Replica::from(["a", "b", "c"][number])
}

impl All {
    fn add(&mut self, n: u8, by: &Replica) {
        let key = (n % 2).to_string();
        self.grow.merge(self.grow.added(by, n.into()));
        self.count.merge(self.count.added(by, n.into()));
        self.last.merge(self.last.set(n, by));
        self.high.merge(Max::of(n));
        self.low.merge(Min::of(n));
        self.seen.merge(GSet::of(n));
        self.tags.merge(self.tags.added((n, true), by));
        self.map.merge(self.map.with(key.clone(), |count| count.added(by, n.into())));
        self.sets.merge(self.sets.with(key.clone(), |set| set.added(n, by)));
        self.votes.merge(self.votes.with(key.clone(), |votes| votes.added(by, n.into())));
        self.titles.merge(self.titles.with(key.clone(), |title| title.set(n, by)));
        self.highs.merge(self.highs.with(key.clone(), |_| Max::of(n)));
        self.lows.merge(self.lows.with(key.clone(), |_| Min::of(n)));
        self.marks.merge(self.marks.with(key, |_| GSet::of(n)));
    }

    fn remove(&mut self, n: u8, by: &Replica) {
        let key = (n % 2).to_string();
        self.count.merge(self.count.removed(by, n.into()));
        self.tags.merge(self.tags.removed(&(n, true)));
        self.map.merge(self.map.with(key.clone(), |count| count.removed(by, n.into())));
        self.sets.merge(self.sets.with(key, |set| set.removed(&n)));
    }
}

/// What each replica knows in the end.
fn lives(acts: &[(usize, Act)]) -> [All; REPLICAS] {
    let mut all: [All; REPLICAS] = Default::default();
    for (who, act) in acts {
        match act {
            Act::Add(n) => all[*who].add(*n, &replica(*who)),
            Act::Remove(n) => all[*who].remove(*n, &replica(*who)),
            Act::Hear(from) => {
                let heard = all[*from].clone();
                all[*who].merge(heard);
            }
        }
    }
    all
}

fn merged<T: Crdt + Clone>(left: &T, right: &T) -> T {
    let mut both = left.clone();
    both.merge(right.clone());
    both
}

fn read_back<T: Serialize + DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

/// All of it, as a node of a graph from a value would write it.
fn written(all: &All) -> DynamicDelta {
    let all = serde_json::to_value(all).unwrap();
    let write =
        |delta: DynamicDelta, (field, reduce): (&str, Reduce)| delta.write(field, reduce, all[field].clone());
    WORDS.into_iter().try_fold(Dynamic::delta(), write).unwrap()
}

/// What comes of deltas, as it is stored.
fn told<'a>(deltas: impl IntoIterator<Item = &'a DynamicDelta>) -> Json {
    let mut state = Dynamic::default();
    deltas.into_iter().for_each(|delta| state.apply(delta.clone()));
    Json::of(&state).unwrap()
}

/// What was told, told on.
fn told_on(what: &Json) -> DynamicDelta {
    let state: Dynamic = what.read().unwrap();
    let words: std::collections::HashMap<_, _> = WORDS.into_iter().collect();
    let write = |delta: DynamicDelta, (field, value): (&String, &Value)| {
        delta.write(field, words[field.as_str()], value.clone())
    };
    state.fields_of().iter().try_fold(Dynamic::delta(), write).unwrap()
}

fn laws_hold(a: &DynamicDelta, b: &DynamicDelta, c: &DynamicDelta) -> Result<(), TestCaseError> {
    prop_assert_eq!(told([a, b]), told([b, a]));
    prop_assert_eq!(told([a, a]), told([a]));
    prop_assert_eq!(told([a, b, b, a]), told([a, b]));
    prop_assert_eq!(told([&told_on(&told([a, b])), c]), told([a, &told_on(&told([b, c]))]));
    Ok(())
}

/// Values of every kind, some of which are one text once they are stored.
fn any_value() -> impl Strategy<Value = Value> {
    let one = json!({"at": 1, "by": ["a"]});
    let values =
        [json!(null), json!(true), json!(1), json!(1.0), json!(-2.5), json!("a"), json!(["a", 1]), one];
    proptest::sample::select(values.to_vec())
}

/// Registers and sets of any values.
fn any_written() -> impl Strategy<Value = DynamicDelta> {
    let by = proptest::sample::select(vec!["a", "b"]);
    (vec(any_value(), 1..4), 1..3u64, by).prop_map(|(values, at, by)| {
        let last = json!({"at": at, "by": by, "value": values[0]});
        let added: Vec<_> = values.iter().enumerate().map(|(n, value)| json!([value, {by: n + 1}])).collect();
        let tags = json!({"clock": {by: values.len()}, "added": added});
        let writes = [
            ("last", last.clone()),
            ("high", values[0].clone()),
            ("low", values[0].clone()),
            ("seen", json!(values)),
            ("titles", json!({by: last})),
            ("highs", json!({by: values[0]})),
            ("lows", json!({by: values[0]})),
            ("marks", json!({by: values})),
            ("tags", tags.clone()),
            ("sets", json!({by: tags})),
        ];
        let reduce = |field: &str| WORDS.into_iter().find(|(name, _)| *name == field).unwrap().1;
        let write =
            |delta: DynamicDelta, (field, value): (&str, Value)| delta.write(field, reduce(field), value);
        writes.into_iter().try_fold(Dynamic::delta(), write).unwrap()
    })
}

/// Additions by their number, and the numbers that were taken out.
type Known = (BTreeSet<(usize, u8)>, BTreeSet<usize>);

proptest! {
    #[test]
    fn merging_is_commutative_associative_and_idempotent(acts in acts()) {
        let [a, b, c] = lives(&acts);
        prop_assert_eq!(merged(&a, &b), merged(&b, &a));
        prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        prop_assert_eq!(&merged(&a, &a), &a);
        let both = merged(&a, &b);
        prop_assert_eq!(merged(&both, &b), both);
    }

    #[test]
    fn what_is_stored_is_what_is_read(acts in acts()) {
        let [a, b, _] = lives(&acts);
        prop_assert_eq!(read_back(&a), a.clone());
        let (left, right) = (merged(&a, &b), merged(&b, &a));
        prop_assert_eq!(serde_json::to_string(&left).unwrap(), serde_json::to_string(&right).unwrap());
    }

    #[test]
    fn each_word_merges_as_its_typed_twin_in_every_order(acts in acts()) {
        let [a, b, c] = lives(&acts);
        let typed = Json::of(&merged(&merged(&a, &b), &c)).unwrap();
        let [a, b, c] = [a, b, c].map(|life| written(&life));
        for order in [[&a, &b, &c], [&c, &b, &a], [&b, &a, &c]] {
            prop_assert_eq!(&told(order), &typed);
        }
    }

    #[test]
    fn merging_by_words_is_commutative_associative_and_idempotent(acts in acts()) {
        let [a, b, c] = lives(&acts).map(|life| written(&life));
        laws_hold(&a, &b, &c)?;
    }

    #[test]
    fn words_merge_values_of_every_kind_by_the_laws(
        a in any_written(), b in any_written(), c in any_written(),
    ) {
        laws_hold(&a, &b, &c)?;
    }

    /// As a crash in the middle of a step has it: some deltas come from the journal.
    #[test]
    fn a_delta_that_is_read_back_merges_as_the_one_that_was_written(acts in acts()) {
        let [a, b, _] = lives(&acts).map(|life| written(&life));
        let read: DynamicDelta = Json::of(&a).unwrap().read().unwrap();
        prop_assert_eq!(told([&read, &b]), told([&a, &b]));
        prop_assert_eq!(told([&b, &read]), told([&b, &a]));
    }

    /// Every addition has a number, which whoever hears of it knows; taking out takes what is known.
    #[test]
    fn a_set_holds_what_was_added_and_not_taken_out_by_somebody_who_knew(acts in acts()) {
        let mut known: [Known; REPLICAS] = Default::default();
        for (number, (who, act)) in acts.iter().enumerate() {
            match act {
                Act::Add(n) => {
                    known[*who].0.insert((number, *n));
                }
                Act::Remove(n) => {
                    let gone: Vec<_> = known[*who].0.iter().filter(|added| added.1 == *n).map(|added| added.0).collect();
                    known[*who].1.extend(gone);
                }
                Act::Hear(from) => {
                    let (added, gone) = known[*from].clone();
                    known[*who].0.extend(added);
                    known[*who].1.extend(gone);
                }
            }
        }
        for (life, (added, gone)) in lives(&acts).iter().zip(&known) {
            let expected: BTreeSet<u8> =
                added.iter().filter(|(number, _)| !gone.contains(number)).map(|(_, n)| *n).collect();
            prop_assert_eq!(life.tags.iter().map(|(n, _)| *n).collect::<BTreeSet<_>>(), expected.clone());
            let in_map = life.sets.iter().flat_map(|(_, set)| set.iter().copied()).collect::<BTreeSet<_>>();
            prop_assert_eq!(in_map, expected);
        }
    }

    #[test]
    fn counters_and_registers_know_of_every_write(acts in acts()) {
        let [a, b, c] = lives(&acts);
        let all = merged(&merged(&a, &b), &c);
        let written = |wanted: fn(&Act) -> Option<u8>| acts.iter().filter_map(move |(_, act)| wanted(act));
        let added = || written(|act| if let Act::Add(n) = act { Some(*n) } else { None });
        let removed = || written(|act| if let Act::Remove(n) = act { Some(*n) } else { None });
        let (up, down) = (added().map(u64::from).sum::<u64>(), removed().map(u64::from).sum::<u64>());
        prop_assert_eq!(all.grow.value(), up);
        prop_assert_eq!(all.count.value(), i128::from(up) - i128::from(down));
        prop_assert_eq!(all.map.iter().map(|(_, count)| count.value()).sum::<i128>(), all.count.value());
        prop_assert_eq!(all.high.get().copied(), added().max());
        prop_assert_eq!(all.low.get().copied(), added().min());
        prop_assert_eq!(all.seen.iter().copied().collect::<BTreeSet<_>>(), added().collect::<BTreeSet<_>>());
        prop_assert_eq!(all.last.get().is_some(), added().next().is_some());
    }

    /// Whoever has heard of a write and writes again is later than it.
    #[test]
    fn a_write_replaces_what_its_writer_has_seen(acts in acts(), n in 0..6u8) {
        let [mut a, b, c] = lives(&acts);
        a.merge(b.clone());
        a.merge(c.clone());
        a.last.merge(a.last.set(n, &replica(0)));
        let all = merged(&merged(&a, &b), &c);
        prop_assert_eq!(all.last.get(), Some(&n));
    }
}

#[test]
fn a_set_forgets_what_is_gone() {
    let (mut tags, ann) = (OrSet::default(), Replica::from("ann"));
    for _ in 0..1000 {
        tags.merge(tags.added("red", &ann));
        tags.merge(tags.removed(&"red"));
    }
    assert_eq!(serde_json::to_string(&tags).unwrap(), r#"{"clock":{"ann":1000},"added":[]}"#);
}

#[test]
fn no_word_is_left_out() {
    let plain = |reduce: &Reduce| !WORDS.iter().any(|(_, known)| known == reduce);
    let plain: Vec<_> = Reduce::ALL.into_iter().filter(plain).map(Reduce::word).collect();
    assert_eq!(plain, ["last", "append", "extend", "sum", "min", "max", "union", "merge"]);
}

#[test]
fn counts_do_not_overflow() {
    let (ann, bob) = (Replica::from("ann"), Replica::from("bob"));
    let mut count = GCounter::default();
    count.merge(count.added(&ann, u64::MAX));
    count.merge(count.added(&ann, 1));
    count.merge(count.added(&bob, 1));
    assert_eq!(count.value(), u64::MAX);
    let mut stock = PnCounter::default();
    stock.merge(stock.removed(&ann, u64::MAX));
    assert_eq!(stock.value(), -i128::from(u64::MAX));
}

#[test]
fn the_additions_of_a_set_do_not_overflow() {
    let ann = Replica::from("ann");
    let mut tags: OrSet<String> =
        serde_json::from_str(&format!(r#"{{"clock":{{"ann":{}}},"added":[]}}"#, u64::MAX)).unwrap();
    tags.merge(tags.added("red".into(), &ann));
    assert_eq!(serde_json::to_value(&tags).unwrap()["clock"]["ann"], u64::MAX);
}

/// One replica's edits, each of what the one before it answers.
#[test]
fn chained_edits_all_count() {
    let ann = Replica::from("ann");
    let mut all = All::default();
    for _ in 0..2 {
        all.grow.merge(all.grow.added(&ann, 1).added(&ann, 2));
        all.count.merge(all.count.added(&ann, 9).removed(&ann, 2).removed(&ann, 1).added(&ann, 1));
        all.last.merge(all.last.set(9, &ann).set(1, &ann));
        all.tags.merge(all.tags.added((1, true), &ann).added((2, true), &ann).removed(&(1, true)));
        all.map.merge(all.map.with("key".into(), |count| count.added(&ann, 3).removed(&ann, 1)));
        all.sets.merge(all.sets.with("key".into(), |set| set.added(1, &ann).added(2, &ann)));
    }
    assert_eq!((all.grow.value(), all.count.value(), all.last.get()), (6, 14, Some(&1)));
    assert_eq!(all.tags.iter().collect::<Vec<_>>(), [&(2, true)]);
    assert_eq!(all.map.get("key").unwrap().value(), 4);
    assert_eq!(all.sets.get("key").unwrap().iter().collect::<Vec<_>>(), [&1, &2]);
}

#[test]
fn forms_are_stable() {
    let ann = Replica::from("ann");
    let mut all = All::default();
    all.add(1, &ann);
    let stored: BTreeMap<String, serde_json::Value> =
        serde_json::from_value(serde_json::to_value(&all).unwrap()).unwrap();
    let form = |field: &str| stored[field].to_string();
    assert_eq!(form("grow"), r#"{"ann":1}"#);
    assert_eq!(form("count"), r#"{"down":{},"up":{"ann":1}}"#);
    assert_eq!(form("last"), r#"{"at":1,"by":"ann","value":1}"#);
    assert_eq!((form("high"), form("low"), form("seen")), ("1".into(), "1".into(), "[1]".into()));
    assert_eq!(form("tags"), r#"{"added":[[[1,true],{"ann":1}]],"clock":{"ann":1}}"#);
}
