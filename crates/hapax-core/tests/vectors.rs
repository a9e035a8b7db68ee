//! Every known answer, computed by an independent program, comes out byte for byte.

use std::collections::BTreeMap;

use hapax_core::canonical::{from_text, to_vec};
use hapax_core::key::{Digest, DigestBuilder, EffectSite, command_key, effect_key, step_key_unsorted};
use hapax_core::order::{OrderKey, PathHash};
use hapax_core::rng::{Rng, run_seed};
use serde::Deserialize;
use serde::de::DeserializeOwned;

fn load<T: DeserializeOwned>(text: &str) -> Vec<T> {
    let vectors: Vec<T> = serde_json::from_str(text).unwrap();
    assert!(!vectors.is_empty(), "a file without vectors proves nothing");
    vectors
}

#[test]
fn canonical_json() {
    #[derive(Deserialize)]
    struct Vector {
        json: String,
        canonical: String,
    }
    for vector in load::<Vector>(include_str!("vectors/canonical_json.json")) {
        assert_eq!(from_text(&vector.json).unwrap(), vector.canonical);
        let value: serde_json::Value = serde_json::from_str(&vector.json).unwrap();
        assert_eq!(to_vec(&value).unwrap(), vector.canonical.as_bytes());
    }
}

#[test]
fn command_keys() {
    #[derive(Deserialize)]
    struct Vector {
        action: String,
        task_id: String,
        snapshot_id: String,
        inputs_json: String,
        expected_outputs_json: String,
        key: String,
    }
    for vector in load::<Vector>(include_str!("vectors/command_key.json")) {
        let inputs = from_text(&vector.inputs_json).unwrap();
        let outputs = from_text(&vector.expected_outputs_json).unwrap();
        let Vector { action, task_id, snapshot_id, .. } = &vector;
        let key = command_key(action, task_id, snapshot_id, inputs.as_bytes(), outputs.as_bytes()).unwrap();
        assert_eq!(key.as_str(), vector.key);
        assert_eq!(vector.key.parse(), Ok(key));
    }
}

#[test]
fn effect_keys() {
    #[derive(Deserialize)]
    struct Vector {
        namespace: String,
        run_id: String,
        step_id: u64,
        path_hash: PathHash,
        scope: String,
        index: u32,
        name: String,
        request_json: String,
        key: String,
    }
    for vector in load::<Vector>(include_str!("vectors/effect_key.json")) {
        let site = EffectSite {
            namespace: &vector.namespace,
            run_id: &vector.run_id,
            step: vector.step_id,
            path_hash: vector.path_hash,
            scope: &vector.scope,
            index: vector.index,
            name: &vector.name,
        };
        let key = effect_key(&site, from_text(&vector.request_json).unwrap().as_bytes());
        assert_eq!(key.as_str(), vector.key);
        assert_eq!(vector.key.parse(), Ok(key));
    }
}

#[test]
fn order() {
    #[derive(Deserialize)]
    struct Item {
        node_id: String,
        edge_index: u32,
        order_key: OrderKey,
        path_hash: PathHash,
    }
    for path in load::<Vec<Item>>(include_str!("vectors/order.json")) {
        assert!(!path.is_empty());
        let mut parent = PathHash::ROOT;
        for item in path {
            assert_eq!(OrderKey::of(parent, item.edge_index), item.order_key);
            parent = parent.child(&item.node_id, item.edge_index);
            assert_eq!(parent, item.path_hash);
        }
    }
}

#[derive(Deserialize)]
struct RngVector {
    run_seed: String,
    step_id: u64,
    path_hash: PathHash,
    scope: String,
    first_u64: Vec<String>,
}

impl RngVector {
    fn rng(&self) -> Rng {
        Rng::for_item(self.run_seed.parse().unwrap(), self.step_id, self.path_hash, &self.scope)
    }
}

#[test]
fn rng() {
    for vector in load::<RngVector>(include_str!("vectors/rng.json")) {
        assert!(!vector.first_u64.is_empty());
        let mut rng = vector.rng();
        for expected in &vector.first_u64 {
            assert_eq!(rng.next_u64().to_string(), *expected);
        }
    }
}

#[test]
fn run_seeds() {
    #[derive(Deserialize)]
    struct Vector {
        run_id: String,
        seed: String,
    }
    for vector in load::<Vector>(include_str!("vectors/run_seed.json")) {
        assert_eq!(run_seed(&vector.run_id).to_string(), vector.seed);
    }
}

#[derive(Deserialize)]
struct StepVector {
    #[serde(default)]
    name: String,
    run_id: String,
    step_id: u64,
    frontier: Vec<FrontierItem>,
    state_json: String,
    key: String,
}

#[derive(Deserialize)]
struct FrontierItem {
    node_id: String,
    order_key: OrderKey,
}

impl StepVector {
    fn frontier(&self) -> Vec<(&str, OrderKey)> {
        self.frontier.iter().map(|item| (item.node_id.as_str(), item.order_key)).collect()
    }

    fn digest(&self) -> Digest {
        let mut digest = DigestBuilder::new("hapax.digest.v1");
        digest.text(&self.run_id).u64(self.step_id).u64(self.frontier.len() as u64);
        for (node_id, order_key) in self.frontier() {
            digest.text(node_id).u64(order_key.0);
        }
        digest.text(&self.state_json).finish()
    }
}

fn step_vectors() -> Vec<StepVector> {
    load(include_str!("vectors/step_key.json"))
}

#[test]
fn step_keys() {
    for vector in step_vectors() {
        let state = vector.state_json.as_bytes();
        let key = step_key_unsorted(&vector.run_id, vector.step_id, &vector.frontier(), state);
        assert_eq!(key.to_string(), vector.key, "{}", vector.name);
        assert_eq!(vector.key.parse(), Ok(key));
    }
}

#[test]
fn the_digest_tells_apart_what_the_step_key_cannot() {
    let vectors: BTreeMap<_, _> = step_vectors()
        .into_iter()
        .map(|vector| (vector.name.chars().take(5).collect::<String>(), vector))
        .collect();
    for pair in ["LG13", "LG14", "LG15"] {
        let (left, right) = (&vectors[&format!("{pair}a")], &vectors[&format!("{pair}b")]);
        assert_eq!(left.key, right.key, "{pair}");
        assert_ne!(left.digest(), right.digest(), "{pair}");
    }
}

/// Derived by hand from the first vector's draws: the algorithms over `next_u64` are as stable as the stream.
#[test]
fn every_kind_of_draw_is_pinned() {
    let vector = &load::<RngVector>(include_str!("vectors/rng.json"))[0];
    let mut rng = vector.rng();
    assert_eq!([(); 4].map(|()| rng.below(10)), [9, 4, 5, 5]);

    let mut rng = vector.rng();
    assert_eq!([(); 2].map(|()| rng.f64()), [0.9191488604284231, 0.4212579177416169]);

    let mut items = [0, 1, 2, 3, 4];
    vector.rng().shuffle(&mut items);
    assert_eq!(items, [0, 2, 3, 1, 4]);

    let bytes = 0x7b6c_1cb2_f756_4deb_7d12_9de1_138f_d76b_u128.to_be_bytes();
    assert_eq!(vector.rng().bytes16(), bytes);

    // The first draw falls into the surplus of this n and is thrown away.
    assert_eq!(vector.rng().below((1 << 63) + 1), 3885418498801699134);
}
/// Computed by an independent ChaCha8.
#[test]
fn jitter_is_pinned_and_differs_by_attempt() {
    let mut rng = Rng::for_jitter(42, 7, PathHash(u64::MAX), 3);
    assert_eq!([(); 2].map(|()| rng.next_u64()), [14191354604413483263, 4574293611007735520]);
    let mut next = Rng::for_jitter(42, 7, PathHash(u64::MAX), 4);
    assert_ne!(next.next_u64(), 14191354604413483263);
}

/// Checkpoints hold digests, so their bytes are as fixed as the keys'.
#[test]
fn the_digest_is_pinned() {
    let digest = DigestBuilder::new("hapax.digest.v1").bytes(b"ab").u64(7).finish();
    assert_eq!(digest.to_string(), "ef37f3ae7178655de1b2de2215731f347ed4a569e8be5804d26c7d15121d2649");
}
