//! What is said of a run: that it is under way, how it ended, or that there is none.
//!
//! Invariant: the answer to a run that has succeeded follows from its final state alone, so every asker gets the same bytes.

use bytes::Bytes;
use hapax::{
    Error, RunFailure, State, Status,
    core::{canonical, error::code, state},
    store::{RunRecord, Store, StoreError},
};
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, LOCATION, RETRY_AFTER},
};
use serde_json::{json, value::RawValue};
use std::{collections::BTreeMap, sync::Arc};

/// Each code has a page there.
const PAGES: &str = "https://github.com/hapax-rs/hapax/blob/main/docs/errors";
/// When to ask again after a run that is under way, in seconds.
const ASK_AGAIN: u64 = 1;

/// Where a run stands.
pub(super) enum Standing<S> {
    UnderWay(String),
    Succeeded(S),
    Failed(Box<RunFailure>),
    Cancelled,
}

impl<S: State> Standing<S> {
    pub(super) async fn of(store: &Arc<dyn Store>, record: RunRecord) -> Result<Self, Error> {
        match record.status {
            Status::Succeeded => {
                let checkpoint = store.load(record.key).await?.checkpoint;
                Ok(Standing::Succeeded(state::decode(&checkpoint.state, checkpoint.state_version)?))
            }
            Status::Failed { error } => Ok(Standing::Failed(Box::new(error))),
            Status::Cancelled => Ok(Standing::Cancelled),
            Status::Moved { to, .. } => Err(StoreError::Moved { run: record.key, to }.into()),
            _ => Ok(Standing::UnderWay(record.key.run.to_string())),
        }
    }
}

/// A run is under way: which, and where to ask for it.
pub(super) fn accepted(run: &str, place: Option<&str>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(json!({ "run": run }).to_string()));
    *response.status_mut() = StatusCode::ACCEPTED;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(RETRY_AFTER, HeaderValue::from(ASK_AGAIN));
    headers.extend(place.and_then(|place| HeaderValue::from_str(place).ok()).map(|place| (LOCATION, place)));
    response
}

/// The run that a stored answer names.
pub(super) fn run_of(body: &[u8]) -> Option<String> {
    serde_json::from_slice::<serde_json::Value>(body).ok()?["run"].as_str().map(str::to_owned)
}

/// A state as JSON, in its canonical form, without its secret fields.
pub(super) fn state<S: State>(state: &S) -> Response<Bytes> {
    let Ok(text) = canonical::to_vec(state) else {
        return failed(code::NOT_SERIALISABLE, "The result of the run can't be written as JSON");
    };
    let secret = |name: &str| S::fields().iter().any(|field| field.secret && field.json == name);
    let shown = match serde_json::from_slice::<BTreeMap<String, &RawValue>>(&text) {
        Ok(mut members) => {
            members.retain(|name, _| !secret(name));
            serde_json::to_vec(&members).unwrap_or_default()
        }
        // A state that is no object has no fields.
        Err(_) => text,
    };
    let mut response = Response::new(Bytes::from(shown));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(super) fn failure(failure: &RunFailure) -> Response<Bytes> {
    failed(&failure.code, &failure.message)
}

fn failed(code: &str, why: &str) -> Response<Bytes> {
    problem(StatusCode::INTERNAL_SERVER_ERROR, code, "The run failed", why)
}

pub(super) fn cancelled() -> Response<Bytes> {
    let why = "It has no result, and won't have one.";
    problem(StatusCode::GONE, code::CANCELLED, "The run was cancelled", why)
}

pub(super) fn unknown_run() -> Response<Bytes> {
    let why = "Nothing that you asked for has this id.";
    problem(StatusCode::NOT_FOUND, code::RUN_NOT_FOUND, "There is no such run", why)
}

pub(super) fn unreadable(why: &str) -> Response<Bytes> {
    problem(StatusCode::BAD_REQUEST, code::REQUEST_UNREADABLE, "The request can't be read", why)
}

/// Problem details by RFC 9457; their type is the page of the code.
fn problem(status: StatusCode, code: &str, title: &str, detail: &str) -> Response<Bytes> {
    let body = json!({
        "type": format!("{PAGES}/{code}.md"),
        "code": code,
        "title": title,
        "status": status.as_u16(),
        "detail": detail,
    });
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}
