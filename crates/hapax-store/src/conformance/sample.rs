//! Small runs, steps and rows for the suite, and a worker that keeps its place.
//!
//! Invariant: everything here is deterministic, so that two samples of the same name are the same.

use crate::{
    error::StoreError,
    store::{Claimant, Created, Lease, NewRun, Pace, ReadyFilter, RunRecord, Store},
};
use hapax_core::{
    checkpoint::{Checkpoint, Draft, IoDigest, outbox_digest},
    commit::{Append, Epoch, RunFailure, Status, StatusChange, StepCommit, Wake, Write, Written},
    flow::Terms,
    frontier::{Barriers, WorkItem},
    id::{Namespace, NodeId, RunId, RunKey},
    journal::{EffectKind, Entry, Intent, JournalRow},
    json::Json,
    key::{Digest, sha256},
    limits::FRONTIER_PAGE,
    order::PathHash,
    outbox::Message,
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Longer than any test lasts.
///
/// ```
/// use hapax_store::conformance::{Sample, sample::LONG};
/// let run = Sample::run("order-42").claimed_by("engine-1", LONG).build();
/// assert_eq!(run.claim.unwrap().ttl, LONG);
/// ```
pub const LONG: Duration = Duration::from_secs(600);

/// A run to be, built step by step.
///
/// ```
/// use hapax_store::conformance::Sample;
/// let run = Sample::run("order-42").items(3).tag("customer", "42").build();
/// assert_eq!((run.checkpoint.frontier.len(), run.checkpoint.step), (3, 0));
/// assert_eq!(run.checkpoint.digest, Sample::run("order-42").items(3).build().checkpoint.digest);
/// ```
#[derive(Debug, Clone)]
pub struct Sample {
    key: RunKey,
    graph: Arc<str>,
    tags: BTreeMap<String, String>,
    claim: Option<Claimant>,
    parent: Option<RunId>,
    draft: Draft,
}

impl Sample {
    /// A run of that name with one work item and a small state, claimed by nobody.
    pub fn run(name: &str) -> Self {
        Self {
            key: key(name),
            graph: "sample".into(),
            tags: BTreeMap::new(),
            claim: None,
            parent: None,
            draft: draft(0, "start", 1, 7),
        }
    }

    /// In another namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.key.namespace = Namespace::new(namespace).expect("a sample's namespace is a name");
        self
    }

    /// Of another graph.
    #[must_use]
    pub fn graph(mut self, graph: &str) -> Self {
        self.graph = graph.into();
        self
    }

    /// With a tag.
    #[must_use]
    pub fn tag(mut self, name: &str, value: &str) -> Self {
        self.tags.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Claimed at once.
    #[must_use]
    pub fn claimed_by(mut self, owner: &str, ttl: Duration) -> Self {
        self.claim = Some(claimant(owner, ttl));
        self
    }

    /// Started by that run.
    #[must_use]
    pub fn child_of(mut self, parent: &RunKey) -> Self {
        self.parent = Some(parent.run.clone());
        self
    }

    /// With this many work items.
    #[must_use]
    pub fn items(mut self, count: u32) -> Self {
        self.draft.frontier = items(count);
        self
    }

    /// With that seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.draft.seed = seed;
        self
    }

    /// Started at that step, as a fork is.
    #[must_use]
    pub fn at_step(mut self, step: u64) -> Self {
        self.draft.step = step;
        self
    }

    /// With a state of this many bytes.
    #[must_use]
    pub fn state_bytes(mut self, size: usize) -> Self {
        self.draft.state = vec![b'1'; size].into();
        self
    }

    /// The run.
    pub fn build(self) -> NewRun {
        NewRun {
            checkpoint: self.draft.seal(&self.key.run),
            fingerprint: shape(&self.graph),
            input: sha256(self.key.run.as_str().as_bytes()),
            key: self.key,
            graph: self.graph,
            tags: self.tags,
            claim: self.claim,
            parent: self.parent,
            journal: vec![],
            terms: Terms::default(),
        }
    }

    /// Creates it; it must be new.
    pub async fn create(self, store: &Arc<dyn Store>) -> Option<Lease> {
        match store.create(self.build()).await.expect("the sample is within every limit") {
            Created::New(lease) => lease,
            Created::Exists(record) => panic!("{} exists already", record.key),
        }
    }

    /// Creates it, claimed for long by `a`, and answers its holder.
    pub async fn hold(self, store: &Arc<dyn Store>) -> Holder {
        let sample = if self.claim.is_some() { self } else { self.claimed_by("a", LONG) };
        let new = sample.clone().build();
        let lease = sample.create(store).await.expect("a claim was asked for");
        Holder {
            store: store.clone(),
            key: new.key,
            epoch: lease.epoch,
            step: new.checkpoint.step,
            digest: new.checkpoint.digest,
            seed: new.checkpoint.seed,
            next_seq: 0,
        }
    }
}

/// The shape of a sample graph.
///
/// ```
/// use hapax_store::conformance::{Sample, sample::shape};
/// assert_eq!(Sample::run("order-42").graph("orders").build().fingerprint, shape("orders"));
/// ```
pub fn shape(graph: &str) -> Digest {
    sha256(graph.as_bytes())
}

/// A run in the default namespace.
///
/// ```
/// use hapax_store::conformance::{Sample, sample::key};
/// assert_eq!(Sample::run("order-42").build().key, key("order-42"));
/// assert_ne!(Sample::run("order-42").namespace("shop").build().key, key("order-42"));
/// ```
pub fn key(name: &str) -> RunKey {
    RunKey { namespace: Namespace::default(), run: RunId::new(name).expect("a sample's name is a name") }
}

/// Who claims, and for how long.
///
/// ```
/// use hapax_store::conformance::sample::{LONG, claimant};
/// assert_eq!(&*claimant("engine-1", LONG).owner, "engine-1");
/// ```
pub fn claimant(owner: &str, ttl: Duration) -> Claimant {
    Claimant { owner: owner.into(), ttl }
}

/// A failure to end a run with.
///
/// ```
/// use hapax_store::conformance::sample::failed;
/// assert!(failed().is_final());
/// assert_eq!(failed().word(), "failed");
/// ```
pub fn failed() -> Status {
    let (code, message) = ("HX0020".to_owned(), "it broke".to_owned());
    Status::Failed { error: RunFailure { code, message, step: 1, node: None } }
}

/// A message to the outside.
///
/// ```
/// use hapax_store::conformance::sample::message;
/// assert!(message("paid").check().is_ok());
/// assert_eq!(message("paid").topic, message("packed").topic, "all of them are one channel");
/// ```
pub fn message(text: &str) -> Message {
    Message { topic: "t".to_owned(), key: "k".to_owned(), payload: json(text) }
}

/// A text as JSON.
///
/// ```
/// use hapax_store::conformance::sample::json;
/// assert_eq!(json("paid").as_str(), r#""paid""#);
/// ```
pub fn json(text: &str) -> Json {
    Json::of(text).expect("a text has a JSON form")
}

/// That many work items, some with inputs, in order.
///
/// ```
/// use hapax_store::conformance::sample::items;
/// let items = items(5);
/// assert!(items.is_sorted_by_key(|item| item.order_key));
/// assert_eq!(items.iter().filter(|item| item.input.is_some()).count(), 2);
/// ```
pub fn items(count: u32) -> Vec<WorkItem> {
    let node = NodeId::new("work").expect("a fine name");
    let item = |index: u32| {
        let input = (index % 3 == 1).then(|| json(&format!("input {index}")));
        WorkItem::child(PathHash(0xfedc_ba98_7654_3210), index, node.clone(), input)
    };
    (0..count).map(item).collect()
}

fn draft(step: u64, state: &str, count: u32, seed: u64) -> Draft {
    Draft {
        step,
        state: json(state).as_bytes().into(),
        state_version: 1,
        frontier: items(count),
        barriers: Barriers::default(),
        seed,
        io: IoDigest::default().finish(),
        outbox: outbox_digest(&[]),
        label: None,
    }
}

/// A worker that holds a run and keeps its place in it.
///
/// ```
/// use hapax_store::{MemoryStore, Store, StoreError, conformance::{Holder, Sample}};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// let mut holder = Sample::run("order-42").hold(&store).await;
/// holder.commit(holder.next("reserved")).await?;
/// holder.commit(holder.next("paid")).await?;
/// assert_eq!((holder.step, holder.record().await.step), (2, 2));
/// let other = Holder::claim(&store, &holder.key, "engine-2").await;
/// assert!(matches!(other, Err(StoreError::Held { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Holder {
    /// Its store.
    pub store: Arc<dyn Store>,
    /// Its run.
    pub key: RunKey,
    /// Its fencing token.
    pub epoch: Epoch,
    /// The step that it saw committed last.
    pub step: u64,
    /// The digest of that step.
    pub digest: Digest,
    /// The run's seed.
    pub seed: u64,
    /// The number of its next journal row.
    pub next_seq: u64,
}

impl Holder {
    /// Claims a run and loads it.
    pub async fn claim(store: &Arc<dyn Store>, key: &RunKey, owner: &str) -> Result<Self, StoreError> {
        let lease = store.claim(key.clone(), claimant(owner, LONG)).await?;
        Self::load(store, key, lease).await
    }

    /// Loads a run that was claimed.
    pub async fn load(store: &Arc<dyn Store>, key: &RunKey, lease: Lease) -> Result<Self, StoreError> {
        let loaded = store.load(key.clone()).await?;
        Ok(Self {
            store: store.clone(),
            key: key.clone(),
            epoch: lease.epoch,
            step: loaded.checkpoint.step,
            digest: loaded.checkpoint.digest,
            seed: loaded.checkpoint.seed,
            next_seq: loaded.record.next_seq,
        })
    }

    /// The next step, with that state, one work item and nothing else.
    pub fn next(&self, state: &str) -> StepCommit {
        self.next_with(state, 1, 0, vec![])
    }

    /// The next step, with that many work items and journal rows, and these messages.
    pub fn next_with(&self, state: &str, items: u32, rows: u64, outbox: Vec<Message>) -> StepCommit {
        let mut draft = draft(self.step + 1, state, items, self.seed);
        draft.outbox = outbox_digest(&outbox);
        StepCommit {
            run: self.key.clone(),
            epoch: self.epoch,
            follows: self.step,
            base: self.digest,
            checkpoint: draft.seal(&self.key.run),
            first_seq: self.next_seq,
            journal: self.rows(rows),
            outbox,
            ends: false,
            fresh: None,
            used_us: self.step + 1,
        }
    }

    /// The commit that ends the run.
    pub fn last(&self, state: &str) -> StepCommit {
        StepCommit { ends: true, ..self.next_with(state, 0, 0, vec![]) }
    }

    /// Journal rows that build on the last step.
    pub fn rows(&self, count: u64) -> Vec<JournalRow> {
        let row = |seq: u64| JournalRow {
            seq,
            base: self.digest,
            step: self.step,
            path_hash: PathHash(u64::MAX - seq),
            entry: intent(seq),
        };
        (self.next_seq..self.next_seq + count).map(row).collect()
    }

    /// Rows between two steps.
    pub fn append(&self, count: u64) -> Append {
        Append {
            run: self.key.clone(),
            epoch: self.epoch,
            first_seq: self.next_seq,
            rows: self.rows(count),
            unless_cancelled: false,
        }
    }

    /// A change of status, with the lease given back or not.
    pub fn status(&self, status: Status, release: bool) -> StatusChange {
        StatusChange {
            run: self.key.clone(),
            epoch: self.epoch,
            status,
            release,
            used_us: self.step,
            wake: Wake::default(),
        }
    }

    /// Submits a write, waits for its outcome, and takes note of it.
    pub async fn write(&mut self, write: Write) -> Result<Written, StoreError> {
        let written = submit(&self.store, write.clone()).await?;
        self.passed(&write);
        Ok(written)
    }

    /// Commits a step and takes note of it.
    pub async fn commit(&mut self, commit: StepCommit) -> Result<Written, StoreError> {
        self.write(step(commit)).await
    }

    /// Takes note of a write that took effect.
    pub fn passed(&mut self, write: &Write) {
        match write {
            Write::Step(commit) => {
                self.step = commit.checkpoint.step;
                self.digest = commit.checkpoint.digest;
                self.next_seq = commit.first_seq + commit.journal.len() as u64;
            }
            Write::Append(append) => self.next_seq = append.first_seq + append.rows.len() as u64,
            _ => {}
        }
    }

    /// Ends the run well.
    pub async fn finish(mut self) {
        let last = self.last("end");
        assert_eq!(self.commit(last).await.expect("the run can end"), Written::Committed);
    }

    /// The run's row.
    pub async fn record(&self) -> RunRecord {
        self.store.run(self.key.clone()).await.expect("a read").expect("the run is there")
    }
}

/// Claims up to `limit` runs of the sample graph that are ready.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::{Sample, sample::ready}};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// Sample::run("order-42").create(&store).await;
/// assert_eq!(ready(&store, "engine-1", 10).await.len(), 1);
/// assert!(ready(&store, "engine-2", 10).await.is_empty(), "it is held");
/// # }
/// ```
pub async fn ready(store: &Arc<dyn Store>, owner: &str, limit: usize) -> Vec<(RunKey, Lease)> {
    let graphs = vec![("sample".into(), shape("sample"))];
    let filter = ReadyFilter { namespace: Namespace::default(), graphs, limit };
    store.claim_ready(filter, claimant(owner, LONG)).await.expect("an answer")
}

/// Claims a run again and again until its earlier lease has ended; a lease that doesn't end fails the test.
///
/// ```
/// use hapax_store::{Clock, MemoryStore, Store};
/// use hapax_store::conformance::{Sample, sample::{LONG, claim_when_free, key}};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let clock = Clock::manual();
/// let store: Arc<dyn Store> = MemoryStore::with_clock(clock.clone());
/// Sample::run("order-42").claimed_by("engine-1", LONG).create(&store).await;
/// clock.advance(LONG);
/// assert!(claim_when_free(&store, &key("order-42"), "engine-2").await.taken_over);
/// # }
/// ```
pub async fn claim_when_free(store: &Arc<dyn Store>, key: &RunKey, owner: &str) -> Lease {
    let claim = async {
        loop {
            match store.claim(key.clone(), claimant(owner, LONG)).await {
                Ok(lease) => return lease,
                Err(StoreError::Held { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), claim).await.expect("the lease ends")
}

/// An intent that only its number tells from others.
///
/// ```
/// use hapax_store::conformance::sample::intent;
/// assert_eq!(intent(1), intent(1));
/// assert_ne!(intent(1), intent(2));
/// ```
pub fn intent(number: u64) -> Entry {
    Entry::Intent(Intent {
        scope: "".into(),
        index: 0,
        attempt: 1,
        name: format!("call {number}"),
        kind: EffectKind::Write,
        request: sha256(&number.to_be_bytes()),
        key: format!("fx:{number}"),
        at_us: 1,
        anew: false,
    })
}

/// A step as a write.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::{Sample, sample::step}};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// let holder = Sample::run("order-42").hold(&store).await;
/// let write = step(holder.next("paid"));
/// assert_eq!((write.run(), write.epoch()), (&holder.key, holder.epoch));
/// # }
/// ```
pub fn step(commit: StepCommit) -> Write {
    Write::Step(Box::new(commit))
}

/// Submits a write and waits for its outcome.
///
/// ```
/// use hapax_core::commit::Written;
/// use hapax_store::{MemoryStore, Store, conformance::{Sample, sample::{step, submit}}};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// let holder = Sample::run("order-42").hold(&store).await;
/// assert_eq!(submit(&store, step(holder.next("paid"))).await?, Written::Committed);
/// assert_eq!(submit(&store, step(holder.next("paid"))).await?, Written::AlreadyCommitted);
/// # Ok(())
/// # }
/// ```
pub async fn submit(store: &Arc<dyn Store>, write: Write) -> Result<Written, StoreError> {
    store.submit(Arc::new(write), Pace::Alone).await?.await
}

/// Everything that a store shows of a run: two equal pictures mean that nothing was changed between them.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::{Picture, Sample, sample::{step, submit}}};
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// # let store: Arc<dyn Store> = MemoryStore::shared();
/// let mut holder = Sample::run("order-42").hold(&store).await;
/// let paid = holder.next("paid");
/// holder.commit(paid.clone()).await?;
/// let before = Picture::of(&store, &holder.key).await;
/// submit(&store, step(paid)).await?; // a repeated commit changes nothing
/// assert_eq!(Picture::of(&store, &holder.key).await, before);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    record: Option<RunRecord>,
    checkpoints: Vec<Option<Checkpoint>>,
    pages: Vec<Vec<WorkItem>>,
    journal: Vec<JournalRow>,
}

impl Picture {
    /// Takes it: the latest three steps with one step more than the row names, every page, every row.
    pub async fn of(store: &Arc<dyn Store>, key: &RunKey) -> Self {
        let record = store.run(key.clone()).await.expect("a read");
        let latest = record.as_ref().map_or(0, |record| record.step);
        let (mut checkpoints, mut pages) = (vec![], vec![]);
        for step in latest.saturating_sub(2)..=latest.saturating_add(1) {
            let checkpoint = store.checkpoint(key.clone(), step).await.expect("an intact checkpoint");
            let count = checkpoint.as_ref().map_or(1, |c| c.frontier_len.div_ceil(FRONTIER_PAGE));
            for page in 0..=u32::try_from(count).expect("a small sample") {
                pages.push(store.frontier_page(key.clone(), step, page).await.expect("an intact page"));
            }
            checkpoints.push(checkpoint);
        }
        let journal = store.journal(key.clone(), 0, 1_000_000).await.expect("a readable journal");
        Self { record, checkpoints, pages, journal }
    }
}
