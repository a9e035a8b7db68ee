//! A generated case as a graph with code: what its nodes write follows from the state, the input, the draws and the
//! answers, and from nothing else.

use crate::{
    generate::{Behaviour, Case, Effect, NAMES, Reached, When},
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
    key::{EffectSite, effect_key},
};
use hapax_store::Store;
use std::{sync::Arc, time::Duration};

/// The effect's name in every call.
const CALL: &str = "call";

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
async fn work(mut ctx: Context, own: &Behaviour, input: u64) -> hapax::Result<LedgerDelta> {
    let (app, node) = (ctx.app(), ctx.node_id().to_string());
    let (step, path_hash, attempt) = (ctx.step_id(), ctx.path_hash(), ctx.attempt());
    app.world.note(app.life, Event::Executed { step, path_hash, node: node.clone(), attempt });
    let draw = if own.draws { ctx.rng().below(1_000_000) } else { 0 };
    let mut answers = 0;
    for (index, effect) in own.effects.iter().enumerate() {
        answers += call(&mut ctx, String::new(), index as u32, effect).await?;
    }
    if own.scopes {
        answers += side_by_side(&mut ctx).await?;
    }
    app.pace.wait(Site { step, path_hash, scope: String::new(), index: attempt }).await;
    if attempt <= own.fails_first {
        return Err(NodeError::new(format!("{node} fails attempt {attempt}")));
    }
    let visits = ctx.state().visits.get(&node).copied().unwrap_or(0) + 1;
    let delta = Ledger::delta()
        .log(format!("{node}@{step} {input} {draw} {answers}"))
        .total(input + answers + node.len() as u64 + step)
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
async fn side_by_side(ctx: &mut Context) -> hapax::Result<u64> {
    let (mut left, mut right) = (ctx.scope("left"), ctx.scope("right"));
    let ask = |request| Effect { request, fails_first: 0 };
    let (one, two, three) = (ask(1), ask(2), ask(3));
    let (left, right) = join(
        async {
            Ok::<_, NodeError>(
                call(&mut left, "left".into(), 0, &one).await?
                    + call(&mut left, "left".into(), 1, &two).await?,
            )
        },
        call(&mut right, "right".into(), 0, &three),
    )
    .await;
    Ok(left? + right?)
}

/// One call to the outside. The answer follows from the request.
async fn call(ctx: &mut Context, scope: String, index: u32, effect: &Effect) -> hapax::Result<u64> {
    let (app, attempt) = (ctx.app(), ctx.attempt());
    let site = Site { step: ctx.step_id(), path_hash: ctx.path_hash(), scope, index };
    let Effect { request, fails_first } = effect.clone();
    let outside = async |call: hapax::Call| {
        app.called(&site, call.key(), request).await;
        if attempt <= fails_first {
            return Err(NodeError::new("the outside is down"));
        }
        Ok(request * 31 + 7)
    };
    let answer = ctx.effect(CALL, EffectKind::Write, &request, outside).await?;
    app.answered(&site).await;
    Ok(answer)
}

impl Outside {
    /// The outside is being called: the key is the one that the contract says, and what the gate promises holds.
    async fn called(&self, site: &Site, key: &str, request: u64) {
        let event = Event::Called { site: site.clone(), key: key.to_owned(), request };
        self.world.note(self.life, event);
        let wanted = self.key(site, request);
        if key != wanted {
            self.world.violated(format!("{site:?} was called with key {key}, not {wanted}"));
        }
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

    fn key(&self, site: &Site, request: u64) -> String {
        let at = EffectSite {
            namespace: self.run.namespace.as_str(),
            run_id: self.run.run.as_str(),
            step: site.step,
            path_hash: site.path_hash,
            scope: &site.scope,
            index: site.index,
            name: CALL,
        };
        let request = canonical::to_vec(&request).expect("a number is JSON");
        effect_key(&at, &request).into()
    }
}
