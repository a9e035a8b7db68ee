//! Canonical JSON: one value has one text, and what has none is an error.

use std::collections::BTreeMap;

use hapax_core::canonical::{CanonicalError, MAX_DEPTH, from_slice, from_text, to_vec};
use proptest::prelude::*;
use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

fn canon<T: Serialize + ?Sized>(value: &T) -> String {
    String::from_utf8(to_vec(value).unwrap()).unwrap()
}

/// A map that serialises its entries as they stand, sorted or not, twice or not.
struct Entries<'a, K, V>(&'a [(K, V)]);

impl<K: Serialize, V: Serialize> Serialize for Entries<'_, K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

mod properties {
    use super::*;

    fn key() -> impl Strategy<Value = String> {
        // Few characters, chosen so that UTF-8, UTF-16 and escaped order all differ.
        proptest::collection::vec(
            prop::sample::select(vec![
                'a', 'b', '\n', '"', '\\', ' ', '\u{1}', 'é', '\u{ffee}', '😀', '\u{7f}',
            ]),
            0..4,
        )
        .prop_map(String::from_iter)
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            key().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(key(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    type Fields = Vec<(String, Value)>;

    fn shuffled_entries() -> impl Strategy<Value = (Fields, Fields)> {
        proptest::collection::btree_map(key(), value(), 0..8).prop_flat_map(|map| {
            let entries: Vec<_> = map.into_iter().collect();
            (Just(entries.clone()), Just(entries).prop_shuffle())
        })
    }

    proptest! {
        #[test]
        fn a_value_and_its_text_agree(value in value()) {
            prop_assert_eq!(from_text(&serde_json::to_string(&value).unwrap()).unwrap(), canon(&value));
            prop_assert_eq!(from_text(&serde_json::to_string_pretty(&value).unwrap()).unwrap(), canon(&value));
        }

        #[test]
        fn the_canonical_form_is_its_own(value in value()) {
            let once = canon(&value);
            prop_assert_eq!(from_text(&once).unwrap(), once);
        }

        #[test]
        fn the_canonical_form_means_the_same(value in value()) {
            let back: Value = serde_json::from_slice(&to_vec(&value).unwrap()).unwrap();
            prop_assert_eq!(canon(&back), canon(&value));
        }

        #[test]
        fn different_integers_never_share_a_form(left in any::<u64>(), right in any::<u64>(), near in 0_u64..4) {
            prop_assert_eq!(canon(&left) == canon(&right), left == right);
            prop_assert_eq!(canon(&left) == canon(&left.wrapping_add(near)), near == 0);
            prop_assert_eq!(from_text(&left.to_string()).unwrap(), canon(&left));
        }

        #[test]
        fn the_order_of_keys_does_not_matter((sorted, shuffled) in shuffled_entries()) {
            let form = canon(&Entries(&sorted));
            prop_assert_eq!(canon(&Entries(&shuffled)), form.clone());
            let text: Vec<_> = shuffled.iter().map(|(key, value)| format!("{}:{value}", json!(key))).collect();
            prop_assert_eq!(from_text(&format!("{{{}}}", text.join(", "))).unwrap(), form);
        }

        #[test]
        fn keys_are_sorted_by_utf16(keys in proptest::collection::btree_set(key(), 0..8)) {
            let mut expected: Vec<&String> = keys.iter().collect();
            expected.sort_by_key(|key| key.encode_utf16().collect::<Vec<_>>());
            let expected: Vec<_> = expected.iter().map(|key| format!("{}:0", canon(key))).collect();
            let entries: Vec<_> = keys.iter().map(|key| (key, 0)).collect();
            prop_assert_eq!(canon(&Entries(&entries)), format!("{{{}}}", expected.join(",")));
        }

        #[test]
        fn a_repeated_key_is_always_found((mut entries, _) in shuffled_entries(), at: prop::sample::Index) {
            prop_assume!(!entries.is_empty());
            let key = entries[at.index(entries.len())].0.clone();
            entries.push((key.clone(), Value::Null));
            prop_assert_eq!(to_vec(&Entries(&entries)), Err(CanonicalError::DuplicateKey { key }));
        }

        #[test]
        fn no_text_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = from_slice(&bytes);
        }

        #[test]
        fn it_accepts_what_serde_json_accepts(text in "[\\[\\]{}\",:0-9eE.+tn\\\\u -]{0,12}") {
            if let Ok(value) = serde_json::from_str::<&RawValue>(&text) {
                let ours = from_text(value.get());
                let excused = ours.as_ref().is_err_and(|error| !matches!(error, CanonicalError::Syntax { reason, .. }
                    if *reason != "a number too large for a float"));
                prop_assert!(ours.is_ok() || excused, "{text:?}: {ours:?}");
            } else {
                prop_assert!(from_text(&text).is_err(), "{text:?}");
            }
        }
    }
}

#[test]
fn numbers_take_their_shortest_es6_form() {
    for (text, expected) in [
        ("1.0", "1"),
        ("1E2", "100"),
        ("1e20", "100000000000000000000"),
        ("1e21", "1e+21"),
        ("1e-6", "0.000001"),
        ("1e-7", "1e-7"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("-0e5", "0"),
        ("1e-400", "0"),
        ("-1.50", "-1.5"),
        ("5e-324", "5e-324"),
        ("9007199254740993", "9007199254740993"),
        ("9007199254740993.0", "9007199254740992"),
        ("-123456789012345678901234567890", "-123456789012345678901234567890"),
        ("1000000000000000000000000", "1000000000000000000000000"),
    ] {
        assert_eq!(from_text(text).as_deref(), Ok(expected), "{text}");
    }
    assert_eq!(canon(&-0.0_f64), "0");
    assert_eq!(canon(&0.1_f32), "0.10000000149011612");
    for value in [0, 9, 10, -1, i64::MAX, i64::MIN] {
        assert_eq!(canon(&value), value.to_string());
    }
    assert_eq!(canon(&u64::MAX), u64::MAX.to_string());
    assert_eq!(canon(&u128::MAX), u128::MAX.to_string());
    assert_eq!(canon(&i128::MIN), i128::MIN.to_string());
}

#[test]
fn a_number_that_is_not_finite_is_refused() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(to_vec(&value), Err(CanonicalError::NotFinite));
        assert_eq!(to_vec(&[value as f32]), Err(CanonicalError::NotFinite));
    }
    for text in ["1e400", "-1e400"] {
        let reason = "a number too large for a float";
        assert_eq!(from_text(text), Err(CanonicalError::Syntax { at: 0, reason }));
    }
}

#[test]
fn strings_carry_only_the_escapes_that_json_demands() {
    let text = "\u{0}\u{8}\u{b}\u{c}\n\r\t\u{1f}\"\\/<>&'\u{7f}\u{2028}é😀";
    let expected = "\"\\u0000\\b\\u000b\\f\\n\\r\\t\\u001f\\\"\\\\/<>&'\u{7f}\u{2028}é😀\"";
    assert_eq!(canon(text), expected);
    assert_eq!(from_text(r#""\u0041\u00E9\ud83D\uDe00\/\u000A\u0022""#).unwrap(), "\"Aé😀/\\n\\\"\"");
    assert_eq!(canon(&format_args!("a\"{}", 'é')), "\"a\\\"é\"");
}

#[test]
fn what_is_not_json_is_refused_with_its_place() {
    for (text, at, reason) in [
        ("", 0, "unexpected end"),
        (" [1", 3, "unexpected end"),
        ("\u{feff}1", 0, "a byte order mark"),
        ("1 2", 2, "text after the value"),
        ("nul", 0, "expected a value"),
        ("NaN", 0, "expected a value"),
        ("Infinity", 0, "expected a value"),
        ("'a'", 0, "expected a value"),
        ("+1", 0, "expected a value"),
        (".5", 0, "expected a value"),
        ("01", 1, "a leading zero"),
        ("-01", 2, "a leading zero"),
        ("[-]", 2, "expected a digit"),
        ("[1.]", 3, "expected a digit"),
        ("[1e]", 3, "expected a digit"),
        ("[1,]", 3, "expected a value"),
        ("[1 2]", 3, "expected ',' or ']'"),
        ("{\"a\":1,}", 7, "expected a key in quotes"),
        ("{a:1}", 1, "expected a key in quotes"),
        ("{\"a\" 1}", 5, "expected ':'"),
        ("{\"a\":1 \"b\":2}", 7, "expected ',' or '}'"),
        ("\"a\nb\"", 2, "a raw control character in a string"),
        ("\"\\x\"", 2, "an unknown escape"),
        ("\"\\u12g4\"", 5, "expected four hex digits"),
        ("\"\\ud83d\\u12\"", 11, "expected four hex digits"),
        ("1\u{a0}", 1, "text after the value"),
    ] {
        assert_eq!(from_text(text), Err(CanonicalError::Syntax { at, reason }), "{text:?}");
    }
    let invalid = Err(CanonicalError::Syntax { at: 1, reason: "invalid UTF-8" });
    assert_eq!(from_slice(b"\"\xed\xa0\x80\""), invalid);
}

#[test]
fn a_lone_surrogate_is_refused() {
    for text in [r#""\ud83d""#, r#""\ud83dx""#, r#""\ud83d\n""#, r#""\ude00""#, r#""\ud83d\ud83d""#] {
        assert_eq!(from_text(text), Err(CanonicalError::LoneSurrogate { at: 1 }), "{text}");
    }
}

#[test]
fn a_duplicate_key_is_refused_however_it_is_spelt() {
    let duplicate = |key: &str| Err(CanonicalError::DuplicateKey { key: key.to_owned() });
    assert_eq!(from_text(r#"{"a":1,"\u0061":2}"#), duplicate("a"));
    assert_eq!(from_text(r#"{"b":1,"a":2,"b":3}"#), duplicate("b"));
    assert_eq!(from_text(r#"[{"\n😀":1,"c":0,"\u000a\ud83d\ude00":2}]"#), duplicate("\n😀"));
    assert_eq!(to_vec(&Entries(&[(1, ()), (1, ())])), Err(CanonicalError::DuplicateKey { key: "1".into() }));

    #[derive(Serialize)]
    struct Flat {
        id: u32,
        #[serde(flatten)]
        rest: BTreeMap<String, u32>,
    }
    let flat = |key: &str| Flat { id: 1, rest: BTreeMap::from([(key.to_owned(), 2)]) };
    assert_eq!(to_vec(&flat("id")), Err(CanonicalError::DuplicateKey { key: "id".into() }));
    assert_eq!(canon(&flat("a")), r#"{"a":2,"id":1}"#);
}

#[test]
fn nesting_ends_at_the_limit() {
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(from_text(&nested(MAX_DEPTH)).unwrap(), nested(MAX_DEPTH));
    assert_eq!(from_text(&nested(MAX_DEPTH + 1)), Err(CanonicalError::TooDeep));
    assert_eq!(from_text(&"{\"a\":".repeat(100_000)), Err(CanonicalError::TooDeep));

    let deep = (0..MAX_DEPTH).fold(Value::Null, |inner, _| json!({ "a": inner }));
    // What is stored must be readable: a state that can't be read back ends its run.
    assert_eq!(serde_json::from_slice::<Value>(&to_vec(&deep).unwrap()).unwrap(), deep);
    assert_eq!(to_vec(&[deep]), Err(CanonicalError::TooDeep));
    let raw = RawValue::from_string(nested(MAX_DEPTH - 1)).unwrap();
    assert!(to_vec(&[&raw]).is_ok());
    assert_eq!(to_vec(&[[&raw]]), Err(CanonicalError::TooDeep));
}

#[derive(Serialize)]
enum Shape {
    Unit,
    New(u8),
    Tuple(u8, char),
    Struct { b: Option<u8>, a: () },
}

#[test]
fn the_shapes_are_those_of_serde_json() {
    #[derive(Serialize)]
    struct UnitStruct;
    #[derive(Serialize)]
    struct Pair(u8, bool);
    let shapes = (
        [Shape::Unit, Shape::New(1), Shape::Tuple(2, 'é'), Shape::Struct { b: Some(3), a: () }],
        UnitStruct,
        Pair(1, true),
        BTreeMap::from([(10, 'x'), (9, 'y')]),
        BTreeMap::from([(true, 1), (false, 0)]),
        Entries(&[('b', 1), ('a', 2)]),
        Entries(&[(Shape::Unit, None), (Shape::Unit, Some(1))][..1]),
        Entries(&[(Some("k"), i128::MIN)]),
    );
    let text = canon(&shapes);
    assert_eq!(
        text,
        concat!(
            r#"[["Unit",{"New":1},{"Tuple":[2,"é"]},{"Struct":{"a":null,"b":3}}],null,[1,true],"#,
            r#"{"10":"x","9":"y"},{"false":0,"true":1},{"a":2,"b":1},{"Unit":null},"#,
            r#"{"k":-170141183460469231731687303715884105728}]"#,
        )
    );
    assert_eq!(from_text(&serde_json::to_string(&shapes).unwrap()).unwrap(), text);
}

#[test]
fn bytes_are_an_array_of_numbers() {
    struct Bytes;
    impl Serialize for Bytes {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&[0, 255])
        }
    }
    assert_eq!(canon(&Bytes), "[0,255]");
}

#[test]
fn a_key_without_an_obvious_text_is_refused() {
    let found = |error| match error {
        Err(CanonicalError::Key { found }) => found,
        other => panic!("{other:?}"),
    };
    assert_eq!(found(to_vec(&Entries(&[(1.5, 0)]))), "a float");
    assert_eq!(found(to_vec(&Entries(&[((), 0)]))), "null");
    assert_eq!(found(to_vec(&Entries(&[(None::<u8>, 0)]))), "null");
    assert_eq!(found(to_vec(&Entries(&[([1, 2], 0)]))), "a tuple");
    assert_eq!(found(to_vec(&Entries(&[(Shape::New(1), 0)]))), "a variant with content");
}

#[test]
fn raw_json_is_canonicalised_too() {
    #[derive(Serialize)]
    struct Holder<'a> {
        raw: &'a RawValue,
        a: u8,
    }
    let raw = RawValue::from_string(r#"{ "b": 1.0, "a": [ 18446744073709551616 ] }"#.into()).unwrap();
    assert_eq!(canon(&Holder { raw: &raw, a: 1 }), r#"{"a":1,"raw":{"a":[18446744073709551616],"b":1}}"#);
    let twice = RawValue::from_string(r#"{"b":1,"b":2}"#.into()).unwrap();
    assert_eq!(to_vec(&twice), Err(CanonicalError::DuplicateKey { key: "b".into() }));
}

#[test]
fn a_swallowed_error_still_counts() {
    struct Swallow;
    impl Serialize for Swallow {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut seq = serializer.serialize_seq(None)?;
            let _ = seq.serialize_element(&[f64::NAN]);
            seq.serialize_element(&1)?;
            seq.end()
        }
    }
    assert_eq!(to_vec(&Swallow), Err(CanonicalError::NotFinite));

    struct KeyOnly;
    impl Serialize for KeyOnly {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut map = serializer.serialize_map(None)?;
            map.serialize_key("a")?;
            map.end()
        }
    }
    assert!(matches!(to_vec(&KeyOnly), Err(CanonicalError::Custom(_))));
}
