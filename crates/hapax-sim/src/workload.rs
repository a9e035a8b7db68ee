//! A generated case as a graph with code: what its nodes write follows from the state, the input, the draws and the
//! answers, and from nothing else.

use crate::{
    generate::{Behaviour, Case, Deed, Effect, NAMES, Reached, When},
    kills::ledger,
    ledger::{Ledger, LedgerDelta},
    world::{Event, Site, World},
};
use futures::future::{BoxFuture, join};
use hapax::{
    Ctx, EffectKind, Graph, Node, NodeError, NodeFailure, NodePolicy, Outcome, Retry, RouteExt as _,
    State as _,
};
use hapax_core::{
    canonical,
    id::RunKey,
    journal::{EffectOutcome, Entry, JournalRow},
    key::{EffectSite, effect_key, sha256},
};
use hapax_store::Store;
use std::{path::PathBuf, sync::Arc, time::Duration};

/// The effect's name in every call that changes something.
const CALL: &str = "call";
/// The effect's name in every call that only looks.
pub const LOOK: &str = "look";
/// Requests from here on rest on what can't be repeated, so no two executions agree on them.
pub const FICKLE: u64 = 1 << 40;

/// What the nodes of one life share.
pub struct Outside {
    /// The log of everything.
    pub world: Arc<World>,
    /// Which life this is.
    pub life: u32,
    /// The run, to check the keys of its calls.
    pub run: RunKey,
    /// What is durable, to check the gate at every call; `None` where looking would cost too much.
    pub disk: Option<Arc<dyn Store>>,
    /// Decides when nodes finish.
    pub pace: Arc<dyn Pace>,
    /// The socket of a ledger that is called as well, a process of its own.
    pub ledger: Option<PathBuf>,
    /// Whether writes that must not be repeated are marked as such: a crash puts them in doubt, and nobody is here to
    /// resolve that.
    pub at_most_once: bool,
}

/// Delays nodes, so that they finish in another order.
pub trait Pace: Send + Sync {
    /// Called by each attempt before it returns.
    fn wait(&self, site: Site) -> BoxFuture<'_, ()>;
}

/// No delay.
#[derive(Debug)]
pub struct AtOnce;

impl Pace for AtOnce {
    fn wait(&self, _: Site) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

type Context = Ctx<Ledger, Outside>;

/// The case as a graph.
pub fn graph(case: &Case) -> Graph<Ledger, Outside> {
    let mut graph = Graph::new(&format!("case-{}", case.seed), 1, Node::new(NAMES[0]));
    for (at, behaviour) in case.nodes.iter().enumerate() {
        graph = add_node(graph, NAMES[at], behaviour);
    }
    for edge in &case.edges {
        graph = add_edge(graph, NAMES[edge.from], Node::new(NAMES[edge.to]), edge.when);
    }
    for ([left, right], to) in &case.joins {
        let sources = [Node::<()>::new(NAMES[*left]), Node::new(NAMES[*right])];
        graph = graph.join(sources, Node::new(NAMES[*to]));
    }
    for (node, handler) in &case.handlers {
        graph = graph.on_error(Node::<()>::new(NAMES[*node]), Node::new(NAMES[*handler]));
    }
    graph
}

fn add_node(
    graph: Graph<Ledger, Outside>,
    name: &'static str,
    behaviour: &Behaviour,
) -> Graph<Ledger, Outside> {
    let retry = Retry::standard().attempts(behaviour.attempts).backoff(|_| Duration::ZERO);
    let graph = graph.policy(Node::<()>::new(name), NodePolicy::default().retry(retry));
    let own = Arc::new(behaviour.clone());
    match behaviour.reached {
        Reached::Plainly if !own.forks.is_empty() => graph.node(Node::new(name), move |ctx: Context| {
            let own = own.clone();
            async move { fork(ctx, &own).await }
        }),
        Reached::Plainly => graph.node(Node::new(name), move |ctx: Context| {
            let own = own.clone();
            async move { work(ctx, &own, 0).await }
        }),
        Reached::ByFork => graph.node(Node::<u64>::new(name), move |ctx: Context, input: u64| {
            let own = own.clone();
            async move { work(ctx, &own, input).await }
        }),
        Reached::ByFailure => {
            graph.node(Node::<NodeFailure>::new(name), move |ctx: Context, failure: NodeFailure| {
                let own = own.clone();
                async move { work(ctx, &own, u64::from(failure.attempt)).await }
            })
        }
    }
}

fn add_edge(
    graph: Graph<Ledger, Outside>,
    from: &'static str,
    to: Node,
    when: When,
) -> Graph<Ledger, Outside> {
    let from = Node::<()>::new(from);
    let visits = |state: &Ledger, at: usize| state.visits.get(NAMES[at]).copied().unwrap_or(0);
    match when {
        When::Always => graph.edge(from, to),
        When::Fewer(at, bound) => graph.edge_if(from, to, "again", move |s| visits(s, at) < bound),
        When::Enough(at, bound) => graph.edge_if(from, to, "enough", move |s| visits(s, at) >= bound),
        When::Even => graph.edge_if(from, to, "even", |s| s.total.is_multiple_of(2)),
        When::Odd => graph.edge_if(from, to, "odd", |s| !s.total.is_multiple_of(2)),
    }
}

async fn fork(ctx: Context, own: &Behaviour) -> hapax::Result<Outcome<Ledger>> {
    let branches = own.forks.iter().map(|(to, input)| Node::new(NAMES[*to]).with(*input));
    let branches: Vec<_> = branches.collect();
    Ok(work(ctx, own, 0).await?.fork(branches))
}

/// What every node does: draws, calls, maybe fails, then writes.
async fn work(ctx: Context, own: &Behaviour, input: u64) -> hapax::Result<LedgerDelta> {
    let (app, node) = (ctx.app(), ctx.node_id().to_string());
    let (step, path_hash, attempt) = (ctx.step_id(), ctx.path_hash(), ctx.attempt());
    app.world.note(app.life, Event::Executed { step, path_hash, node: node.clone(), attempt });
    let mut lane = Lane { ctx, name: "", calls: 0, seen: String::new() };
    let draw = if own.draws { lane.ctx.rng().below(1_000_000) } else { 0 };
    for _ in 0..own.wasted_draws {
        lane.ctx.random();
    }
    let mut answers = lane.calls(own).await?;
    if own.lane_draws {
        answers += lane.ctx.scope("dice").rng().below(6);
    }
    if own.scopes {
        answers += side_by_side(&mut lane.ctx, own.lane_draws).await?;
    }
    app.pace.wait(Site { step, path_hash, scope: String::new(), index: attempt }).await;
    if attempt <= own.fails_first {
        return Err(NodeError::new(format!("{node} fails attempt {attempt}")));
    }
    let visits = lane.ctx.state().visits.get(&node).copied().unwrap_or(0) + 1;
    let delta = Ledger::delta()
        .log(format!("{node}@{step} {input} {draw} {answers}"))
        .total(input + answers + node.len() as u64 + step + own.surplus)
        .high(draw.max(input))
        .seen([draw, answers])
        .notes(format!("{node}({input})"), answers)
        .visits(node, visits);
    Ok(match own.last {
        Some(last) => delta.last(last),
        None => delta,
    })
}

/// Two lanes at once, with two calls and one.
async fn side_by_side(ctx: &mut Context, draws: bool) -> hapax::Result<u64> {
    let mut lane = |name| Lane { ctx: ctx.scope(name), name, calls: 0, seen: String::new() };
    let (mut left, mut right) = (lane("left"), lane("right"));
    let ask = |request| Effect { request, fails_first: 0 };
    let (one, two, three) = (ask(1), ask(2), ask(3));
    let (left, right) = join(
        async {
            let first = left.call(&one, EffectKind::Write).await?;
            let draw = if draws { left.ctx.rng().below(1000) } else { 0 };
            Ok::<_, NodeError>(first + draw + left.call(&two, EffectKind::Write).await?)
        },
        right.call(&three, EffectKind::Write),
    )
    .await;
    Ok(left? + right?)
}

/// One lane of a node, and how many calls it made.
struct Lane {
    ctx: Context,
    name: &'static str,
    calls: u32,
    /// What it saw that can't be repeated.
    seen: String,
}

impl Lane {
    /// All that a node does with the outside and the clock. Answers the sum of the answers that can be repeated.
    async fn calls(&mut self, own: &Behaviour) -> hapax::Result<u64> {
        let mut answers = 0;
        let mut deeds = own.between.iter().peekable();
        for made in 0..=own.effects.len() {
            while let Some((_, deed)) = deeds.next_if(|(behind, _)| *behind <= made) {
                answers += self.deed(deed).await?;
            }
            if let Some(effect) = own.effects.get(made) {
                answers += self.call(effect, EffectKind::Write).await?;
            }
        }
        Ok(answers)
    }

    /// Does it. Answers what may be written into the state.
    async fn deed(&mut self, deed: &Deed) -> hapax::Result<u64> {
        match deed {
            Deed::Looks(effect) => {
                let seen = self.call(effect, EffectKind::Read).await?;
                self.seen += &format!("{seen} ");
            }
            Deed::Now => {
                self.calls += 1;
                self.seen += &format!("{:?} ", self.ctx.now());
            }
            Deed::Uuid => {
                self.calls += 1;
                self.seen += &format!("{} ", self.ctx.uuid());
            }
            Deed::Sleeps => {
                self.calls += 1;
                self.ctx.sleep(Duration::ZERO).await?;
            }
            Deed::Decides => return Ok(self.ctx.version("change", 1, 2)?.into()),
            Deed::Sends => {
                let text = format!("{}@{}", self.ctx.node_id(), self.ctx.step_id());
                self.ctx.emit("news", "", &text)?;
            }
            Deed::Once(request) => {
                let once = self.ctx.app().at_most_once;
                let kind = if once { EffectKind::WriteAtMostOnce } else { EffectKind::Write };
                return self.call(&Effect { request: *request, fails_first: 0 }, kind).await;
            }
            Deed::Rests => {
                let seen = sha256(self.seen.as_bytes()).0;
                let request = FICKLE + u64::from(u32::from_be_bytes([seen[0], seen[1], seen[2], seen[3]]));
                self.call(&Effect { request, fails_first: 0 }, EffectKind::Write).await?;
            }
        }
        Ok(0)
    }

    /// One call to the outside. The answer to a write follows from the request; that to a read is always another.
    async fn call(&mut self, effect: &Effect, kind: EffectKind) -> hapax::Result<u64> {
        let (ctx, scope, index) = (&mut self.ctx, self.name.to_owned(), self.calls);
        self.calls += 1;
        let (app, attempt) = (ctx.app(), ctx.attempt());
        let site = Site { step: ctx.step_id(), path_hash: ctx.path_hash(), scope, index };
        let Effect { request, fails_first } = effect.clone();
        let name = if kind == EffectKind::Read { LOOK } else { CALL };
        let outside = async |call: hapax::Call| {
            app.called(&site, call.key(), request, kind).await?;
            if attempt <= fails_first {
                return Err(NodeError::new("the outside is down"));
            }
            Ok(if kind == EffectKind::Read { app.world.fickle() } else { request * 31 + 7 })
        };
        let answer = ctx.effect(name, kind, &request, outside).await?;
        if kind != EffectKind::Read {
            app.answered(&site).await;
        }
        Ok(answer)
    }
}

impl Outside {
    /// The outside is being called: the key is the one that the contract says, and what the gate promises holds.
    async fn called(&self, site: &Site, key: &str, request: u64, kind: EffectKind) -> hapax::Result<()> {
        let event = Event::Called { site: site.clone(), key: key.to_owned(), request };
        self.world.note(self.life, event);
        let wanted = self.key(site, request, kind);
        if key != wanted {
            self.world.violated(format!("{site:?} was called with key {key}, not {wanted}"));
        }
        if kind != EffectKind::Read {
            self.check_gate(site, key).await;
        }
        if let Some(ledger) = &self.ledger {
            ledger::call(ledger, key, &request.into()).await?;
        }
        Ok(())
    }

    async fn check_gate(&self, site: &Site, key: &str) {
        let Some((step, rows)) = self.durable().await else { return };
        if step < site.step {
            self.world.violated(format!("{site:?} was called while only step {step} was durable"));
        }
        let intent = |row: &JournalRow| matches!(&row.entry, Entry::Intent(intent) if intent.key == key);
        if !rows.iter().any(intent) {
            self.world.violated(format!("{site:?} was called before its intent was durable"));
        }
    }

    /// The node sees an answer: it is durable.
    async fn answered(&self, site: &Site) {
        let Some((_, rows)) = self.durable().await else { return };
        let answer = |row: &JournalRow| match &row.entry {
            Entry::Result { scope, index, outcome: EffectOutcome::Ok { .. }, .. } => {
                let here = (row.step, row.path_hash) == (site.step, site.path_hash);
                here && **scope == *site.scope && *index == site.index
            }
            _ => false,
        };
        if !rows.iter().any(answer) {
            self.world.violated(format!("{site:?} saw its answer before it was durable"));
        }
    }

    /// The latest durable step, and all durable rows.
    async fn durable(&self) -> Option<(u64, Vec<JournalRow>)> {
        let disk = self.disk.as_ref()?;
        let record = disk.run(self.run.clone()).await.ok().flatten()?;
        let rows = disk.journal(self.run.clone(), 0, usize::MAX).await.ok()?;
        Some((record.step, rows))
    }

    fn key(&self, site: &Site, request: u64, kind: EffectKind) -> String {
        let at = EffectSite {
            namespace: self.run.namespace.as_str(),
            run_id: self.run.run.as_str(),
            step: site.step,
            path_hash: site.path_hash,
            scope: &site.scope,
            index: site.index,
            name: if kind == EffectKind::Read { LOOK } else { CALL },
        };
        let request = canonical::to_vec(&request).expect("a number is JSON");
        effect_key(&at, &request).into()
    }
}
