//! What can't be a schedule is refused, with a code and words that say what to do.

use crate::{common::*, *};
use hapax::{
    Coded, Error,
    core::{error::code, json::Json},
};

async fn refused(name: &str, when: When, input: Json) -> Error {
    let (_, store) = store();
    let (engine, _) = on(&store, quick()).await;
    engine.add_schedule(name, when, "quick", input).await.expect_err("it can't be")
}

fn board() -> Json {
    Json::of(&Board::default()).unwrap()
}

#[tokio::test]
async fn what_cannot_be_a_schedule_is_refused_with_its_reason() {
    let cases = [
        ("s", When::cron("99 * * * *"), board(), code::BAD_CRON),
        ("s", When::cron("0 0 30 2 *"), board(), code::BAD_CRON),
        ("s", hourly().zone("Middle/Earth"), board(), code::BAD_ZONE),
        ("s", hourly().catch_up(0), board(), code::BAD_SCHEDULE),
        ("s", hourly().catch_up(1001), board(), code::BAD_SCHEDULE),
        (&*"s".repeat(201), hourly(), board(), code::BAD_SCHEDULE),
        ("", hourly(), board(), code::INVALID_ID),
        ("s", hourly(), Json::from_text("[7]").unwrap(), code::SCHEDULE_INPUT),
    ];
    for (name, when, input, code) in cases {
        let error = refused(name, when.clone(), input).await;
        assert_eq!(error.code(), code, "{when:?}: {error}");
    }
}

#[tokio::test]
async fn a_name_is_taken_by_another_schedule_and_not_by_the_same() {
    let (_, store) = store();
    let (engine, flow) = on(&store, quick()).await;
    let first = flow.schedule("s", hourly(), Board::default()).await.unwrap();
    assert_eq!(flow.schedule("s", hourly(), Board::default()).await.unwrap(), first);
    let others = [
        (When::cron("@daily"), Board::default()),
        (hourly().catch_up(2), Board::default()),
        (hourly(), Board { total: 1, ..Board::default() }),
    ];
    for (when, state) in others {
        let error = flow.schedule("s", when, state).await.expect_err("it is another one");
        assert_eq!(error.code(), code::SCHEDULE_EXISTS);
    }
    assert_eq!(engine.schedules().await.unwrap(), [first]);
}

mod first {
    #[derive(hapax::State, Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
    pub(super) struct Report {
        pub(super) pages: u64,
    }
}

/// The same JSON means another thing, and there is a field more.
mod second {
    #[derive(hapax::State, Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
    #[state(version = 2, upgrade = from_first)]
    pub(super) struct Report {
        pub(super) pages: u64,
        pub(super) title: Option<String>,
    }

    fn from_first(old: hapax::core::state::OldState) -> Result<Report, String> {
        let first: super::first::Report =
            serde_json::from_value(old.value).map_err(|error| error.to_string())?;
        Ok(Report { pages: first.pages, title: None })
    }
}

async fn reports<S: hapax::State>(store: &Arc<dyn Store>) -> (Engine, Flow<S>) {
    let graph = Graph::new("reports", 1, WORK).node(WORK, async |_: hapax::Ctx<S>| ());
    let engine = Engine::builder().with_store(store.clone());
    let flow = engine.register(graph, ()).await.expect("a sound graph");
    (engine, flow)
}

/// Every process says so at its start, in the old version and in the new one, and again in the old one.
#[tokio::test]
async fn a_new_version_of_the_state_asks_for_the_same_schedule() {
    let (clock, store) = store();
    let (_old, old) = reports::<first::Report>(&store).await;
    let (engine, new) = reports::<second::Report>(&store).await;
    let added = old.schedule("s", hourly(), first::Report { pages: 7 }).await.unwrap();
    let asked = second::Report { pages: 7, title: None };
    assert_eq!(new.schedule("s", hourly(), asked.clone()).await.unwrap(), added, "it stays as it is");
    assert_eq!(old.schedule("s", hourly(), first::Report { pages: 7 }).await.unwrap(), added);
    clock.advance(HOUR);
    assert_eq!(engine.fire_due().await.unwrap().started, 1);
    let others = [
        (hourly(), second::Report { pages: 8, title: None }),
        (hourly(), second::Report { pages: 7, title: Some("all".into()) }),
        (hourly().catch_up(2), asked.clone()),
    ];
    for (when, state) in others {
        let error = new.schedule("s", when, state).await.expect_err("it is another one");
        assert_eq!(error.code(), code::SCHEDULE_EXISTS);
    }
    engine.remove_schedule("s").await.unwrap();
    new.schedule("s", hourly(), asked).await.unwrap();
    let error = old.schedule("s", hourly(), first::Report { pages: 7 }).await.expect_err("it can't tell");
    assert_eq!(error.code(), code::SCHEDULE_EXISTS);
}

/// By hand there is no version, and a field may be left out.
#[tokio::test]
async fn a_schedule_that_was_added_by_hand_is_the_same_if_its_runs_begin_with_the_same() {
    let (_, store) = store();
    let (engine, flow) = reports::<second::Report>(&store).await;
    let by_hand = Json::from_text(r#"{"pages":7}"#).unwrap();
    let added = engine.add_schedule("s", hourly(), "reports", by_hand).await.unwrap();
    let asked = second::Report { pages: 7, title: None };
    assert_eq!(flow.schedule("s", hourly(), asked).await.unwrap(), added);
    let error = flow.schedule("s", hourly(), second::Report::default()).await.expect_err("another one");
    assert_eq!(error.code(), code::SCHEDULE_EXISTS);
}

#[tokio::test]
async fn a_schedule_that_is_not_there_is_not_found() {
    let (_, store) = store();
    let (engine, _) = on(&store, quick()).await;
    let errors = [
        engine.schedule("s").await.unwrap_err(),
        engine.pause_schedule("s").await.unwrap_err(),
        engine.resume_schedule("s").await.unwrap_err(),
        engine.remove_schedule("s").await.unwrap_err(),
        engine.upcoming("s", 1).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            (error.code(), error.to_string()),
            (code::SCHEDULE_NOT_FOUND, "there is no schedule `s`".into())
        );
    }
}
