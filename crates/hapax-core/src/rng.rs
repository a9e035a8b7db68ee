//! Randomness that a re-run repeats: every item draws from its own stream.
//!
//! Invariant: the draws are part of the contract. The same seed, step, path and scope give the same values on
//! every machine, in every version and in every attempt; a changed algorithm is a new domain string, because a
//! run that is resumed after an upgrade must see what it saw before. Everything is therefore made of
//! [`Rng::next_u64`], and nothing is borrowed from a crate that may improve its sampling.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng as _, SeedableRng as _};
use sha2::{Digest as _, Sha256};

use crate::order::{PathHash, first_u64, update_prefixed};

/// The seed of a run that was not given one.
///
/// ```
/// assert_eq!(hapax_core::rng::run_seed("2"), 15308683162207262446);
/// ```
#[must_use]
pub fn run_seed(run_id: &str) -> u64 {
    first_u64(Sha256::new_with_prefix(run_id))
}

/// A stream of draws: ChaCha8 with a key hashed from the item's identity, and nonce 0.
///
/// ```
/// use hapax_core::{order::PathHash, rng::Rng};
///
/// let path = PathHash::ROOT.child("roll", 0);
/// let mut rng = Rng::for_item(42, 1, path, "");
/// let die = 1 + rng.below(6);
/// assert!((1..=6).contains(&die));
///
/// let mut again = Rng::for_item(42, 1, path, "");
/// assert_eq!(1 + again.below(6), die);
/// ```
pub struct Rng {
    stream: ChaCha8Rng,
    drawn: Arc<AtomicU64>,
}

impl Rng {
    /// The stream of one item, or of one named scope inside it; the root scope is `""`.
    ///
    /// The attempt is left out on purpose: a node that is tried again sees the same draws.
    #[must_use]
    pub fn for_item(seed: u64, step: u64, path: PathHash, scope: &str) -> Self {
        let mut hash = item_hash("hapax.rng.v1", seed, step, path);
        update_prefixed(&mut hash, scope);
        Self::from_hash(hash)
    }

    /// The stream for the back-off before `attempt`. It never moves the item's own stream, and differs from
    /// attempt to attempt.
    #[must_use]
    pub fn for_jitter(seed: u64, step: u64, path: PathHash, attempt: u32) -> Self {
        let mut hash = item_hash("hapax.jitter.v1", seed, step, path);
        hash.update(attempt.to_be_bytes());
        Self::from_hash(hash)
    }

    fn from_hash(hash: Sha256) -> Self {
        Self { stream: ChaCha8Rng::from_seed(hash.finalize().into()), drawn: Arc::default() }
    }

    /// How many numbers were drawn; it goes on counting while the stream is used.
    pub fn drawn(&self) -> Arc<AtomicU64> {
        self.drawn.clone()
    }

    /// The next eight bytes of the stream, little-endian.
    pub fn next_u64(&mut self) -> u64 {
        self.drawn.fetch_add(1, Ordering::Relaxed);
        self.stream.next_u64()
    }

    /// A number in `0..n`, each equally likely.
    ///
    /// Stable algorithm (Lemire's multiply and reject): with a draw x, the answer is the high half of the 128-bit
    /// product x·n; a draw whose low half is under 2^64 mod n is thrown away and the next one taken.
    ///
    /// # Panics
    ///
    /// If `n` is 0: there is no such number.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "there is no number below 0");
        // 2^64 mod n, in 64 bits: how many low halves would make some answers likelier than others.
        let surplus = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            if product as u64 >= surplus {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number in `[0, 1)`: the top 53 bits of one draw, divided by 2^53.
    pub fn f64(&mut self) -> f64 {
        const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;
        (self.next_u64() >> 11) as f64 * UNIT
    }

    /// Puts the items into a random order, each order equally likely.
    ///
    /// Stable algorithm (Fisher–Yates from the end): for i from the last index down to 1, swap i with
    /// [`below`](Self::below)`(i + 1)`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// Sixteen bytes, say for a UUID: two draws, each little-endian.
    pub fn bytes16(&mut self) -> [u8; 16] {
        let low = u128::from(self.next_u64());
        let high = u128::from(self.next_u64());
        (high << 64 | low).to_le_bytes()
    }
}

/// Says nothing of the state: a logged stream could be predicted.
impl fmt::Debug for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rng").finish_non_exhaustive()
    }
}

fn item_hash(domain: &str, seed: u64, step: u64, path: PathHash) -> Sha256 {
    let mut hash = Sha256::new_with_prefix(domain);
    hash.update(seed.to_be_bytes());
    hash.update(step.to_be_bytes());
    hash.update(path.0.to_be_bytes());
    hash
}
