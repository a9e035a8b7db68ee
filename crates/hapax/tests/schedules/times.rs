//! When runs start, and what they begin with.

use crate::{common::*, *};
use hapax::{
    Event,
    core::json::Json,
    schedule::{SchedulerOptions, Timetable},
    store::faulty::{Fault, Faulty},
};

/// Named by its time, tagged with it, from the state that was given.
#[tokio::test]
async fn each_time_starts_one_run_that_is_named_by_it() {
    let (clock, store) = store();
    let (engine, flow) = on(&store, quick()).await;
    let state = Board { total: 7, ..Board::default() };
    let added = flow.schedule("report", hourly(), state).await.unwrap();
    assert_eq!(engine.fire_due().await.unwrap().started, 0, "its time hasn't come");
    let mut expected = vec![];
    for _ in 0..3 {
        let next_us = engine.schedule("report").await.unwrap().next_us.unwrap();
        clock.advance_to(next_us);
        assert_eq!(engine.fire_due().await.unwrap().started, 1);
        assert_eq!(engine.fire_due().await.unwrap().started, 0, "it has started already");
        expected.push(format!("report@{}", Timetable::shown(next_us)));
        let run = flow.attach(expected.last().unwrap()).await.unwrap();
        let board = run.wait().await.unwrap();
        assert_eq!((board.total, board.log), (7, vec!["done".to_owned()]));
    }
    assert_eq!(runs(&engine).await, expected);
    let record = engine.record(&expected[2]).await.unwrap();
    assert_eq!(record.tags["schedule"], "report");
    assert_eq!(format!("report@{}", record.tags["scheduled_at"]), expected[2]);
    let after = engine.schedule("report").await.unwrap();
    assert_eq!((after.started, after.skipped, after.missed), (3, 0, 0));
    let last = after.last.unwrap();
    assert_eq!((last.run.as_str(), last.at_us), (&*expected[2], added.next_us.unwrap() + 2 * 3_600_000_000));
}

/// One is an hour and a half behind, and one ahead of the first, which the engine goes by.
#[tokio::test]
async fn a_schedule_fires_by_the_clock_of_the_database_that_keeps_it() {
    let clocks: [Clock; 3] = std::array::from_fn(|_| Clock::manual());
    clocks[0].advance(HOUR * 3 / 2);
    clocks[2].advance(HOUR * 3);
    let databases: Vec<Arc<dyn Store>> =
        clocks.iter().map(|clock| MemoryStore::with_clock(clock.clone()) as Arc<dyn Store>).collect();
    let sharded = ShardedStore::open(databases).await.unwrap();
    let names: [String; 3] = std::array::from_fn(|shard| {
        let mut names = (0..).map(|n| format!("report-{n}"));
        names.find(|name| sharded.shard_of(name) == shard).expect("names are spread")
    });
    let (engine, flow) = on(&(sharded as Arc<dyn Store>), quick()).await;
    for (name, clock) in names.iter().zip(&clocks) {
        let next_us = flow.schedule(name, hourly(), Board::default()).await.unwrap().next_us.unwrap();
        let left_us = next_us - clock.now_us();
        assert!(left_us > 0 && left_us <= HOUR.as_micros() as i64, "{name} is due by its own clock");
        assert_eq!(engine.upcoming(name, 1).await.unwrap(), [next_us]);
    }
    assert_eq!(engine.fire_due().await.unwrap().started, 0, "no time has come");
    for round in 1..=5 {
        clocks.iter().for_each(|clock| clock.advance(HOUR));
        let firings = engine.fire_due().await.unwrap();
        assert_eq!((firings.started, firings.missed), (3, 0), "round {round}");
        for run in runs(&engine).await {
            flow.attach(&run).await.unwrap().wait().await.unwrap();
        }
    }
}

/// Ten engines fire at once, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_engines_one_starts_each_run() {
    let (clock, store) = store();
    let mut engines = vec![];
    for _ in 0..10 {
        let (engine, flow) = on(&store, quick()).await;
        flow.schedule("report", hourly().overlap(hapax::schedule::Overlap::Cancel), Board::default())
            .await
            .expect("the same one may be added again");
        engines.push(engine);
    }
    for hours in 1..=20 {
        clock.advance(HOUR);
        let fired = futures::future::join_all(engines.iter().map(Engine::fire_due)).await;
        let started: u64 = fired.into_iter().map(|firings| firings.unwrap().started).sum();
        assert_eq!(started, 1, "in hour {hours}");
    }
    assert_eq!(runs(&engines[0]).await.len(), 20);
}

#[tokio::test]
async fn after_an_outage_as_many_are_made_up_for_as_the_limit_says() {
    let (clock, store) = store();
    let (engine, flow) = on(&store, quick()).await;
    let cancel = hapax::schedule::Overlap::Cancel;
    flow.schedule("one", hourly(), Board::default()).await.unwrap();
    flow.schedule("three", hourly().catch_up(3).overlap(cancel), Board::default()).await.unwrap();
    clock.advance(10 * HOUR);
    let firings = engine.fire_due().await.unwrap();
    assert_eq!((firings.started, firings.missed), (1 + 3, 9 + 7));
    let [one, three] = [engine.schedule("one").await.unwrap(), engine.schedule("three").await.unwrap()];
    assert_eq!((one.started, one.missed), (1, 9));
    assert_eq!((three.started, three.missed), (3, 7));
    assert!(one.next_us.unwrap() > clock.now_us(), "{one:?}");
    assert_eq!((one.next_us, one.last.unwrap().at_us), (three.next_us, three.last.unwrap().at_us));
}

#[tokio::test]
async fn a_paused_schedule_starts_nothing_and_makes_up_for_nothing() {
    let (clock, store) = store();
    let (engine, flow) = on(&store, quick()).await;
    flow.schedule("report", hourly().catch_up(100), Board::default()).await.unwrap();
    engine.pause_schedule("report").await.unwrap();
    clock.advance(10 * HOUR);
    assert_eq!(engine.fire_due().await.unwrap().started, 0);
    let coming = engine.upcoming("report", 2).await.unwrap();
    assert!(coming[0] > clock.now_us(), "what comes if it is resumed now");
    let resumed = engine.resume_schedule("report").await.unwrap();
    assert_eq!(resumed.next_us, Some(coming[0]));
    assert_eq!(engine.fire_due().await.unwrap().started, 0);
    clock.advance_to(coming[0]);
    let firings = engine.fire_due().await.unwrap();
    assert_eq!((firings.started, firings.missed), (1, 0));
    engine.remove_schedule("report").await.unwrap();
    clock.advance(HOUR);
    assert_eq!(engine.fire_due().await.unwrap().started, 0);
    assert_eq!(runs(&engine).await.len(), 1, "its run stays");
}

/// Each in one count or the other: what was overdue before the pause isn't dropped in silence.
#[tokio::test]
async fn what_a_pause_passes_over_is_counted() {
    let (clock, store) = store();
    let (engine, flow) = on(&store, quick()).await;
    flow.schedule("report", hourly().catch_up(100), Board::default()).await.unwrap();
    clock.advance(3 * HOUR);
    engine.pause_schedule("report").await.unwrap();
    clock.advance(4 * HOUR);
    let resumed = engine.resume_schedule("report").await.unwrap();
    assert_eq!((resumed.missed, resumed.paused), (7, false));
    assert!(resumed.next_us.unwrap() > clock.now_us());
    assert_eq!(engine.resume_schedule("report").await.unwrap(), resumed, "it isn't paused");
    engine.pause_schedule("report").await.unwrap();
    let resumed = engine.resume_schedule("report").await.unwrap();
    assert_eq!(resumed.missed, 7, "nothing was due");
    clock.advance(HOUR);
    assert_eq!(engine.fire_due().await.unwrap().started, 1);
    let record = engine.schedule("report").await.unwrap();
    assert_eq!((record.started, record.skipped, record.missed), (1, 0, 7));
}

/// Whoever doesn't have the graph, or has another shape of its state, leaves the schedule to others: it stays due.
#[tokio::test]
async fn a_schedule_waits_for_an_engine_that_can_fire_it() {
    let (clock, store) = store();
    let elsewhere = Engine::builder().with_store(store.clone());
    let input = Json::of(&serde_json::json!({ "log": [], "total": "many", "word": null })).unwrap();
    elsewhere.add_schedule("odd", hourly(), "quick", input).await.expect("nobody here knows the graph");
    let whole = Json::of(&Board::default()).unwrap();
    elsewhere.add_schedule("even", hourly(), "quick", whole).await.unwrap();
    clock.advance(HOUR);
    assert_eq!(elsewhere.fire_due().await.unwrap(), hapax::schedule::Firings::default());
    let (engine, _) = on(&store, quick()).await;
    let firings = engine.fire_due().await.unwrap();
    assert_eq!((firings.started, firings.stuck), (1, 1), "the input of one doesn't fit");
    let odd = engine.schedule("odd").await.unwrap();
    assert!(odd.next_us.unwrap() <= clock.now_us() && odd.missed == 0, "it is due still: {odd:?}");
}

/// Larger than any store keeps, whatever the input.
fn huge() -> String {
    "x".repeat(hapax::core::limits::MAX_STATE_BYTES)
}

#[derive(hapax::State, Clone, Default, serde::Serialize, serde::Deserialize)]
struct Huge {
    #[serde(default = "huge")]
    text: String,
}

#[tokio::test]
async fn a_run_that_no_store_keeps_stays_due_and_is_in_no_others_way() {
    let (clock, store) = store();
    let (engine, flow) = on(&store, quick()).await;
    let idle = async |_: hapax::Ctx<Huge>| ();
    engine.register(Graph::new("huge", 1, WORK).node(WORK, idle), ()).await.unwrap();
    let input = Json::from_text("{}").unwrap();
    engine.add_schedule("a", hourly(), "huge", input).await.unwrap();
    flow.schedule("b", hourly(), Board::default()).await.unwrap();
    clock.advance(HOUR);
    let firings = engine.fire_due().await.unwrap();
    assert_eq!((firings.started, firings.stuck), (1, 1));
    assert!(runs(&engine).await[0].starts_with("b@"));
}

/// It is the first whose turn it is, and dies of it; it fires when it is back.
#[tokio::test]
async fn a_database_that_is_away_keeps_no_schedule_of_the_others_from_firing() {
    let clock = Clock::manual();
    let databases: [Arc<dyn Store>; 3] =
        std::array::from_fn(|_| MemoryStore::with_clock(clock.clone()) as Arc<dyn Store>);
    let whole = ShardedStore::open(databases.to_vec()).await.unwrap();
    let [first, second, third] = databases;
    let mortal = Faulty::new(second, 0, Fault::Before);
    let mortal = ShardedStore::open(vec![first, mortal, third]).await.unwrap();
    let (engine, flow) = on(&(mortal as Arc<dyn Store>), quick()).await;
    for (shard, prefix) in ["b", "a", "c"].into_iter().enumerate() {
        let mut names = (0..).map(|n| format!("{prefix}{n}"));
        let name = names.find(|name| whole.shard_of(name) == shard).expect("names are spread");
        flow.schedule(&name, hourly(), Board::default()).await.unwrap();
    }
    clock.advance(HOUR);
    assert!(engine.fire_due().await.is_err(), "what failed is told");
    let (again, _) = on(&(whole as Arc<dyn Store>), quick()).await;
    let mut started = runs(&again).await;
    started.sort();
    assert!(started.len() == 2 && started[0].starts_with('b') && started[1].starts_with('c'), "{started:?}");
    assert_eq!(again.fire_due().await.unwrap().started, 1);
}

/// In another process's hands, so to speak: added by one engine, fired by another at work.
#[tokio::test]
async fn a_scheduler_finds_what_others_have_added_and_stops_when_it_is_told() {
    let store: Arc<dyn Store> = MemoryStore::shared();
    let (worker, _) = on(&store, quick()).await;
    let mut events = worker.events();
    let options = SchedulerOptions::default().poll_interval(Duration::from_millis(20));
    let scheduler = worker.scheduler(options).unwrap();
    let tool = Engine::builder().options(Options::default().finds_work(false)).with_store(store);
    let input = Json::of(&Board::default()).unwrap();
    tool.add_schedule("tick", When::cron("* * * * * *"), "quick", input).await.unwrap();
    hear(
        &mut events,
        |event| matches!(event, Event::RunEnded { run, .. } if run.run.as_str().starts_with("tick@")),
    )
    .await;
    scheduler.stop().await;
    let started = tool.schedule("tick").await.unwrap().started;
    worker.shutdown(Duration::from_secs(10)).await;
    assert!(started >= 1 && runs(&tool).await.len() as u64 == started);
}

/// What is overdue and will be passed over isn't told as something that comes.
#[tokio::test]
async fn the_next_times_are_those_that_start_a_run() {
    for overdue in [1, 3] {
        let (clock, store) = store();
        let (engine, flow) = on(&store, quick()).await;
        let when = hourly().overlap(hapax::schedule::Overlap::Queue).catch_up(overdue as u32);
        flow.schedule("report", when, Board::default()).await.unwrap();
        clock.advance(10 * HOUR);
        let times = engine.upcoming("report", overdue + 2).await.unwrap();
        assert_eq!(times.iter().filter(|at| **at <= clock.now_us()).count(), overdue, "{times:?}");
        let mut fired = vec![];
        while fired.len() < overdue {
            assert_eq!(engine.fire_due().await.unwrap().started, 1);
            let last = engine.schedule("report").await.unwrap().last.unwrap();
            fired.push(last.at_us);
            flow.attach(last.run.as_str()).await.unwrap().wait().await.unwrap();
        }
        assert_eq!(times[..overdue], fired);
        let next_us = engine.schedule("report").await.unwrap().next_us;
        assert_eq!((times.len(), next_us), (overdue + 2, Some(times[overdue])));
    }
}
