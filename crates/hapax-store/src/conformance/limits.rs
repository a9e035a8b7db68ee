//! What is over a limit is refused whole, before anything is written.

use super::{
    Fixture,
    sample::{Picture, Sample, key, message, step, submit},
};
use crate::error::StoreError;
use hapax_core::{
    commit::{Append, Write},
    error::{Coded, code},
    id::NodeId,
    journal::{Done, Entry},
    json::Json,
    limits::{MAX_CHUNK_BYTES, MAX_PAYLOAD_BYTES, MAX_STATE_BYTES, MAX_TAGS},
    route::SettledRoute,
    stream::Chunk,
};

const HUGE: usize = 20_000_000;

/// 20 MB, at the start and later on; the limit itself is fine.
pub async fn an_oversized_state_is_refused(fixture: Fixture) {
    let huge = Sample::run("huge").state_bytes(HUGE).build();
    assert_too_large(&fixture.store.create(huge).await.unwrap_err(), MAX_STATE_BYTES);
    assert_eq!(fixture.store.run(key("huge")).await.unwrap(), None);
    let mut holder = Sample::run("r").state_bytes(MAX_STATE_BYTES).hold(&fixture.store).await;
    let mut commit = holder.next("one");
    commit.checkpoint.state = vec![b'1'; HUGE].into();
    let before = Picture::of(&fixture.store, &holder.key).await;
    assert_too_large(&submit(&fixture.store, step(commit)).await.unwrap_err(), MAX_STATE_BYTES);
    assert_eq!(Picture::of(&fixture.store, &holder.key).await, before);
    holder.commit(holder.next("small")).await.unwrap();
}

fn assert_too_large(error: &StoreError, expected: usize) {
    let StoreError::TooLarge { size, limit, .. } = error else { panic!("{error}") };
    assert!(size > limit && *limit == expected, "{error}");
    assert_eq!(error.code(), code::LIMIT);
}

/// A message, an input, a delta, a chunk.
pub async fn an_oversized_payload_is_refused(fixture: Fixture) {
    let holder = Sample::run("r").hold(&fixture.store).await;
    let huge = Json::of(&"x".repeat(HUGE)).expect("a text");
    let mut sends = holder.next_with("one", 1, 0, vec![message("m")]);
    sends.outbox[0].payload = huge.clone();
    let mut leads = holder.next("one");
    leads.checkpoint.frontier[0].input = Some(huge.clone());
    let mut rows: Append = holder.append(1);
    rows.rows[0].entry =
        Entry::ItemDone { done: Done::Ok { delta: huge, route: SettledRoute::Edges, messages: vec![] } };
    for write in [step(sends), step(leads), Write::Append(rows)] {
        assert_too_large(&submit(&fixture.store, write).await.unwrap_err(), MAX_PAYLOAD_BYTES);
    }
    let mut rows: Append = holder.append(1);
    let (node, payload) = (NodeId::new("work").expect("a fine name"), huge_chunk());
    let chunk = Chunk { node, call: None, attempt: 1, epoch: 1, offset: 0, payload, at_us: 1 };
    rows.rows[0].entry = Entry::Chunk(chunk);
    assert_too_large(&submit(&fixture.store, Write::Append(rows)).await.unwrap_err(), MAX_CHUNK_BYTES);
    let record = holder.record().await;
    assert_eq!((record.step, record.next_seq), (0, 0));
}

fn huge_chunk() -> Json {
    Json::of(&"x".repeat(MAX_CHUNK_BYTES)).expect("a text")
}

/// As many as the limit are fine.
pub async fn too_many_or_unnameable_tags_are_refused(fixture: Fixture) {
    let tagged = |name: &str, count: usize| {
        (0..count).fold(Sample::run(name), |sample, n| sample.tag(&format!("tag {n}"), "value"))
    };
    tagged("fine", MAX_TAGS).create(&fixture.store).await;
    let refused = fixture.store.create(tagged("many", MAX_TAGS + 1).build()).await.unwrap_err();
    assert_too_large(&refused, MAX_TAGS);
    let refused = fixture.store.create(Sample::run("empty").tag("", "value").build()).await.unwrap_err();
    assert_eq!(refused.code(), code::INVALID_ID, "{refused}");
    for name in ["many", "empty"] {
        assert_eq!(fixture.store.run(key(name)).await.unwrap(), None);
    }
}
