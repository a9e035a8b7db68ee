//! The service: a charge is authorised by the bank, then booked, and both happen once, whatever crashes in between.

use crate::{Args, Result, bank::Bank, till::Till, told};
use axum::{
    Extension, Json, Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use hapax_core::{json::Json as Data, request::RecoveryPoint};
use hapax_requests::{Claimed, IdempotencyLayer, OnConflict, matched_path};
use hapax_store::requests::Finished;
use http::{StatusCode, header::CONTENT_TYPE, request::Parts};
use serde::{Deserialize, Serialize};
use std::{
    hash::{BuildHasher, RandomState},
    io::{self, Read},
    process,
    sync::Arc,
    thread,
    time::Duration,
};
use tokio::net::TcpListener;
use tracing::Level;

/// How long a crash keeps a key busy.
const LEASE: Duration = Duration::from_secs(2);
/// How long a duplicate waits for the answer to the first.
const PATIENCE: Duration = Duration::from_secs(30);
/// The largest charge, in cents.
const MOST: i64 = 100_000_000;

#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) account: i64,
    pub(crate) cents: i64,
}

struct Shop {
    till: Till,
    bank: Bank,
}

/// Serves until it is killed, and says where.
pub(crate) async fn serve(args: Args) -> Result<()> {
    let database = args.database.ok_or_else(|| io::Error::other("serve needs --database"))?;
    let bank = Bank::at(args.bank.ok_or_else(|| io::Error::other("serve needs --bank"))?);
    if args.until.is_some() {
        // It can't outlive whoever started it, even when that is killed.
        thread::spawn(|| {
            let _ = io::stdin().read_to_end(&mut vec![]);
            process::exit(0);
        });
    }
    // The layer tells there why it answered 503.
    tracing_subscriber::fmt().with_max_level(Level::WARN).with_writer(io::stderr).without_time().init();
    let till = Till::open(&database).await?;
    till.make_missing().await?;
    let shop = Arc::new(Shop { till, bank });
    // Yours is what authentication says.
    let merchant = |parts: &Parts| Some(parts.headers.get("x-merchant")?.to_str().ok()?.to_owned());
    let once = IdempotencyLayer::new(shop.till.requests(), merchant)
        .route(matched_path)
        .lease(LEASE)
        .on_conflict(OnConflict::Wait(PATIENCE));
    let router = Router::new().route("/charges", post(charge)).layer(once).with_state(shop);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, router).await?)
}

async fn charge(
    State(shop): State<Arc<Shop>>,
    Extension(claimed): Extension<Claimed>,
    Json(order): Json<Order>,
) -> Response {
    let charged = match shop.refusal(order).await {
        // Any 4xx is final: whoever asks again is told the same.
        Ok(Some(refusal)) => return refusal.into_response(),
        Ok(None) => shop.charge(&claimed, order).await,
        Err(error) => Err(error),
    };
    match charged {
        Ok(Some(receipt)) => receipt.map(Body::from),
        // Another has taken over; the layer answers with what that one has made of it.
        Ok(None) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Err(error) => {
            eprintln!("a charge failed, and may be tried again: {}", told(&*error));
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

impl Shop {
    /// What is wrong with an order, before anything is done for it.
    async fn refusal(&self, order: Order) -> Result<Option<(StatusCode, String)>> {
        let Order { account, cents } = order;
        if !(1..=MOST).contains(&cents) {
            let why = format!("a charge has 1 to {MOST} cents\n");
            return Ok(Some((StatusCode::UNPROCESSABLE_ENTITY, why)));
        }
        let is_known = self.till.has(account).await?;
        Ok((!is_known).then(|| (StatusCode::NOT_FOUND, format!("there is no account {account}\n"))))
    }

    /// Two phases, each of which takes effect once; `None`: it isn't ours to do any more.
    async fn charge(&self, claimed: &Claimed, order: Order) -> Result<Option<http::Response<Bytes>>> {
        let lease = claimed.lease();
        let authorised: String = match &lease.point {
            Some(point) => point.data.read()?,
            None => {
                // The same key on every attempt, so the bank does it once. Whoever takes over goes on behind this point.
                let code = self.bank.authorise(&lease.derived_key("authorise"), order.cents).await?;
                let point = RecoveryPoint::new("authorised", Data::of(&code)?)?;
                if self.till.requests().set_point(lease, &point).await? == Finished::Stale {
                    return Ok(None);
                }
                code
            }
        };
        let receipt = receipt(order, &authorised)?;
        // Accounts, ledger and record are one transaction: all of them, or none.
        let booked = self.till.book(order, lease, &claimed.completion(&receipt)).await?;
        Ok((booked == Finished::Done).then_some(receipt))
    }
}

/// Each has a number of its own: two executions of one charge would be told apart.
fn receipt(order: Order, authorised: &str) -> Result<http::Response<Bytes>> {
    let charge = format!("ch_{:016x}", RandomState::new().hash_one(order.account));
    let body = serde_json::json!({ "charge": charge, "cents": order.cents, "authorised": authorised });
    let receipt = http::Response::builder().status(StatusCode::CREATED);
    Ok(receipt.header(CONTENT_TYPE, "application/json").body(Bytes::from(body.to_string()))?)
}
