//! What is sent to runs from outside: signals, and an operator's word on a call in doubt.
//!
//! Invariant: a letter is durable before its sender is answered, and arrives once, however often it is sent.

use crate::{Engine, Error, effects::Resolution, error::json};
use hapax_core::{
    canary,
    error::{Code, Coded, code},
    id::{RunKey, check_name},
    journal::{Entry, JournalRow},
    mailbox::{self, NewLetter, Posted},
};
use hapax_store::StoreError;
use serde::Serialize;
use std::sync::Arc;

/// No call of that name or key waits for a person's word.
///
/// ```
/// use hapax::{Error, Resolution, prelude::*};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { paid: bool }
/// # const WAIT: Node = Node::new("wait");
/// # async fn wait(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
/// #     let paid: bool = ctx.signal("paid").await?;
/// #     Ok(Order::delta().paid(paid))
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> hapax::Result<()> {
/// # let engine = Engine::open("memory:").await?;
/// # let orders = engine.register(Graph::new("orders", 1, WAIT).node(WAIT, wait), ()).await?;
/// # let _run = orders.start("order-42", Order::default()).await?;
/// let refused = engine.resolve("order-42", "charge", Resolution::Retry).await;
/// let Err(Error::NotInDoubt(why)) = refused else { unreachable!() };
/// assert_eq!(why.to_string(), "run `order-42` has no call `charge` in doubt; none is");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[error("run `{run}` has no call `{effect}` in doubt{}", in_doubt(open))]
pub struct NotInDoubt {
    /// The run.
    pub run: RunKey,
    /// What was asked for.
    pub effect: String,
    /// The calls that are in doubt, by key.
    pub open: Vec<String>,
}

fn in_doubt(open: &[String]) -> String {
    if open.is_empty() { "; none is".into() } else { format!("; these are: {}", open.join(", ")) }
}

impl Coded for NotInDoubt {
    fn code(&self) -> Code {
        code::NOT_IN_DOUBT
    }
}

/// The id of the one letter that can decide something: of two who decide at once one is told that it is decided.
pub(crate) fn only_letter(id: String) -> String {
    if canary::on("decided_twice") { uuid::Uuid::now_v7().to_string() } else { id }
}

impl Engine {
    /// Sends a signal to a run, wherever it is executed. Durable when it answers; delivered once.
    ///
    /// A run that waits for it is woken; one that doesn't yet finds it when it asks. To send it again after a lost
    /// answer use [`Engine::signal_as`].
    ///
    /// ```
    /// use hapax::prelude::*;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(State, Clone, Default, Serialize, Deserialize)]
    /// struct Leave { approved_by: Option<String> }
    /// const WAIT: Node = Node::new("wait");
    /// async fn wait(mut ctx: hapax::Ctx<Leave>) -> hapax::Result<LeaveDelta> {
    ///     let who: String = ctx.signal("approved").await?;
    ///     Ok(Leave::delta().approved_by(who))
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> hapax::Result<()> {
    /// let engine = Engine::open("memory:").await?;
    /// let leave = engine.register(Graph::new("leave", 1, WAIT).node(WAIT, wait), ()).await?;
    /// let run = leave.start("leave-7", Leave::default()).await?;
    /// engine.signal("leave-7", "approved", "Ada").await?;
    /// assert_eq!(run.wait().await?.approved_by.as_deref(), Some("Ada"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn signal<T: Serialize + ?Sized>(
        &self,
        run: &str,
        name: &str,
        payload: &T,
    ) -> Result<(), Error> {
        let id = uuid::Uuid::now_v7().to_string();
        self.signal_as(run, &id, name, payload).await.map(drop)
    }

    /// As [`Engine::signal`], under the sender's own id: sent again, it is delivered once all the same.
    pub async fn signal_as<T: Serialize + ?Sized>(
        &self,
        run: &str,
        id: &str,
        name: &str,
        payload: &T,
    ) -> Result<Posted, Error> {
        check_name("signal", name)?;
        let payload = json("the signal's payload", payload)?;
        self.post(run, NewLetter { id: id.into(), subject: mailbox::signal(name), payload }).await
    }

    pub(crate) async fn post(&self, run: &str, letter: NewLetter) -> Result<Posted, Error> {
        self.is_open()?;
        let posted = self.shared.store.post(self.key(run)?, letter).await?;
        self.shared.look_for_work();
        Ok(posted)
    }

    /// Tells how a call that is in doubt ended, by its key, the beginning of its key, or its name. Durable when it
    /// answers; the run goes on where its code is registered.
    ///
    /// [`Error::NotInDoubt`] names the calls that are, when this isn't one of them or could be several.
    pub async fn resolve(&self, run: &str, effect: &str, resolution: Resolution) -> Result<(), Error> {
        self.is_open()?;
        let key = self.key(run)?;
        let (subject, id) = self.find_in_doubt(&key, effect).await?;
        let payload = json("the resolution", &resolution)?;
        match self.post(run, NewLetter { id, subject, payload }).await? {
            Posted::New => Ok(()),
            // Somebody else has decided meanwhile.
            Posted::Known => {
                Err(Error::NotInDoubt(Box::new(NotInDoubt { run: key, effect: effect.into(), open: vec![] })))
            }
        }
    }

    /// The subject of the one call that is meant, and the id of the one letter that can resolve this doubt: once decided,
    /// a call that is in doubt again has other rows before it.
    async fn find_in_doubt(&self, run: &RunKey, effect: &str) -> Result<(Arc<str>, String), Error> {
        let loaded = self.shared.store.load(run.clone()).await?;
        if loaded.record.status.is_final() {
            let status = Box::new(loaded.record.status);
            return Err(StoreError::WrongStatus { run: run.clone(), status }.into());
        }
        let open: Vec<&str> =
            loaded.record.wake.letters.iter().filter_map(|subject| mailbox::call_in_doubt(subject)).collect();
        let named = |key: &str| {
            loaded.journal.iter().flat_map(JournalRow::entries).any(
                |entry| matches!(entry, Entry::Intent(intent) if intent.key == key && intent.name == effect),
            )
        };
        let meant: Vec<&str> =
            open.iter().copied().filter(|key| key.starts_with(effect) || named(key)).collect();
        match meant[..] {
            [key] => Ok((
                mailbox::resolution(key),
                only_letter(format!("resolve:{}:{key}", loaded.record.next_seq)),
            )),
            _ => Err(Error::NotInDoubt(Box::new(NotInDoubt {
                run: run.clone(),
                effect: effect.into(),
                open: open.into_iter().map(Into::into).collect(),
            }))),
        }
    }
}
