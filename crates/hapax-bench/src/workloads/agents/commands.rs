//! Commands through the engine: recorded, remembered by the agent, with a receipt each.

use super::{super::close, super::open, words};
use crate::{
    Result,
    args::Drive,
    clock,
    meter::{Meter, Tally, extra, transactions},
};
use futures::future::try_join_all;
use hapax::{
    agent::{Agent, Command, Workspace},
    prelude::*,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{fs, sync::Arc};
use tempfile::TempDir;

const STEP: Node = Node::new("step");

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Commands {
    #[state(sum)]
    done: u64,
    of: u64,
    /// The agent that has this run's commands.
    agent: usize,
}

struct Crew {
    agents: Vec<Agent>,
    tally: Arc<Tally>,
}

async fn step(mut ctx: hapax::Ctx<Commands, Crew>) -> hapax::Result<CommandsDelta> {
    let (state, crew) = (ctx.state(), ctx.app());
    let command = Command::new("work", "T-1").inputs(&json!({"goal": "roman numerals", "round": state.done}));
    let start = clock::now();
    ctx.command(&crew.agents[state.agent], command).await?;
    crew.tally.count();
    crew.tally.record(start);
    Ok(Commands::delta().done(1u64))
}

fn agents(count: u64, workspace: &Workspace) -> Result<Vec<Agent>> {
    let program = std::env::current_exe()?;
    let agent = |number| {
        let builder = Agent::builder("bench", &program).args(words(true)).workspace(workspace);
        builder.id(&format!("bench-{number}")).build()
    };
    Ok((0..count).map(agent).collect::<Result<_, _>>()?)
}

/// A run for each agent, all at the same time.
pub(super) async fn run(drive: &Drive, [count, crew]: [u64; 2], folder: &TempDir) -> Result<()> {
    let root = folder.path().join("work");
    fs::create_dir(&root)?;
    fs::write(root.join("roman.py"), "print()\n")?;
    let (engine, tally) = (open(drive).await?, Tally::new(count));
    let agents = agents(crew, &Workspace::open(root)?)?;
    let graph = Graph::new("commands", 1, STEP)
        .node(STEP, step)
        .edge_if(STEP, STEP, "more", |commands: &Commands| commands.done < commands.of)
        .end(STEP);
    let flow = engine.register(graph, Crew { agents, tally: tally.clone() }).await?;
    let runs = async |name: &'static str, of: u64| {
        let run = async |agent: usize| {
            let begin = Commands { of, agent, ..Commands::default() };
            flow.start(&format!("{name}-{agent}"), begin).await?.wait().await
        };
        try_join_all((0..crew as usize).map(run)).await
    };
    // All of them are started before.
    runs("warm", 2).await?;
    tally.forget();
    let (store, each) = (engine.store(), (count / crew).max(1));
    let (before, meter) = (store.stats(), Meter::begin(tally));
    runs("commands", each).await?;
    meter.end(each * crew, transactions(before, store.stats()), extra("commands", "of a command"));
    close(&engine).await;
    Ok(())
}
