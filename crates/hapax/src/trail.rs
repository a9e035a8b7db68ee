//! What is counted and told of one run while it is in this engine's hands.
//!
//! Invariant: nothing that is executed depends on it. Without a watcher it costs a few additions for each step.

use crate::{
    clock,
    gate::{lock, micros},
    item::Item,
    metrics::{Counters, OfGraph},
    observe::{Event, Observer},
    watch::{Ended, Link, Span, Watch, What, Why},
};
use hapax_core::{
    commit::Status,
    id::{RunId, RunKey},
    journal::EffectOutcome,
    trace::{SpanId, TraceId},
};
use hapax_store::{Clock, RunRecord};
use std::{
    pin::pin,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

/// What a run leaves behind for those who look on.
pub(crate) struct Trail {
    observer: Observer,
    pub(crate) counters: Arc<Counters>,
    clock: Clock,
    run: RunKey,
    claim: u64,
    trace: OnceLock<TraceId>,
    born: OnceLock<Born>,
    /// The step that is executed now.
    step: Mutex<Option<Began>>,
}

/// What is known of a run once it is loaded.
struct Born {
    graph: Arc<str>,
    counters: Arc<OfGraph>,
    created_at_us: i64,
    parent: Option<RunId>,
    /// The step at which this claim began.
    step: u64,
}

/// A step's begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Began {
    at: Instant,
    items: usize,
}

/// Somebody watches, and wants to know of this trace.
#[derive(Clone)]
pub(crate) struct Traced {
    watch: Arc<dyn Watch>,
    clock: Clock,
    trace: TraceId,
    span: SpanId,
    graph: Arc<str>,
}

/// A span that is under way. It is told of when it ends; dropped before that, it tells so.
pub(crate) struct Open {
    traced: Traced,
    span: Option<Span>,
}

impl Trail {
    pub(crate) fn new(
        observer: Observer,
        counters: Arc<Counters>,
        clock: Clock,
        run: RunKey,
        claim: u64,
    ) -> Self {
        let (trace, born, step) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Self { observer, counters, clock, run, claim, trace, born, step }
    }

    /// Of a run that nobody looks at.
    #[cfg(test)]
    pub(crate) fn of(run: RunKey) -> Self {
        Self::new(Observer::default(), Arc::default(), Clock::system(), run, 1)
    }

    /// The run was created just now, and this engine is the first to have it.
    pub(crate) fn begins(&self, graph: &Arc<str>) {
        self.know(graph, self.clock.now_us(), None, 0);
    }

    /// The run is this one. Of the first who says so it is believed.
    pub(crate) fn is_of(&self, record: &RunRecord) {
        self.know(&record.graph, record.created_at_us, record.parent.clone(), record.step);
    }

    /// Whether it is known which run this is.
    pub(crate) fn is_known(&self) -> bool {
        self.born.get().is_some()
    }

    fn know(&self, graph: &Arc<str>, created_at_us: i64, parent: Option<RunId>, step: u64) {
        self.born.get_or_init(|| {
            let counters = self.counters.of_run(graph, &self.run);
            Born { graph: graph.clone(), counters, created_at_us, parent, step }
        });
    }

    /// The counters of the run's graph, once it is known, and if something is counted.
    pub(crate) fn of_graph(&self) -> Option<&OfGraph> {
        self.born.get().filter(|_| self.counters.are_on()).map(|born| &*born.counters)
    }

    /// The run is about to be executed here.
    pub(crate) fn claimed(&self, step: u64, taken_over: bool) {
        if taken_over {
            self.counters.takeovers.one_more();
        }
        if let Some(graph) = self.of_graph().filter(|_| self.claim == 1) {
            graph.started.one_more();
        }
        self.observer.emit(|| Event::RunClaimed { run: self.run.clone(), step, taken_over });
    }

    /// A step of so many items is about to be executed.
    pub(crate) fn step_begins(&self, step: u64, items: usize) {
        if self.is_timed() {
            *lock(&self.step) = Some(Began { at: clock::instant(), items });
        }
        self.observer.emit(|| Event::StepStarted { run: self.run.clone(), step, items });
    }

    /// The step that was executed is on its way to the disk.
    pub(crate) fn step_leaves(&self) -> Option<Began> {
        self.is_timed().then(|| lock(&self.step).take()).flatten()
    }

    /// Whether somebody wants to know how long a step takes.
    fn is_timed(&self) -> bool {
        self.counters.are_on() || self.observer.watcher().is_some()
    }

    /// A step is durable.
    pub(crate) fn step_is_durable(&self, step: u64, began: Option<Began>) {
        let took = began.map(|began| clock::since(began.at));
        if let Some(graph) = self.of_graph() {
            graph.step(took);
        }
        self.observer.emit(|| Event::StepCommitted { run: self.run.clone(), step });
        if let Some(began) = began {
            self.tell_step(step - 1, began, took.unwrap_or_default());
        }
    }

    /// Tells of the step that consumed this frontier.
    pub(crate) fn tell_step(&self, step: u64, began: Began, took: Duration) {
        let Some(traced) = self.traced(|trace| SpanId::of_step(trace, step)) else { return };
        let ended_us = self.clock.now_us();
        let what = What::Step { step, items: began.items };
        let parent = Some(SpanId::of_run(traced.trace));
        let began_us = ended_us.saturating_sub_unsigned(micros(took));
        let span = traced.span(&self.run, traced.span, parent, what, began_us);
        traced.watch.over(Span { ended_us, ..span });
    }

    /// The run left this engine's hands, and what it is now is durable.
    pub(crate) fn left(&self, status: &Status) {
        self.counters.doubted(status);
        let Some(born) = self.born.get() else { return };
        if let Some(graph) = self.of_graph() {
            graph.left(status);
        }
        let Some(traced) = self.traced(SpanId::of_run).filter(|_| status.is_final()) else {
            return;
        };
        let parent = born.parent.as_ref().map(|parent| {
            let parent = RunKey { namespace: self.run.namespace.clone(), run: parent.clone() };
            let (trace, span) = (TraceId::of(&parent), SpanId::of_child(&parent, &self.run.run));
            Link { trace, span, why: Why::Parent }
        });
        let ended = match status {
            Status::Failed { error } => Ended::Failed(error.code.clone()),
            Status::Cancelled => Ended::Dropped,
            _ => Ended::Well,
        };
        let what = What::Run { status: status.word() };
        let span = traced.span(&self.run, traced.span, None, what, born.created_at_us);
        let (ended_us, links) = (self.clock.now_us().max(born.created_at_us), parent.into_iter().collect());
        traced.watch.over(Span { ended, ended_us, links, ..span });
    }

    /// An attempt begins; `first`: the first of its item under this claim.
    pub(crate) fn attempt(&self, item: &Item, attempt: u32, first: bool) -> Option<Open> {
        let (step, path) = (item.step, item.path_hash);
        let id = |trace, claim, attempt| SpanId::of_attempt(trace, step, path, claim, attempt);
        let traced = self.traced(|trace| id(trace, self.claim, attempt))?;
        let resumed = first && self.claim > 1 && self.born.get().is_some_and(|born| born.step == item.step);
        let before = if resumed { self.claim - 1 } else { self.claim };
        let link = |why, span| Link { trace: traced.trace, span, why };
        let resume = resumed.then(|| link(Why::Resume, id(traced.trace, before, attempt)));
        let retry = (attempt > 1).then(|| link(Why::Retry, id(traced.trace, before, attempt - 1)));
        let what = What::Attempt {
            step: item.step,
            node: item.node.clone(),
            order_key: item.order_key,
            path_hash: item.path_hash,
            attempt,
            claim: self.claim,
        };
        let parent = Some(SpanId::of_step(traced.trace, step));
        let span = traced.span(&self.run, traced.span, parent, what, self.clock.now_us());
        let links = resume.into_iter().chain(retry).collect();
        Some(Open { traced, span: Some(Span { links, ..span }) })
    }

    /// Nothing is computed unless somebody watches.
    fn traced(&self, span: impl FnOnce(TraceId) -> SpanId) -> Option<Traced> {
        let (watch, born) = (self.observer.watcher()?, self.born.get()?);
        let trace = *self.trace.get_or_init(|| TraceId::of(&self.run));
        let (watch, clock, graph) = (watch.clone(), self.clock.clone(), born.graph.clone());
        watch.samples(trace).then(|| Traced { watch, clock, trace, span: span(trace), graph })
    }
}

impl Traced {
    fn span(&self, run: &RunKey, id: SpanId, parent: Option<SpanId>, what: What, began_us: i64) -> Span {
        let (trace, run, graph, links) = (self.trace, run.clone(), self.graph.clone(), vec![]);
        Span { trace, id, parent, run, graph, what, ended: Ended::Well, began_us, ended_us: began_us, links }
    }

    /// The header that lets others add to the trace.
    pub(crate) fn traceparent(&self, span: SpanId) -> String {
        hapax_core::trace::traceparent(self.trace, span, true)
    }

    /// A call of this attempt begins: what it is, and under which id it is told of.
    pub(crate) fn call(&self, item: &Item, id: SpanId, what: What, began_us: Option<i64>) -> Open {
        let began_us = began_us.unwrap_or_else(|| self.clock.now_us());
        let span = self.span(&item.run, id, Some(self.span), what, began_us);
        Open { traced: Traced { span: id, ..self.clone() }, span: Some(span) }
    }

    /// The attempt's own span.
    pub(crate) fn id(&self) -> SpanId {
        self.span
    }
}

impl Open {
    pub(crate) fn traced(&self) -> &Traced {
        &self.traced
    }

    /// The run that a call started.
    pub(crate) fn link_child(&mut self, child: &RunKey) {
        let trace = TraceId::of(child);
        let link = Link { trace, span: SpanId::of_run(trace), why: Why::Child };
        self.span.iter_mut().for_each(|span| span.links.push(link));
    }

    pub(crate) fn end(mut self, ended: Ended) {
        self.tell(ended);
    }

    /// It waits, and is made again.
    pub(crate) fn parked(self) {
        self.end(Ended::Parked);
    }

    fn tell(&mut self, ended: Ended) {
        if let Some(span) = self.span.take() {
            let ended_us = self.traced.clock.now_us().max(span.began_us);
            self.traced.watch.over(Span { ended, ended_us, ..span });
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.tell(Ended::Dropped);
    }
}

/// Ends a span, if there is one, by how a result came out.
pub(crate) fn end<T, E>(open: Option<Open>, result: &Result<T, E>, code: impl FnOnce(&E) -> String) {
    if let Some(open) = open {
        open.end(match result {
            Ok(_) => Ended::Well,
            Err(error) => Ended::Failed(code(error)),
        });
    }
}

/// The same by what is recorded of a call.
pub(crate) fn end_with(open: Option<Open>, outcome: &EffectOutcome) {
    let result = match outcome {
        EffectOutcome::Ok { .. } => Ok(()),
        EffectOutcome::Err { code, .. } => Err(code),
    };
    end(open, &result, |code| (*code).clone());
}

/// Polls the user's code inside its span, so that spans of its own become part of it.
pub(crate) async fn within<F: Future>(traced: Option<&Traced>, future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        let _entered = traced.and_then(|traced| traced.watch.enter(traced.trace, traced.span));
        future.as_mut().poll(cx)
    })
    .await
}
