//! Graphs inside graphs, and runs that begin anew.

use crate::common::*;
use hapax::{Coded, NodeFailure, core::error::code, prelude::*, store::Store};
use std::sync::Arc;

const START: Node = Node::new("start");
const PART: Node = Node::new("part");
const AFTER: Node = Node::new("after");
const LEFT: Node<u64> = Node::new("left");
const RIGHT: Node<u64> = Node::new("right");
const DONE: Node = Node::new("done");
const EXCUSE: Node<NodeFailure> = Node::new("excuse");

async fn named(ctx: Ctx) -> BoardDelta {
    Board::delta().log(ctx.node_id().to_string())
}

async fn with_input(ctx: Ctx, input: u64) -> BoardDelta {
    Board::delta().log(format!("{} {input}", ctx.node_id()))
}

/// Forks, joins and goes where it is sent, all inside itself.
fn part() -> Graph<Board> {
    let start = node!(
        [] | ctx | { Board::delta().log(ctx.node_id().to_string()).fork([LEFT.with(1), RIGHT.with(2)]) }
    );
    let jump = node!([] | ctx | { Board::delta().log(ctx.node_id().to_string()).goto(AFTER) });
    Graph::new("part", 1, START)
        .node(START, start)
        .node(LEFT, with_input)
        .node(RIGHT, with_input)
        .node(DONE, jump)
        .node(AFTER, named)
        .join((LEFT, RIGHT), DONE)
}

async fn finished(graph: Graph<Board>) -> Result<Board, hapax::Error> {
    let engine = engine(Options::default());
    let flow = engine.register(graph, ()).await?;
    let board = flow.start("run", Board::default()).await?.wait().await?;
    assert_eq!(engine.replay("run").await?.divergence, None);
    Ok(board)
}

#[tokio::test]
async fn a_part_forks_joins_and_jumps_inside_itself_and_leads_on_where_it_ends() {
    let graph = Graph::new("whole", 1, PART).subgraph(PART, part()).node(AFTER, named).edge(PART, AFTER);
    let log = finished(graph).await.unwrap().log;
    assert_eq!(log, ["part/start", "part/left 1", "part/right 2", "part/done", "part/after", "after"]);
}

#[tokio::test]
async fn a_part_in_a_part_and_the_same_part_twice() {
    const OUTER: Node = Node::new("outer");
    const AGAIN: Node = Node::new("again");
    let one = || Graph::new("one", 1, START).node(START, named);
    let middle = Graph::new("middle", 1, PART).subgraph(PART, one());
    let graph =
        Graph::new("whole", 1, OUTER).subgraph(OUTER, middle).subgraph(AGAIN, one()).edge(OUTER, AGAIN);
    assert_eq!(finished(graph).await.unwrap().log, ["outer/part/start", "again/start"]);
}

#[tokio::test]
async fn a_part_that_ends_in_several_places_leaves_by_one() {
    let middle = |rounds: usize| {
        Graph::new("loop", 1, START)
            .node(START, named)
            .edge_if(START, START, "again", move |board: &Board| board.log.len() < rounds)
            .end(START)
    };
    let graph = Graph::new("whole", 1, PART).subgraph(PART, middle(3)).node(AFTER, named).edge(PART, AFTER);
    assert_eq!(finished(graph).await.unwrap().log, ["part/start", "part/start", "part/start", "after"]);

    let both = Graph::new("both", 1, START)
        .node(START, named)
        .node(DONE, named)
        .node(AFTER, named)
        .edge(START, DONE)
        .edge(START, AFTER);
    let graph = Graph::new("whole", 1, PART).subgraph(PART, both).node(AFTER, named).edge(PART, AFTER);
    assert_eq!(finished(graph).await.unwrap().log, ["part/start", "part/done", "part/after", "after"]);
}

#[tokio::test]
async fn a_part_can_be_joined_and_its_failure_handled() {
    let fails = node!([] | ctx | { Err::<(), _>(NodeError::new("no")) });
    let excuse = node!([] |ctx, failure: NodeFailure| { Board::delta().log(format!("{}: {}", failure.node, failure.message)) });
    let part = Graph::new("fails", 1, START).node(START, fails);
    let graph = Graph::new("whole", 1, PART).subgraph(PART, part).node(EXCUSE, excuse).on_error(PART, EXCUSE);
    assert_eq!(finished(graph).await.unwrap().log, ["part/start: no"]);

    let one = Graph::new("one", 1, START).node(START, named);
    let graph = Graph::new("whole", 1, START)
        .node(START, named)
        .subgraph(PART, one)
        .node(DONE, named)
        .node(AFTER, named)
        .edge(START, PART)
        .edge(START, DONE)
        .join((PART, DONE), AFTER);
    assert_eq!(finished(graph).await.unwrap().log, ["start", "done", "part/start", "after"]);
}

#[tokio::test]
async fn a_part_is_part_of_the_fingerprint_and_of_the_checks() {
    let whole = |part: Graph<Board>| Graph::new("whole", 1, PART).subgraph(PART, part).check();
    let one = || Graph::new("one", 1, START).node(START, named);
    assert_eq!(whole(one()).unwrap(), whole(one()).unwrap());
    assert_ne!(whole(one()).unwrap(), whole(one().node(DONE, named).edge(START, DONE)).unwrap());
    assert_eq!(whole(one().node(DONE, named)).unwrap_err().code(), code::UNREACHABLE);
    let twice = Graph::new("whole", 1, PART).subgraph(PART, one()).node(PART, named);
    assert_eq!(twice.check().unwrap_err().code(), code::DUPLICATE);
}

/// Counts to ten and begins anew with the hundreds; ends when there are three of them.
fn endless() -> Graph<Board> {
    let count = node!(
        [] | ctx | {
            let board = ctx.state();
            let _: u64 = ctx.effect("look", Write, &board.total, async |_| Ok::<u64, NodeError>(1)).await?;
            Ok::<_, NodeError>(match board.total {
                300.. => Board::delta().word("done".to_owned()).stop(),
                total if total % 100 == 10 => {
                    Outcome::continue_as(&Board { total: total - 10 + 100, ..Board::default() })
                }
                _ => Board::delta().total(1u64).log("one".to_owned()).goto(START),
            })
        }
    );
    Graph::new("endless", 1, START).node(START, count)
}

#[tokio::test]
async fn a_run_that_begins_anew_forgets_its_history_and_keeps_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("runs.db").display());
    for engine in [Engine::open("memory:").await.unwrap(), Engine::open(&url).await.unwrap()] {
        let flow = engine.register(endless(), ()).await.unwrap();
        let board = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
        assert_eq!((board.total, board.log.len(), board.word.as_deref()), (300, 0, Some("done")));
        let store = engine.store();
        let kept = store.checkpoints(key("run"), 0, 1000).await.unwrap();
        assert_eq!(kept.iter().map(|checkpoint| checkpoint.step).collect::<Vec<_>>(), [33, 34]);
        let rows = store.journal(key("run"), 0, 1000).await.unwrap();
        assert!(rows.iter().all(|row| row.step == 33) && rows.len() == 2, "{rows:?}");
        assert_eq!(engine.replay("run").await.unwrap().divergence, None);
        engine.shutdown(std::time::Duration::from_secs(5)).await;
    }
}

/// Takes two steps, waits for a signal in a third, and begins anew; ends in its fifth round. Told to stay, it doesn't.
fn rounds() -> Graph<Board> {
    let round = node!(
        [] | ctx | {
            let board = ctx.state();
            Ok::<_, NodeError>(match board.log.len() {
                0 | 1 => Board::delta().log("one").goto(START),
                2 => {
                    let stay: bool = ctx.signal("go on").await?;
                    Board::delta().log("two").word(stay.then(|| "stay".to_owned())).goto(START)
                }
                _ if board.word.is_some() => Board::delta().goto(START),
                _ if board.total == 4 => Board::delta().stop(),
                _ => Outcome::continue_as(&Board { total: board.total + 1, ..Board::default() }),
            })
        }
    );
    Graph::new("rounds", 1, START).node(START, round)
}

/// In each round it is parked, and so loaded again in its middle.
#[tokio::test]
async fn steps_are_counted_anew_when_a_run_begins_anew() {
    let engine = engine(Options::default().max_steps(Some(4)));
    let flow = engine.register(rounds(), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    for _ in 0..5 {
        engine.signal("run", "go on", &false).await.unwrap();
    }
    assert_eq!(run.wait().await.unwrap().total, 4);
    assert_eq!(engine.record("run").await.unwrap().step, 20);
    let run = flow.start("stays", Board::default()).await.unwrap();
    engine.signal("stays", "go on", &false).await.unwrap();
    engine.signal("stays", "go on", &true).await.unwrap();
    let error = run.wait().await.unwrap_err();
    assert_eq!(error.code(), code::MAX_STEPS, "{error}");
    assert_eq!(engine.record("stays").await.unwrap().step, 8, "four in each round");
}

#[test]
fn a_crash_before_or_after_it_begins_anew_changes_nothing() {
    for dies_at in 0..=36 {
        let store: Arc<dyn Store> = memory();
        let steps = std::sync::atomic::AtomicU64::new(0);
        let fatal = move |write: &hapax::core::commit::Write| {
            let is_step = matches!(write, hapax::core::commit::Write::Step(_));
            is_step && steps.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == dies_at
        };
        let process = Process::dying_before(&store, fatal);
        process.run(async {
            let flow = process.engine(Options::default()).register(endless(), ()).await.unwrap();
            let run = flow.start("run", Board::default()).await.unwrap();
            tokio::select! {
                ended = run.wait() => assert_eq!(ended.unwrap().total, 300),
                () = process.died() => {}
            }
        });
        process.crash();
        assert_eq!(go_on(&store, endless()).unwrap().total, 300, "killed before its step {dies_at}");
    }
}
