//! Journeys: killed around every kind of record, each place in their code has one key, each decision was made once, and
//! the record alone makes them again.

use crate::harness::Harness;
use hapax::{
    Engine, Options,
    store::sqlite::{SqliteOptions, SqliteStore},
};
use hapax_sim::{
    journeys::{self, Agency, Journey, LETTERS, Leg, ROUNDS, messages, places},
    kills::{Reporter, histories, ledger::Call},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
};

/// What the outside saw of one place in the code of one journey: key and request.
type Asked = BTreeSet<(String, String)>;

/// Every journey ended well, each of its places has one key with one request, and it remembers what was answered.
pub(crate) fn check(harness: &Harness) {
    let runs = harness.runtime.block_on(histories(&harness.world.db()));
    assert_eq!(runs.len(), 2 * harness.numbers().len(), "each journey has one child");
    let calls = harness.world.calls();
    let (asked, told) = (by_place(&calls), told(&harness.world.db().with_extension("db.messages")));
    let mut invoices = 0;
    for number in harness.numbers() {
        let id = journeys::journey(number).id;
        let state = |run: &str| {
            let (_, status, state) = &runs[run];
            assert_eq!(status.word(), "succeeded", "{run}: {status:?}");
            state.clone()
        };
        let leg: Leg = serde_json::from_slice(&state(&format!("{id}-leg"))).expect("the state is a leg");
        let journey: Journey = serde_json::from_slice(&state(&id)).expect("the state is a journey");
        check_calls(&journey, &asked[&id], &calls);
        assert_eq!(leg.receipt, journey.receipts["leg"], "{id}: its child ended once");
        assert_eq!((&*journey.letters, journey.rounds), (&LETTERS[..], ROUNDS), "{id}");
        assert_eq!(told[&id], messages(&journey.paid_by), "{id}: each message, once, in its order");
        invoices += usize::from(journey.paid_by == "invoice");
    }
    check_letters(harness);
    println!("  {invoices} of {} paid by invoice", harness.numbers().len());
    assert!(invoices > 0, "no journey was paid by invoice");
    replay(harness, runs.keys());
}

/// However often they were sent, by however many senders, each letter was new to its journey once.
fn check_letters(harness: &Harness) {
    let letters = |number| LETTERS.map(|letter| format!("{} {letter}", journeys::journey(number).id));
    let expected: Vec<String> = harness.numbers().flat_map(letters).collect();
    let mut sent = harness.sent.clone();
    sent.sort();
    assert_eq!(sent, expected);
}

/// Each place has one key and one request, and its receipt is in the journey.
fn check_calls(journey: &Journey, asked: &BTreeMap<String, Asked>, calls: &[Call]) {
    let Journey { id, paid_by, receipts, .. } = journey;
    let called: BTreeSet<String> = asked.keys().cloned().collect();
    assert_eq!(called, places(paid_by), "{id}: paid by {paid_by}, the outside saw otherwise");
    for (place, asked) in asked {
        assert_eq!(asked.len(), 1, "{id}, {place}: two keys, or two requests: {asked:?}");
        let (key, _) = asked.first().expect("there is one");
        let call = calls.iter().find(|call| call.key == *key).expect("it was called");
        // A card whose answer never came has no receipt in a journey that was paid by invoice.
        let receipt = receipts.get(place);
        assert_eq!(receipt.is_none(), place == "card" && paid_by == "invoice", "{id}, {place}");
        assert!(receipt.is_none_or(|receipt| *receipt == call.receipt()), "{id}, {place}: another receipt");
    }
}

/// What the outside saw, by journey and place.
fn by_place(calls: &[Call]) -> BTreeMap<String, BTreeMap<String, Asked>> {
    let mut found: BTreeMap<String, BTreeMap<String, Asked>> = BTreeMap::new();
    for Call { key, request } in calls {
        let word = |field: &str| request[field].as_str().expect("every request says who asks").to_owned();
        let place = found.entry(word("journey")).or_default().entry(word("place")).or_default();
        place.insert((key.clone(), request.to_string()));
    }
    found
}

/// What arrived of each journey, in order; a message that was delivered again, under its own id, counts once.
fn told(messages: &Path) -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(messages).expect("messages were delivered");
    let (mut told, mut ids) = (BTreeMap::<String, Vec<String>>::new(), BTreeMap::<String, Value>::new());
    // A line that a kill cut off was delivered again.
    for message in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let word = |field: &str| message[field].as_str().expect("a word").to_owned();
        match ids.get(&word("id")) {
            Some(before) => assert_eq!(*before, message, "two messages under one id"),
            None => {
                told.entry(word("run")).or_default().push(word("payload"));
                ids.insert(word("id"), message.clone());
            }
        }
    }
    told
}

/// Every run is made again from its record, with the outside stopped.
fn replay<'r>(harness: &Harness, runs: impl Iterator<Item = &'r String>) {
    let stopped = harness.world.ledger.stop();
    harness.runtime.block_on(async {
        let db = harness.world.db();
        let store =
            SqliteStore::open(&db, SqliteOptions::default()).await.expect("the database can be opened");
        let engine = Engine::builder().options(Options::default().finds_work(false)).with_store(store);
        #[allow(clippy::disallowed_methods, reason = "a reporter wants to know when its life began")]
        let reports = Arc::new(Reporter::new(std::io::sink(), std::time::Instant::now()));
        let agency = Agency { ledger: harness.world.ledger.socket().to_owned(), reports };
        engine.register(journeys::legs(), agency.clone()).await.expect("a graph");
        engine.register(journeys::graph(), agency).await.expect("a graph");
        let (mut steps, mut calls) = (0, 0);
        for run in runs {
            let replay = engine.replay(run).await.expect("the record can be read");
            replay.expect_same();
            (steps, calls) = (steps + replay.steps, calls + replay.calls);
        }
        println!("  replayed: {steps} steps, {calls} calls");
    });
    stopped.expect_silence();
}
