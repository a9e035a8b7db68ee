//! Creation: runs that come at the same time share a transaction, as their steps do.
//!
//! Invariant: none is answered before the commit of its transaction. Where several can't be created together, nothing of
//! them is written, and each is created by itself.

use super::{
    commit::{NewCheckpoint, checkpoint_rows},
    error::{reported, unlent},
    lease::new_nonce,
    pool::Sessions,
    runs,
    sql::{Fault, Inserts},
    writer::{TRIES, let_others_finish, transact},
};
use crate::{
    codec::Codec,
    error::StoreError,
    prepare::Birth,
    store::{Created, Hint, Lease, NewRun},
};
use futures::future::join_all;
use hapax_core::{canary, commit::Epoch};
use tokio::sync::{mpsc, oneshot};

/// Runs that share a transaction at the most.
const TOGETHER: usize = 64;

/// Whether a run is a row in each of three tables and no more.
fn is_plain(birth: &Birth) -> bool {
    let NewRun { tags, parent, journal, terms, .. } = &*birth.run;
    tags.is_empty()
        && terms.is_plain()
        && parent.is_none()
        && journal.is_empty()
        && birth.parts.frontier.len() == 1
}

/// The lease of whoever creates a run and claims it.
pub(super) fn lease(birth: &Birth) -> Option<Lease> {
    let epoch = Epoch { counter: 1, nonce: new_nonce() };
    birth.run.claim.as_ref().map(|_| Lease { epoch, taken_over: false })
}

type Answer = Result<Created, StoreError>;

/// Where runs are created.
pub(super) struct Creation {
    sessions: Sessions,
    codec: Codec,
    queue: mpsc::UnboundedSender<(Birth, oneshot::Sender<Answer>)>,
}

impl Creation {
    pub(super) fn start(sessions: &Sessions, codec: &Codec) -> Self {
        let (queue, orders) = mpsc::unbounded_channel();
        // It ends when nobody is left who could ask.
        tokio::spawn(create_all(sessions.clone(), codec.clone(), orders));
        Self { sessions: sessions.clone(), codec: codec.clone(), queue }
    }

    /// Creates a run with its first step, unless its name is taken.
    pub(super) async fn create(&self, birth: Birth) -> Answer {
        if !is_plain(&birth) {
            return alone(&self.sessions, &self.codec, &birth).await;
        }
        let (answer, answered) = oneshot::channel();
        // Whose runtime is gone creates nothing; what became of a run that it had taken isn't known.
        let gone = "the runtime in which the store was opened is gone";
        self.queue.send((birth, answer)).map_err(|_| StoreError::Retry(gone.into()))?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Unknown(gone.into())))
    }
}

async fn create_all(
    sessions: Sessions,
    codec: Codec,
    mut orders: mpsc::UnboundedReceiver<(Birth, oneshot::Sender<Answer>)>,
) {
    let mut waiting = vec![];
    while orders.recv_many(&mut waiting, TOGETHER).await > 0 {
        // In one order for all, so that two transactions never wait for each other.
        waiting.sort_by(|(one, _), (other, _)| one.run.key.cmp(&other.run.key));
        let (births, answers): (Vec<_>, Vec<_>) = waiting.drain(..).unzip();
        let created = each_of(&sessions, &codec, &births).await;
        for (answer, created) in answers.into_iter().zip(created) {
            // Who doesn't wait any more finds out by asking again.
            let _ = answer.send(created);
        }
    }
}

async fn each_of(sessions: &Sessions, codec: &Codec, births: &[Birth]) -> Vec<Answer> {
    if births.len() > 1 {
        match together(sessions, births).await {
            Ok(created) => return created.into_iter().map(Ok).collect(),
            Err(Fault::Lost(_)) if canary::on("lost_is_made") => {
                return births.iter().map(|birth| Ok(Created::New(lease(birth)))).collect();
            }
            Err(Fault::Lost(source)) => {
                let lost = Fault::Lost(source);
                return births.iter().map(|one| Err(reported(lost.for_another(), &one.run.key))).collect();
            }
            // One of them is there already, or something is wrong with one of them.
            Err(_) => {}
        }
    }
    join_all(births.iter().map(|one| alone(sessions, codec, one))).await
}

/// Creates a run in a transaction of its own.
async fn alone(sessions: &Sessions, codec: &Codec, birth: &Birth) -> Answer {
    let mut session = sessions.lend().await?;
    let lease = lease(birth);
    let created = transact!(&mut **session, codec, |tx| runs::create(tx, birth, lease));
    created.map_err(|fault| reported(fault, &birth.run.key))?
}

/// Creates plain runs in one transaction, or none of them.
async fn together(sessions: &Sessions, births: &[Birth]) -> Result<Vec<Created>, Fault> {
    let mut session = sessions.lend().await.map_err(unlent)?;
    let leases: Vec<Option<Lease>> = births.iter().map(lease).collect();
    let nonces: Vec<[u8; 16]> = leases.iter().map(runs::nonce).collect();
    let tables = rows(births, &leases, &nonces);
    let mut tries = 0;
    while let Err(fault) = session.insert_all(&tables).await {
        match fault {
            Fault::Again(_) if tries + 1 < TRIES && session.is_sound() => tries += 1,
            fault => return Err(fault),
        }
        let_others_finish(tries).await;
    }
    let unheld = births.iter().filter(|birth| birth.run.claim.is_none());
    let hints: Vec<Hint> = unheld.map(|birth| Hint::Ready(birth.run.key.namespace.clone())).collect();
    if !hints.is_empty() {
        // They are only hints: whoever misses one finds out by itself.
        let _ = session.tell(&hints).await;
    }
    Ok(leases.into_iter().map(Created::New).collect())
}

/// What plain runs are made of.
fn rows<'b>(births: &'b [Birth], leases: &[Option<Lease>], nonces: &'b [[u8; 16]]) -> Vec<Inserts<'b>> {
    let each = births.iter().zip(leases).zip(nonces);
    let rows = each.map(|((birth, lease), nonce)| runs::row(&birth.run, lease.as_ref(), nonce, false));
    let runs = Inserts { into: runs::INSERT, row: runs::ROW, end: "", rows: rows.collect() };
    let new = |birth: &'b Birth| {
        let Birth { run, parts, .. } = birth;
        NewCheckpoint { run: &run.key, checkpoint: &run.checkpoint, parts, next_seq: 0 }
    };
    let steps = checkpoint_rows(&births.iter().map(new).collect::<Vec<_>>());
    [runs].into_iter().chain(steps).collect()
}
