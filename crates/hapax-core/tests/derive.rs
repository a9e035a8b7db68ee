//! What `#[derive(State)]` promises: reducers, deltas as JSON, conflicts, upgrades, secrets.

mod common;

use common::{branches, merge_two};
use hapax_core::{
    crdt::Crdt,
    merge::MergeError,
    order::{OrderKey, PathHash},
    state::{Claims, ConflictPolicy, Field, OldState, Reducer, State, decode},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct High(u64);

impl Crdt for High {
    fn merge(&mut self, other: Self) {
        self.0 = self.0.max(other.0);
    }
}

impl From<u64> for High {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

fn subtract(balance: &mut i64, amount: i64) {
    *balance -= amount;
}

fn concat(text: &mut String, more: String) {
    text.extend([more]);
}

type Scores = HashMap<String, u64>;

#[derive(hapax_macros::State, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[state(crate = hapax_core)]
struct Order {
    sku: String,
    #[state(last)]
    receipt: Option<String>,
    #[state(append)]
    log: Vec<String>,
    #[state(extend)]
    parts: Vec<u32>,
    #[state(sum)]
    tax: u8,
    #[state(sum)]
    spent: Duration,
    #[state(min)]
    cheapest: Option<u64>,
    #[state(max)]
    dearest: i64,
    #[state(union)]
    seen: BTreeSet<String>,
    #[state(merge)]
    tags: BTreeMap<String, u64>,
    #[state(merge)]
    scores: Scores,
    #[state(crdt)]
    high: High,
    #[state(reduce = subtract)]
    balance: i64,
    #[state(reduce = concat, ordered)]
    story: String,
    /// A raw name keeps its plain form in JSON.
    r#type: String,
}

fn applied(deltas: impl IntoIterator<Item = OrderDelta>) -> Order {
    let mut order = Order { balance: 100, ..Order::default() };
    deltas.into_iter().for_each(|delta| order.apply(delta));
    order
}

fn round_trip<T: Serialize + DeserializeOwned>(value: &T) -> (Value, T) {
    let json = serde_json::to_value(value).unwrap();
    let text = serde_json::to_string(value).unwrap();
    (json, serde_json::from_str(&text).unwrap())
}

#[test]
fn an_empty_delta_changes_nothing() {
    assert_eq!(applied([Order::delta()]), applied([]));
    assert_eq!(round_trip(&Order::delta()).0, json!({}));
}

#[test]
fn last_replaces_within_and_across_deltas() {
    let order = applied([Order::delta().sku("a").sku("b"), Order::delta().r#type("t")]);
    assert_eq!((order.sku.as_str(), order.r#type.as_str()), ("b", "t"));
    let order = applied([Order::delta().receipt("r".to_owned()), Order::delta().receipt(None)]);
    assert_eq!(order.receipt, None);
}

#[test]
fn append_and_extend_keep_every_element_in_order() {
    let order =
        applied([Order::delta().log("a").log("b").parts([1u8, 2]), Order::delta().log("c").parts([3u16])]);
    assert_eq!(order.log, ["a", "b", "c"]);
    assert_eq!(order.parts, [1, 2, 3]);
}

#[test]
fn a_sum_adds_and_saturates() {
    let second = Duration::from_secs(1);
    let order = applied([Order::delta().tax(3).tax(4).spent(second).spent(second), Order::delta().tax(5)]);
    assert_eq!((order.tax, order.spent), (12, 2 * second));
    let order =
        applied([Order::delta().tax(200).tax(200).spent(Duration::MAX), Order::delta().spent(second)]);
    assert_eq!((order.tax, order.spent), (u8::MAX, Duration::MAX));
}

#[test]
fn min_and_max_keep_the_extreme_and_none_means_not_yet() {
    let order =
        applied([Order::delta().cheapest(9u64).cheapest(4u64).dearest(-1), Order::delta().cheapest(5u64)]);
    assert_eq!((order.cheapest, order.dearest), (Some(4), 0));
    assert_eq!(applied([Order::delta().dearest(3).dearest(2)]).dearest, 3);
    let unwritten: OrderDelta = serde_json::from_value(json!({ "cheapest": null })).unwrap();
    assert_eq!(applied([Order::delta().cheapest(1u64), unwritten]).cheapest, Some(1));
}

#[test]
fn union_and_merge_combine() {
    let first = Order::delta().seen(["a", "b"]).seen(["c"]).tags("x", 1u8).tags("y", 2u8).scores("me", 1u64);
    let order = applied([first, Order::delta().seen(["a"]).tags("x", 3u8)]);
    assert_eq!(order.seen.into_iter().collect::<String>(), "abc");
    assert_eq!(order.tags, BTreeMap::from([("x".into(), 3), ("y".into(), 2)]));
    assert_eq!(order.scores["me"], 1);
}

#[test]
fn a_crdt_merges() {
    assert_eq!(applied([Order::delta().high(5u64).high(3u64), Order::delta().high(4u64)]).high, High(5));
}

#[test]
fn a_reducer_of_the_users_sees_every_value_once_in_order() {
    let order =
        applied([Order::delta().balance(10).balance(20).story("a").story("b"), Order::delta().story("c")]);
    assert_eq!((order.balance, order.story.as_str()), (70, "abc"));
}

#[test]
fn written_null_is_not_unwritten() {
    let (json, back) = round_trip(&Order::delta().receipt(None));
    assert_eq!(json, json!({ "receipt": null }));
    assert_eq!(applied([Order::delta().receipt("r".to_owned()), back]).receipt, None);
    let (json, back) = round_trip(&Order::delta().sku("s"));
    assert_eq!(json, json!({ "sku": "s" }));
    let kept = applied([Order::delta().receipt("r".to_owned()), back]);
    assert_eq!(kept.receipt.as_deref(), Some("r"));
}

#[test]
fn a_delta_holds_what_was_written_and_reads_back() {
    let delta = Order::delta().log("a").log("b").tax(2).tags("k", 1u64).balance(1).balance(2).r#type("t");
    let (json, back) = round_trip(&delta);
    let expected = json!({ "log": ["a", "b"], "tax": 2, "tags": { "k": 1 }, "balance": [1, 2], "type": "t" });
    assert_eq!(json, expected);
    assert_eq!(applied([back]), applied([delta]));
}

#[test]
fn a_delta_refuses_what_it_does_not_know() {
    let read = |text: &str| serde_json::from_str::<OrderDelta>(text).unwrap_err().to_string();
    assert!(read(r#"{"skew": 1}"#).starts_with("unknown field `skew`, expected one of `sku`, `receipt`"));
    assert!(read(r#"{"sku": "a", "sku": "b"}"#).starts_with("duplicate field `sku`"));
    assert!(read("[]").contains("a delta of `Order`: an object with the fields that were written"));
}

#[test]
fn debug_shows_the_written_fields_only() {
    let shown = format!("{:?}", Order::delta().sku("a").receipt(None));
    assert_eq!(shown, r#"OrderDelta { sku: "a", receipt: None }"#);
}

mod conflicts {
    use super::*;

    fn fail(left: OrderDelta, right: OrderDelta) -> Result<Order, MergeError> {
        merge_two(ConflictPolicy::Fail, left, right)
    }

    #[test]
    fn two_writers_of_a_last_field_fail_with_both_named() {
        let error = fail(Order::delta().sku("a"), Order::delta().sku("b")).unwrap_err();
        let text = error.to_string();
        let MergeError::Conflict { step, conflict, first, second } = error else { panic!("{text}") };
        assert_eq!((step, conflict.field, first.as_str(), second.as_str()), (1, "sku", "left", "right"));
        let [left, right] = branches::<Order>().1;
        assert_eq!(conflict.items, [(left.order_key, left.path_hash), (right.order_key, right.path_hash)]);
        assert!(text.starts_with("two items of step 1 wrote different values into `sku`: left and right;"));
    }

    #[test]
    fn written_null_conflicts_with_a_value() {
        let error = fail(Order::delta().receipt(None), Order::delta().receipt("r".to_owned())).unwrap_err();
        assert!(matches!(error, MergeError::Conflict { conflict, .. } if conflict.field == "receipt"));
    }

    #[test]
    fn identical_values_never_conflict() {
        let same = || Order::delta().sku("a").receipt(None).tags("k", 1u64).balance(5);
        let order = fail(same(), same()).unwrap();
        assert_eq!((order.sku.as_str(), order.tags["k"], order.balance), ("a", 1, -10));
    }

    #[test]
    fn different_fields_never_conflict() {
        let order = fail(Order::delta().sku("a"), Order::delta().r#type("t")).unwrap();
        assert_eq!((order.sku.as_str(), order.r#type.as_str()), ("a", "t"));
    }

    #[test]
    fn the_last_writer_wins_if_the_policy_says_so() {
        let [left, right] =
            [Order::delta().sku("a").tags("k", 1u64), Order::delta().sku("b").tags("k", 2u64)];
        let order = merge_two(ConflictPolicy::LastWriterWins, left, right).unwrap();
        assert_eq!((order.sku.as_str(), order.tags["k"]), ("b", 2));
    }

    #[test]
    fn only_equal_keys_conflict_under_merge() {
        let order = fail(Order::delta().tags("a", 1u64), Order::delta().tags("b", 2u64)).unwrap();
        assert_eq!(order.tags.len(), 2);
        let error = fail(Order::delta().scores("a", 1u64), Order::delta().scores("a", 2u64)).unwrap_err();
        assert!(matches!(error, MergeError::Conflict { conflict, .. } if conflict.field == "scores"));
    }

    #[test]
    fn a_conflict_names_the_earliest_writer_whatever_the_maps_order() {
        let writer = |at| (OrderKey(at), PathHash(at));
        for _ in 0..32 {
            let mut claims = Claims::default();
            let mut check = |at, delta| claims.check(writer(at), &delta).unwrap();
            assert_eq!(check(1, Order::delta().scores("a", 1u64)), None);
            assert_eq!(check(2, Order::delta().scores("b", 1u64)), None);
            let conflict = check(3, Order::delta().scores("a", 2u64).scores("b", 2u64)).unwrap();
            assert_eq!((conflict.field, conflict.items), ("scores", [writer(1), writer(3)]));
        }
    }

    #[test]
    fn a_custom_reducer_conflicts_unless_it_is_ordered() {
        let error = fail(Order::delta().balance(1), Order::delta().balance(2)).unwrap_err();
        assert!(matches!(error, MergeError::Conflict { conflict, .. } if conflict.field == "balance"));
        let order = fail(Order::delta().story("a"), Order::delta().story("b")).unwrap();
        assert_eq!(order.story, "ab");
    }

    #[test]
    fn reducers_that_combine_never_conflict() {
        let left =
            Order::delta().log("a").parts([1u8]).tax(1).cheapest(2u64).dearest(2).seen(["a"]).high(1u64);
        let right =
            Order::delta().log("b").parts([2u8]).tax(2).cheapest(1u64).dearest(3).seen(["b"]).high(2u64);
        for policy in [ConflictPolicy::Fail, ConflictPolicy::Crdt, ConflictPolicy::LastWriterWins] {
            let order = merge_two(policy, left.clone(), right.clone()).unwrap();
            assert_eq!((order.log.concat().as_str(), order.parts.len(), order.tax), ("ab", 2, 3));
            assert_eq!((order.cheapest, order.dearest), (Some(1), 3));
            assert_eq!((order.seen.len(), order.high), (2, High(2)));
        }
    }

    #[test]
    fn the_crdt_policy_still_fails_for_other_fields() {
        let [left, right] = [Order::delta().sku("a"), Order::delta().sku("b")];
        assert!(merge_two(ConflictPolicy::Crdt, left, right).is_err());
    }
}

mod shape {
    use super::*;

    #[derive(hapax_macros::State, Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[state(crate = hapax_core, version = 2, upgrade = from_v1)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub(crate) struct Person {
        full_name: String,
        #[serde(rename(serialize = "born", deserialize = "born"), default)]
        birth_year: u32,
        #[state(secret, sum)]
        pin_code: u32,
    }

    fn from_v1(old: OldState) -> Result<Person, String> {
        #[derive(Deserialize)]
        struct V1 {
            name: String,
        }
        let found = serde_json::from_value::<V1>(old.value);
        let V1 { name } = found.map_err(|error| format!("v{}: {error}", old.version))?;
        Ok(Person { full_name: name, birth_year: 0, pin_code: 0 })
    }

    #[test]
    fn fields_know_both_their_names() {
        let field = |name, json, reducer, secret| Field { name, json, reducer, secret };
        let expected = [
            field("full_name", "fullName", Reducer::Last, false),
            field("birth_year", "born", Reducer::Last, false),
            field("pin_code", "pinCode", Reducer::Sum, true),
        ];
        assert_eq!(Person::fields(), expected);
        let written =
            serde_json::to_value(Person { full_name: "A".into(), birth_year: 1, pin_code: 2 }).unwrap();
        let stored: BTreeSet<_> = written.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(stored, expected.iter().map(|f| f.json).collect());
    }

    #[test]
    fn every_reducer_is_described() {
        use Reducer::*;
        let reducers: Vec<_> = Order::fields().iter().map(|f| f.reducer).collect();
        let expected = [
            Last,
            Last,
            Append,
            Extend,
            Sum,
            Sum,
            Min,
            Max,
            Union,
            Merge,
            Merge,
            Crdt,
            Custom,
            CustomOrdered,
            Last,
        ];
        assert_eq!(reducers, expected);
        assert_eq!(Order::fields()[14].name, "type");
    }

    #[test]
    fn deltas_use_the_rust_names() {
        let (json, _) = round_trip(&Person::delta().full_name("A").birth_year(3u32));
        assert_eq!(json, json!({ "full_name": "A", "birth_year": 3 }));
    }

    #[test]
    fn an_older_state_is_upgraded() {
        assert_eq!((Order::VERSION, Person::VERSION), (1, 2));
        let person: Person = decode(br#"{"name": "Ada"}"#, 1).unwrap();
        assert_eq!(person.full_name, "Ada");
        let error = decode::<Person>(b"{}", 1).unwrap_err();
        assert_eq!(
            (error.path.as_str(), error.reason.as_str(), error.version),
            (".", "v1: missing field `name`", 1)
        );
        let error = decode::<Person>(b"{}", 3).unwrap_err();
        assert_eq!(error.reason, "written by a newer program (this one knows up to 2)");
        let error = decode::<Order>(b"{}", 0).unwrap_err();
        assert_eq!(error.reason, "no upgrade from version 0 is declared");
    }

    #[test]
    fn a_misfit_names_its_place() {
        let mut stored = serde_json::to_value(Order::default()).unwrap();
        stored["parts"] = json!([1, "two"]);
        let error = decode::<Order>(stored.to_string().as_bytes(), 1).unwrap_err();
        assert_eq!(error.path, "parts[1]");
        assert!(error.reason.starts_with(r#"invalid type: string "two", expected u32"#));
    }

    #[test]
    fn a_secret_is_shown_nowhere() {
        let delta = Person::delta().full_name("Ada").pin_code(1234u32);
        assert_eq!(format!("{delta:?}"), r#"PersonDelta { full_name: "Ada", pin_code: <secret> }"#);
        let error = decode::<Person>(br#"{"fullName": "Ada", "pinCode": "hunter2"}"#, 2).unwrap_err();
        assert_eq!(error.path, "pinCode");
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let error = serde_json::from_str::<PersonDelta>(r#"{"pin_code": "hunter2"}"#).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

mod corners {
    use super::*;

    #[derive(hapax_macros::State, Clone, Serialize, Deserialize)]
    #[state(crate = hapax_core)]
    struct Nothing {}

    /// Fields may be called like the locals of the generated code.
    #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
    #[state(crate = hapax_core)]
    struct Locals {
        value: u8,
        #[state(append)]
        values: Vec<u8>,
        #[state(merge)]
        key: BTreeMap<u8, u8>,
        delta: u8,
        map: u8,
        slot: u8,
    }

    macro_rules! state {
        ($name:ident { $($field:ident: $type:ty),* }) => {
            #[derive(hapax_macros::State, Clone, Default, Serialize, Deserialize)]
            #[state(crate = hapax_core)]
            struct $name { $(#[state(sum)] $field: $type),* }
        };
    }

    state!(FromMacro { count: u64 });

    #[test]
    fn unusual_states_work() {
        Nothing {}.apply(Nothing::delta());
        let mut locals = Locals::default();
        let delta = Locals::delta().value(1).values(2).key(3, 4).delta(5).map(6).slot(7);
        locals.apply(round_trip(&delta).1);
        assert_eq!((locals.value, locals.values[0], locals.key[&3]), (1, 2, 4));
        assert_eq!((locals.delta, locals.map, locals.slot), (5, 6, 7));
        let mut counted = FromMacro::default();
        counted.apply(FromMacro::delta().count(2u64));
        assert_eq!(counted.count, 2);
    }

    #[hapax_macros::node]
    async fn plain(input: u8) -> u8 {
        input
    }

    #[hapax_macros::node]
    async fn generic<'a, T, const N: usize>(_: &'a str, input: [T; N]) -> usize
    where
        T: Send + 'a,
    {
        plain(0).await;
        input.len()
    }

    #[test]
    fn a_checked_node_stays_a_function() {
        use std::{pin::pin, task};
        let mut context = task::Context::from_waker(task::Waker::noop());
        assert!(pin!(generic("", [1, 2])).poll(&mut context) == task::Poll::Ready(2));
    }
}
