//! Large payloads and their keys while processes are killed, on every SQL store: two workers whose states and results are large,
//! and whoever puts the store under another key beside them, while payloads come to rest as objects. Every run ends once with the
//! right content, nothing refers to what isn't there, in the end one key is in use, and what is large goes with the runs: no
//! object is left.
//!
//! What happens is waited for, never timed. The seed of the kills is printed, and may be given as `HAPAX_SEED`; with
//! `HAPAX_LONG` there are five times as many runs.

use hapax::{
    Engine, Flow, Options,
    core::{order::PathHash, rng::Rng},
    store::{GcPolicy, ListFilter, Store},
};
use hapax_sim::{
    archives::{self, NEW, OLD, Scroll},
    kills::{Process, Waits},
};
use std::{
    env,
    hash::{BuildHasher, Hasher, RandomState},
    io::BufRead,
    path::Path,
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Longer than anything here takes. Who waits longer waits for something that never comes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Runs.
const SCROLLS: u32 = 40;
/// Kills of workers, and of those who rotate.
const KILLS: u32 = 10;

const ARCHIVIST: &str = env!("CARGO_BIN_EXE_hapax-archivist");

fn rng() -> Rng {
    let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("HAPAX_SEED={seed}");
    Rng::for_item(seed, 0, PathHash::ROOT, "archives")
}

/// The keys of a process whose turn this is: each of the two encrypts now and then.
fn keys(turn: u32) -> String {
    if turn.is_multiple_of(2) { format!("{OLD} {NEW}") } else { format!("{NEW} {OLD}") }
}

/// A store, and whoever looks at it.
struct Archive {
    url: String,
    /// The objects that rest.
    objects: TempDir,
    runtime: Runtime,
    engine: Engine,
    flow: Flow<Scroll>,
}

fn is_file(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry.as_ref().is_ok_and(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
}

impl Archive {
    fn new(url: String) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let objects = tempfile::tempdir().expect("a folder");
        let (engine, flow) = runtime.block_on(async {
            let opened = archives::open(&url, &keys(0), objects.path(), Duration::ZERO).await;
            let store = opened.expect("the store opens");
            // It only submits and looks.
            let engine = Engine::builder().options(Options::default().finds_work(false)).with_store(store);
            let flow = engine.register(archives::graph(), ()).await.expect("a sound graph");
            (engine, flow)
        });
        Self { url, objects, runtime, engine, flow }
    }

    fn submit(&self, numbers: std::ops::Range<u32>) {
        self.runtime.block_on(async {
            for number in numbers {
                let scroll = Scroll { number, ..Scroll::default() };
                self.flow.submit(&format!("scroll-{number}"), scroll).await.expect("it is submitted");
            }
        });
    }

    /// Starts a process, and waits until it is at work.
    fn start(&self, what: &str, turn: u32) -> (Process, impl Iterator<Item = String> + use<>) {
        let objects = self.objects.path().to_str().expect("a name");
        let started = Process::start(Path::new(ARCHIVIST), [what, &self.url, &keys(turn), objects]);
        let (process, said) = started.expect("it starts");
        let mut lines = said.lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("works"));
        (process, lines)
    }

    /// Starts a rotation, and kills it after so many batches, unless it is done before.
    fn rotate_and_die(&self, batches: usize, turn: u32) {
        let (process, lines) = self.start("rotate", turn);
        lines.take_while(|line| line != "done").take(batches).for_each(drop);
        process.kill();
        process.wait();
    }

    fn rotate(&self, turn: u32) {
        let (process, lines) = self.start("rotate", turn);
        assert_eq!(lines.last().as_deref(), Some("done"));
        assert!(process.wait().success());
    }

    fn succeeded(&self) -> u32 {
        let filter =
            ListFilter { statuses: vec!["succeeded".into()], limit: usize::MAX, ..ListFilter::default() };
        // A store that is busy is asked again.
        self.runtime.block_on(self.engine.list(filter)).map_or(0, |runs| runs.len() as u32)
    }

    /// Reads all that there is with one key alone.
    fn check(&self, scrolls: u32) {
        let opened = archives::open(&self.url, NEW, self.objects.path(), Duration::ZERO);
        let store = self.runtime.block_on(opened).expect("the store opens");
        self.rest_all();
        let used = self.runtime.block_on(store.payload_keys()).expect("the store answers");
        assert_eq!((used.under["new"], used.plain, used.unknown), (used.payloads, 0, 0), "{used:?}");
        for number in 0..scrolls {
            self.runtime.block_on(check_scroll(&store, number));
        }
    }

    fn rest_all(&self) {
        self.runtime.block_on(archives::rest_all(&self.engine.store())).expect("the store answers");
    }

    fn objects(&self) -> usize {
        let files = |folder: &Path| std::fs::read_dir(folder).map_or(0, |all| all.filter(is_file).count());
        files(self.objects.path()) + files(&self.objects.path().join("unfinished"))
    }

    /// Deletes all runs.
    fn sweep(&self) -> usize {
        let policy = GcPolicy {
            namespace: hapax::core::id::Namespace::default(),
            older_than: None,
            keep_newest: 0,
            limit: usize::MAX,
            dry_run: false,
        };
        self.runtime.block_on(self.engine.store().gc(policy)).expect("a sweep").deleted.len()
    }
}

/// Every step and every row of a run, each checked against its digest when it is read.
async fn check_scroll(store: &Arc<dyn Store>, number: u32) {
    let key = hapax::core::id::RunKey {
        namespace: hapax::core::id::Namespace::default(),
        run: hapax::core::id::RunId::new(format!("scroll-{number}")).expect("a name"),
    };
    let loaded = store.load(key.clone()).await.expect("it is whole");
    assert_eq!(
        (loaded.record.status.word(), loaded.record.step),
        ("succeeded", u64::from(archives::PAGES) + 1)
    );
    let state: Scroll = serde_json::from_slice(&loaded.checkpoint.state).expect("a scroll");
    assert_eq!(state, archives::whole(number));
    let steps = store.checkpoints(key.clone(), 0, 100).await.expect("every step is whole");
    assert_eq!(steps.len() as u64, loaded.record.step + 1);
    store.journal(key, 0, 1000).await.expect("every row is whole");
}

fn large_payloads_survive_kills_and_rotations(url: String, blobs: impl Fn() -> String) {
    let scrolls = if env::var_os("HAPAX_LONG").is_some() { 5 * SCROLLS } else { SCROLLS };
    let (mut rng, archive) = (rng(), Archive::new(url));
    let mut workers = [archive.start("work", 0).0, archive.start("work", 1).0];
    for kill in 0..KILLS {
        archive.submit(kill * scrolls / KILLS..(kill + 1) * scrolls / KILLS);
        archive.rotate_and_die(rng.below(6) as usize, kill);
        let victim = rng.below(2) as usize;
        workers[victim].kill();
        workers[victim].wait();
        workers[victim] = archive.start("work", kill).0;
    }
    let waits = Waits::begin(PATIENCE);
    while archive.succeeded() < scrolls {
        waits.check(&format!("{} of {scrolls} scrolls are whole", archive.succeeded()));
    }
    for worker in &workers {
        worker.kill();
        worker.wait();
    }
    assert_ne!(
        (blobs(), archive.objects()),
        ("0".to_owned(), 0),
        "what is large lies beside its row, or rests"
    );
    archive.rotate(1);
    archive.check(scrolls);
    assert_eq!(blobs(), "0", "all of it rests");
    assert!(archive.objects() > scrolls as usize, "{} objects", archive.objects());
    assert_eq!(archive.sweep(), scrolls as usize);
    archive.rest_all();
    assert_eq!((&*blobs(), archive.objects()), ("0", 0), "what is large went with the runs");
    println!("{scrolls} runs, {KILLS} kills of workers and of rotations");
}

const COUNT: &str = "SELECT count(*) FROM hapax_blobs";

mod sqlite {
    #[test]
    fn large_payloads_survive_kills_of_workers_and_of_rotations() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("runs.db");
        let count = || {
            let outside = rusqlite::Connection::open(&path).expect("the file is there");
            outside.busy_timeout(std::time::Duration::from_secs(30)).expect("a pragma");
            outside.query_row(super::COUNT, (), |row| row.get::<_, i64>(0)).expect("a number").to_string()
        };
        super::large_payloads_survive_kills_and_rotations(format!("sqlite:{}", path.display()), count);
    }
}

mod postgres {
    #[test]
    fn large_payloads_survive_kills_of_workers_and_of_rotations() {
        let url = hapax_servers::postgres().expect("a server");
        let count = || hapax_servers::sql(&url, super::COUNT).expect("a number").trim().to_owned();
        super::large_payloads_survive_kills_and_rotations(url.clone(), count);
    }
}

mod mysql {
    #[test]
    fn large_payloads_survive_kills_of_workers_and_of_rotations() {
        let url = hapax_servers::mysql().expect("a server");
        let count = || hapax_servers::sql(&url, super::COUNT).expect("a number").trim().to_owned();
        super::large_payloads_survive_kills_and_rotations(url.clone(), count);
    }
}
