//! Of all deliveries of a message one has an effect: that whose transaction is committed first.

use crate::kit::{Books, CONSUMER, End, on_each, until_one_waits};
use futures::{StreamExt, stream};
use hapax_store::inbox::Received;
use std::time::Duration;

on_each! {
    of_a_hundred_duplicates_at_once_one_has_an_effect,
    a_first_that_is_rolled_back_leaves_the_next_one_first,
    a_crash_between_effect_and_commit_leaves_neither,
    a_second_waits_for_the_first_and_is_another_once_that_is_committed,
    a_second_waits_for_the_first_and_takes_its_place_once_that_is_rolled_back,
    when_a_first_is_rolled_back_one_of_those_who_wait_takes_its_place,
    a_transaction_goes_on_behind_a_duplicate,
    a_message_that_is_asked_about_twice_in_one_transaction_is_there_twice,
    what_is_old_is_forgotten_and_what_is_not_is_kept,
}

async fn of_a_hundred_duplicates_at_once_one_has_an_effect(books: Books) {
    // As many at once as a server lets in beside others.
    let all = stream::iter(0..100).map(|_| books.delivered("msg:1")).buffer_unordered(32);
    let firsts = all.filter(|received| std::future::ready(*received == Received::First)).count().await;
    assert_eq!((firsts, books.effects("msg:1")), (1, 1));
}

async fn a_first_that_is_rolled_back_leaves_the_next_one_first(books: Books) {
    let (received, open) = books.asked(&["msg:1"]).await;
    assert_eq!(received, Received::First);
    open.end(End::RollBack).await;
    assert_eq!(books.effects("msg:1"), 0);
    assert_eq!(books.delivered("msg:1").await, Received::First);
    assert_eq!(books.delivered("msg:1").await, Received::Again);
    assert_eq!(books.effects("msg:1"), 1);
}

async fn a_crash_between_effect_and_commit_leaves_neither(books: Books) {
    let (received, open) = books.asked(&["msg:1"]).await;
    assert_eq!(received, Received::First);
    open.end(End::Crash).await;
    assert_eq!(books.delivered("msg:1").await, Received::First);
    assert_eq!(books.effects("msg:1"), 1);
}

/// The second has asked while the first's transaction was open.
async fn second_behind_a_first_that_ends(books: &Books, end: End) -> Received {
    let (received, first) = books.asked(&["msg:1"]).await;
    assert_eq!(received, Received::First);
    let second = tokio::spawn({
        let books = books.clone();
        async move { books.delivered("msg:1").await }
    });
    until_one_waits(books).await;
    assert!(!second.is_finished(), "it answers before the first has ended");
    first.end(end).await;
    second.await.expect("no panic")
}

async fn a_second_waits_for_the_first_and_is_another_once_that_is_committed(books: Books) {
    assert_eq!(second_behind_a_first_that_ends(&books, End::Commit).await, Received::Again);
    assert_eq!(books.effects("msg:1"), 1);
}

async fn a_second_waits_for_the_first_and_takes_its_place_once_that_is_rolled_back(books: Books) {
    assert_eq!(second_behind_a_first_that_ends(&books, End::RollBack).await, Received::First);
    assert_eq!(books.effects("msg:1"), 1);
}

async fn when_a_first_is_rolled_back_one_of_those_who_wait_takes_its_place(books: Books) {
    let (_, first) = books.asked(&["msg:1"]).await;
    let several = tokio::spawn({
        let books = books.clone();
        async move { futures::future::join_all((0..6).map(|_| books.delivered("msg:1"))).await }
    });
    until_one_waits(&books).await;
    first.end(End::RollBack).await;
    let received = several.await.expect("no panic");
    assert_eq!(received.iter().filter(|received| **received == Received::First).count(), 1, "{received:?}");
    assert_eq!(books.effects("msg:1"), 1);
}

async fn a_transaction_goes_on_behind_a_duplicate(books: Books) {
    assert_eq!(books.delivered("msg:1").await, Received::First);
    let (last, open) = books.asked(&["msg:1", "msg:2"]).await;
    assert_eq!(last, Received::First);
    open.end(End::Commit).await;
    assert_eq!((books.effects("msg:1"), books.effects("msg:2")), (1, 1));
}

async fn a_message_that_is_asked_about_twice_in_one_transaction_is_there_twice(books: Books) {
    let (last, open) = books.asked(&["msg:1", "msg:1"]).await;
    assert_eq!(last, Received::Again);
    open.end(End::Commit).await;
    assert_eq!(books.effects("msg:1"), 1);
}

/// As many as two batches and a half.
const OLD: u64 = 2500;

async fn what_is_old_is_forgotten_and_what_is_not_is_kept(books: Books) {
    let old: Vec<String> = (0..OLD).map(|n| format!("('{CONSUMER}', 'old {n}', 7)")).collect();
    books.sql(&format!("INSERT INTO hapax_inbox (consumer, id, received_at) VALUES {}", old.join(", ")));
    assert_eq!(books.delivered("msg:1").await, Received::First);
    assert_eq!(books.sweep(Duration::from_secs(3600)).await.unwrap(), OLD);
    assert_eq!(books.sweep(Duration::from_secs(3600)).await.unwrap(), 0);
    assert_eq!(books.delivered("msg:1").await, Received::Again, "it isn't old");
    assert_eq!(books.delivered("old 7").await, Received::First, "it is forgotten");
}
