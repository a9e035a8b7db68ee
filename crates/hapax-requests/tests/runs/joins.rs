//! One key, one run: what its askers get while it is under way and when it is over.

use crate::shop::{PATIENCE, Shop, send};
use futures::future::join_all;
use std::time::Duration;

const SHIPPED: &str = r#"{"shelf":7,"shipped":true,"sku":"slow"}"#;

pub(crate) async fn a_request_starts_a_run_and_its_duplicates_join_it(url: &str) {
    let shop = Shop::open(url).await;
    let begun = send(shop.client.order("k", "slow")).await.unwrap();
    assert_eq!((begun.status, begun.header("idempotency-replayed")), (202, None));
    let place = begun.header("location").expect("a place to ask at").to_owned();
    assert_eq!(place, format!("/orders/{}", begun.json()["run"].as_str().unwrap()));
    let again = send(shop.client.order("k", "slow")).await.unwrap();
    assert_eq!((again.status, again.header("idempotency-replayed")), (202, Some("true")));
    assert_eq!((&again.body, again.header("location")), (&begun.body, Some(&*place)));
    let under_way = shop.client.status(&place).await;
    assert_eq!((under_way.status, under_way.header("retry-after")), (202, Some("1")));
    shop.world.open();
    let ended = shop.client.ordered("k", "slow").await;
    assert_eq!((ended.status, &*ended.body), (200, SHIPPED.as_bytes()), "without what is secret");
    let told = shop.client.status(&place).await;
    assert_eq!((told.status, &told.body), (200, &ended.body));
    assert_eq!((shop.world.done(), shop.runs().await), (vec!["reserve", "ship"], 1));
}

pub(crate) async fn of_many_at_once_one_starts_a_run_and_all_get_its_result(url: &str) {
    let shop = Shop::with(url, |layer| layer, |requests| requests.wait(PATIENCE)).await;
    shop.world.open();
    let replies = join_all((0..30).map(|_| send(shop.client.order("k", "slow")))).await;
    for reply in replies.into_iter().map(Result::unwrap) {
        assert_eq!((reply.status, &*reply.body), (200, SHIPPED.as_bytes()));
    }
    assert_eq!((shop.world.done(), shop.runs().await), (vec!["reserve", "ship"], 1));
}

pub(crate) async fn another_body_is_refused_while_the_run_is_under_way_and_afterwards(url: &str) {
    let shop = Shop::open(url).await;
    assert_eq!(send(shop.client.order("k", "slow")).await.unwrap().status, 202);
    assert_eq!(shop.client.ordered("k", "anvil").await.status, 422);
    shop.world.open();
    assert_eq!(shop.client.ordered("k", "slow").await.status, 200);
    assert_eq!(shop.client.ordered("k", "anvil").await.status, 422);
    assert_eq!((shop.world.done(), shop.runs().await), (vec!["reserve", "ship"], 1));
}

/// The record expires at once here. The run is still the key's, and says what it was asked for.
pub(crate) async fn a_run_outlives_the_record_of_its_request(url: &str) {
    let shop = Shop::with(url, |layer| layer.expiry(Duration::ZERO), |requests| requests).await;
    let begun = send(shop.client.order("k", "slow")).await.unwrap();
    let again = send(shop.client.order("k", "slow")).await.unwrap();
    assert_eq!((again.status, &again.body), (202, &begun.body));
    assert_eq!(again.header("idempotency-replayed"), None, "its record was forgotten");
    assert_eq!(send(shop.client.order("k", "anvil")).await.unwrap().status, 422);
    shop.world.open();
    assert_eq!(shop.client.ordered("k", "slow").await.status, 200);
    assert_eq!((shop.world.done(), shop.runs().await), (vec!["reserve", "ship"], 1));
}

pub(crate) async fn a_client_waits_as_long_as_it_prefers(url: &str) {
    let shop = Shop::with(url, |layer| layer, |requests| requests.wait(PATIENCE)).await;
    let prefers = |words: &'static str| send(shop.client.order("k", "slow").header("prefer", words));
    let at_once = prefers("respond-async").await.unwrap();
    assert_eq!((at_once.status, at_once.header("preference-applied")), (202, Some("respond-async")));
    let for_no_time = prefers("wait=0").await.unwrap();
    assert_eq!((for_no_time.status, for_no_time.header("preference-applied")), (202, Some("wait=0")));
    assert_eq!(for_no_time.header("location"), at_once.header("location"));
    shop.world.open();
    let ended = prefers("wait=20, respond-async").await.unwrap();
    assert_eq!((ended.status, ended.header("preference-applied")), (200, Some("respond-async, wait=20")));
    let capped = prefers("wait=3600").await.unwrap();
    assert_eq!((capped.status, capped.header("preference-applied")), (200, None), "nobody waits for an hour");
}

pub(crate) async fn a_run_that_failed_is_told_with_its_code(url: &str) {
    let shop = Shop::open(url).await;
    let failed = shop.client.ordered("k", "bomb").await;
    assert_eq!((failed.status, &*failed.code()), (500, "HX0020"));
    let why = failed.json()["detail"].as_str().unwrap().to_owned();
    assert!(why.contains("we sell no bombs"), "{why}");
    let begun = send(shop.client.order("k", "bomb")).await.unwrap();
    let told = shop.client.status(begun.header("location").unwrap()).await;
    assert_eq!((told.status, &told.body), (500, &failed.body));
    assert_eq!(shop.runs().await, 1, "it isn't started again");
}

pub(crate) async fn a_run_that_was_cancelled_is_gone(url: &str) {
    let shop = Shop::open(url).await;
    let begun = send(shop.client.order("k", "slow")).await.unwrap();
    shop.engine.cancel(begun.json()["run"].as_str().unwrap()).await.unwrap();
    let gone = shop.client.ordered("k", "slow").await;
    assert_eq!((gone.status, &*gone.code()), (410, "HX0025"));
}

pub(crate) async fn only_who_asked_learns_of_a_run(url: &str) {
    let shop = Shop::open(url).await;
    let begun = send(shop.client.order("k", "slow")).await.unwrap();
    let place = begun.header("location").unwrap();
    let other = send(shop.client.get(place).header("x-merchant", "bob")).await.unwrap();
    assert_eq!((other.status, &*other.code()), (404, "HX0028"));
    for unknown in ["/orders/rq-0", "/orders/%00", "/orders/another"] {
        let unknown = shop.client.status(unknown).await;
        assert_eq!((unknown.status, &unknown.body), (404, &other.body), "nobody can tell the two apart");
    }
    assert_eq!(send(shop.client.get(place)).await.unwrap().status, 403);
    shop.world.open();
    assert_eq!(shop.client.ordered("k", "slow").await.status, 200);
    let other = send(shop.client.get(place).header("x-merchant", "bob")).await.unwrap();
    assert_eq!(other.status, 404, "nor when it is over");
}

pub(crate) async fn what_cannot_be_read_starts_nothing(url: &str) {
    let shop = Shop::open(url).await;
    let bad = send(shop.client.order("k", "slow").body("{\"sku\": 7}")).await.unwrap();
    assert_eq!((bad.status, &*bad.code()), (400, "HX0111"));
    assert!(bad.json()["detail"].as_str().unwrap().contains("expected a string"), "{bad:?}");
    assert_eq!(shop.runs().await, 0);
}

pub(crate) async fn a_request_without_a_key_starts_nothing(url: &str) {
    let shop = Shop::open(url).await;
    let request = shop.client.order("k", "slow").build().unwrap();
    let (client, mut request) = (reqwest::Client::builder().no_proxy().build().unwrap(), request);
    request.headers_mut().remove("idempotency-key");
    assert_eq!(client.execute(request).await.unwrap().status().as_u16(), 400);
    assert_eq!(shop.runs().await, 0);
}
