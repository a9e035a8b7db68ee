//! Child runs: started once behind the gate, waited for without cost.
//!
//! Invariant: the intent is durable before the child is created, and its id and input make a second creation harmless.
//! A letter only says that the child ended; how it ended is read from its own row.

use crate::{
    effects::{Begun, EffectFuture, failed},
    error::{EffectError, Error},
    item::Live,
    trail::end_with,
    wait::Wait,
};
use hapax_core::{
    canary, canonical,
    commit::Status,
    error::{Coded, code},
    id::{RunId, RunKey},
    journal::{EffectOutcome, Entry},
    json::Json,
    mailbox::{self, Letter},
    state::State,
};
use hapax_store::{Created, NewRun, StoreError};
use std::{fmt, marker::PhantomData, sync::Arc};

/// The name of a graph whose runs others start as their children, with the type of its state.
///
/// ```
/// use hapax::{Child, prelude::*};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(State, Clone, Default, Serialize, Deserialize)]
/// struct Payment { cents: u64, receipt: Option<String> }
/// #[derive(State, Clone, Default, Serialize, Deserialize)]
/// struct Order { receipt: Option<String> }
///
/// const PAYMENTS: Child<Payment> = Child::new("payments");
/// const PAY: Node = Node::new("pay");
/// const ORDER: Node = Node::new("order");
///
/// async fn pay(ctx: hapax::Ctx<Payment>) -> PaymentDelta {
///     Payment::delta().receipt(format!("paid {}", ctx.state().cents))
/// }
/// async fn order(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
///     let paid = ctx.child(PAYMENTS, "payment-42", &Payment { cents: 4200, receipt: None }).await?;
///     Ok(Order::delta().receipt(paid.receipt))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// let engine = Engine::open("memory:").await?;
/// engine.register(Graph::new("payments", 1, PAY).node(PAY, pay), ()).await?;
/// let orders = engine.register(Graph::new("orders", 1, ORDER).node(ORDER, order), ()).await?;
/// let order = orders.start("order-42", Order::default()).await?.wait().await?;
/// assert_eq!(order.receipt.as_deref(), Some("paid 4200"));
/// # Ok(())
/// # }
/// ```
pub struct Child<S> {
    graph: &'static str,
    state: PhantomData<fn() -> S>,
}

impl<S> Clone for Child<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Child<S> {}

impl<S> fmt::Debug for Child<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Child({})", self.graph)
    }
}

impl<S> Child<S> {
    /// The graph's name, as it is registered.
    pub const fn new(graph: &'static str) -> Self {
        Self { graph, state: PhantomData }
    }
}

impl EffectFuture<'_> {
    /// Starts a child, or finds it, and waits for its end.
    pub(crate) async fn child<C: State>(
        &self,
        child: Child<C>,
        run: &str,
        state: &C,
    ) -> Result<C, EffectError> {
        let asked = self.ask(&(child.graph, run, state))?;
        if let Some(recorded) = asked.recorded {
            return self.recall(recorded).await;
        }
        let live = self.live().await;
        let new = self.new_child(live, child, run, state).map_err(|error| self.refused(&error))?;
        let (asked, busy) = match self.begin(asked).await {
            Begun::Go(_, asked, busy) => (asked, busy),
            Begun::Told(outcome) => return self.replay(outcome),
        };
        let subject = mailbox::end_of(new.key.run.as_str());
        let outcome = self.attempt.with_store(async {
            if let Err(error) = self.create(live, &new).await {
                return Some(failed(error.code(), error.to_string(), false));
            }
            self.take_letters(live, &subject).await;
            self.child_outcome(live, &new.key).await
        });
        if let Some(outcome) = outcome.await {
            end_with(self.open_child(&new.key), &outcome);
            return self.finish(asked, outcome).await;
        }
        drop(busy);
        self.attempt.waits.wait(Wait::Child(subject)).await
    }

    fn refused(&self, error: &Error) -> EffectError {
        self.error(error.code(), error.to_string(), false)
    }

    fn new_child<C: State>(
        &self,
        live: &Live,
        child: Child<C>,
        run: &str,
        state: &C,
    ) -> Result<NewRun, Error> {
        let item = &self.attempt.item;
        let Some(code) = live.shared.latest(child.graph) else {
            return Err(Error::NotRegistered { graph: child.graph.into() });
        };
        let again = canary::on("child_twice") && self.is_begun();
        let run = RunId::new(if again { format!("{run}-again") } else { run.to_owned() })?;
        let key = RunKey { namespace: item.run.namespace.clone(), run };
        let new = code.new_run(key, canonical::to_vec(state)?, C::VERSION, None);
        Ok(NewRun { parent: Some(item.run.run.clone()), ..new })
    }

    /// Creates the child, unless it is there.
    async fn create(&self, live: &Live, new: &NewRun) -> Result<(), Error> {
        loop {
            match live.shared.store.create(new.clone()).await {
                Ok(Created::New(_)) => break,
                Ok(Created::Exists(found)) if found.parent != new.parent => {
                    let (run, parent) = (new.key.clone(), self.attempt.item.run.run.clone());
                    return Err(Error::NotOurChild { run, parent, of: found.parent });
                }
                Ok(Created::Exists(found)) if found.input == new.input => break,
                Ok(Created::Exists(_)) => return Err(Error::RunExists { run: new.key.clone() }),
                Err(
                    error @ (StoreError::TooLarge { .. }
                    | StoreError::Name(_)
                    | StoreError::ShardSplit { .. }),
                ) => return Err(error.into()),
                Err(error) => self.bear(live, error).await,
            }
        }
        live.shared.look_for_work();
        Ok(())
    }

    /// Takes what only says that the child ended: its row tells how.
    async fn take_letters(&self, live: &Live, subject: &Arc<str>) {
        let item = &self.attempt.item;
        let take = async |letter: Letter| item.see([Entry::Took { letter: letter.number }]);
        while let Some(()) = self.unless_halted(live.mailbox.take(&live.gate, subject, take).await).await {}
    }

    /// How the child ended; `None`: it hasn't.
    async fn child_outcome(&self, live: &Live, child: &RunKey) -> Option<EffectOutcome> {
        let store = &live.shared.store;
        let loaded = loop {
            match store.load(child.clone()).await {
                Ok(loaded) => break loaded,
                Err(error @ StoreError::NotFound { .. }) => {
                    return Some(failed(error.code(), error.to_string(), false));
                }
                Err(error) => self.bear(live, error).await,
            }
        };
        let run = child.clone();
        let error = match loaded.record.status {
            Status::Succeeded => {
                let state = std::str::from_utf8(&loaded.checkpoint.state).map(Json::from_text);
                let Ok(Ok(response)) = state else {
                    return Some(failed(code::CORRUPT, format!("the state of `{run}` isn't JSON"), false));
                };
                return Some(EffectOutcome::Ok { response });
            }
            Status::Failed { error } => Error::Failed { run, failure: Box::new(error) },
            Status::Cancelled => Error::Cancelled { run },
            _ => return None,
        };
        Some(failed(error.code(), error.to_string(), false))
    }
}
