//! `hapax key`: the keys, orders and draws of the v1 formulas, for people who check them from outside.
//!
//! Invariant: nothing is written before all that can fail is done, so that a failure leaves stdout empty.

use super::canon;
use crate::{
    failure::Failure,
    output::{JSON_VERSION, Output},
};
use clap::{Args, Subcommand};
use hapax_core::{
    key::{EffectSite, command_key, effect_key, step_key_unsorted},
    order::{OrderKey, PathHash},
    rng::{Rng, run_seed},
};
use serde::{Deserialize, Serialize};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

const AFTER_HELP: &str = "\
What is printed follows from the flags alone: neither a store nor the environment is read, $HAPAX_NAMESPACE neither.

Examples:
  hapax key step --run-id r --step 1 --state-json '{}' \\
      --frontier '[{\"node_id\":\"a\",\"order_key\":\"100\"}]'
  hapax key order --parent 0 --node plan --edge 0
  hapax key seed --run-id order-42
  hapax key rng --seed 42 --step 1 --path-hash 7 --scope '' --count 3
  hapax key effect --namespace default --run-id r --step 0 \\
      --path-hash 7 --scope '' --index 0 \\
      --name charge --request '{\"cents\":4200}'
  hapax key command --action review --task T-1 --snapshot s \\
      --inputs '{}' --expected-outputs '[]'";

/// Bytes of draws that are written at once.
const BLOCK: usize = 1 << 16;

/// Compute a key, an order key, a seed or draws
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Key {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The idempotency key of a committed step
    #[command(
        after_help = "Example:\n  hapax key step --run-id r --step 1 --state-json '{}' \\\n      --frontier '[{\"node_id\":\"a\",\"order_key\":\"100\"}]'"
    )]
    Step {
        /// The run
        #[arg(long, allow_hyphen_values = true)]
        run_id: String,
        /// The step
        #[arg(long, allow_hyphen_values = true)]
        step: u64,
        /// What runs next: a JSON array of `{"node_id", "order_key"}`, in any order
        #[arg(long, allow_hyphen_values = true, value_name = "JSON")]
        frontier: String,
        /// The state; its bytes are hashed as they are
        #[arg(long, allow_hyphen_values = true, value_name = "STRING")]
        state_json: OsString,
    },
    /// The order key of an item, and below it its path hash
    #[command(after_help = "Example:\n  hapax key order --parent 0 --node plan --edge 0")]
    Order {
        /// The parent's path hash; 0 for the start
        #[arg(long, allow_hyphen_values = true, value_name = "U64")]
        parent: u64,
        /// The item's node
        #[arg(long, allow_hyphen_values = true, value_name = "ID")]
        node: String,
        /// The index of the edge that led to it
        #[arg(long, allow_hyphen_values = true, value_name = "N")]
        edge: u32,
    },
    /// The seed of a run that was not given one
    #[command(after_help = "Example:\n  hapax key seed --run-id order-42")]
    Seed {
        /// The run
        #[arg(long, allow_hyphen_values = true)]
        run_id: String,
    },
    /// The first draws of an item, one a line
    #[command(after_help = "Example:\n  hapax key rng --seed 42 --step 1 --path-hash 7 --scope '' --count 3")]
    Rng {
        /// The run's seed
        #[arg(long, allow_hyphen_values = true, value_name = "U64")]
        seed: u64,
        /// The step
        #[arg(long, allow_hyphen_values = true)]
        step: u64,
        /// The item
        #[arg(long, allow_hyphen_values = true, value_name = "U64")]
        path_hash: u64,
        /// The scope inside the item; the root scope is empty
        #[arg(long, allow_hyphen_values = true, default_value = "")]
        scope: String,
        /// How many
        #[arg(long, allow_hyphen_values = true, value_name = "N", default_value_t = 1)]
        count: u64,
    },
    /// The idempotency key of an effect
    #[command(
        after_help = "Example:\n  hapax key effect --namespace default --run-id r --step 0 \\\n      --path-hash 7 --scope '' --index 0 \\\n      --name charge --request '{\"cents\":4200}'"
    )]
    Effect(EffectArgs),
    /// The key of an agent's command
    #[command(
        after_help = "Example:\n  hapax key command --action review --task T-1 --snapshot s \\\n      --inputs '{}' --expected-outputs '[]'"
    )]
    Command {
        /// What is done
        #[arg(long, allow_hyphen_values = true)]
        action: String,
        /// The task
        #[arg(long, allow_hyphen_values = true)]
        task: String,
        /// The snapshot it works on
        #[arg(long, allow_hyphen_values = true)]
        snapshot: String,
        /// What it is given
        #[arg(long, allow_hyphen_values = true, value_name = "JSON")]
        inputs: String,
        /// What it is to make
        #[arg(long, allow_hyphen_values = true, value_name = "JSON")]
        expected_outputs: String,
    },
}

/// Which call of which item.
#[derive(Debug, Args)]
struct EffectArgs {
    /// The tenant; $HAPAX_NAMESPACE is not read
    // Of the same name as the global flag, so that clap lets this one stand in its place.
    #[arg(long, allow_hyphen_values = true, default_value = "default")]
    namespace: String,
    /// The run
    #[arg(long, allow_hyphen_values = true)]
    run_id: String,
    /// The step whose frontier holds the item
    #[arg(long, allow_hyphen_values = true)]
    step: u64,
    /// The item
    #[arg(long, allow_hyphen_values = true, value_name = "U64")]
    path_hash: u64,
    /// The scope inside the item; the root scope is empty
    #[arg(long, allow_hyphen_values = true, default_value = "")]
    scope: String,
    /// The number of the call within its scope, from 0
    #[arg(long, allow_hyphen_values = true, value_name = "N")]
    index: u32,
    /// The effect's name
    #[arg(long, allow_hyphen_values = true)]
    name: String,
    /// The request; it is brought into canonical form
    #[arg(long, allow_hyphen_values = true, value_name = "JSON")]
    request: String,
}

#[derive(Deserialize)]
struct Item {
    node_id: String,
    order_key: Decimal,
}

/// A u64 as a string, as everywhere; a number is exact here too.
#[derive(Deserialize)]
#[serde(untagged, expecting = "an order key is a decimal number below 2^64, as a string or a number")]
enum Decimal {
    Text(OrderKey),
    Number(u64),
}

#[derive(Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order_key: Option<OrderKey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hash: Option<PathHash>,
}

impl Answer {
    const NONE: Self = Self { key: None, order_key: None, path_hash: None };

    fn key(key: &impl ToString) -> Self {
        Self { key: Some(key.to_string()), ..Self::NONE }
    }

    fn human(&self) -> String {
        let order = [self.order_key.map(|key| key.to_string()), self.path_hash.map(|hash| hash.to_string())];
        let lines = self.key.iter().chain(order.iter().flatten());
        lines.map(|line| format!("{line}\n")).collect()
    }
}

impl Key {
    pub(super) fn run(self, out: &Output) -> Result<(), Failure> {
        let answer = match self.what {
            What::Step { run_id, step, frontier, state_json } => {
                Answer::key(&step_key_of(&run_id, step, &frontier, &state_json)?)
            }
            What::Order { parent, node, edge } => {
                let parent = PathHash(parent);
                let (order_key, path_hash) = (OrderKey::by_formula(parent, edge), parent.child(&node, edge));
                Answer { order_key: Some(order_key), path_hash: Some(path_hash), ..Answer::NONE }
            }
            What::Seed { run_id } => Answer::key(&run_seed(&run_id)),
            What::Rng { seed, step, path_hash, scope, count } => {
                return draw(Rng::for_item(seed, step, PathHash(path_hash), &scope), count, out);
            }
            What::Effect(effect) => Answer::key(&effect.key()?),
            What::Command { action, task, snapshot, inputs, expected_outputs } => {
                let inputs = canon::argument("--inputs", &inputs)?;
                let outputs = canon::argument("--expected-outputs", &expected_outputs)?;
                let key = command_key(&action, &task, &snapshot, inputs.as_bytes(), outputs.as_bytes());
                Answer::key(&key.map_err(|error| Failure::usage(error.to_string()))?)
            }
        };
        out.answer(&answer, || answer.human())
    }
}

/// However many there are, only a few are in memory.
fn draw(mut rng: Rng, count: u64, out: &Output) -> Result<(), Failure> {
    let (begin, end) = match out.is_json() {
        true => (format!("{{\"v\":{JSON_VERSION},\"draws\":["), "]}\n"),
        false => (String::new(), ""),
    };
    let mut text = begin;
    for at in 0..count {
        let draw = rng.next_u64();
        match out.is_json() {
            true => text.push_str(&format!("{}\"{draw}\"", if at == 0 { "" } else { "," })),
            false => text.push_str(&format!("{draw}\n")),
        }
        if text.len() >= BLOCK {
            out.text(&std::mem::take(&mut text))?;
        }
    }
    out.text(&(text + end))
}

fn step_key_of(run_id: &str, step: u64, frontier: &str, state_json: &OsStr) -> Result<String, Failure> {
    let items: Vec<Item> = serde_json::from_str(frontier)
        .map_err(|error| Failure::usage(format!("--frontier is not an array of items: {error}")))?;
    let order_key = |item: &Item| match item.order_key {
        Decimal::Text(key) => key,
        Decimal::Number(number) => OrderKey(number),
    };
    let frontier: Vec<(&str, OrderKey)> =
        items.iter().map(|item| (item.node_id.as_str(), order_key(item))).collect();
    Ok(step_key_unsorted(run_id, step, &frontier, state_json.as_bytes()).to_string())
}

impl EffectArgs {
    fn key(&self) -> Result<String, Failure> {
        let request = canon::argument("--request", &self.request)?;
        let site = EffectSite {
            namespace: &self.namespace,
            run_id: &self.run_id,
            step: self.step,
            path_hash: PathHash(self.path_hash),
            scope: &self.scope,
            index: self.index,
            name: &self.name,
        };
        Ok(effect_key(&site, request.as_bytes()).to_string())
    }
}
