//! `hapax graph`: a registered graph, or the path of a run, as a drawing.

use crate::{
    drawing::{Drawing, Trace, dot, mermaid, svg},
    failure::Failure,
    session::Session,
    view,
};
use clap::{Args, ValueEnum};
use hapax::GraphOutline;
use hapax_core::limits::FRONTIER_PAGE;
use hapax_store::RunRecord;

const AFTER_HELP: &str = "\
The path is read from the run's checkpoints: visited nodes and edges are highlighted, what runs next and what failed \
is marked. Of a graph whose code this program doesn't hold, what the run visited is drawn; a dotted line marked \
`perhaps` leads from a node that may have been one more source of a join, or may have ended there.

Examples:
  orders graph orders
  hapax graph --run order-42 --format svg > order-42.svg
  hapax graph --run order-42 --format dot | dot -Tpng > order-42.png";

/// Journal rows that are read at once.
const ROWS: usize = 512;

/// Draw a graph, or the path of a run
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Graph {
    /// A registered graph; may be left out when there is only one
    #[arg(value_name = "GRAPH", conflicts_with = "run")]
    graph: Option<String>,
    /// A run, whose path is drawn in
    #[arg(long, value_name = "RUN")]
    run: Option<String>,
    /// The drawing's language: `mermaid` for Markdown, `dot` for Graphviz, `svg` for browsers
    #[arg(long, value_enum, default_value_t = Format::Mermaid)]
    format: Format,
    /// How many of the run's latest steps are read
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
}

/// A drawing's language.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Mermaid,
    Dot,
    Svg,
}

impl Graph {
    pub(super) async fn run(self, session: &Session<'_>) -> Result<(), Failure> {
        let drawing = match &self.run {
            Some(run) => {
                let read = async |record: &RunRecord| path(session, record, self.steps).await;
                session.in_one_history(run, read).await?.1
            }
            None => Drawing::of(&self.registered(session)?),
        };
        session.out.answer(&drawing, || match self.format {
            Format::Mermaid => mermaid::render(&drawing),
            Format::Dot => dot::render(&drawing),
            Format::Svg => svg::render(&drawing),
        })
    }

    fn registered(&self, session: &Session<'_>) -> Result<GraphOutline, Failure> {
        let graphs = session.engine.graphs();
        if let Some(name) = &self.graph {
            return session.graph(name).ok_or_else(|| session.no_code(&name.as_str().into()));
        }
        match <[GraphOutline; 1]>::try_from(graphs) {
            Ok([only]) => Ok(only),
            Err(graphs) if graphs.is_empty() => {
                Err(Failure::usage("this program holds no graph: name a run with --run"))
            }
            Err(graphs) => {
                let names: Vec<_> = graphs.iter().map(|graph| &*graph.name).collect();
                Err(Failure::usage(format!("which graph? there are {}", names.join(", "))))
            }
        }
    }
}

/// The path of a run through its graph, as far as its latest steps show it.
pub(super) async fn path(session: &Session<'_>, record: &RunRecord, steps: u64) -> Result<Drawing, Failure> {
    let shape = session.shape(record);
    let mut trace = Trace::default();
    if shape.is_none() {
        tell_ends(&mut trace, record, session).await?;
    }
    follow(&mut trace, record, steps, session).await?;
    let mut drawing = match &shape {
        Some(shape) => Drawing::of(shape),
        None => Drawing::empty(&record.graph),
    };
    let failed = view::failure(&record.status).and_then(|failure| failure.node.as_ref());
    let failed = failed.map(|failure| failure.node.as_str());
    drawing.draw_path(&trace, shape.as_ref(), failed, record.status.is_final());
    drawing.title = format!("{}: {}", record.graph, view::standing(record));
    Ok(drawing)
}

async fn follow(
    trace: &mut Trace,
    record: &RunRecord,
    steps: u64,
    session: &Session<'_>,
) -> Result<(), Failure> {
    let store = session.engine.store();
    let latest = session.latest_steps(record, steps).await?;
    let first = *latest.start();
    if first > *session.steps(record).await?.start() {
        session.out.remark(&format!("--steps {steps} is reached: older ones are not drawn"));
    }
    let progress = session.out.progress(Some(record.step + 1 - first), "steps");
    for step in latest {
        progress.inc(1);
        let checkpoint = session.checkpoint(record, step).await?;
        trace.begin_step();
        trace.add(&checkpoint.frontier);
        for page in 1..checkpoint.frontier_len.div_ceil(FRONTIER_PAGE) {
            let page = u32::try_from(page).unwrap_or(u32::MAX);
            trace.add(&store.frontier_page(record.key.clone(), step, page).await?);
        }
        trace.end_step(&checkpoint);
    }
    progress.finish_and_clear();
    Ok(())
}

/// How items of larger steps ended is in the journal.
async fn tell_ends(trace: &mut Trace, record: &RunRecord, session: &Session<'_>) -> Result<(), Failure> {
    let (store, mut from) = (session.engine.store(), 0);
    loop {
        let rows = store.journal(record.key.clone(), from, ROWS).await?;
        let Some(last) = rows.last() else { return Ok(()) };
        from = last.seq + 1;
        rows.into_iter().for_each(|row| trace.tell(row));
    }
}
