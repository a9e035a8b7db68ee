//! A request from its claim to its answer.
//!
//! Invariant: a handler starts only under a lease, and what it answers is sent only when the store has it. All of it
//! runs in tasks of its own: a client that goes away ends none of them.

use crate::{
    answer::{BoxError, Unread, read},
    claimed::Claimed,
    dialect::Answer,
    policy::{OnConflict, Policy},
    problem::Refusal,
    stats::count,
};
use bytes::Bytes;
use hapax_core::{
    canary,
    request::{Completion, Lease, Outcome, Token},
};
use hapax_store::{
    StoreError,
    requests::{Begun, Claim, Finished},
};
use http::Response;
use http_body::Body;
use std::{future::Future, iter, sync::Arc, time::Duration};
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};
use tracing::{Instrument, Span, debug, warn};

/// The first pause before a store is asked again; each is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest of them: a client that waits is answered at most so late.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How an execution ended: for the store, and for the client.
struct Ended<E> {
    completion: Completion,
    answer: Result<Answer, E>,
}

/// Claims a request, executes it if that is ours to do, and says what its client gets.
pub(crate) async fn answer<H, F, R, E>(policy: Arc<Policy>, claim: Arc<Claim>, start: H) -> Result<Answer, E>
where
    H: FnOnce(Claimed) -> F + Send + 'static,
    F: Future<Output = Result<Response<R>, E>> + Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
    E: Send + 'static,
{
    let lease = match acquire(&policy, &claim).await {
        Ok(lease) => Arc::new(lease),
        Err(answer) => return Ok(answer),
    };
    let heartbeat = Heartbeat::start(policy.clone(), lease.clone());
    let claimed = Claimed { lease: lease.clone(), policy: policy.clone() };
    let work = tokio::spawn(work(policy.clone(), claimed, start).in_current_span());
    let ended = work.await.unwrap_or_else(|broken| {
        warn!(panicked = broken.is_panic(), "a handler broke off");
        lost(&policy)
    });
    let finished = finish(&policy, &lease, &ended.completion).await;
    drop(heartbeat);
    match finished {
        Ok(Finished::Done) => ended.answer,
        Ok(Finished::Stale) if canary::on("stale_answer") => ended.answer,
        Ok(Finished::Stale) => overtaken(&policy, &claim, &lease, ended.answer).await,
        Err(error) => Ok(store_down(&policy, &error)),
    }
}

/// The right to execute, or else what the client gets.
async fn acquire(policy: &Arc<Policy>, claim: &Arc<Claim>) -> Result<Lease, Answer> {
    let mut pauses = patience(policy);
    loop {
        let left = match decide(policy, claim).await {
            Ok(Begun::Execute(lease)) => return Ok(executed(policy, lease)),
            Ok(Begun::Replay(record)) => match record.completion {
                Some(completion) => return Err(replay(policy, completion)),
                None => Duration::ZERO,
            },
            Ok(Begun::InProgress { retry_after }) => retry_after,
            Ok(Begun::Retryable { .. }) => Duration::ZERO,
            Ok(Begun::HashMismatch) => {
                count(&policy.counters.mismatches);
                return Err(refuse(policy, &Refusal::OtherRequest));
            }
            Err(_) if canary::on("layer_unclaimed") => return Ok(unclaimed(claim)),
            Err(error) => return Err(store_down(policy, &error)),
        };
        let Some(pause) = pauses.next() else { return Err(in_flight(policy, left)) };
        sleep(pause).await;
    }
}

/// What the store says to a claim, if it says so in time. A call is never broken off: one that is given up goes on by
/// itself, and what it may still be granted ends with its lease.
async fn decide(policy: &Arc<Policy>, claim: &Arc<Claim>) -> Result<Begun, StoreError> {
    let (store, claim) = (policy.store.clone(), claim.clone());
    let mut call = Box::pin(async move { store.reacquire(&claim).await });
    match timeout(policy.store_patience, call.as_mut()).await {
        Ok(decided) => decided,
        Err(_) => {
            tokio::spawn(call);
            Err(StoreError::Unknown("it didn't answer in time".into()))
        }
    }
}

/// How long a client waits for whoever has its request.
fn patience(policy: &Policy) -> impl Iterator<Item = Duration> {
    pauses(match policy.on_conflict {
        OnConflict::Refuse => Duration::ZERO,
        OnConflict::Wait(limit) => limit,
    })
}

/// Pauses that grow, so long in all.
fn pauses(limit: Duration) -> impl Iterator<Item = Duration> {
    let (mut left, mut next) = (limit, FIRST_PAUSE);
    iter::from_fn(move || {
        let pause = next.min(left);
        left -= pause;
        next = LONGEST_PAUSE.min(next * 2);
        (!pause.is_zero()).then_some(pause)
    })
}

/// The handler's part: the only code of the service that runs under a claim. If it panics, its task tells.
async fn work<H, F, R, E>(policy: Arc<Policy>, claimed: Claimed, start: H) -> Ended<E>
where
    H: FnOnce(Claimed) -> F,
    F: Future<Output = Result<Response<R>, E>>,
    R: Body<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let (head, body) = match start(claimed).await {
        Ok(response) => response.into_parts(),
        Err(error) => return Ended { answer: Err(error), ..lost(&policy) },
    };
    match read(body, policy.answer_limit()).await {
        Ok(body) => match policy.completion(&head, &body.data, body.trailers.as_ref()) {
            Ok(completion) => Ended { completion, answer: Ok(Response::from_parts(head, body)) },
            Err(instead) => large(&policy, instead),
        },
        Err(Unread::Large) => large(&policy, policy.large_answer(policy.dialect.outcome_of_large(&head))),
        Err(Unread::Broken) => lost(&policy),
    }
}

/// Everybody gets the same instead of an answer that is too large, the first one too.
fn large<E>(policy: &Policy, instead: Completion) -> Ended<E> {
    warn!("an answer is too large to be kept");
    Ended { answer: Ok(policy.dialect.stored(instead.clone())), completion: instead }
}

/// Nobody knows how far it came: it may be executed again.
fn lost<E>(policy: &Policy) -> Ended<E> {
    let completion = policy.dialect.refused(&Refusal::Lost, Outcome::FailedRetryable);
    Ended { completion, answer: Ok(refuse(policy, &Refusal::Lost)) }
}

/// Tells the store how it ended. As long as a lease lasts it is told again: to say it twice is to say it once.
async fn finish(policy: &Policy, lease: &Lease, completion: &Completion) -> Result<Finished, StoreError> {
    if canary::on("panic_wedges") && completion.status == Outcome::FailedRetryable {
        return Ok(Finished::Done);
    }
    let mut pauses = pauses(policy.lease);
    loop {
        let answer = policy.store.finish(lease, completion).await;
        let Err(StoreError::Retry(_) | StoreError::Unknown(_) | StoreError::Full(_)) = &answer else {
            return answer;
        };
        let Some(pause) = pauses.next() else { return answer };
        count(&policy.counters.store_errors);
        sleep(pause).await;
    }
}

/// What the client gets when the record isn't ours to end any more: what the record says. Whoever has it now is waited for as
/// any other request with this key waits.
async fn overtaken<E>(
    policy: &Policy,
    claim: &Claim,
    lease: &Lease,
    answer: Result<Answer, E>,
) -> Result<Answer, E> {
    let mut pauses = patience(policy);
    let end = loop {
        let record = match policy.store.get(&claim.id).await {
            Ok(record) => record.filter(|record| record.hash == claim.hash),
            Err(error) => return Ok(store_down(policy, &error)),
        };
        let is_ours = record.as_ref().is_some_and(|record| record.token == lease.token);
        let is_under_way = record.as_ref().is_some_and(|record| record.completion.is_none());
        let end = record.and_then(|record| record.completion);
        match end.map(|end| (end.status == Outcome::FailedRetryable, end)) {
            // The handler ended it by itself.
            Some((true, _)) if is_ours => return answer,
            Some((false, end)) if is_ours => return Ok(policy.dialect.stored(end)),
            Some((false, end)) => break Some(end),
            _ => {}
        }
        match pauses.next() {
            Some(pause) if is_under_way && !canary::on("overtaken_leaves") => sleep(pause).await,
            _ => break None,
        }
    };
    warn!("an execution was overtaken");
    count(&policy.counters.stale);
    Ok(match end {
        Some(end) => replay(policy, end),
        None => in_flight(policy, Duration::ZERO),
    })
}

/// Prolongs a lease until it is dropped, in a task of its own: a handler that blocks its thread doesn't stop it, and no
/// call to the store is broken off.
struct Heartbeat {
    _stop: oneshot::Sender<()>,
}

impl Heartbeat {
    fn start(policy: Arc<Policy>, lease: Arc<Lease>) -> Self {
        let (stop, stopped) = oneshot::channel();
        if !canary::on("no_heartbeat") {
            tokio::spawn(beat(policy, lease, stopped).in_current_span());
        }
        Self { _stop: stop }
    }
}

async fn beat(policy: Arc<Policy>, lease: Arc<Lease>, mut stopped: oneshot::Receiver<()>) {
    loop {
        tokio::select! {
            _ = &mut stopped => return,
            () = sleep(policy.lease / 3) => {}
        }
        match policy.store.heartbeat(&lease, policy.lease).await {
            Ok(Finished::Done) => {}
            Ok(Finished::Stale) => return,
            Err(error) => {
                count(&policy.counters.store_errors);
                warn!(%error, "a heartbeat failed");
            }
        }
    }
}

fn executed(policy: &Policy, mut lease: Lease) -> Lease {
    count(&policy.counters.executed);
    if lease.attempt > 1 {
        count(&policy.counters.takeovers);
    }
    decided("executed");
    Span::current().record("attempt", lease.attempt);
    if canary::on("point_forgotten") {
        lease.point = None;
    }
    lease
}

fn replay(policy: &Policy, completion: Completion) -> Answer {
    count(&policy.counters.replayed);
    decided("replayed");
    policy.dialect.replayed(completion)
}

fn in_flight(policy: &Policy, left: Duration) -> Answer {
    count(&policy.counters.conflicts);
    refuse(policy, &Refusal::InFlight { left })
}

fn store_down(policy: &Policy, error: &StoreError) -> Answer {
    count(&policy.counters.store_errors);
    warn!(%error, "the request store failed");
    refuse(policy, &Refusal::StoreDown)
}

fn refuse(policy: &Policy, refusal: &Refusal) -> Answer {
    decided(refusal.word());
    policy.dialect.refusal(refusal)
}

fn decided(decision: &'static str) {
    Span::current().record("decision", decision);
    debug!(decision);
}

/// For a canary: a lease that no store has granted.
fn unclaimed(claim: &Claim) -> Lease {
    let token = Token { sequence: 0, nonce: 0, updated_at_us: 0 };
    Lease { id: claim.id.clone(), token, attempt: 1, lease_until_us: 0, point: None, origin: 0 }
}
