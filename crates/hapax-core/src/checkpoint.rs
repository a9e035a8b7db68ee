//! One committed step: state, frontier, seed, key and digest.
//!
//! Invariant: the digest covers run, step, seed, frontier, key (which binds the state), recorded I/O and outbox rows,
//! and nothing that differs between two honest executions: no epoch, worker, time, attempt or encoding.

use crate::{
    frontier::{Barriers, WorkItem, barriers_digest, page_digests},
    id::RunId,
    journal::{EffectOutcome, Recorded},
    key::{Digest, DigestBuilder, StepKey, step_key},
    order::PathHash,
    outbox::Message,
};
use std::sync::Arc;

/// A step as it is committed and as it is read back.
///
/// ```
/// # use hapax_core::{checkpoint::{Checkpoint, Draft, IoDigest, outbox_digest}, frontier::Barriers, id::RunId};
/// # fn executed(run: &str, state: &str) -> Checkpoint {
/// #     let draft = Draft {
/// #         step: 1,
/// #         state: state.as_bytes().into(),
/// #         state_version: 1,
/// #         frontier: vec![],
/// #         barriers: Barriers::default(),
/// #         seed: 7,
/// #         io: IoDigest::default().finish(),
/// #         outbox: outbox_digest(&[]),
/// #         label: None,
/// #     };
/// #     draft.seal(&RunId::new(run).unwrap())
/// # }
/// let ours = executed("order-42", r#"{"paid":true}"#);
/// // Whoever executes the step arrives at the same digest; another run or another state never does.
/// assert_eq!(ours.digest, executed("order-42", r#"{"paid":true}"#).digest);
/// assert_ne!(ours.digest, executed("order-43", r#"{"paid":true}"#).digest);
/// assert_ne!(ours.digest, executed("order-42", r#"{"paid":false}"#).digest);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The step.
    pub step: u64,
    /// The state, as canonical JSON.
    pub state: Arc<[u8]>,
    /// The version of the state's shape.
    pub state_version: u32,
    /// What runs next: all of it when committed, the first page when read back.
    pub frontier: Vec<WorkItem>,
    /// How many items the whole frontier has.
    pub frontier_len: usize,
    /// The digest of each of its pages.
    pub pages: Vec<Digest>,
    /// Joins that wait.
    pub barriers: Barriers,
    /// The seed of the run's draws.
    pub seed: u64,
    /// The idempotency key, v1.
    pub key: StepKey,
    /// What the step's items recorded.
    pub io: Digest,
    /// What the step sends.
    pub outbox: Digest,
    /// Binds all of the above.
    pub digest: Digest,
    /// The user's name for this checkpoint.
    pub label: Option<String>,
}

/// What goes into a checkpoint.
///
/// ```
/// use hapax_core::{checkpoint::{Draft, IoDigest, outbox_digest}, frontier::Barriers, id::RunId};
/// let draft = Draft {
///     step: 1,
///     state: br#"{"counter":5}"#.to_vec().into(),
///     state_version: 1,
///     frontier: vec![],
///     barriers: Barriers::default(),
///     seed: 7,
///     io: IoDigest::default().finish(),
///     outbox: outbox_digest(&[]),
///     label: None,
/// };
/// let run = RunId::new("run-001")?;
/// let mut checkpoint = draft.seal(&run);
/// assert!(checkpoint.is_intact(&run, &checkpoint.frontier));
/// checkpoint.seed = 8;
/// assert!(!checkpoint.is_intact(&run, &checkpoint.frontier));
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone)]
pub struct Draft {
    /// The step.
    pub step: u64,
    /// The state, as canonical JSON.
    pub state: Arc<[u8]>,
    /// The version of the state's shape.
    pub state_version: u32,
    /// What runs next, sorted.
    pub frontier: Vec<WorkItem>,
    /// Joins that wait.
    pub barriers: Barriers,
    /// The seed of the run's draws.
    pub seed: u64,
    /// What the step's items recorded.
    pub io: Digest,
    /// What the step sends.
    pub outbox: Digest,
    /// The user's name for this checkpoint.
    pub label: Option<String>,
}

impl Draft {
    /// Computes key and digest. The state is hashed once, inside the key.
    pub fn seal(self, run: &RunId) -> Checkpoint {
        let items = self.frontier.iter().map(|i| (i.node.as_str(), i.order_key));
        let key = step_key(run.as_str(), self.step, items, &self.state);
        let pages = page_digests(&self.frontier);
        let digest = digest(run, (self.step, self.seed), &pages, &self.barriers, &key, self.io, self.outbox);
        Checkpoint {
            step: self.step,
            state: self.state,
            state_version: self.state_version,
            frontier_len: self.frontier.len(),
            frontier: self.frontier,
            pages,
            barriers: self.barriers,
            seed: self.seed,
            key,
            io: self.io,
            outbox: self.outbox,
            digest,
            label: self.label,
        }
    }
}

impl Checkpoint {
    /// Whether the parts still give the stored digest. `items` is the whole frontier, in order.
    pub fn is_intact<'a>(&self, run: &RunId, items: impl IntoIterator<Item = &'a WorkItem>) -> bool {
        let key_items = items.into_iter().map(|i| (i.node.as_str(), i.order_key));
        let key = step_key(run.as_str(), self.step, key_items, &self.state);
        let digest =
            digest(run, (self.step, self.seed), &self.pages, &self.barriers, &key, self.io, self.outbox);
        key == self.key && digest == self.digest
    }
}

fn digest(
    run: &RunId,
    (step, seed): (u64, u64),
    pages: &[Digest],
    barriers: &Barriers,
    key: &StepKey,
    io: Digest,
    outbox: Digest,
) -> Digest {
    let mut digest = DigestBuilder::new("hapax.checkpoint.v1");
    digest.text(run.as_str()).u64(step).u64(seed).u64(pages.len() as u64);
    for page in pages {
        digest.bytes(&page.0);
    }
    if !barriers.is_empty() {
        digest.bytes(&barriers_digest(barriers).0);
    }
    digest.bytes(&key.0).bytes(&io.0).bytes(&outbox.0);
    digest.finish()
}

/// Binds what the items of a step recorded: the last word on each call, in item and call order.
///
/// ```
/// use hapax_core::{checkpoint::IoDigest, journal::{Entry, Recorded}, order::PathHash};
/// # use hapax_core::{journal::{EffectOutcome, Seen}, json::Json, key::sha256};
/// # let seen = |rate: &str, attempt, at_us| {
/// #     let outcome = EffectOutcome::Ok { response: Json::of(rate).unwrap() };
/// #     let (scope, name, request) = ("".into(), "rate".into(), sha256(b"EUR"));
/// #     Entry::Seen(Seen { scope, index: 0, attempt, name, request, outcome, at_us, began: None })
/// # };
/// let digest = |entry: Entry| {
///     let mut recorded = Recorded::default();
///     recorded.take(&entry);
///     let mut io = IoDigest::default();
///     io.item(PathHash(7), &recorded);
///     io.finish()
/// };
/// // What was seen counts; when, and by which attempt, does not.
/// assert_ne!(digest(seen("1.08", 1, 100)), digest(seen("1.09", 1, 100)));
/// assert_eq!(digest(seen("1.08", 1, 100)), digest(seen("1.08", 2, 900)));
/// ```
#[derive(Debug)]
pub struct IoDigest(DigestBuilder);

impl Default for IoDigest {
    fn default() -> Self {
        Self(DigestBuilder::new("hapax.io.v1"))
    }
}

impl IoDigest {
    /// Takes the next item, in order-key order.
    pub fn item(&mut self, path_hash: PathHash, recorded: &Recorded) {
        for ((scope, index), call) in recorded.calls() {
            self.0.u64(path_hash.0).text(scope).u64((*index).into()).text(&call.name).bytes(&call.request.0);
            match &call.outcome {
                None => self.0.u64(0),
                Some(EffectOutcome::Ok { response }) => self.0.u64(1).text(response.as_str()),
                Some(EffectOutcome::Err { code, message, retryable, .. }) => {
                    self.0.u64(2).text(code).text(message).u64((*retryable).into())
                }
            };
        }
        for (scope, draws) in recorded.draws() {
            self.0.u64(path_hash.0).text(scope).text("draws").u64(*draws);
        }
    }

    /// The digest of all items.
    pub fn finish(mut self) -> Digest {
        self.0.finish()
    }
}

/// Binds the messages of a step.
///
/// ```
/// use hapax_core::{checkpoint::outbox_digest, json::Json, outbox::Message};
/// let mail = Message { topic: "mail".into(), key: "order-42".into(), payload: Json::of("shipped")? };
/// assert_ne!(outbox_digest(&[mail.clone()]), outbox_digest(&[mail.clone(), mail]));
/// # Ok::<(), hapax_core::canonical::CanonicalError>(())
/// ```
pub fn outbox_digest(messages: &[Message]) -> Digest {
    let mut digest = DigestBuilder::new("hapax.outbox.v1");
    for message in messages {
        digest.text(&message.topic).text(&message.key).text(message.payload.as_str());
    }
    digest.finish()
}
