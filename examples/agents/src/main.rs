//! Three agents, each a small Python program, work on one folder: one builds a module, one reviews it and isn't content, the first
//! mends it, and the third writes the specification. Kill it anywhere and run it again: it goes on.

use hapax::{
    agent::{
        Agent, Error, Workspace,
        flows::{self, Task, Team, Work},
    },
    prelude::*,
};
use std::{fs, path::Path, process::Command, time::Duration};

const AGENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/agents");

fn agent(kind: &str, workspace: &Workspace) -> Result<Agent, Error> {
    Agent::builder(kind, "python3").arg(format!("{AGENTS}/{kind}.py")).workspace(workspace).build()
}

fn team(workspace: &Workspace) -> Result<Team, Error> {
    Ok(Team {
        builder: agent("builder", workspace)?,
        reviewer: agent("reviewer", workspace)?,
        spec_keeper: agent("spec_keeper", workspace)?,
    })
}

/// What Python says; an error if it isn't there or isn't content.
fn python(args: &[&str]) -> hapax::Result<String> {
    let said = Command::new("python3").args(args).output();
    let said = said.map_err(|error| NodeError::new(format!("this example needs python3: {error}")))?;
    if !said.status.success() {
        return Err(NodeError::new(String::from_utf8_lossy(&said.stderr)));
    }
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

fn sent(team: &Team) -> u64 {
    [&team.builder, &team.reviewer, &team.spec_keeper].iter().map(|agent| agent.stats().sent).sum()
}

/// What happened, and what each review that wasn't content found.
fn tell(work: &Work) {
    work.log.iter().for_each(|line| println!("{line}"));
    for verdict in work.verdicts.iter().filter(|verdict| !verdict.is_content()) {
        println!("round {}: {} findings", verdict.round, verdict.findings.len());
    }
}

#[tokio::main]
async fn main() -> hapax::Result<()> {
    python(&["--version"])?;
    fs::create_dir_all("project")?;
    let workspace = Workspace::open("project")?;
    let team = team(&workspace)?;
    let engine = Engine::open("sqlite:agents.db").await?;
    let flow = engine.register(flows::review_loop(), team.clone()).await?;
    let numerals = Task::new("T-1", "Roman numerals").file("src/roman.py").file("CHANGELOG.md");
    let work = Work::new([numerals]).max_rounds(3);

    tell(&flow.start("work-1", work.clone()).await?.wait().await?);
    println!("commands sent: {}", sent(&team));
    // The same run again: it has its result, and no agent is asked.
    let again = flow.start("work-1", work).await?.wait().await?;
    println!("asked again: {} task done, commands sent: {}", again.done, sent(&team));

    println!("the workspace is {}", workspace.snapshot()?.id);
    let call = "import sys; sys.path.insert(0, 'project/src'); import roman; print(roman.to_roman(1994))";
    println!("1994 is {}", python(&["-B", "-c", call])?);
    print!("\n{}", fs::read_to_string(Path::new("project/SPEC.md"))?);
    engine.shutdown(Duration::from_secs(10)).await;
    Ok(())
}
