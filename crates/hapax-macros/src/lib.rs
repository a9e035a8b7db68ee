//! `#[derive(State)]` and `#[node]` for Hapax. Users reach both through the `hapax` crate.
//!
//! Invariant: what the macros write names only `hapax::state`, `hapax::canonical`, `hapax::__private` and the
//! standard library, by absolute paths, so it means the same wherever it stands; what they refuse, they refuse
//! at the span of the culprit, with the fix.

mod fields;
mod generate;
mod node;
mod parse;
mod rename;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a struct the state of a graph, and writes its delta: the type that nodes return.
///
/// For `struct Order` it writes `OrderDelta`, with one builder method for each field, and implements `State` and
/// `Delta`. The struct must have named fields and no generics, and must implement `Clone`, `Serialize` and
/// `Deserialize`; the types of its fields must implement `Debug`, unless they are secret.
///
/// # How a field takes what nodes wrote
///
/// | `#[state(…)]` | the builder takes | the field |
/// |---|---|---|
/// | nothing or `last` | a value | is replaced; two writers in one step conflict |
/// | `append` | one element | grows by it, once for each call |
/// | `extend` | elements | grows by them |
/// | `sum` | a value | grows by it; integers saturate |
/// | `min`, `max` | a value | keeps the smaller or larger; an `Option` that is `None` takes any |
/// | `union` | elements | is the union of both sets |
/// | `merge` | a key and a value | takes the entry; two writers of one key conflict |
/// | `crdt` | a value | is merged with it, by `Crdt::merge` |
/// | `reduce = path` | a value | is handed to `fn(&mut T, T)`, once for each call; two writers conflict |
/// | `reduce = path, ordered` | a value | the same, but writers follow each other in order |
/// | `secret` (with any) | | is never shown in logs, traces and `Debug` of the delta |
///
/// # On the struct
///
/// `#[state(version = 2, upgrade = path)]`: the shape changed; `path` is a
/// `fn(OldState) -> Result<Self, impl Display>` that reads what older versions stored.
/// `#[state(crate = path)]`: where the `hapax` crate is, if not at `::hapax`.
///
/// The names that `#[serde(rename = "…")]` and `#[serde(rename_all = "…")]` give are known; deltas always use the
/// Rust names. Fields that serde skips or flattens are refused: a checkpoint must hold every field by its name.
#[proc_macro_derive(State, attributes(state))]
pub fn derive_state(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    match parse::Input::of(&input) {
        Ok(input) => generate::state(&input).into(),
        Err(error) => error.into_compile_error().into(),
    }
}

/// Checks that a node's future can move between threads, and says why where it can't.
///
/// Without it, `Graph::node(NAME, function)` only says that `function` isn't a node; with it, the compiler points
/// at the value that is held across an `.await` and is not `Send`. The function itself stays as it is.
#[proc_macro_attribute]
pub fn node(arguments: TokenStream, item: TokenStream) -> TokenStream {
    node::check(&arguments.into(), &item.into()).into()
}
