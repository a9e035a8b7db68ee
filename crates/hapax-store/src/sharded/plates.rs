//! What databases say of themselves as shards: who belongs together, in which order, by which map.
//!
//! Invariant: a database belongs to a set only when all of the set have names, and the set is called after them. So one
//! without a name isn't the sibling of any that belong to a set, wherever it stands in the list; and a set over which someone
//! died is made by whoever opens the same databases again. Nothing is written before all of them may be opened.

use super::refused;
use crate::{error::StoreError, house::Sign, store::Store};
use hapax_core::{canary, key::DigestBuilder};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a database says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Plate {
    /// It is one of a set, in which runs may be.
    Member(Member),
    /// It has a name, drawn for it by whoever came first, and is to be one of a set.
    Named { name: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    /// Its own name.
    #[serde(default)]
    name: String,
    /// Which databases belong together.
    set: String,
    /// Its place among them.
    shard: usize,
    /// How many they are.
    shards: usize,
    /// What binds the map.
    map: String,
}

/// A database, as far as this matters.
#[derive(Debug)]
struct Known {
    plate: Option<Plate>,
    has_runs: bool,
}

impl Known {
    fn member(&self) -> Option<&Member> {
        match &self.plate {
            Some(Plate::Member(member)) => Some(member),
            _ => None,
        }
    }

    fn is_only_named(&self) -> bool {
        matches!(self.plate, Some(Plate::Named { .. }))
    }

    fn name(&self) -> &str {
        match &self.plate {
            Some(Plate::Member(Member { name, .. }) | Plate::Named { name }) => name,
            None => "",
        }
    }
}

/// Reads what the databases say of themselves, and makes a set of those that are new. Any number of processes may do so at
/// once.
pub(super) async fn check(databases: &[Arc<dyn Store>], map: &[u16]) -> Result<(), StoreError> {
    let mut digest = DigestBuilder::new("hapax.shards.v1");
    for shard in map {
        digest.u64(u64::from(*shard));
    }
    let map = digest.finish().to_string();
    let mut known = read(databases).await?;
    if known.iter().any(|one| one.member().is_some()) && known.iter().any(|one| one.plate.is_none()) {
        // Another may have made them a set meanwhile. Who is in one by now has no sibling without a name.
        known = read(databases).await?;
    }
    agree(&known, &map)?;
    for (database, known) in databases.iter().zip(&mut known) {
        if known.plate.is_none() {
            let name = uuid::Uuid::new_v4().simple().to_string();
            // What another has drawn before counts.
            *known = say(&**database, None, &Plate::Named { name }).await?;
        }
    }
    agree(&known, &map)?;
    let set = set_of(&known);
    // All begin with the same one: of two who name these databases differently, one makes its set and the other none of its own.
    let mut order: Vec<usize> = (0..databases.len()).collect();
    order.sort_by_key(|shard| known[*shard].name().to_owned());
    for shard in order {
        if known[shard].is_only_named() {
            let (name, set, shards) = (known[shard].name().to_owned(), set.clone(), databases.len());
            let ours = Plate::Member(Member { name, set, shard, shards, map: map.clone() });
            let named = known[shard].plate.take();
            // Another who makes this set has said the same.
            known[shard] = say(&*databases[shard], named.as_ref(), &ours).await?;
            agree(&known, &map)?;
        }
    }
    Ok(())
}

async fn read(databases: &[Arc<dyn Store>]) -> Result<Vec<Known>, StoreError> {
    let mut known = vec![];
    for database in databases {
        known.push(know(&database.house().plate(None, None).await?)?);
    }
    Ok(known)
}

/// Writes what is to be said in the place of what was read; answers what is said.
async fn say(database: &dyn Store, over: Option<&Plate>, plate: &Plate) -> Result<Known, StoreError> {
    let text = |plate| serde_json::to_string(plate).map_err(|error| StoreError::Retry(error.into()));
    let over = over.map(text).transpose()?;
    know(&database.house().plate(Some(text(plate)?), over).await?)
}

fn know(sign: &Sign) -> Result<Known, StoreError> {
    let plate = sign.said.as_deref().map(serde_json::from_str).transpose();
    let plate =
        plate.map_err(|error| refused(format!("what a database says of itself can't be read: {error}")))?;
    Ok(Known { plate, has_runs: sign.has_runs })
}

/// What the set of these is called.
fn set_of(known: &[Known]) -> String {
    let mut digest = DigestBuilder::new("hapax.shards.set.v1");
    for one in known {
        digest.text(one.name());
    }
    digest.finish().to_string()
}

/// Refuses databases that aren't the shards that they are opened as, and can't become them.
fn agree(known: &[Known], map: &str) -> Result<(), StoreError> {
    let first = known.iter().find_map(Known::member);
    let is_being_made = known.iter().any(Known::is_only_named) && known.iter().all(|one| one.plate.is_some());
    let set = match first {
        Some(first) if !is_being_made => first.set.clone(),
        _ => set_of(known),
    };
    for (shard, one) in known.iter().enumerate() {
        let place = shard + 1;
        let is_twice = || known[..shard].iter().any(|other| other.name() == one.name());
        let why = match &one.plate {
            _ if canary::on("shard_map_unchecked") => continue,
            Some(Plate::Member(said)) if said.shards != known.len() => {
                format!("they are {} databases, and {} are named", said.shards, known.len())
            }
            Some(Plate::Member(said)) if said.shard != shard => {
                format!("database {place} is number {} of them: name them in their order", said.shard + 1)
            }
            Some(Plate::Member(said)) if said.set != set => {
                format!("database {place} belongs to other shards")
            }
            Some(Plate::Member(said)) if said.map != map => {
                "they were opened with another map of the partitions".to_owned()
            }
            Some(Plate::Member(_)) => continue,
            _ if one.has_runs => format!(
                "database {place} holds runs, and wasn't a shard: move them into the shards with `hapax migrate`"
            ),
            None if first.is_some() => {
                format!(
                    "database {place} is a new one, and the others had another in its place: is its address right?"
                )
            }
            Some(_) if is_twice() => format!("database {place} is named twice"),
            _ => continue,
        };
        return Err(refused(why));
    }
    Ok(())
}
