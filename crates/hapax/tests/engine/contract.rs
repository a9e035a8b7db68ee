//! Lines of the contract that were broken once, each held by a test.

use crate::common::*;
use hapax::{Coded, Error, Status, core::error::code, prelude::*};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const WORK: Node = Node::new("work");
const NEXT: Node = Node::new("next");
const ITEM: Node<u64> = Node::new("item");
const RESCUE: Node<NodeFailure> = Node::new("rescue");

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Answers {
    choice: Option<Option<u8>>,
    number: f64,
    #[state(append)]
    log: Vec<String>,
}

#[tokio::test]
async fn a_step_sees_what_it_would_see_after_a_crash() {
    async fn work(_: hapax::Ctx<Answers>) -> AnswersDelta {
        Answers::delta().choice(Some(None)).number(-0.0)
    }
    async fn next(ctx: hapax::Ctx<Answers>) -> AnswersDelta {
        let state = ctx.state();
        Answers::delta().log(format!("{:?} {:?}", state.choice, 1.0 / state.number))
    }
    let graph = Graph::new("answers", 1, WORK).node(WORK, work).node(NEXT, next).edge(WORK, NEXT);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let end = flow.start("run", Answers::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(end.log, ["None inf"], "JSON knows neither Some(None) nor -0");
}

#[tokio::test]
async fn an_answer_is_shown_as_it_is_recorded() {
    let work = node!(
        [] | ctx | {
            let answer: Option<Option<u8>> =
                ctx.effect("ask", Write, &1, async |_| Ok::<_, NodeError>(Some(None))).await?;
            Ok::<_, NodeError>(Board::delta().log(format!("{answer:?}")))
        }
    );
    let flow =
        engine(Options::default()).register(Graph::new("ask", 1, WORK).node(WORK, work), ()).await.unwrap();
    let end = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(end.log, ["None"]);
}

#[tokio::test]
async fn a_scope_has_a_name_of_its_own() {
    for name in ["", "a/b", "a\nb"] {
        let work = node!(
            [] | ctx | {
                let mut lane = ctx.scope(name);
                let call = async |_| Ok::<_, NodeError>(1u64);
                let paid: u64 = lane.effect("pay", Write, &1, call).await?;
                Ok::<_, NodeError>(Board::delta().total(paid))
            }
        );
        let graph = Graph::new("scopes", 1, WORK).node(WORK, work);
        let flow = engine(Options::default()).register(graph, ()).await.unwrap();
        let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
        assert_eq!(error.code(), code::INVALID_ID, "{name:?}: {error}");
    }
}

#[tokio::test]
async fn a_cancel_counts_although_the_run_was_about_to_fail() {
    let (reached, go) = (Signal::default(), Signal::default());
    let work = node!(
        [reached, go] | ctx | {
            reached.give();
            go.take().await;
            Err::<(), _>(NodeError::new("too late"))
        }
    );
    let engine = engine(Options::default().cancel_grace(Duration::MAX));
    let flow = engine.register(Graph::new("late", 1, WORK).node(WORK, work), ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    reached.take().await;
    engine.store().request_cancel(key("run")).await.unwrap();
    go.give();
    assert!(matches!(run.wait().await, Err(Error::Cancelled { .. })));
    assert_eq!(run.status().await.unwrap(), Status::Cancelled);
}

#[tokio::test]
async fn when_an_item_fails_all_others_finish() {
    for concurrent in [1, 4] {
        let diary = Diary::default();
        let item = node!(
            [diary] | ctx,
            n: u64 | {
                diary.note(n.to_string());
                if n == 0 { Err(NodeError::new("first")) } else { Ok(Board::delta().total(n)) }
            }
        );
        let work = node!([] | ctx | { Board::delta().fork((0..20).map(|n| ITEM.with(n))) });
        let graph = Graph::new("fork", 1, WORK).node(WORK, work).node(ITEM, item);
        let options = Options::default().max_concurrent_nodes(concurrent);
        let flow = engine(options).register(graph, ()).await.unwrap();
        let error = flow.start("run", Board::default()).await.unwrap().wait().await.unwrap_err();
        assert_eq!((error.code(), diary.len()), (code::NODE_FAILED, 20));
    }
}

#[tokio::test]
async fn a_delta_that_cannot_be_written_goes_to_the_handler() {
    async fn work(_: hapax::Ctx<Answers>) -> AnswersDelta {
        Answers::delta().number(f64::NAN)
    }
    async fn rescue(_: hapax::Ctx<Answers>, failure: NodeFailure) -> AnswersDelta {
        Answers::delta().log(failure.code)
    }
    let graph = Graph::new("nan", 1, WORK).node(WORK, work).node(RESCUE, rescue).on_error(WORK, RESCUE);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let end = flow.start("run", Answers::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(end.log, [code::NOT_SERIALISABLE]);
}

#[tokio::test]
async fn a_delta_over_the_limit_fails_the_run_in_memory_too() {
    let item =
        node!([] | ctx, n: u64 | { Board::delta().log("x".repeat(if n == 0 { 17 << 20 } else { 1 })) });
    let work = node!([] | ctx | { Board::delta().fork([ITEM.with(0), ITEM.with(1)]) });
    let graph = Graph::new("large", 1, WORK).node(WORK, work).node(ITEM, item);
    let flow = engine(Options::default()).register(graph, ()).await.unwrap();
    let run = flow.start("run", Board::default()).await.unwrap();
    let error = run.wait().await.unwrap_err();
    assert_eq!((error.code(), failure(&error).step), (code::LIMIT, 1), "{error}");
    assert!(matches!(run.status().await.unwrap(), Status::Failed { .. }));
}

#[test]
fn two_versions_of_a_graph_live_side_by_side() {
    let graph = |version: u32| {
        let work = node!([] | ctx | { Board::delta().total(u64::from(version)) });
        Graph::new("versions", version, WORK).node(WORK, work)
    };
    let store = memory();
    let process = Process::dying_before(&store, |write| matches!(write, hapax::core::commit::Write::Step(_)));
    let doomed = process.engine(Options::default());
    process.run(async {
        let old = doomed.register(graph(1), ()).await.unwrap();
        old.start("old", Board::default()).await.unwrap();
    });
    process.run_to_death(async {});
    let process = Process::healthy(&store);
    let engine = process.engine(Options::default());
    process.run(async {
        let old = engine.register(graph(1), ()).await.unwrap();
        engine.register(graph(2), ()).await.unwrap();
        assert_eq!(old.attach("old").await.unwrap().wait().await.unwrap().total, 1);
    });
}

#[tokio::test]
async fn a_policy_for_a_node_that_is_not_there_is_refused() {
    let work = node!([] | ctx | {});
    let graph = Graph::<Board>::new("policy", 1, WORK).node(WORK, work).policy(NEXT, NodePolicy::default());
    assert_eq!(graph.check().unwrap_err().code(), code::UNKNOWN_NODE);
}
