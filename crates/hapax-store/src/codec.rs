//! How bytes are stored: states as snapshots with patches between them, everything else packed on its own.
//!
//! Invariant: a patch builds on a snapshot of an earlier step of the same run that was submitted before it. It
//! can't be committed without that snapshot, because each step's fence demands the step before it.

#[cfg(feature = "encryption")]
mod encrypted;
#[cfg(feature = "encryption")]
mod keyring;
pub(crate) mod payload;

#[cfg(feature = "encryption")]
pub use encrypted::Encrypted;
#[cfg(feature = "encryption")]
pub use keyring::{BadKeyring, Keyring};
pub use payload::{Part, PayloadCodec, Place, Stale};

use crate::{
    depot::{Hand, Resting},
    error::{Locked, Source},
};
use hapax_core::{commit::Epoch, id::RunKey, limits::MAX_STATE_BYTES};
use std::{
    collections::HashMap,
    io::Read,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Below this a patch saves less than it costs.
const SMALL: usize = 512;
/// A byte delta of this size is as good as it gets; zstd isn't asked.
const TINY: usize = 256;
/// A longer chain would keep a large snapshot alive for the sake of a distant step.
const MAX_DISTANCE: u64 = 1024;
/// What the encoders may keep in memory. A forgotten one costs a snapshot, nothing else.
const MEMORY: usize = 64 * 1024 * 1024;
/// After a patch that was no use, this many snapshots are written without trying again.
const GIVE_UP_FOR: u8 = 7;
/// Marks compressed bytes. JSON never starts with it.
const COMPRESSED: u8 = 1;
/// The fastest level: the disk is the bottleneck, not the ratio.
const LEVEL: i32 = 1;

/// Packs what stands on its own, and applies the payload codec.
#[derive(Clone, Default)]
pub(crate) struct Codec {
    pub(crate) hook: Option<Arc<dyn PayloadCodec>>,
    /// What has more bytes than this is stored beside its row.
    pub(crate) aside: Option<usize>,
    /// Where what lies beside its row rests.
    pub(crate) resting: Option<Resting>,
    /// What a look has at hand of what rests there.
    pub(crate) hand: Option<Hand>,
}

/// What lies beside its row where payloads rest and nobody has said otherwise.
const LARGE: usize = 64 * 1024;

impl Codec {
    /// What lies beside its row rests there; so something must lie beside its row.
    pub(crate) fn rest_in(&mut self, resting: Resting) {
        self.resting = Some(resting);
        self.aside.get_or_insert(LARGE);
    }

    /// JSON as it is stored: compressed when that helps.
    pub(crate) fn pack(&self, json: Vec<u8>, place: &Place<'_>) -> Result<Vec<u8>, Source> {
        if json.len() < SMALL {
            return self.seal(json, place);
        }
        let mut packed = vec![COMPRESSED];
        deflate(&json, &[], &mut packed)?;
        self.seal(if packed.len() < json.len() { packed } else { json }, place)
    }

    /// What [`Codec::pack`] was given.
    pub(crate) fn unpack(&self, stored: &[u8], place: &Place<'_>) -> Result<Vec<u8>, Source> {
        let plain = self.open(stored, place)?;
        match plain.split_first() {
            Some((&COMPRESSED, packed)) => inflate(packed, &[], usize::MAX),
            _ => Ok(plain),
        }
    }

    /// The last thing that happens to bytes before they are stored.
    pub(crate) fn seal(&self, plain: Vec<u8>, place: &Place<'_>) -> Result<Vec<u8>, Source> {
        match &self.hook {
            Some(codec) => codec.encode(plain, place),
            None => Ok(plain),
        }
    }

    /// What [`Codec::seal`] was given. Whoever has no key at all is told so, instead of of damage.
    pub(crate) fn open(&self, stored: &[u8], place: &Place<'_>) -> Result<Vec<u8>, Source> {
        match &self.hook {
            Some(codec) => codec.decode(stored, place),
            None => match payload::key_id_of(stored) {
                Some(key_id) => Err(Locked::KeyMissing { key_id }.into()),
                None => Ok(stored.to_vec()),
            },
        }
    }

    /// A state on its own, as a run's first is stored.
    pub(crate) fn snapshot(&self, state: &[u8], place: &Place<'_>) -> Result<StoredState, Source> {
        let mut bytes = Vec::new();
        let mut kind = StateKind::Raw;
        if state.len() >= SMALL {
            deflate(state, &[], &mut bytes)?;
            // Reading back costs time as well, so a few per cent aren't worth it.
            if bytes.len() < state.len() - state.len() / 8 {
                kind = StateKind::Zstd;
            }
        }
        let bytes = if kind == StateKind::Raw { state.to_vec() } else { bytes };
        let bytes = self.seal(bytes, place)?;
        Ok(StoredState { kind, base: None, size: bytes.len(), bytes })
    }

    /// A state as it was. `base` is the plain state of [`StoredState::base`].
    pub(crate) fn read_state(
        &self,
        kind: StateKind,
        stored: &[u8],
        base: Option<&[u8]>,
        place: &Place<'_>,
    ) -> Result<Vec<u8>, Source> {
        let bytes = self.open(stored, place)?;
        match (kind, base) {
            (StateKind::Raw, _) => Ok(bytes),
            (StateKind::Zstd, _) => inflate(&bytes, &[], MAX_STATE_BYTES),
            (StateKind::Delta, Some(base)) => apply_delta(base, &bytes),
            (StateKind::Patch, Some(base)) => inflate(&bytes, base, MAX_STATE_BYTES),
            (_, None) => Err("a patch without a snapshot".into()),
        }
    }
}

/// How a state is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateKind {
    /// As it is.
    Raw = 0,
    /// Compressed.
    Zstd = 1,
    /// What stands between the bytes that it shares with the snapshot at both ends.
    Delta = 2,
    /// Compressed, with the snapshot as prefix.
    Patch = 3,
}

impl StateKind {
    pub(crate) fn from_number(number: i64) -> Option<Self> {
        [Self::Raw, Self::Zstd, Self::Delta, Self::Patch].into_iter().find(|kind| *kind as i64 == number)
    }
}

/// A state as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredState {
    pub(crate) kind: StateKind,
    /// The step of the snapshot that it builds on.
    pub(crate) base: Option<u64>,
    /// The bytes, or a reference to them.
    pub(crate) bytes: Vec<u8>,
    /// How many bytes they are, wherever they lie.
    pub(crate) size: usize,
}

/// The latest snapshot of each run that this store writes.
pub(crate) struct Encoders {
    codec: Codec,
    bases: Mutex<Generations>,
}

/// Two generations instead of a list by age: when the young one is full it becomes the old one, and the old one
/// is forgotten.
#[derive(Default)]
struct Generations {
    young: HashMap<RunKey, Base>,
    young_bytes: usize,
    old: HashMap<RunKey, Base>,
}

struct Base {
    epoch: Epoch,
    step: u64,
    state: Arc<[u8]>,
    stored: usize,
    patched: usize,
    give_up: u8,
}

impl Encoders {
    pub(crate) fn new(codec: Codec) -> Self {
        Self { codec, bases: Mutex::default() }
    }

    /// The next state of a run, as a patch when that is the better choice.
    pub(crate) fn encode(
        &self,
        run: &RunKey,
        epoch: Epoch,
        step: u64,
        state: &Arc<[u8]>,
    ) -> Result<StoredState, Source> {
        let place = Place::state(run, step);
        if state.len() < SMALL {
            return self.codec.snapshot(state, &place);
        }
        let mut base = self.take(run);
        let patch = match &mut base {
            Some(base) if base.serves(epoch, step) => base.patch(state)?,
            _ => None,
        };
        match (base, patch) {
            (Some(base), Some((kind, patch))) => {
                let bytes = self.codec.seal(patch, &place)?;
                let stored = StoredState { kind, base: Some(base.step), size: bytes.len(), bytes };
                self.put(run, base);
                Ok(stored)
            }
            (base, _) => {
                let stored = self.codec.snapshot(state, &place)?;
                let give_up = base.map_or(0, |base| base.give_up);
                self.put(run, Base { give_up, ..Base::new(epoch, step, state, &stored) });
                Ok(stored)
            }
        }
    }

    /// Takes note of a snapshot that is stored already.
    pub(crate) fn remember(
        &self,
        run: &RunKey,
        epoch: Epoch,
        step: u64,
        state: &Arc<[u8]>,
        stored: &StoredState,
    ) {
        if state.len() >= SMALL && stored.base.is_none() {
            self.put(run, Base::new(epoch, step, state, stored));
        }
    }

    /// The run's next state is a snapshot.
    pub(crate) fn forget(&self, run: &RunKey) {
        self.take(run);
    }

    fn take(&self, run: &RunKey) -> Option<Base> {
        let bases = &mut *self.lock();
        if let Some(base) = bases.young.remove(run) {
            bases.young_bytes -= base.state.len();
            return Some(base);
        }
        bases.old.remove(run)
    }

    fn put(&self, run: &RunKey, base: Base) {
        let bases = &mut *self.lock();
        bases.young_bytes += base.state.len();
        if let Some(earlier) = bases.young.insert(run.clone(), base) {
            bases.young_bytes -= earlier.state.len();
        }
        if bases.young_bytes > MEMORY / 2 {
            bases.old = std::mem::take(&mut bases.young);
            bases.young_bytes = 0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.bases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Base {
    fn new(epoch: Epoch, step: u64, state: &Arc<[u8]>, stored: &StoredState) -> Self {
        let state = state.clone();
        Self { epoch, step, state, stored: stored.size, patched: 0, give_up: 0 }
    }

    /// A step that is submitted again must not build on itself or on what came after it.
    fn serves(&self, epoch: Epoch, step: u64) -> bool {
        self.epoch == epoch && (1..=MAX_DISTANCE).contains(&step.saturating_sub(self.step))
    }

    /// The smaller of delta and patch, unless a snapshot is due.
    fn patch(&mut self, state: &[u8]) -> Result<Option<(StateKind, Vec<u8>)>, Source> {
        let (prefix, suffix) = common(&self.state, state);
        let middle = &state[prefix..state.len() - suffix];
        let mut best = None;
        if middle.len() <= TINY.max(state.len() / 32) {
            best = Some((StateKind::Delta, delta(prefix, suffix, middle)));
        } else if self.give_up > 0 {
            self.give_up -= 1;
        } else {
            let mut patch = Vec::new();
            deflate(state, &self.state, &mut patch)?;
            if patch.len() <= self.stored / 2 {
                best = Some((StateKind::Patch, patch));
            } else {
                self.give_up = GIVE_UP_FOR;
            }
        }
        if let Some((kind, patch)) = &mut best
            && *kind == StateKind::Patch
            && middle.len() + 8 <= patch.len()
        {
            (*kind, *patch) = (StateKind::Delta, delta(prefix, suffix, middle));
        }
        self.patched += best.as_ref().map_or(0, |(_, patch)| patch.len());
        // Beyond its snapshot's own size a chain of patches costs more than a new snapshot saves.
        Ok(best.filter(|(_, patch)| patch.len() <= self.stored / 2 && self.patched <= self.stored))
    }
}

/// How many bytes two texts share at their ends.
fn common(a: &[u8], b: &[u8]) -> (usize, usize) {
    const STRIDE: usize = 64;
    let same = a.chunks_exact(STRIDE).zip(b.chunks_exact(STRIDE)).take_while(|(x, y)| x == y).count();
    let start = same * STRIDE;
    let prefix = start + a[start..].iter().zip(&b[start..]).take_while(|(x, y)| x == y).count();
    let (a, b) = (&a[prefix..], &b[prefix..]);
    let same = a.rchunks_exact(STRIDE).zip(b.rchunks_exact(STRIDE)).take_while(|(x, y)| x == y).count();
    let end = same * STRIDE;
    let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
    let suffix = end + a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    (prefix, suffix)
}

fn delta(prefix: usize, suffix: usize, middle: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + middle.len());
    bytes.extend(length(prefix));
    bytes.extend(length(suffix));
    bytes.extend(middle);
    bytes
}

fn apply_delta(base: &[u8], bytes: &[u8]) -> Result<Vec<u8>, Source> {
    let (prefix, rest) = split_length(bytes)?;
    let (suffix, middle) = split_length(rest)?;
    if prefix + suffix > base.len() {
        return Err("a delta is larger than its snapshot".into());
    }
    Ok([&base[..prefix], middle, &base[base.len() - suffix..]].concat())
}

/// Appends the length of `plain` and its compressed bytes.
fn deflate(plain: &[u8], prefix: &[u8], out: &mut Vec<u8>) -> Result<(), Source> {
    let mut zstd = zstd::bulk::Compressor::new(LEVEL)?;
    if !prefix.is_empty() {
        let reach = (prefix.len() + plain.len()).next_power_of_two().ilog2().clamp(10, 27);
        zstd.set_parameter(zstd::zstd_safe::CParameter::WindowLog(reach))?;
        zstd.context_mut().ref_prefix(prefix).map_err(zstd::zstd_safe::get_error_name)?;
    }
    out.extend(length(plain.len()));
    out.append(&mut zstd.compress(plain)?);
    Ok(())
}

fn inflate(bytes: &[u8], prefix: &[u8], limit: usize) -> Result<Vec<u8>, Source> {
    let (len, packed) = split_length(bytes)?;
    if len > limit {
        return Err("a length is out of bounds".into());
    }
    // Damaged bytes may claim any length: memory is only taken as the data comes.
    let mut plain = Vec::with_capacity(len.min(MAX_STATE_BYTES));
    let decoder = zstd::stream::read::Decoder::with_ref_prefix(packed, prefix)?;
    decoder.take(len as u64 + 1).read_to_end(&mut plain)?;
    if plain.len() != len {
        return Err("a length doesn't match its content".into());
    }
    Ok(plain)
}

fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("the limits keep every payload below 4 GiB").to_le_bytes()
}

fn split_length(bytes: &[u8]) -> Result<(usize, &[u8]), Source> {
    let (len, rest) = bytes.split_first_chunk::<4>().ok_or("it is cut short")?;
    Ok((u32::from_le_bytes(*len) as usize, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::id::{Namespace, RunId};
    use proptest::prelude::*;

    fn run() -> RunKey {
        RunKey { namespace: Namespace::default(), run: RunId::new("r").unwrap() }
    }

    const EPOCH: Epoch = Epoch { counter: 1, nonce: 7 };

    fn text(len: usize, seed: u64) -> Vec<u8> {
        let mut x = seed | 1;
        let mut next = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            b'!' + (x % 90) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    /// Stores a sequence of states and reads all of them back. Answers what each took.
    fn round_trip(codec: &Codec, states: &[Vec<u8>]) -> Vec<usize> {
        let encoders = Encoders::new(codec.clone());
        let mut rows: Vec<StoredState> = vec![];
        for (step, state) in states.iter().enumerate() {
            let state: Arc<[u8]> = state.clone().into();
            rows.push(encoders.encode(&run(), EPOCH, step as u64, &state).unwrap());
        }
        for ((row, state), step) in rows.iter().zip(states).zip(0..) {
            let base = row.base.map(|step| {
                let base = &rows[step as usize];
                assert_eq!(base.base, None, "a patch builds on a snapshot");
                codec.read_state(base.kind, &base.bytes, None, &Place::state(&run(), step)).unwrap()
            });
            let run = run();
            let place = Place::state(&run, step);
            assert_eq!(&codec.read_state(row.kind, &row.bytes, base.as_deref(), &place).unwrap(), state);
        }
        rows.iter().map(|row| row.bytes.len()).collect()
    }

    #[test]
    fn a_counter_in_a_large_state_costs_a_few_bytes_a_step() {
        let body = String::from_utf8(text(100_000, 3)).unwrap();
        let states: Vec<_> =
            (0..100).map(|n| format!("{{\"body\":{body:?},\"n\":{n}}}").into_bytes()).collect();
        let sizes = round_trip(&Codec::default(), &states);
        assert!(sizes[1..].iter().all(|size| *size < 64), "{sizes:?}");
    }

    #[test]
    fn two_distant_edits_are_a_patch() {
        let body = text(100_000, 3);
        let states: Vec<_> = (0..20u8).map(|n| [&[n + b'a'][..], &body, &[n + b'A']].concat()).collect();
        let sizes = round_trip(&Codec::default(), &states);
        assert!(sizes[1..].iter().all(|size| *size < 2_000), "{sizes:?}");
    }

    #[test]
    fn states_that_share_nothing_are_snapshots() {
        let states: Vec<_> = (0..20).map(|n| text(10_000, n * 2 + 1)).collect();
        assert!(round_trip(&Codec::default(), &states).iter().all(|size| *size > 7_000));
    }

    #[test]
    fn a_step_that_is_encoded_again_never_builds_on_itself() {
        let encoders = Encoders::new(Codec::default());
        let state: Arc<[u8]> = text(5_000, 1).into();
        for step in [5, 6, 6, 5, 3] {
            let stored = encoders.encode(&run(), EPOCH, step, &state).unwrap();
            assert!(stored.base.is_none_or(|base| base < step), "step {step}: {:?}", stored.base);
        }
        let other = Epoch { counter: 2, nonce: 8 };
        assert_eq!(encoders.encode(&run(), other, 9, &state).unwrap().base, None);
        encoders.forget(&run());
        assert_eq!(encoders.encode(&run(), other, 10, &state).unwrap().base, None);
    }

    #[test]
    fn the_encoders_memory_is_bounded() {
        let encoders = Encoders::new(Codec::default());
        let state: Arc<[u8]> = text(4 << 20, 1).into();
        for n in 0..40 {
            let run = RunKey { run: RunId::new(format!("r{n}")).unwrap(), ..run() };
            encoders.encode(&run, EPOCH, 1, &state).unwrap();
        }
        let bases = encoders.lock();
        assert!(bases.young.len() + bases.old.len() <= 18);
    }

    #[test]
    fn damaged_bytes_are_errors_not_panics() {
        let (codec, run) = (Codec::default(), run());
        let place = Place::state(&run, 0);
        let state = "abc ".repeat(1_000).into_bytes();
        let good = codec.snapshot(&state, &place).unwrap();
        assert_eq!(good.kind, StateKind::Zstd);
        for cut in [0, 3, 4, good.bytes.len() - 1] {
            assert!(codec.read_state(good.kind, &good.bytes[..cut], None, &place).is_err());
        }
        assert!(codec.read_state(StateKind::Delta, &[255; 9], Some(&state), &place).is_err());
        assert!(codec.read_state(StateKind::Patch, &good.bytes, None, &place).is_err());
        assert!(codec.unpack(&[COMPRESSED, 1], &place).is_err());
    }

    proptest! {
        #[test]
        fn every_sequence_of_states_reads_back(
            start in proptest::collection::vec(any::<u8>(), 0..3_000),
            edits in proptest::collection::vec((any::<u16>(), any::<u16>(), proptest::collection::vec(any::<u8>(), 0..600)), 0..20),
        ) {
            let mut states = vec![start];
            for (at, cut, with) in edits {
                let mut next = states.last().unwrap().clone();
                let at = usize::from(at) % (next.len() + 1);
                let cut = usize::from(cut) % (next.len() - at + 1) % 300;
                next.splice(at..at + cut, with);
                states.push(next);
            }
            round_trip(&Codec::default(), &states);
        }

        #[test]
        fn every_payload_reads_back(len in 0usize..5_000, seed: u64, zeros: bool) {
            let json = if zeros { vec![b'0'; len] } else { text(len, seed) };
            let (codec, run) = (Codec::default(), run());
            let place = Place::state(&run, 0);
            prop_assert_eq!(codec.unpack(&codec.pack(json.clone(), &place).unwrap(), &place).unwrap(), json);
        }
    }
}
