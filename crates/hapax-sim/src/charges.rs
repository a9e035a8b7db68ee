//! A service that moves money, as a process that is killed: each request reserves in one transaction, calls an outside party
//! and charges in a second transaction, with which its record ends.
//!
//! Invariant: what an execution answers, and the rows that it writes, tell of which execution they are. So an answer that a
//! client got, the one that is stored and the row that took effect can be held against each other.

mod till;

use crate::kills::ledger;
use axum::{
    Extension, Router,
    body::Body,
    extract::State,
    http::{Response, StatusCode, request::Parts},
    routing::post,
};
use hapax_core::{json::Json, request::RecoveryPoint};
use hapax_requests::{Claimed, IdempotencyLayer, OnConflict, matched_path};
use hapax_store::{StoreError, requests::Finished};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::Receiver,
    },
    time::Duration,
};

pub use till::Till;

/// What makes the table of effects, in any database. No key keeps an effect from being there twice.
pub const EFFECTS: &str = "CREATE TABLE effects (line VARCHAR(200) NOT NULL)";

/// Who asks.
pub const MERCHANT: &str = "ada";
/// Reserves, calls, charges.
pub const CHARGES: &str = "/charges";
/// Charges alone: one transaction.
pub const FEES: &str = "/fees";

/// The name of the call to the outside, and of the point before it.
const CALL: &str = "bank";
const RESERVED: &str = "reserved";

/// Longer than any lease. Who waits longer is told that the request is under way.
const WAITS: Duration = Duration::from_secs(60);
/// How long an answer is kept: far less than the clocks of the tests are off by, where the database has a clock of its own.
const EXPIRY: Duration = Duration::from_secs(1800);
const EXPIRY_IN_A_FILE: Duration = Duration::from_secs(24 * 3600);

/// Where a service may be told to stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The request came, and isn't claimed.
    Asked,
    /// It is claimed, and nothing was done.
    Claimed,
    /// In the first transaction, behind its effect.
    Reserving,
    /// The first transaction is committed, with its recovery point.
    Reserved,
    /// The outside has answered.
    Called,
    /// In the last transaction, behind its effect.
    Charging,
    /// The last transaction is committed, with the record; the client isn't answered.
    Charged,
}

impl Point {
    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        let named = [
            ("asked", Self::Asked),
            ("claimed", Self::Claimed),
            ("reserving", Self::Reserving),
            ("reserved", Self::Reserved),
            ("called", Self::Called),
            ("charging", Self::Charging),
            ("charged", Self::Charged),
        ];
        named.into_iter().find_map(|(word, point)| (word == name).then_some(point))
    }
}

/// What a client gets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Answer {
    /// The key of the request.
    pub key: String,
    /// What no other execution has.
    pub token: String,
    /// What the outside said; empty where it wasn't asked.
    pub receipt: String,
}

/// Whoever charges, and says so: `executes KEY ATTEMPT POINT|-` · `in KEY` · `out KEY` · `stale KEY`, and `stands` where it was
/// told to stand still.
pub struct Cashier {
    till: Till,
    ledger: PathBuf,
    stands_at: Mutex<Option<(Point, Receiver<()>)>>,
    executed: AtomicU64,
}

impl std::fmt::Debug for Cashier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cashier").field("till", &self.till).finish_non_exhaustive()
    }
}

impl Cashier {
    /// One that stands still at the point, once, until it is told to go on.
    pub fn new(till: Till, ledger: PathBuf, stands_at: Option<(Point, Receiver<()>)>) -> Arc<Self> {
        Arc::new(Self { till, ledger, stands_at: Mutex::new(stands_at), executed: AtomicU64::new(0) })
    }

    /// The service, with leases of this length.
    pub fn service(self: Arc<Self>, lease: Duration, waits: bool) -> Router {
        let merchant = self.clone();
        let principal = move |parts: &Parts| {
            merchant.may_stand(Point::Asked);
            Some(parts.headers.get("x-merchant")?.to_str().ok()?.to_owned())
        };
        let on_conflict = if waits { OnConflict::Wait(WAITS) } else { OnConflict::Refuse };
        let layer = IdempotencyLayer::new(self.till.store(), principal)
            .route(matched_path)
            .lease(lease)
            .expiry(if matches!(self.till, Till::Sqlite(..)) { EXPIRY_IN_A_FILE } else { EXPIRY })
            .on_conflict(on_conflict);
        Router::new().route(CHARGES, post(charges)).route(FEES, post(fees)).layer(layer).with_state(self)
    }

    /// Blocks its thread, where that is wanted. (SIGSTOP to itself would let it go on for a while.)
    fn may_stand(&self, point: Point) {
        let mut stands_at = self.stands_at.lock().unwrap_or_else(PoisonError::into_inner);
        let stands = stands_at.take_if(|(at, _)| *at == point);
        drop(stands_at);
        if let Some((_, go_on)) = stands {
            println!("stands");
            // Nobody is left to tell it when the process ends.
            let _ = go_on.recv();
        }
    }

    /// Begins an execution; its name.
    fn executes(&self, claimed: &Claimed) -> String {
        let lease = claimed.lease();
        let point = lease.point.as_ref().map_or("-", |point| point.name.as_str());
        println!("executes {} {} {point}", lease.id.key(), lease.attempt);
        self.may_stand(Point::Claimed);
        format!("{}-{}", std::process::id(), self.executed.fetch_add(1, Ordering::Relaxed))
    }

    /// The first phase, unless an earlier execution has made it.
    async fn reserve(self: &Arc<Self>, claimed: &Claimed, token: &str) -> Result<Finished, StoreError> {
        let lease = claimed.lease();
        if lease.point.is_some() {
            return Ok(Finished::Done);
        }
        let point = RecoveryPoint::new(RESERVED, Json::null()).expect("a short name");
        let (line, cashier) = (format!("reserve {} {token}", lease.id.key()), self.clone());
        let stand = move || cashier.may_stand(Point::Reserving);
        self.till.point(lease.clone(), line, point, stand).await
    }

    /// The last phase: effect and record at once.
    async fn charge(
        self: &Arc<Self>,
        claimed: &Claimed,
        answer: &Answer,
    ) -> Result<(Finished, Response<String>), StoreError> {
        let body = serde_json::to_string(answer).expect("texts are JSON");
        let response =
            Response::builder().status(StatusCode::CREATED).header("content-type", "application/json");
        let response = response.body(body).expect("a header");
        let (line, cashier) =
            (format!("charge {} {} {}", answer.key, answer.token, answer.receipt), self.clone());
        let stand = move || cashier.may_stand(Point::Charging);
        println!("in {}", answer.key);
        let completion = claimed.completion(&response);
        let finished = self.till.finish(claimed.lease().clone(), line, completion, stand).await?;
        Ok((finished, response))
    }

    fn answered(
        &self,
        key: &str,
        charged: Result<(Finished, Response<String>), StoreError>,
    ) -> Response<Body> {
        match charged {
            Ok((Finished::Done, response)) => {
                println!("out {key}");
                self.may_stand(Point::Charged);
                response.map(Body::from)
            }
            Ok((Finished::Stale, _)) => refused(key, StatusCode::CONFLICT),
            Err(error) => {
                eprintln!("{key}: {error}");
                refused(key, StatusCode::SERVICE_UNAVAILABLE)
            }
        }
    }
}

/// Both may be tried again, and neither is believed where the record says something else.
fn refused(key: &str, status: StatusCode) -> Response<Body> {
    println!("{} {key}", if status == StatusCode::CONFLICT { "stale" } else { "failed" });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

async fn charges(
    State(cashier): State<Arc<Cashier>>,
    Extension(claimed): Extension<Claimed>,
) -> Response<Body> {
    let (token, lease) = (cashier.executes(&claimed), claimed.lease());
    let key = lease.id.key();
    match cashier.reserve(&claimed, &token).await {
        Ok(Finished::Done) => {}
        Ok(Finished::Stale) => return refused(key, StatusCode::CONFLICT),
        Err(error) => {
            eprintln!("{key}: {error}");
            return refused(key, StatusCode::SERVICE_UNAVAILABLE);
        }
    }
    cashier.may_stand(Point::Reserved);
    let called = ledger::call(&cashier.ledger, &lease.derived_key(CALL), &json!(key)).await;
    let Ok(receipt) = called else { return refused(key, StatusCode::BAD_GATEWAY) };
    cashier.may_stand(Point::Called);
    let answer = Answer { key: key.to_owned(), token, receipt };
    let charged = cashier.charge(&claimed, &answer).await;
    cashier.answered(key, charged)
}

async fn fees(State(cashier): State<Arc<Cashier>>, Extension(claimed): Extension<Claimed>) -> Response<Body> {
    let token = cashier.executes(&claimed);
    let key = claimed.lease().id.key();
    let answer = Answer { key: key.to_owned(), token, receipt: String::new() };
    let charged = cashier.charge(&claimed, &answer).await;
    cashier.answered(key, charged)
}
