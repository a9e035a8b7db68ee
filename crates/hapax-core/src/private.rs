//! What the code written by `#[derive(State)]` leans on. Not part of the API: it changes with the macro.
//!
//! Invariant: the derive names nothing outside this module and `state`, so a program that derives needs only
//! the crate that re-exports both.

pub use serde;
pub use serde_json;

use serde::de::{Deserialize, Error, MapAccess};

/// Takes one more value into a delta's field, which may already have been written.
pub fn fold<T>(slot: &mut Option<T>, new: T, reduce: fn(&mut T, T)) {
    match slot {
        Some(value) => reduce(value, new),
        None => *slot = Some(new),
    }
}

/// Reads the value of one written field. A secret field's error doesn't show what was found.
pub fn read<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
    slot: &mut Option<T>,
    name: &'static str,
    secret: bool,
    map: &mut A,
) -> Result<(), A::Error> {
    if slot.is_some() {
        return Err(A::Error::duplicate_field(name));
    }
    let found = map.next_value::<T>();
    *slot = Some(if secret { found.map_err(|_| hidden(name))? } else { found? });
    Ok(())
}

fn hidden<E: Error>(name: &str) -> E {
    E::custom(format_args!("the secret field `{name}` does not fit its type"))
}
