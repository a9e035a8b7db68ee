//! Scripted effects: answers that stand in for the outside, and what was asked of it.

use super::Lab;
use crate::gate::lock;
use hapax_core::{error::code, journal::EffectOutcome, json::Json};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::{HashMap, VecDeque},
    sync::Mutex,
};

/// The answers of all scripted effects, and the calls that they answered.
#[derive(Debug, Default)]
pub(crate) struct Script(Mutex<HashMap<String, Lines>>);

#[derive(Debug, Default)]
struct Lines {
    answers: VecDeque<EffectOutcome>,
    calls: Vec<Asked>,
}

/// What a scripted effect was asked.
///
/// [`Lab::asked`] gives them in order.
///
/// ```
/// # use hapax::{prelude::*, testing::Lab};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(State, Clone, Default, Serialize, Deserialize)]
/// # struct Order { cents: u64 }
/// # const PAY: Node = Node::new("pay");
/// # async fn pay(mut ctx: hapax::Ctx<Order>) -> hapax::Result<()> {
/// #     ctx.effect("pay", Write, &4200, async |_| Err::<(), _>(NodeError::new("no network"))).await?;
/// #     Ok(())
/// # }
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// # let lab = Lab::new();
/// # lab.script("pay").answers(&());
/// # let orders = lab.engine().register(Graph::new("orders", 1, PAY).node(PAY, pay), ()).await?;
/// # lab.finish(&orders.start("order-42", Order::default()).await?).await?;
/// let asked = lab.asked("pay");
/// assert_eq!(asked[0].request::<u64>(), 4200);
/// assert!(asked[0].key.starts_with("fx:"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Asked {
    /// The idempotency key that the other side would have got.
    pub key: String,
    request: Json,
}

impl Asked {
    /// What was asked.
    ///
    /// # Panics
    ///
    /// When it is of another type.
    #[track_caller]
    pub fn request<T: DeserializeOwned>(&self) -> T {
        self.request.read().unwrap_or_else(|error| panic!("the request is {:?}: {error}", self.request))
    }
}

/// The answers of one effect, in the order in which they are given. Its own code isn't called.
///
/// ```
/// use hapax::{NodePolicy, Retry, prelude::*, testing::Lab};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(State, Clone, Default, Serialize, Deserialize)]
/// struct Order { receipt: Option<String> }
/// const PAY: Node = Node::new("pay");
/// async fn pay(mut ctx: hapax::Ctx<Order>) -> hapax::Result<OrderDelta> {
///     let unreachable = async |_| Err::<String, _>(NodeError::new("a test has no network"));
///     let receipt = ctx.effect("charge", Write, &4200, unreachable).await?;
///     Ok(Order::delta().receipt(receipt))
/// }
///
/// # #[tokio::main]
/// # async fn main() -> hapax::Result<()> {
/// let lab = Lab::new();
/// lab.script("charge").fails("busy").answers("receipt-1");
/// let graph = Graph::new("orders", 1, PAY).node(PAY, pay).policy(PAY, NodePolicy::default().retry(Retry::standard()));
/// let orders = lab.engine().register(graph, ()).await?;
/// let order = lab.finish(&orders.start("order-42", Order::default()).await?).await?;
/// assert_eq!(order.receipt.as_deref(), Some("receipt-1"));
/// let asked = lab.asked("charge");
/// assert_eq!((asked.len(), &asked[0].key), (2, &asked[1].key)); // tried again under the same key
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Scripted<'l> {
    script: &'l Script,
    effect: String,
}

impl Scripted<'_> {
    /// The next call answers this.
    ///
    /// # Panics
    ///
    /// When it has no JSON form.
    #[track_caller]
    pub fn answers<T: Serialize + ?Sized>(self, answer: &T) -> Self {
        let response =
            Json::of(answer).unwrap_or_else(|error| panic!("the answer has no JSON form: {error}"));
        self.then(EffectOutcome::Ok { response })
    }

    /// The next call fails, and may be made again.
    pub fn fails(self, message: &str) -> Self {
        self.then(failure(message, true, false))
    }

    /// The next call fails for good.
    pub fn fails_for_good(self, message: &str) -> Self {
        self.then(failure(message, false, false))
    }

    /// The next call fails before anything was sent.
    pub fn fails_unsent(self, message: &str) -> Self {
        self.then(failure(message, true, true))
    }

    fn then(self, outcome: EffectOutcome) -> Self {
        lock(&self.script.0).entry(self.effect.clone()).or_default().answers.push_back(outcome);
        self
    }
}

fn failure(message: &str, retryable: bool, unsent: bool) -> EffectOutcome {
    let (code, message) = (code::EFFECT_FAILED.into(), message.into());
    EffectOutcome::Err { code, message, retryable, unsent, not_before_us: None }
}

impl Script {
    /// Whether an effect is scripted.
    pub(crate) fn has(&self, name: &str) -> bool {
        lock(&self.0).contains_key(name)
    }

    /// The answer to a call, if its effect is scripted.
    pub(crate) fn answer(
        &self,
        name: &str,
        key: &str,
        request: impl FnOnce() -> Option<Json>,
    ) -> Option<EffectOutcome> {
        let mut script = lock(&self.0);
        let lines = script.get_mut(name)?;
        lines.calls.push(Asked { key: key.into(), request: request().unwrap_or_else(Json::null) });
        let out = || failure(&format!("the script of `{name}` has no answer left"), false, false);
        Some(lines.answers.pop_front().unwrap_or_else(out))
    }
}

impl Lab {
    /// Scripts an effect by its name: from now on its own code isn't called. A call beyond the last answer fails for good.
    pub fn script(&self, effect: &str) -> Scripted<'_> {
        lock(&self.script.0).entry(effect.into()).or_default();
        Scripted { script: &self.script, effect: effect.into() }
    }

    /// What a scripted effect was asked so far, in order.
    pub fn asked(&self, effect: &str) -> Vec<Asked> {
        lock(&self.script.0).get(effect).map(|lines| lines.calls.clone()).unwrap_or_default()
    }
}
