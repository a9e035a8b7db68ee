//! A run's messages to a topic have one relay at a time, leave in their order, and are lost by nobody.

use super::{
    Fixture,
    sample::{LONG, Sample, claimant, failed, key, message},
};
use crate::{
    error::StoreError,
    outbox::{Batch, ClaimFilter, Failure, Fate, MessageState, OutboxFilter, OutboxRecord},
    store::{GcPolicy, GcReport, Store, Tally},
};
use hapax_core::{
    commit::Write,
    id::Namespace,
    outbox::{Message, Place, message_id},
};
use std::{sync::Arc, time::Duration};

fn to(topic: &str, text: &str) -> Message {
    Message { topic: topic.into(), ..message(text) }
}

/// A run whose steps have sent these, each by a step of its own.
async fn sent_by(store: &Arc<dyn Store>, run: &str, steps: &[&[Message]]) {
    let mut holder = Sample::run(run).hold(store).await;
    for (number, messages) in steps.iter().enumerate() {
        let step = holder.next_with(&format!("step {number}"), 1, 0, messages.to_vec());
        holder.commit(step).await.expect("the holder may commit");
    }
}

async fn claim_for(store: &Arc<dyn Store>, owner: &str, ttl: Duration) -> Vec<Batch> {
    store.outbox().claim(ClaimFilter::default(), claimant(owner, ttl)).await.expect("an answer")
}

async fn claim(store: &Arc<dyn Store>, owner: &str) -> Vec<Batch> {
    claim_for(store, owner, LONG).await
}

/// The only batch that there is to claim.
async fn only(store: &Arc<dyn Store>, owner: &str) -> Batch {
    let mut batches = claim(store, owner).await;
    assert_eq!(batches.len(), 1, "{batches:?}");
    batches.remove(0)
}

fn texts(batch: &Batch) -> Vec<String> {
    batch.messages.iter().map(|record| record.message.payload.read().expect("a text")).collect()
}

fn place(step: u64, position: u32) -> Place {
    Place { step, position }
}

async fn all(store: &Arc<dyn Store>) -> Vec<OutboxRecord> {
    store.outbox().list(OutboxFilter::default()).await.expect("an answer")
}

async fn states(store: &Arc<dyn Store>) -> Vec<&'static str> {
    all(store).await.iter().map(|record| record.state.word()).collect()
}

fn refusal(again_after: Duration, dead_after: Option<u32>) -> Failure {
    Failure { error: "refused".into(), again_after, counts: true, dead_after }
}

/// Step by step, and in a step as they were sent; so many at a time, with word of what is behind them.
pub async fn messages_are_claimed_in_their_order(fixture: Fixture) {
    let store = &fixture.store;
    let steps: [&[Message]; 3] = [&[to("t", "a"), to("t", "b")], &[], &[to("t", "c")]];
    sent_by(store, "r", &steps).await;
    let filter = ClaimFilter { messages: 2, ..ClaimFilter::default() };
    let first = store.outbox().claim(filter.clone(), claimant("a", LONG)).await.unwrap().remove(0);
    assert_eq!((texts(&first), first.more), (vec!["a".to_owned(), "b".to_owned()], true));
    let places: Vec<Place> = first.messages.iter().map(|record| record.place).collect();
    assert_eq!(places, [place(1, 0), place(1, 1)]);
    store.outbox().mark_sent(first.claim, places, None).await.unwrap();
    let second = store.outbox().claim(filter, claimant("a", LONG)).await.unwrap().remove(0);
    assert_eq!((texts(&second), second.more), (vec!["c".to_owned()], false));
    store.outbox().mark_sent(second.claim, vec![place(3, 0)], None).await.unwrap();
    assert!(claim(store, "a").await.is_empty());
    assert_eq!(states(store).await, ["sent"; 3]);
}

/// Twenty relays ask at once, through two handles.
pub async fn of_many_concurrent_relays_one_gets_a_channel(fixture: Fixture) {
    sent_by(&fixture.store, "r", &[&[to("t", "a")], &[to("u", "b")]]).await;
    let handles = [fixture.store.clone(), fixture.other_handle()];
    let mut racers = tokio::task::JoinSet::new();
    for n in 0..20 {
        let store = handles[n % 2].clone();
        racers.spawn(async move { claim(&store, &format!("relay {n}")).await });
    }
    let claimed: Vec<Batch> = racers.join_all().await.into_iter().flatten().collect();
    let mut topics: Vec<_> = claimed.iter().map(|batch| &*batch.claim.channel.topic).collect();
    topics.sort_unstable();
    assert_eq!(topics, ["t", "u"]);
}

/// Not even its holder gets it again, nor what is sent meanwhile; a claim that is kept lasts on.
pub async fn a_channel_is_held_while_its_claim_is_alive(fixture: Fixture) {
    let store = &fixture.store;
    let mut holder = Sample::run("r").hold(store).await;
    holder.commit(holder.next_with("one", 1, 0, vec![to("t", "a"), to("t", "b")])).await.unwrap();
    let batch = only(store, "a").await;
    holder.commit(holder.next_with("two", 1, 0, vec![to("t", "c")])).await.unwrap();
    assert!(claim(store, "a").await.is_empty() && claim(store, "b").await.is_empty());
    store.outbox().mark_sent(batch.claim.clone(), vec![place(1, 0)], Some(LONG)).await.unwrap();
    assert!(claim(store, "b").await.is_empty());
    store.outbox().mark_sent(batch.claim, vec![place(1, 1)], None).await.unwrap();
    assert_eq!(texts(&only(store, "b").await), ["c"]);
}

/// The relay died between the delivery and its mark: whoever comes next sees the same message.
pub async fn a_message_that_was_not_marked_is_delivered_again_with_the_same_id(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r", &[&[to("t", "a"), to("t", "b")]]).await;
    let first = claim_for(store, "a", Duration::ZERO).await.remove(0);
    let second = only(store, "b").await;
    let ids = |batch: &Batch| batch.messages.iter().map(OutboxRecord::id).collect::<Vec<_>>();
    assert_eq!(ids(&first), ids(&second));
    assert_eq!(ids(&second)[1], message_id(&key("r"), place(1, 1)));
    assert_ne!(first.claim.token, second.claim.token);
}

/// A claim that was broken, and one whose messages are gone.
pub async fn a_relay_whose_claim_is_over_changes_nothing(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r", &[&[to("t", "a"), to("t", "b")]]).await;
    let stale = claim_for(store, "a", Duration::ZERO).await.remove(0).claim;
    let batch = only(store, "b").await;
    let before = all(store).await;
    let lost = store.outbox().mark_sent(stale.clone(), vec![place(1, 0)], Some(LONG)).await.unwrap_err();
    assert!(matches!(lost, StoreError::ClaimLost { .. }), "{lost}");
    let failure = refusal(Duration::ZERO, Some(1));
    let lost = store.outbox().mark_failed(stale, place(1, 0), failure.clone()).await.unwrap_err();
    assert!(matches!(lost, StoreError::ClaimLost { .. }), "{lost}");
    assert_eq!(all(store).await, before);
    assert!(claim(store, "c").await.is_empty(), "the other claim is alive");
    let every = vec![place(1, 0), place(1, 1)];
    store.outbox().mark_sent(batch.claim.clone(), every, Some(LONG)).await.unwrap();
    let lost = store.outbox().mark_failed(batch.claim, place(1, 0), failure).await.unwrap_err();
    assert!(matches!(lost, StoreError::ClaimLost { .. }), "{lost}");
    assert_eq!(states(store).await, ["sent"; 2]);
}

/// A relay whose answer was lost may ask again.
pub async fn a_mark_told_twice_is_the_same(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r", &[&[to("t", "a"), to("t", "b")]]).await;
    let batch = only(store, "a").await;
    for _ in 0..2 {
        store.outbox().mark_sent(batch.claim.clone(), vec![place(1, 0)], Some(LONG)).await.unwrap();
    }
    assert_eq!(states(store).await, ["sent", "pending"]);
    let failure = refusal(Duration::ZERO, Some(9));
    store.outbox().mark_failed(batch.claim.clone(), place(1, 1), failure.clone()).await.unwrap();
    store.outbox().mark_failed(batch.claim, place(1, 1), failure).await.unwrap_err();
    assert_eq!(all(store).await[1].attempts, 1);
}

/// By the store's clock; what is behind it doesn't overtake it.
pub async fn a_message_that_is_refused_rests_and_stops_its_channel(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r", &[&[to("t", "a"), to("t", "b")]]).await;
    let batch = only(store, "a").await;
    let fate = store.outbox().mark_failed(batch.claim, place(1, 0), refusal(Duration::ZERO, Some(9))).await;
    assert_eq!(fate.unwrap(), Fate::Again);
    let batch = only(store, "a").await;
    assert_eq!(texts(&batch), ["a", "b"]);
    assert_eq!((batch.messages[0].attempts, batch.messages[0].error.as_deref()), (1, Some("refused")));
    store.outbox().mark_failed(batch.claim, place(1, 0), refusal(LONG, Some(9))).await.unwrap();
    assert!(claim(store, "a").await.is_empty());
}

/// The rest flows on, though the channel was to rest.
pub async fn a_message_that_is_refused_too_often_is_dead_and_leaves_a_gap(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r", &[&[to("t", "a"), to("t", "b")]]).await;
    for (attempt, fate) in [(1, Fate::Again), (2, Fate::Dead)] {
        let batch = only(store, "a").await;
        let rests = if attempt == 1 { Duration::ZERO } else { LONG };
        let told = store.outbox().mark_failed(batch.claim, place(1, 0), refusal(rests, Some(2))).await;
        assert_eq!(told.unwrap(), fate);
    }
    let batch = only(store, "a").await;
    assert_eq!(texts(&batch), ["b"]);
    assert_eq!(states(store).await, ["dead", "pending"]);
    store.outbox().mark_failed(batch.claim, place(1, 1), refusal(LONG, Some(1))).await.unwrap();
    assert!(claim(store, "a").await.is_empty(), "the last one is dead too");
}

/// Whoever can't take it now is no reason to give it up, however often, not even when it is refused afterwards.
pub async fn only_refusals_count_towards_the_death_of_a_message(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r", &[&[to("t", "a")]]).await;
    let busy = Failure { error: "busy".into(), counts: false, ..refusal(Duration::ZERO, Some(2)) };
    let refused = refusal(Duration::ZERO, Some(2));
    let told = [(&busy, 0), (&busy, 0), (&busy, 0), (&refused, 1), (&busy, 1), (&refused, 2)];
    for (failure, counted) in told {
        let batch = only(store, "a").await;
        let fate = store.outbox().mark_failed(batch.claim, place(1, 0), failure.clone()).await.unwrap();
        assert_eq!(fate, if counted == 2 { Fate::Dead } else { Fate::Again }, "{failure:?}");
        let record = all(store).await.remove(0);
        assert_eq!((record.attempts, record.error), (counted, Some(failure.error.clone())));
    }
}

/// What a relay holds stays its own.
pub async fn an_operator_ends_the_rest_of_a_runs_channels(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r", &[&[to("t", "a"), to("u", "b")]]).await;
    let batches = claim(store, "a").await;
    let rests = batches.iter().find(|batch| &*batch.claim.channel.topic == "t").expect("it is there");
    store.outbox().mark_failed(rests.claim.clone(), place(1, 0), refusal(LONG, None)).await.unwrap();
    assert!(claim(store, "b").await.is_empty());
    assert_eq!(store.outbox().retry_dead(key("r")).await.unwrap(), 0);
    let due = only(store, "b").await;
    assert_eq!((texts(&due), due.messages[0].attempts), (vec!["a".to_owned()], 1));
}

/// However often it is refused.
pub async fn a_message_that_may_not_die_blocks_its_channel(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r", &[&[to("t", "a"), to("t", "b"), to("u", "c")]]).await;
    for attempts in 0..50 {
        let batches = claim(store, "a").await;
        let batch = batches.iter().find(|batch| &*batch.claim.channel.topic == "t").expect("it is there");
        assert_eq!((texts(batch).remove(0), batch.messages[0].attempts), ("a".to_owned(), attempts));
        let refusal = refusal(Duration::ZERO, None);
        let fate = store.outbox().mark_failed(batch.claim.clone(), place(1, 0), refusal).await;
        assert_eq!(fate.unwrap(), Fate::Again);
    }
    assert_eq!(states(store).await, ["pending"; 3]);
}

/// Until then its run stays; afterwards nothing keeps it.
pub async fn a_dead_message_is_retried_or_dropped_by_an_operator(fixture: Fixture) {
    let store = &fixture.store;
    let mut holder = Sample::run("r").hold(store).await;
    holder.commit(holder.next_with("one", 1, 0, vec![to("t", "a"), to("t", "b")])).await.unwrap();
    holder.write(Write::Status(holder.status(failed(), true))).await.unwrap();
    let die = async || {
        let batch = only(store, "a").await;
        let place = batch.messages[0].place;
        let failure = refusal(Duration::ZERO, Some(1));
        assert_eq!(store.outbox().mark_failed(batch.claim, place, failure).await.unwrap(), Fate::Dead);
    };
    die().await;
    let batch = only(store, "a").await;
    store.outbox().mark_sent(batch.claim, vec![place(1, 1)], None).await.unwrap();
    assert!(claim(store, "a").await.is_empty());
    let everything = GcPolicy {
        namespace: Namespace::default(),
        older_than: None,
        keep_newest: 0,
        limit: 10,
        dry_run: false,
    };
    assert_eq!(store.gc(everything.clone()).await.unwrap(), GcReport { deleted: vec![], unsent: 1 });
    store.delete(key("r")).await.unwrap_err();
    assert_eq!(store.outbox().retry_dead(key("r")).await.unwrap(), 1);
    let again = only(store, "b").await;
    assert_eq!((texts(&again), again.messages[0].attempts), (vec!["a".to_owned()], 0));
    assert_eq!(again.messages[0].id(), message_id(&key("r"), place(1, 0)));
    store.outbox().mark_sent(again.claim, vec![], None).await.unwrap();
    die().await;
    assert_eq!(store.outbox().drop_dead(key("r")).await.unwrap(), 1);
    assert_eq!(store.outbox().drop_dead(key("r")).await.unwrap(), 0);
    assert_eq!(states(store).await, ["sent"]);
    assert_eq!(store.gc(everything).await.unwrap().deleted, [key("r")]);
    let missing = store.outbox().retry_dead(key("r")).await.unwrap_err();
    assert!(matches!(missing, StoreError::NotFound { .. }), "{missing}");
    assert!(matches!(store.outbox().drop_dead(key("r")).await, Err(StoreError::NotFound { .. })));
}

/// Those first that have waited longest, and no more than were asked for.
pub async fn channels_are_claimed_by_topic_and_tenant(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r/1", &[&[to("t", "a"), to("u", "b")]]).await;
    sent_by(store, "r/2", &[&[to("u", "c")]]).await;
    let mut elsewhere = Sample::run("r3").namespace("elsewhere").hold(store).await;
    elsewhere.commit(elsewhere.next_with("one", 1, 0, vec![to("u", "d")])).await.unwrap();
    let filter = |topics: &[&str], channels| ClaimFilter {
        topics: topics.iter().map(|topic| (*topic).into()).collect(),
        channels,
        ..ClaimFilter::default()
    };
    let names = |batches: &[Batch]| {
        let name = |batch: &Batch| (batch.claim.channel.run.run.to_string(), texts(batch).concat());
        batches.iter().map(name).collect::<Vec<_>>()
    };
    let by = || claimant("a", LONG);
    assert!(store.outbox().claim(filter(&["v"], 10), by()).await.unwrap().is_empty());
    let first = store.outbox().claim(filter(&["u", "v"], 1), by()).await.unwrap();
    assert_eq!(names(&first), [("r/1".to_owned(), "b".to_owned())]);
    let rest = store.outbox().claim(filter(&[], 10), by()).await.unwrap();
    let mut rest = names(&rest);
    rest.sort();
    assert_eq!(rest, [("r/1".to_owned(), "a".to_owned()), ("r/2".to_owned(), "c".to_owned())]);
    let namespace = Namespace::new("elsewhere").expect("a name");
    let other = ClaimFilter { namespace, ..ClaimFilter::default() };
    assert_eq!(store.outbox().claim(other, by()).await.unwrap().len(), 1);
}

/// By run and place; also through another handle.
pub async fn messages_are_listed_as_they_were_written(fixture: Fixture) {
    let store = &fixture.store;
    sent_by(store, "r2", &[&[to("t", "c")]]).await;
    sent_by(store, "r1", &[&[to("u", "a")], &[to("t", "b")]]).await;
    let batches = store
        .outbox()
        .claim(ClaimFilter { topics: vec!["u".into()], ..ClaimFilter::default() }, claimant("a", LONG))
        .await
        .unwrap();
    store.outbox().mark_sent(batches[0].claim.clone(), vec![place(1, 0)], None).await.unwrap();
    let other = fixture.other_handle();
    let listed = all(&other).await;
    let shown: Vec<_> = listed.iter().map(|m| (m.run.run.as_str(), m.place, m.message.clone())).collect();
    let expected = [
        ("r1", place(1, 0), to("u", "a")),
        ("r1", place(2, 0), to("t", "b")),
        ("r2", place(1, 0), to("t", "c")),
    ];
    assert_eq!(shown, expected);
    assert!(listed.iter().all(|record| record.written_at_us > 0));
    assert_eq!(states(store).await, ["sent", "pending", "pending"]);
    let some = OutboxFilter {
        run: Some(key("r1").run),
        states: vec![MessageState::Pending, MessageState::Dead],
        ..OutboxFilter::default()
    };
    assert_eq!(other.outbox().list(some).await.unwrap().len(), 1);
    assert_eq!(
        other.outbox().list(OutboxFilter { limit: 2, ..OutboxFilter::default() }).await.unwrap().len(),
        2
    );
}

/// By the store's clock, whatever a relay does with the rest; those of another tenant don't count.
pub async fn what_is_undelivered_is_counted_with_its_age(fixture: Fixture) {
    let store = &fixture.store;
    let look = async || {
        let backlog = store.outbox().backlog(Namespace::default()).await.unwrap();
        ([backlog.pending, backlog.dead].map(|tally| (tally.count, tally.or_more)), backlog)
    };
    let (counted, empty) = look().await;
    assert_eq!((counted, empty.lag()), ([(0, false); 2], Duration::ZERO));
    let mut elsewhere = Sample::run("r").namespace("elsewhere").hold(store).await;
    elsewhere.commit(elsewhere.next_with("one", 1, 0, vec![to("t", "z")])).await.unwrap();
    sent_by(store, "r", &[&[to("t", "a"), to("t", "b")], &[to("t", "c")]]).await;
    let written = async |at: usize| Some(all(store).await[at].written_at_us);
    let (counted, backlog) = look().await;
    assert_eq!(counted, [(3, false), (0, false)]);
    assert_eq!(backlog.oldest_pending_at_us, written(0).await);
    assert!(backlog.at_us >= backlog.oldest_pending_at_us.unwrap(), "{backlog:?}");
    let batch = only(store, "a").await;
    store.outbox().mark_sent(batch.claim.clone(), vec![place(1, 0)], Some(LONG)).await.unwrap();
    let failure = refusal(Duration::ZERO, Some(1));
    store.outbox().mark_failed(batch.claim, place(1, 1), failure).await.unwrap();
    let (counted, backlog) = look().await;
    assert_eq!(counted, [(1, false), (1, false)]);
    assert_eq!(backlog.oldest_pending_at_us, written(2).await, "neither the sent nor the dead one");
    let other = Namespace::new("elsewhere").expect("a name");
    assert_eq!(store.outbox().backlog(other).await.unwrap().pending, Tally::exactly(1));
    store.outbox().retry_dead(key("r")).await.unwrap();
    assert_eq!(look().await.1.oldest_pending_at_us, written(1).await, "it has waited since it was written");
}

/// Neither a claim, nor a mark, nor a death takes half an effect.
pub async fn a_failure_at_any_statement_of_a_mark_leaves_nothing(fixture: Fixture) {
    let Some(fail_at) = &fixture.fail_at else { return };
    let store = &fixture.store;
    sent_by(store, "r", &[&[to("t", "a"), to("t", "b"), to("t", "c")]]).await;
    let batch = only(store, "a").await;
    let before = all(store).await;
    let mut tried = 0;
    loop {
        let fired = fail_at(tried);
        let marked = store.outbox().mark_sent(batch.claim.clone(), vec![place(1, 0)], Some(LONG)).await;
        if !fired() {
            marked.unwrap();
            break;
        }
        assert!(matches!(marked, Err(StoreError::Retry(_))), "{marked:?}");
        assert_eq!(all(store).await, before);
        tried += 1;
    }
    let before = all(store).await;
    for n in 0.. {
        let fired = fail_at(n);
        let failure = refusal(Duration::ZERO, Some(1));
        let marked = store.outbox().mark_failed(batch.claim.clone(), place(1, 1), failure).await;
        tried += 1;
        if !fired() {
            assert_eq!(marked.unwrap(), Fate::Dead);
            break;
        }
        assert_eq!(all(store).await, before);
    }
    assert_eq!((states(store).await, tried > 4), (vec!["sent", "dead", "pending"], true));
}
