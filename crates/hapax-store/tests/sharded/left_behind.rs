//! A process dies between any two calls to any of its databases, or a reply is lost: no key lets one too many go, and no run
//! is parked for ever once others have swept.

use super::{
    every_kind,
    flow::{PARKED, end, of, status, three},
};
use hapax_core::{commit::Status, flow::Terms, id::Namespace};
use hapax_store::{
    ListFilter, ShardedStore, Store,
    conformance::{
        flow::{keys, on},
        sample::key,
    },
    faulty::{Fault, Faulty},
};
use std::{collections::BTreeMap, sync::Arc};

/// Runs of all databases with keys of all databases.
struct Town {
    /// What is always there.
    whole: Arc<dyn Store>,
    /// The same, as a process sees it that dies.
    mortal: Arc<ShardedStore>,
    faulty: Arc<Faulty>,
    runs: Vec<(String, Terms)>,
}

impl Town {
    async fn new(databases: [Arc<dyn Store>; 3], at: u64, fault: Fault) -> Self {
        let whole = ShardedStore::open(databases.to_vec()).await.expect("they open");
        let [one, two, three] = Faulty::several(databases, at, fault);
        let faulty = one.clone();
        let mortal = ShardedStore::open(vec![one, two, three]).await.expect("they open");
        let [a, b, c] = [0, 1, 2].map(|shard| of(&whole, "key-", shard));
        let of_each = [
            vec![(&*a, 1)],
            vec![(&a, 1), (&b, 2)],
            vec![(&b, 2), (&c, 1)],
            vec![(&c, 1), (&a, 1), (&b, 2)],
            vec![(&b, 2)],
            vec![(&b, 2), (&a, 1)],
        ];
        let runs = of_each.iter().enumerate();
        let runs =
            runs.map(|(n, of_it)| (of(&whole, &format!("run-{n}-"), (n + 1) % 3), keys(of_it))).collect();
        Self { whole, mortal, faulty, runs }
    }

    async fn start_all(&self, store: &dyn Store) {
        for (run, terms) in &self.runs {
            // What became of it is found out later, as by whoever starts it again.
            drop(store.create(on(run, terms)).await);
        }
    }

    /// The runs that go now; no key lets too many.
    async fn going(&self) -> Vec<String> {
        let (mut going, mut inside) = (vec![], BTreeMap::<&str, u32>::new());
        for (run, terms) in &self.runs {
            let Some(record) = self.whole.run(key(run)).await.unwrap() else { continue };
            if record.status != Status::Pending {
                assert!(record.status == PARKED || record.status.is_final(), "{run}: {:?}", record.status);
                continue;
            }
            going.push(run.clone());
            for key in &terms.keys {
                let count = inside.entry(&key.name).or_default();
                *count += 1;
                assert!(*count <= key.most, "{} lets one too many go", key.name);
            }
        }
        going
    }

    /// Ends a run, and gives back what it holds: the latter as a process that may die.
    async fn end_and_give_back(&self, run: &str, store: &dyn Store) {
        end(&self.whole, run).await;
        let token = self.whole.run(key(run)).await.unwrap().unwrap().terms.token;
        drop(store.flow().release(key(run), token).await);
    }

    /// Somebody who lives sweeps, starts again what isn't there, and sees every run to its end.
    async fn ends_well(&self) {
        self.going().await;
        self.start_all(&*self.whole).await;
        self.going().await;
        for _ in &self.runs {
            self.sweep(&*self.whole).await;
            let going = self.going().await;
            let live =
                ListFilter { statuses: vec!["waiting".into(), "pending".into()], ..ListFilter::default() };
            if self.whole.list(live).await.unwrap().is_empty() {
                break;
            }
            assert!(!going.is_empty(), "all of them are parked");
            for run in going {
                self.end_and_give_back(&run, &*self.whole).await;
                self.going().await;
            }
        }
        self.sweep(&*self.whole).await;
        for (run, _) in &self.runs {
            assert_eq!(status(&*self.whole, run).await, Status::Succeeded, "{run}");
        }
        // A walk may have put a run into a queue after its end: each sweep takes such a one further.
        for _ in 0..self.runs.len() {
            self.sweep(&*self.whole).await;
        }
        let left = self.whole.flow().keys(Namespace::default()).await.unwrap();
        assert!(left.is_empty(), "{left:?}");
    }

    async fn sweep(&self, store: &dyn Store) {
        drop(store.flow().sweep(Namespace::default()).await);
    }
}

/// A story that a process dies of at each of its calls in turn.
async fn at_every_call(least: u64, story: impl AsyncFn(&Town)) {
    for fault in [Fault::Before, Fault::After, Fault::LoseReply] {
        for at in 0.. {
            let town = Town::new(three().await.0, at, fault).await;
            story(&town).await;
            let fired = town.faulty.fired();
            println!("{fault:?} at call {at}");
            town.ends_well().await;
            if !fired {
                assert!(at >= least, "{fault:?} came at {at} moments only");
                break;
            }
        }
    }
}

#[tokio::test]
async fn wherever_a_starter_dies_no_key_lets_one_too_many_go_and_no_run_waits_for_ever() {
    at_every_call(15, async |town| town.start_all(&*town.mortal).await).await;
}

#[tokio::test]
async fn wherever_one_dies_who_gives_slots_back_they_go_to_the_next() {
    let story = async |town: &Town| {
        town.start_all(&*town.whole).await;
        for _ in &town.runs {
            for run in town.going().await {
                town.end_and_give_back(&run, &*town.mortal).await;
            }
        }
    };
    at_every_call(15, story).await;
}

#[tokio::test]
async fn wherever_a_sweep_dies_the_next_one_goes_on() {
    let story = async |town: &Town| {
        // One was created and not one call more was made for it; the others are over, and nobody gave anything back.
        town.start_all(&*town.whole).await;
        for _ in &town.runs {
            for run in town.going().await {
                end(&town.whole, &run).await;
            }
            town.sweep(&*town.mortal).await;
            town.going().await;
        }
    };
    at_every_call(15, story).await;
}

/// The retry of a run that failed, whose slots nobody gave back.
#[tokio::test]
async fn wherever_one_dies_who_retries_a_run_it_takes_its_slots_again() {
    use hapax_core::commit::Write;
    use hapax_store::conformance::sample::{Holder, failed};
    let story = async |town: &Town| {
        town.start_all(&*town.whole).await;
        for run in town.going().await {
            let mut holder = Holder::claim(&town.whole, &key(&run), "a").await.unwrap();
            let change = holder.status(failed(), true);
            holder.write(Write::Status(change)).await.unwrap();
            if town.mortal.retry(key(&run)).await.is_err() {
                town.whole.retry(key(&run)).await.unwrap();
            }
        }
    };
    at_every_call(4, story).await;
}

/// The same moments on databases that differ: what each of them says of runs that live elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn databases_of_every_kind_are_swept_alike() {
    for at in (0..24).step_by(3) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let servers =
            || (hapax_servers::postgres().expect("a server"), hapax_servers::mysql().expect("a server"));
        let (postgres, mysql) = tokio::task::block_in_place(servers);
        let town = Town::new(every_kind(folder.path(), &postgres, &mysql).await, at, Fault::After).await;
        town.start_all(&*town.mortal).await;
        for run in town.going().await {
            town.end_and_give_back(&run, &*town.mortal).await;
        }
        town.ends_well().await;
    }
}
