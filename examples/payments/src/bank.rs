//! The bank: another party, in a process that isn't killed. It heeds keys, and counts.

use crate::Result;
use axum::{Router, extract::State, http::HeaderMap, routing::post};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::net::TcpListener;

/// The bank as the service sees it.
pub(crate) struct Bank {
    url: String,
    client: reqwest::Client,
}

impl Bank {
    pub(crate) fn at(url: String) -> Self {
        Self { url, client: reqwest::Client::builder().no_proxy().build().expect("a client") }
    }

    /// Asks for leave to charge; the bank's code for it.
    pub(crate) async fn authorise(&self, key: &str, cents: i64) -> Result<String> {
        let request = self.client.post(format!("{}/authorisations", self.url)).header("idempotency-key", key);
        Ok(request.body(cents.to_string()).send().await?.error_for_status()?.text().await?)
    }
}

/// What the bank has done.
#[derive(Default)]
pub(crate) struct Books {
    /// The code for each key.
    pub(crate) authorised: HashMap<String, String>,
    /// With those that were the same again.
    pub(crate) calls: usize,
}

pub(crate) type SharedBooks = Arc<Mutex<Books>>;

async fn authorise(State(books): State<SharedBooks>, headers: HeaderMap) -> String {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default();
    let mut books = books.lock().unwrap_or_else(PoisonError::into_inner);
    books.calls += 1;
    let next = format!("a-{}", books.authorised.len() + 1);
    books.authorised.entry(key.to_owned()).or_insert(next).clone()
}

/// Opens the bank; its address, and its books.
pub(crate) async fn open() -> Result<(String, SharedBooks)> {
    let books = SharedBooks::default();
    let router = Router::new().route("/authorisations", post(authorise)).with_state(books.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async { axum::serve(listener, router).await });
    Ok((url, books))
}
