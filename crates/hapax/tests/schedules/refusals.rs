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
