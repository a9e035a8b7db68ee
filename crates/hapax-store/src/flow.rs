//! The contract of a store's flow control: how many runs go at a time, how soon, and under which names.
//!
//! Invariant: a slot is a row whose primary key is the concurrency key and the slot's number, so the database refuses one too
//! many. A run holds its slots, under a token of its own, until someone who knows that it is over gives them back; whoever
//! comes too late with that word, after a retry, names another token and frees nothing.

use crate::{
    clock::Clock,
    error::StoreError,
    store::{Answer, NewRun, RunRecord},
};
use hapax_core::{
    commit::{Status, WaitsOn},
    flow::{Rate, Reservation, Terms},
    id::{Namespace, RunId, RunKey},
};

/// Concurrency keys, buckets and names.
///
/// Each call is one transaction, and changes nothing when it is repeated. A key, a bucket and a name need not live where
/// their runs do: none of these calls but [`sweep`](Flow::sweep), [`replace`](Flow::replace), [`let_go`](Flow::let_go) and
/// [`standing`](Flow::standing) reads a run's row whose slots are [spread](Flow::spread).
///
/// ```
/// # #[cfg(feature = "conformance")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// use hapax_core::{commit::Status, flow::{Key, Terms}};
/// use hapax_store::{MemoryStore, NewRun, Store, conformance::{Sample, sample::key}};
///
/// let store = MemoryStore::shared();
/// let terms = Terms { keys: vec![Key::new("customer-42", 1)], ..Terms::default() };
/// for run in ["first", "second"] {
///     store.create(NewRun { terms: terms.clone(), ..Sample::run(run).build() }).await?;
/// }
/// let first = store.run(key("first")).await?.unwrap();
/// assert_eq!(first.status, Status::Pending, "it has the only slot");
/// assert_ne!(store.run(key("second")).await?.unwrap().status, Status::Pending);
/// let let_go = store.flow().release(key("first"), first.terms.token).await?;
/// assert_eq!(let_go, [key("second")]);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "conformance"))]
/// # fn main() {}
/// ```
pub trait Flow: Send + Sync {
    /// Takes a run's place in the queue of its first key, and hands out what is free. Answers the runs that have all of
    /// their slots now, this one also if it had the only one that it asks for before; those that live here are pending again
    /// with the same transaction, unless their slots are [spread](Flow::spread). Durable when it answers.
    fn enrol(&self, run: RunKey, terms: Terms) -> Answer<'_, Vec<RunKey>>;

    /// Frees what a run that is over has taken under a token: slots, places in queues, names. Hands the slots on, and answers
    /// as [`enrol`](Flow::enrol). The caller knows that the run's last commit is durable.
    fn release(&self, run: RunKey, token: String) -> Answer<'_, Vec<RunKey>>;

    /// Reserves the next time in a bucket, by the store's clock. Durable when it answers. What was reserved and isn't used is
    /// lost.
    fn reserve(&self, namespace: Namespace, rate: Rate) -> Answer<'_, Reservation>;

    /// The clock by which a bucket lets calls go: that of the database which keeps it. Nobody may have used it yet.
    fn clock(&self, bucket: &str) -> Clock;

    /// Gives a debounced run another input, and another time to begin, as long as nobody has ever claimed it.
    /// [`Moving`](crate::StoreError::Moving) while it is on its way between two stores.
    fn replace(&self, run: NewRun) -> Answer<'_, Replaced>;

    /// Frees what runs that are over, or gone, or live again under another token, have left because someone died before
    /// giving it back: slots, places in queues, names. Answers how many they were. Buckets that have been full for an hour are forgotten.
    fn sweep(&self, namespace: Namespace) -> Answer<'_, u64>;

    /// The concurrency keys that have slots taken or runs waiting, by name.
    fn keys(&self, namespace: Namespace) -> Answer<'_, Vec<KeyRecord>>;

    /// Who holds a key, and the first of those who wait for it.
    fn key(&self, namespace: Namespace, name: String) -> Answer<'_, KeyView>;

    /// The names of buckets, singletons and debounces, by kind and name.
    fn names(&self, namespace: Namespace) -> Answer<'_, Vec<NameRecord>>;

    /// The run that has a name, as far as it is known here: it may be over.
    fn holder(&self, namespace: Namespace, kind: NameKind, name: String) -> Answer<'_, Option<RunId>>;

    /// Lets a run go that has a slot of each of its keys under a token, in whatever databases; nothing if it has another
    /// token by now. Answers whether it waited for them. Durable when it answers.
    fn let_go(&self, run: RunKey, token: String) -> Answer<'_, bool>;

    /// The runs whose slots are spread over several databases, as this database knows them, among a page of what it has
    /// behind one run, whosever that is.
    fn spread(&self, namespace: Namespace, seen: Seen, behind: Option<RunId>) -> Answer<'_, SpreadPage>;

    /// What this database says of those runs: where they stand that live here, and under which tokens they are in its queues.
    fn standing(&self, namespace: Namespace, runs: Vec<RunId>) -> Answer<'_, Vec<(Spread, Stands)>>;
}

/// A run that takes its slots in several databases, and what it takes them under.
///
/// ```
/// use hapax_core::id::RunId;
/// use hapax_store::flow::Spread;
/// let one = Spread { run: RunId::new("order-7")?, token: "spread:1".into() };
/// assert!(one < Spread { token: "spread:2".into(), ..one.clone() }, "by name, and by token");
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spread {
    /// The run.
    pub run: RunId,
    /// Its token, or one that it had.
    pub token: String,
}

/// What was found in a page.
///
/// ```
/// use hapax_store::flow::SpreadPage;
/// assert!(SpreadPage::default().until.is_none(), "there is no more");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpreadPage {
    /// The runs whose slots are spread, by name and token.
    pub runs: Vec<Spread>,
    /// The run that it ends with; `None`: to the end.
    pub until: Option<RunId>,
}

/// As what a database knows a run whose slots are spread.
///
/// ```
/// use hapax_store::flow::Seen;
/// assert_ne!(Seen::Walking, Seen::Holding);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Seen {
    /// It lives here, and nobody has said that it has all of its slots.
    Walking,
    /// It has a slot here, or waits for one.
    Holding,
}

/// What a database says of a run.
///
/// ```
/// use hapax_store::flow::Stands;
/// assert_ne!(Stands::Queued, Stands::Over);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stands {
    /// It lives here.
    Live,
    /// It lives here, and waits for a key.
    Parked,
    /// It lived here, and is over.
    Over,
    /// It is in the queue of a key.
    Queued,
}

/// What became of a debounced run that was started again.
///
/// ```
/// use hapax_store::flow::Replaced;
/// assert_ne!(Replaced::Done, Replaced::TooLate);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replaced {
    /// It has the new input, and waits anew.
    Done,
    /// It has begun, or is to be cancelled, or isn't the one of that name any more: nothing was changed.
    TooLate,
}

/// A concurrency key as the store has it.
///
/// ```
/// use hapax_store::flow::KeyRecord;
/// let busy = KeyRecord { name: "customer-42".into(), held: 2, most: 2, waiting: 40 };
/// assert!(busy.held <= u64::from(busy.most));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The key.
    pub name: String,
    /// Slots that are taken.
    pub held: u64,
    /// How many the latest of its runs let go at a time: the largest number that one of them names.
    pub most: u32,
    /// Runs that wait for a slot.
    pub waiting: u64,
}

/// Who holds a key, and who waits for it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// use hapax_core::id::Namespace;
/// use hapax_store::{MemoryStore, Store, flow::KeyView};
/// let nobody = MemoryStore::shared().flow().key(Namespace::default(), "customer-42".into()).await?;
/// assert_eq!(nobody, KeyView::default());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyView {
    /// The slots that are taken, by number.
    pub held: Vec<Holder>,
    /// The first of those who wait, in their order, as many as are shown of one key.
    pub waiting: Vec<RunId>,
}

/// A slot that is taken.
///
/// ```
/// use hapax_core::id::RunId;
/// use hapax_store::flow::Holder;
/// let first = Holder { slot: 0, run: RunId::new("order-42")?, since_us: 1_000_000 };
/// assert_eq!(first.run.as_str(), "order-42");
/// # Ok::<(), hapax_core::id::InvalidId>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub slot: u32,
    /// Who has it.
    pub run: RunId,
    /// Since when, in microseconds since 1970 by the store's clock.
    pub since_us: i64,
}

/// What a name is one of.
///
/// ```
/// use hapax_store::flow::NameKind;
/// assert_eq!(NameKind::from_word("rate"), Some(NameKind::Rate));
/// assert_eq!(NameKind::Singleton.word(), "singleton");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameKind {
    /// A debounce.
    Debounce,
    /// A bucket.
    Rate,
    /// A singleton.
    Singleton,
}

impl NameKind {
    /// All of them.
    pub const ALL: [Self; 3] = [NameKind::Debounce, NameKind::Rate, NameKind::Singleton];

    /// One word for it, as stores and people see it.
    pub fn word(self) -> &'static str {
        match self {
            NameKind::Debounce => "debounce",
            NameKind::Rate => "rate",
            NameKind::Singleton => "singleton",
        }
    }

    /// The one of that word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

/// A name as the store has it.
///
/// ```
/// use hapax_store::flow::{NameKind, NameRecord};
/// let mail = NameRecord { kind: NameKind::Rate, name: "mail".into(), run: None, at_us: 1_000_000 };
/// assert!(mail.run.is_none(), "a bucket is nobody's");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRecord {
    /// What it is one of.
    pub kind: NameKind,
    /// The name.
    pub name: String,
    /// The run that has it.
    pub run: Option<RunId>,
    /// Of a bucket, when it will be full; of another, since when the run has it. In microseconds since 1970.
    pub at_us: i64,
}

/// Whether nobody has ever claimed a debounced run: it waits for the time that its latest start has set, or did when it was
/// shut. Its epoch doesn't tell, which whoever moves a run raises too.
fn has_not_begun(record: &RunRecord) -> bool {
    let (status, wake, to_be_cancelled) = match &record.status {
        Status::Leaving { was, .. } | Status::Arriving { was, .. } => {
            (&was.status, &was.wake, was.cancel_requested)
        }
        status => (status, &record.wake, record.cancel_requested),
    };
    let waits = *status == Status::Waiting { on: WaitsOn::Timer } && !to_be_cancelled;
    if hapax_core::canary::on("debounced_by_epoch") {
        return waits && record.epoch.counter == 0;
    }
    let for_its_start = wake.at_us.is_some() && wake.at_us == record.terms.not_before_us;
    waits && for_its_start && record.step == 0 && record.next_seq == 0
}

/// Whether a debounced run takes the input of another start. One that is being moved has its name, and takes nothing in: whoever
/// starts it tries again.
pub(crate) fn may_be_replaced(record: &RunRecord, by: &NewRun) -> Result<bool, StoreError> {
    let may = has_not_begun(record) && record.graph == by.graph;
    match may && record.status.is_moving() {
        true => Err(StoreError::of_status(record.key.clone(), record.status.clone())),
        false => Ok(may),
    }
}

/// Whether a run keeps the name that it has from another one.
pub(crate) fn keeps_name(kind: NameKind, record: &RunRecord) -> bool {
    let keeps = match kind {
        NameKind::Debounce => has_not_begun(record),
        _ => !record.status.is_final(),
    };
    keeps && !looks_first(kind)
}

/// The names that a run asks for.
pub(crate) fn names_of(terms: &Terms) -> impl Iterator<Item = (NameKind, &str)> {
    let singleton = terms.singleton.as_deref().map(|name| (NameKind::Singleton, name));
    singleton.into_iter().chain(terms.debounce.as_ref().map(|calm| (NameKind::Debounce, &*calm.name)))
}

/// Where a run stands that waits for a slot.
pub(crate) fn waits_for_key() -> Status {
    Status::Waiting { on: WaitsOn::Key }
}

/// Where a run stands that has all of its slots, at that time: pending, or waiting for its own time.
pub(crate) fn let_go(terms: &Terms, now_us: i64) -> (Status, Option<i64>) {
    match terms.not_before_us.filter(|at| *at > now_us) {
        Some(at) => (Status::Waiting { on: WaitsOn::Timer }, Some(at)),
        None => (Status::Pending, None),
    }
}

/// The run with terms as they are stored: under a token of its own, its keys in order. Nobody claims a run that they park.
pub(crate) fn admitted(mut run: NewRun) -> NewRun {
    if !run.terms.is_plain() {
        let (token, reserved) = (next_token(&run.terms.token), run.terms.not_before_us);
        let not_before_us = reserved.filter(|_| is_spread(&run.terms.token));
        run.terms = Terms { token, not_before_us, ..run.terms.in_order() };
    }
    if run.terms.parks() {
        run.claim = None;
    }
    run
}

/// The terms of a run that came from another store: it takes anew what it held there.
pub(crate) fn moved_in(terms: Terms) -> Terms {
    Terms { token: next_token(&terms.token), ..terms }
}

/// Whether a run that came from another store waits for its slots here. One that is parked for another reason takes its place
/// in the queue beside that.
pub(crate) fn waits_anew(status: &Status, terms: &Terms) -> bool {
    status.is_runnable() && !terms.keys.is_empty()
}

/// With this begins every token of a run whose slots or whose time come from other databases than its own.
pub(crate) const SPREAD: &str = "spread:";

/// Whether the slots of a run are spread over several databases: none of them knows by itself whether it has them all, or
/// whether it is gone.
pub(crate) fn is_spread(token: &str) -> bool {
    token.starts_with(SPREAD)
}

/// Whether the run goes from key to key: its own database parks it, and leaves the keys to whoever knows all databases.
pub(crate) fn walks(terms: &Terms) -> bool {
    is_spread(&terms.token) && !terms.keys.is_empty()
}

/// A token like no other, for a run that had this one.
pub(crate) fn next_token(had: &str) -> String {
    let mark = if is_spread(had) { SPREAD } else { "" };
    format!("{mark}{}", uuid::Uuid::new_v4().simple())
}

/// The kind of a row that says that a run walks from key to key. It bears the run's name.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) const WALK: &str = "walk";

/// Where a run stands whose row is here.
pub(crate) fn stands(status: &Status) -> Stands {
    match status {
        status if status.is_final() => Stands::Over,
        status if *status == waits_for_key() => Stands::Parked,
        _ => Stands::Live,
    }
}

/// The bucket that is asked, or, of a mutant, one of this process alone.
pub(crate) fn bucket(rate: &Rate) -> String {
    if hapax_core::canary::on("bucket_not_shared") {
        return format!("{} {}", rate.name, std::process::id());
    }
    rate.name.clone()
}

/// A bucket that has been full for so long, in microseconds, is forgotten: one that nobody has used is as full.
pub(crate) const RESTED_US: i64 = 3_600_000_000;

/// Where the next sweep of a namespace goes on among the places in queues and the names, which may be many. By the names of
/// their runs.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
#[derive(Debug, Default)]
pub(crate) struct Swept(std::sync::Mutex<std::collections::HashMap<Namespace, String>>);

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
impl Swept {
    /// Behind which run; empty: from the beginning.
    pub(crate) fn until(&self, namespace: &Namespace) -> String {
        self.all().get(namespace).cloned().unwrap_or_default()
    }

    /// A sweep came to this run; `None`: to the end.
    pub(crate) fn goes_on(&self, namespace: &Namespace, until: Option<String>) {
        match until {
            Some(until) => drop(self.all().insert(namespace.clone(), until)),
            None => drop(self.all().remove(namespace)),
        }
    }

    fn all(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<Namespace, String>> {
        self.0.lock().expect("no call panics while it holds the lock")
    }
}

/// Terms as they are stored of a run; nothing of a plain one.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) fn stored_terms(terms: &Terms) -> Option<String> {
    (!terms.is_plain()).then(|| terms.to_json())
}

/// Terms as they were stored.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) fn read_terms(json: Option<&str>) -> Result<Terms, String> {
    let Some(json) = json else { return Ok(Terms::default()) };
    serde_json::from_str(json).map_err(|error| format!("its terms cannot be read: {error}"))
}

/// Whether a mutant looks before it takes a name, and then takes it without another look.
pub(crate) fn looks_first(kind: NameKind) -> bool {
    kind == NameKind::Singleton && hapax_core::canary::on("singleton_looks_first")
}

/// What that mutant sees: the run that lives under a singleton's name, a moment before it takes it.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) async fn look_first(
    store: &dyn crate::Store,
    run: &NewRun,
) -> Result<Option<crate::Created>, crate::StoreError> {
    let names = store.flow().names(run.key.namespace.clone()).await?;
    let ours = |name: &NameRecord| run.terms.singleton.as_ref() == Some(&name.name);
    let holder =
        names.into_iter().filter(ours).find_map(|name| name.run).filter(|_| looks_first(NameKind::Singleton));
    if let Some(holder) = holder
        && let Some(record) = store.run(RunKey { namespace: run.key.namespace.clone(), run: holder }).await?
        && !record.status.is_final()
    {
        return Ok(Some(crate::Created::Exists(Box::new(record))));
    }
    // Others look meanwhile.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    Ok(None)
}
