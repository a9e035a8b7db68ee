//! State without a type: JSON whose fields are folded by reducers that are configured, not derived.
//!
//! Invariant: a delta names the reducer of each value that it writes. So what a step did is the same at every recovery and
//! replay, also when the configuration has changed since, and a state of the same JSON has the same keys as one of a type.

use crate::{
    canonical::{self, CanonicalError},
    crdt::{Crdt, CrdtMap, GCounter, GSet, Lww, Max, Min, OrSet, PnCounter},
    state::{Claims, Delta, Field, State},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Number, Value};
use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
    sync::{Mutex, PoisonError},
};

/// A state that is an object of JSON.
///
/// ```
/// use hapax_core::{dynamic::{Dynamic, Reduce}, state::State};
/// use serde_json::json;
/// let mut order = Dynamic::from(json!({"sku": "anvil", "log": []}));
/// order.apply(Dynamic::delta().write("log", Reduce::Append, json!("paid"))?.write("tax", Reduce::Sum, json!(3))?);
/// order.apply(Dynamic::delta().write("tax", Reduce::Sum, json!(4))?);
/// assert_eq!(order.value(), json!({"sku": "anvil", "log": ["paid"], "tax": 7}));
/// # Ok::<(), hapax_core::dynamic::Misfit>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "Map<String, Value>")]
pub struct Dynamic {
    fields: Map<String, Value>,
    /// Sums that JSON has no number for. A state that has one can't be stored, as one of a type with an infinity can't.
    boundless: BTreeSet<String>,
}

impl From<Map<String, Value>> for Dynamic {
    fn from(fields: Map<String, Value>) -> Self {
        Self { fields, boundless: BTreeSet::new() }
    }
}

impl Serialize for Dynamic {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.boundless.first() {
            None => self.fields.serialize(serializer),
            Some(field) => Err(serde::ser::Error::custom(format_args!("the sum `{field}` is not finite"))),
        }
    }
}

/// What a node wrote: for each field, how, and what.
///
/// Its form can't be taken for that of a derived delta, nor the other way round: no field of a struct is called `$by`. Only
/// a delta that writes nothing is the same in both.
///
/// ```
/// use hapax_core::{dynamic::{Dynamic, DynamicDelta, Reduce}, state::State};
/// let delta = Dynamic::delta().write("tax", Reduce::Sum, serde_json::json!(3))?;
/// assert_eq!(serde_json::to_string(&delta)?, r#"{"$by":{"tax":{"sum":3}}}"#);
/// assert!(serde_json::from_str::<DynamicDelta>(r#"{"tax":{"sum":3}}"#).is_err(), "a typed map, perhaps");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DynamicDelta {
    #[serde(rename = "$by", default, skip_serializing_if = "BTreeMap::is_empty")]
    by: BTreeMap<String, Write>,
}

/// One value, under the name of its reducer.
#[derive(Debug, Clone, PartialEq)]
struct Write(Reduce, Value);

impl Serialize for Write {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map([(self.0.word(), &self.1)])
    }
}

impl<'de> Deserialize<'de> for Write {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let mut written = written.into_iter();
        let (Some((word, value)), None) = (written.next(), written.next()) else {
            return Err(serde::de::Error::custom("a value is written by one reducer"));
        };
        let reduce = Reduce::named(&word)
            .ok_or_else(|| serde::de::Error::custom(format!("`{word}` is no reducer")))?;
        Ok(Self(reduce, value))
    }
}

/// How a field takes what is written to it: the reducers of `#[derive(State)]`, by name.
///
/// ```
/// use hapax_core::dynamic::Reduce;
/// assert_eq!(Reduce::named("append"), Some(Reduce::Append));
/// assert!(Reduce::ALL.iter().all(|reduce| Reduce::named(reduce.word()) == Some(*reduce)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reduce {
    /// The last writer's value.
    Last,
    /// One element is pushed to a list.
    Append,
    /// Elements are pushed to a list.
    Extend,
    /// Numbers are added. Integers saturate at the ends of `i64` and `u64`; a sum that isn't finite fails its step, as in a
    /// typed state.
    Sum,
    /// The smaller of two numbers or texts stays. `null` is none yet.
    Min,
    /// The larger of two numbers or texts stays. `null` is none yet.
    Max,
    /// A list without equal elements, sorted.
    Union,
    /// Entries of an object are inserted; equal keys conflict.
    Merge,
    /// [`GCounter`].
    GCounter,
    /// [`PnCounter`].
    PnCounter,
    /// [`Lww`] of any value.
    Lww,
    /// [`Max`] of any value.
    MaxRegister,
    /// [`Min`] of any value.
    MinRegister,
    /// [`GSet`] of any values.
    GSet,
    /// [`OrSet`] of any values.
    OrSet,
    /// [`CrdtMap`] of [`PnCounter`] by name.
    Counters,
    /// [`CrdtMap`] of [`GCounter`] by name.
    GCounters,
    /// [`CrdtMap`] of [`Lww`] by name.
    Registers,
    /// [`CrdtMap`] of [`Max`] by name.
    MaxRegisters,
    /// [`CrdtMap`] of [`Min`] by name.
    MinRegisters,
    /// [`CrdtMap`] of [`GSet`] by name.
    GSets,
    /// [`CrdtMap`] of [`OrSet`] by name.
    OrSets,
}

/// A map by name, as JSON has it.
type Named<V> = CrdtMap<String, V>;

/// A value that its reducer can't take.
///
/// ```
/// use hapax_core::{dynamic::{Dynamic, Reduce}, state::State};
/// let misfit = Dynamic::delta().write("tax", Reduce::Sum, serde_json::json!("three")).unwrap_err();
/// assert_eq!(misfit.to_string(), "the field `tax` takes numbers (its reducer is `sum`), not a text");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the field `{field}` takes {} (its reducer is `{}`), not {got}", reduce.takes(), reduce.word())]
pub struct Misfit {
    /// The field.
    pub field: String,
    /// Its reducer.
    pub reduce: Reduce,
    got: String,
}

/// Any value of JSON in an order: `null`, false and true, numbers, texts, lists, objects.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Ordered(Value);

/// Not as values are equal: 1 and 1.0 are one element, and a set that is read asks both ways.
impl PartialEq for Ordered {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(&self.0, &other.0)
    }
}

/// The order of any two values: `null`, false, true, numbers, texts, lists, objects, and among their kind as they are.
///
/// ```
/// use serde_json::json;
/// assert!(hapax_core::dynamic::compare(&json!(9), &json!(10.5)).is_lt());
/// assert!(hapax_core::dynamic::compare(&json!("9"), &json!("10")).is_gt());
/// ```
#[must_use]
pub fn compare(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => numbers(one, other),
        (Value::String(one), Value::String(other)) => one.cmp(other),
        (Value::Array(one), Value::Array(other)) => {
            let first = one.iter().zip(other).map(|(one, other)| compare(one, other));
            first.into_iter().find(|order| order.is_ne()).unwrap_or(one.len().cmp(&other.len()))
        }
        // Canonical JSON is the same text for equal objects.
        (Value::Object(_), Value::Object(_)) => {
            canonical::to_vec(one).ok().cmp(&canonical::to_vec(other).ok())
        }
        _ => rank(one).cmp(&rank(other)),
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(false) => 1,
        Value::Bool(true) => 2,
        Value::Number(_) => 3,
        Value::String(_) => 4,
        Value::Array(_) => 5,
        Value::Object(_) => 6,
    }
}

fn whole(number: &Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// As they are stored, or there would be two orders: a float that has no fraction is kept as the digits of an integer.
fn numbers(one: &Number, other: &Number) -> Ordering {
    match (stored(one), stored(other)) {
        (Ok(one), Ok(other)) => one.cmp(&other),
        (Err(one), Err(other)) => one.total_cmp(&other),
        // Such a float has a fraction or is larger than any integer here, so rounding never makes the two equal.
        (Ok(one), Err(other)) => (one as f64).total_cmp(&other),
        (Err(one), Ok(other)) => one.total_cmp(&(other as f64)),
    }
}

/// A number as its canonical form has it: an integer, or a float that is none.
fn stored(number: &Number) -> Result<i128, f64> {
    whole(number).ok_or_else(|| number.as_f64().unwrap_or(f64::NAN)).or_else(|float| {
        let digits = ryu_js::Buffer::new().format(float).parse();
        digits.map_err(|_| float)
    })
}

/// Integers saturate, as they do in a typed state; `None`: the sum is no number of JSON.
fn sum(one: &Number, other: &Number) -> Option<Number> {
    if let (Some(a), Some(b)) = (whole(one), whole(other)) {
        let sum = (a + b).clamp(i64::MIN.into(), u64::MAX.into());
        let large = |_| Number::from(u64::try_from(sum).unwrap_or(u64::MAX));
        return Some(i64::try_from(sum).map_or_else(large, Number::from));
    }
    one.as_f64().zip(other.as_f64()).and_then(|(a, b)| Number::from_f64(a + b))
}

impl Reduce {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::Last,
        Self::Append,
        Self::Extend,
        Self::Sum,
        Self::Min,
        Self::Max,
        Self::Union,
        Self::Merge,
        Self::GCounter,
        Self::PnCounter,
        Self::Lww,
        Self::MaxRegister,
        Self::MinRegister,
        Self::GSet,
        Self::OrSet,
        Self::Counters,
        Self::GCounters,
        Self::Registers,
        Self::MaxRegisters,
        Self::MinRegisters,
        Self::GSets,
        Self::OrSets,
    ];

    /// As it is written in a configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Last => "last",
            Self::Append => "append",
            Self::Extend => "extend",
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::Union => "union",
            Self::Merge => "merge",
            Self::GCounter => "g_counter",
            Self::PnCounter => "pn_counter",
            Self::Lww => "lww",
            Self::MaxRegister => "max_register",
            Self::MinRegister => "min_register",
            Self::GSet => "g_set",
            Self::OrSet => "or_set",
            Self::Counters => "counters",
            Self::GCounters => "g_counters",
            Self::Registers => "registers",
            Self::MaxRegisters => "max_registers",
            Self::MinRegisters => "min_registers",
            Self::GSets => "g_sets",
            Self::OrSets => "or_sets",
        }
    }

    /// The reducer of this name.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reduce| reduce.word() == word)
    }

    /// What it takes: of a CRDT, an example of its JSON.
    #[must_use]
    pub const fn takes(self) -> &'static str {
        match self {
            Self::Last => "any value",
            Self::Append | Self::Extend | Self::Union => "lists",
            Self::Sum => "numbers",
            Self::Min | Self::Max => "numbers or texts, or null for none yet",
            Self::Merge => "objects",
            Self::GCounter => r#"{"ann":2}"#,
            Self::PnCounter => r#"{"up":{"ann":5},"down":{"bob":2}}"#,
            Self::Lww => r#"{"at":1,"by":"ann","value":"red"}"#,
            Self::MaxRegister | Self::MinRegister => "9",
            Self::GSet => r#"["blue","red"]"#,
            Self::OrSet => r#"{"clock":{"ann":2},"added":[["red",{"ann":2}]]}"#,
            Self::GCounters => r#"{"tea":{"ann":2}}"#,
            Self::Counters => r#"{"tea":{"up":{"ann":5},"down":{"bob":2}}}"#,
            Self::Registers => r#"{"tea":{"at":1,"by":"ann","value":"red"}}"#,
            Self::MaxRegisters | Self::MinRegisters => r#"{"tea":9}"#,
            Self::GSets => r#"{"tea":["blue","red"]}"#,
            Self::OrSets => r#"{"tea":{"clock":{"ann":2},"added":[["red",{"ann":2}]]}}"#,
        }
    }

    /// Whether a field holds, or a node writes, what this reducer can fold; `is_there`: it is in the state already.
    pub fn check(self, field: &str, value: &Value, is_there: bool) -> Result<(), Misfit> {
        let fits = match self {
            Self::Last => true,
            Self::Append => !is_there || value.is_array(),
            Self::Extend | Self::Union => value.is_array(),
            Self::Sum => value.is_number(),
            Self::Min | Self::Max => value.is_number() || value.is_string() || value.is_null(),
            Self::Merge => value.is_object(),
            crdt => return crdt.check_crdt(field, value),
        };
        if fits { Ok(()) } else { Err(self.misfit(field, kind(value).into())) }
    }

    fn check_crdt(self, field: &str, value: &Value) -> Result<(), Misfit> {
        let merged = self.merged(value.clone(), value.clone());
        merged.map(drop).map_err(|error| self.misfit(field, format!("{} ({error})", kind(value))))
    }

    fn misfit(self, field: &str, got: String) -> Misfit {
        Misfit { field: field.into(), reduce: self, got }
    }

    /// Folds a value into the one that is there. Both were checked; what doesn't fit all the same changes nothing.
    /// `None`: what comes of it has no form.
    fn fold(self, there: Option<Value>, new: Value) -> Option<Value> {
        let Some(there) = there else { return Some(self.first(new)) };
        Some(match (self, there, new) {
            (Self::Last, _, new) | (Self::Min | Self::Max, Value::Null, new) => new,
            (Self::Append, Value::Array(mut list), new) => {
                list.push(new);
                list.into()
            }
            (Self::Extend, Value::Array(mut list), Value::Array(new)) => {
                list.extend(new);
                list.into()
            }
            (Self::Union, Value::Array(mut list), Value::Array(new)) => {
                list.extend(new);
                union(list)
            }
            (Self::Sum, Value::Number(there), Value::Number(new)) => Value::Number(sum(&there, &new)?),
            (Self::Min | Self::Max, there, Value::Null) => there,
            (Self::Min, there, new) if compare(&new, &there).is_lt() => new,
            (Self::Max, there, new) if compare(&new, &there).is_gt() => new,
            (Self::Merge, Value::Object(mut there), Value::Object(new)) => {
                there.extend(new);
                there.into()
            }
            (_, there, new) => self.merged(there.clone(), new).unwrap_or(there),
        })
    }

    /// What the first value makes of a field that isn't there.
    fn first(self, new: Value) -> Value {
        match (self, new) {
            (Self::Append, new) => vec![new].into(),
            (Self::Union, Value::Array(new)) => union(new),
            (Self::Last | Self::Extend | Self::Sum | Self::Min | Self::Max | Self::Merge, new) => new,
            // Merged with itself it is the same, in the form that all later ones have.
            (_, new) => self.merged(new.clone(), new.clone()).unwrap_or(new),
        }
    }

    /// As the field's own CRDT merges. An error: it is none, or one of the values isn't.
    fn merged(self, there: Value, new: Value) -> serde_json::Result<Value> {
        match self {
            Self::GCounter => merged::<GCounter>(there, new),
            Self::PnCounter => merged::<PnCounter>(there, new),
            Self::Lww => merged::<Lww<Ordered>>(there, new),
            Self::MaxRegister => merged::<Max<Ordered>>(there, new),
            Self::MinRegister => merged::<Min<Ordered>>(there, new),
            Self::GSet => merged::<GSet<Ordered>>(there, new),
            Self::OrSet => merged::<OrSet<Ordered>>(there, new),
            Self::Counters => merged::<Named<PnCounter>>(there, new),
            Self::GCounters => merged::<Named<GCounter>>(there, new),
            Self::Registers => merged::<Named<Lww<Ordered>>>(there, new),
            Self::MaxRegisters => merged::<Named<Max<Ordered>>>(there, new),
            Self::MinRegisters => merged::<Named<Min<Ordered>>>(there, new),
            Self::GSets => merged::<Named<GSet<Ordered>>>(there, new),
            Self::OrSets => merged::<Named<OrSet<Ordered>>>(there, new),
            _ => Err(serde::de::Error::custom("it is no CRDT")),
        }
    }
}

fn merged<T: Crdt + Serialize + DeserializeOwned>(there: Value, new: Value) -> serde_json::Result<Value> {
    let mut there: T = serde_json::from_value(there)?;
    there.merge(serde_json::from_value(new)?);
    serde_json::to_value(there)
}

fn union(mut list: Vec<Value>) -> Value {
    list.sort_by(compare);
    // Not by `==`: 1 and 1.0 are one text once they are stored.
    list.dedup_by(|one, other| compare(one, other).is_eq());
    list.into()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl Dynamic {
    /// A field.
    #[must_use]
    pub fn get(&self, field: &str) -> Option<&Value> {
        self.fields.get(field)
    }

    /// A field as its type, such as a CRDT of [`crate::crdt`] for an edit; the type's default if it isn't there.
    ///
    /// ```
    /// use hapax_core::{crdt::{OrSet, Replica}, dynamic::{Dynamic, Reduce}, state::State};
    /// let (mut board, ann) = (Dynamic::default(), Replica::from("ann"));
    /// let tags = board.read::<OrSet<String>>("tags")?.added("red".into(), &ann).added("blue".into(), &ann);
    /// board.apply(Dynamic::delta().write("tags", Reduce::OrSet, serde_json::to_value(tags)?)?);
    /// assert_eq!(board.read::<OrSet<String>>("tags")?.iter().collect::<Vec<_>>(), ["blue", "red"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read<T: Default + DeserializeOwned>(&self, field: &str) -> serde_json::Result<T> {
        self.get(field).map_or_else(|| Ok(T::default()), T::deserialize)
    }

    /// All fields.
    #[must_use]
    pub fn fields_of(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// The whole state as a value.
    #[must_use]
    pub fn value(&self) -> Value {
        Value::Object(self.fields.clone())
    }
}

/// What isn't an object becomes one, with the value as its field `value`.
impl From<Value> for Dynamic {
    fn from(value: Value) -> Self {
        match value {
            Value::Object(fields) => fields.into(),
            Value::Null => Self::default(),
            value => Map::from_iter([("value".to_owned(), value)]).into(),
        }
    }
}

impl fmt::Display for Dynamic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

impl State for Dynamic {
    type Delta = DynamicDelta;

    fn apply(&mut self, delta: DynamicDelta) {
        for (field, Write(reduce, value)) in delta.by {
            match reduce.fold(self.fields.remove(&field), value) {
                Some(value) => self.fields.extend([(field, value)]),
                None => self.boundless.extend([field]),
            }
        }
    }

    /// None is known beforehand.
    fn fields() -> &'static [Field] {
        &[]
    }
}

impl DynamicDelta {
    /// Writes a field once; a second write to it replaces the first.
    pub fn write(mut self, field: &str, reduce: Reduce, value: Value) -> Result<Self, Misfit> {
        reduce.check(field, &value, false)?;
        self.by.insert(field.into(), Write(reduce, value));
        Ok(self)
    }
}

impl Delta for DynamicDelta {
    type State = Dynamic;

    fn claims(&self, claims: &mut Claims) -> Result<(), CanonicalError> {
        for (field, Write(reduce, value)) in &self.by {
            match (reduce, value) {
                (Reduce::Last, value) => claims.field(interned(field), value)?,
                (Reduce::Merge, Value::Object(entries)) => claims.entries(interned(field), entries)?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// A name that lives for ever. There are as many as configurations name fields that may conflict.
fn interned(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    match names.get(name) {
        Some(known) => known,
        None => {
            let name: &'static str = Box::leak(name.into());
            names.insert(name);
            name
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{OrderKey, PathHash};
    use proptest::prelude::*;
    use serde_json::json;

    /// Numbers that lie so close together that as floats many of them are one.
    fn close_numbers() -> impl Strategy<Value = Value> {
        let base =
            prop::sample::select(vec![0i64, 1, -1, 1 << 53, -(1 << 53), 1 << 60, i64::MAX - 4, i64::MIN + 4]);
        prop_oneof![
            (base, -4..=4i64, any::<bool>()).prop_map(|(base, by, float)| {
                if float { json!((base + by) as f64) } else { json!(base + by) }
            }),
            (0..4u64, any::<bool>()).prop_map(|(by, float)| {
                if float { json!((u64::MAX - by) as f64) } else { json!(u64::MAX - by) }
            }),
            prop::sample::select(vec![json!(0.5), json!(-0.0), json!(1e300), json!(-1e300), json!(-0.5)]),
        ]
    }

    proptest! {
        /// Otherwise a sort may panic, or a union depend on who came first.
        #[test]
        fn numbers_are_in_one_order_also_where_floats_run_out(
            list in prop::collection::vec(close_numbers(), 0..60),
        ) {
            let sorted = union(list.clone());
            let sorted = sorted.as_array().unwrap();
            for (at, one) in sorted.iter().enumerate() {
                for (before, other) in sorted.iter().enumerate() {
                    prop_assert_eq!(compare(other, one), before.cmp(&at), "{} and {}", other, one);
                }
            }
            let texts = |list: &Value| canonical::to_vec(list).unwrap();
            let backwards = union(list.into_iter().rev().collect());
            prop_assert_eq!(texts(&backwards), texts(&json!(sorted)));
        }
    }

    fn folded(reduce: Reduce, values: &[Value]) -> Value {
        let mut state = Dynamic::default();
        for value in values {
            state.apply(Dynamic::delta().write("f", reduce, value.clone()).unwrap());
        }
        state.fields.remove("f").unwrap()
    }

    #[test]
    fn each_reducer_folds_as_its_typed_twin_does() {
        for (reduce, values, expected) in [
            (Reduce::Last, json!([1, "two"]), json!("two")),
            (Reduce::Append, json!([1, [2]]), json!([1, [2]])),
            (Reduce::Extend, json!([[1], [2, 3]]), json!([1, 2, 3])),
            (Reduce::Sum, json!([3, -5]), json!(-2)),
            (Reduce::Sum, json!([u64::MAX, 1]), json!(u64::MAX)),
            (Reduce::Sum, json!([i64::MIN, -1]), json!(i64::MIN)),
            (Reduce::Sum, json!([0.5, 1]), json!(1.5)),
            (Reduce::Min, json!([10, 9, 9.5]), json!(9)),
            (Reduce::Max, json!(["9", "10"]), json!("9")),
            (Reduce::Min, json!([null, 3, null, 4]), json!(3)),
            (Reduce::Max, json!([null, -3, null, -4]), json!(-3)),
            (Reduce::Max, json!([null]), json!(null)),
            (Reduce::Union, json!([[10, 9], [9, "a", 10]]), json!([9, 10, "a"])),
            (Reduce::Merge, json!([{"a": 1}, {"b": 2}]), json!({"a": 1, "b": 2})),
            (Reduce::GCounter, json!([{"a": 1, "b": 2}, {"a": 3}]), json!({"a": 3, "b": 2})),
            (Reduce::GSet, json!([[2], [1, 2]]), json!([1, 2])),
            (Reduce::GSet, json!([[2, 1, 2]]), json!([1, 2])),
            (
                Reduce::OrSet,
                json!([{"clock": {"a": 2}, "added": [["y", {"a": 2}], ["x", {"a": 1}], ["z", {}]]}]),
                json!({"clock": {"a": 2}, "added": [["x", {"a": 1}], ["y", {"a": 2}]]}),
            ),
        ] {
            assert_eq!(folded(reduce, values.as_array().unwrap()), expected, "{}", reduce.word());
        }
    }

    #[test]
    fn each_crdt_has_a_map_whose_values_merge_as_it_does() {
        let tagged = |tag: &str, by: &str| json!({"clock": {by: 1}, "added": [[tag, {by: 1}]]});
        let both = json!({"clock": {"a": 1, "b": 1}, "added": [["x", {"a": 1}], ["y", {"b": 1}]]});
        let up = |by: &str| json!({"up": {by: 2}, "down": {}});
        let last = |at: u64| json!({"at": at, "by": "a", "value": [at]});
        for (of, map, one, other, merged) in [
            (Reduce::GCounter, Reduce::GCounters, json!({"a": 1}), json!({"a": 3}), json!({"a": 3})),
            (
                Reduce::PnCounter,
                Reduce::Counters,
                up("a"),
                up("b"),
                json!({"up": {"a": 2, "b": 2}, "down": {}}),
            ),
            (Reduce::Lww, Reduce::Registers, last(2), last(1), last(2)),
            (Reduce::MaxRegister, Reduce::MaxRegisters, json!(9), json!(10.5), json!(10.5)),
            (Reduce::MinRegister, Reduce::MinRegisters, json!(9), json!(10.5), json!(9)),
            (Reduce::GSet, Reduce::GSets, json!(["b"]), json!(["a"]), json!(["a", "b"])),
            (Reduce::OrSet, Reduce::OrSets, tagged("x", "a"), tagged("y", "b"), both),
        ] {
            assert_eq!(folded(of, &[one.clone(), other.clone()]), merged, "{}", of.word());
            let maps = [json!({"k": one}), json!({"k": other, "l": one})];
            assert_eq!(folded(map, &maps), json!({"k": merged, "l": one}), "{}", map.word());
        }
    }

    #[test]
    fn what_is_stored_alike_is_one_element() {
        let set = folded(Reduce::GSet, &[json!([1, 1.0]), json!([1.0])]);
        assert_eq!(set.as_array().unwrap().len(), 1);
        let twice = json!({"clock": {"a": 2}, "added": [[1, {"a": 1}], [1.0, {"a": 2}]]});
        let tags = folded(Reduce::OrSet, &[twice]);
        assert_eq!(tags["added"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn what_a_reducer_cannot_take_is_refused_before_it_is_written() {
        for (reduce, value) in [
            (Reduce::Extend, json!(1)),
            (Reduce::Union, json!({})),
            (Reduce::Sum, json!("1")),
            (Reduce::Max, json!(true)),
            (Reduce::Merge, json!([])),
            (Reduce::GCounter, json!({"a": "many"})),
            (Reduce::OrSet, json!([1])),
            (Reduce::PnCounter, json!({"up": {}, "down": {}, "left": {}})),
            (Reduce::Lww, json!({"at": 1, "by": "a", "value": 1, "was": 0})),
            (Reduce::OrSet, json!({"clock": {}, "added": [], "removed": []})),
        ] {
            let misfit = Dynamic::delta().write("f", reduce, value).unwrap_err().to_string();
            for told in ["`f`", reduce.word(), reduce.takes()] {
                assert!(misfit.contains(told), "{misfit}");
            }
        }
        let unknown = Dynamic::delta().write("f", Reduce::PnCounter, json!({"ups": {}})).unwrap_err();
        let says = r#"the field `f` takes {"up":{"ann":5},"down":{"bob":2}} (its reducer is `pn_counter`), not an object "#;
        assert!(unknown.to_string().starts_with(&format!("{says}(unknown field `ups`")), "{unknown}");
        assert!(Reduce::Append.check("f", &json!(1), true).is_err(), "the field itself is a list");
    }

    /// A typed `f64` would be infinite, which has no JSON form either.
    #[test]
    fn a_sum_that_is_not_finite_has_no_form() {
        for values in [[1e308, 1e308, -1e308], [-1e308, -1e308, 1e308]] {
            let mut state = Dynamic::from(json!({"other": 1}));
            for value in values {
                state.apply(Dynamic::delta().write("f", Reduce::Sum, json!(value)).unwrap());
            }
            assert_eq!(canonical::to_vec(&state).unwrap_err().to_string(), "the sum `f` is not finite");
        }
    }

    /// The guide's table shows each CRDT as it is written.
    #[test]
    fn the_guide_shows_what_each_crdt_takes() {
        let guide = include_str!("../../../docs/guide/dynamic-graphs.md");
        let (plain, crdts) = Reduce::ALL.split_at(8);
        assert!(plain.iter().all(|reduce| reduce.merged(json!(null), json!(null)).is_err()));
        for reduce in crdts {
            let shown = serde_json::from_str(reduce.takes()).unwrap();
            assert!(reduce.check("f", &shown, true).is_ok(), "{}", reduce.word());
            let row = format!("| `{}` | `{}` |", reduce.word(), reduce.takes());
            assert!(guide.contains(&row), "{row}");
        }
    }

    #[test]
    fn two_writers_of_one_value_conflict_and_two_that_add_do_not() {
        let writer = |n| (OrderKey(n), PathHash(n));
        let one = |field: &str, reduce, value| Dynamic::delta().write(field, reduce, value).unwrap();
        let mut claims = Claims::default();
        assert_eq!(claims.check(writer(1), &one("sku", Reduce::Last, json!(1))).unwrap(), None);
        assert_eq!(claims.check(writer(2), &one("sku", Reduce::Last, json!(1))).unwrap(), None);
        let conflict = claims.check(writer(3), &one("sku", Reduce::Last, json!(2))).unwrap().unwrap();
        assert_eq!((conflict.field, conflict.items), ("sku", [writer(1), writer(3)]));
        assert_eq!(claims.check(writer(1), &one("tax", Reduce::Sum, json!(1))).unwrap(), None);
        assert_eq!(claims.check(writer(2), &one("tax", Reduce::Sum, json!(2))).unwrap(), None);
        let entries = |value| one("map", Reduce::Merge, json!({"key": value}));
        assert_eq!(claims.check(writer(1), &entries(1)).unwrap(), None);
        assert!(claims.check(writer(2), &entries(2)).unwrap().is_some());
    }

    #[test]
    fn a_delta_is_read_back_as_it_was_written() {
        for reduce in Reduce::ALL {
            let shown = serde_json::from_str(reduce.takes()).unwrap_or_default();
            let values = [shown, json!(1), json!([1]), json!({"a": 1})].into_iter();
            let delta =
                values.filter_map(|value| Dynamic::delta().write(reduce.word(), reduce, value).ok()).next();
            let delta = delta.expect("one of them fits");
            let text = serde_json::to_string(&delta).unwrap();
            assert_eq!(serde_json::from_str::<DynamicDelta>(&text).unwrap(), delta, "{text}");
        }
        assert!(serde_json::from_str::<DynamicDelta>(r#"{"$by":{"a":{"sum":1,"max":2}}}"#).is_err());
        assert!(serde_json::from_str::<DynamicDelta>(r#"{"$by":{"a":{"newest":1}}}"#).is_err());
    }
}
