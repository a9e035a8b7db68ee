//! Runs that enter a hall, stay and leave, and the hall that sees how many are inside.
//!
//! Invariant: a run is inside from within its first step until within its last one, however often its process dies: its file
//! in the hall's folder is made and deleted by effects, which may be repeated.

use hapax::{
    StartOptions,
    control::{Debounce, Rate},
    prelude::*,
};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// How many may be inside at a time.
pub const MOST: u32 = 2;

/// A run.
#[derive(State, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visit {
    /// How many were seen inside, by this run and each of its steps.
    #[state(append)]
    pub seen: Vec<u64>,
}

/// Where runs are inside: a folder with a file for each of them.
#[derive(Debug, Clone)]
pub struct Hall(PathBuf);

impl Hall {
    /// A hall in a folder, which is made where there is none.
    pub fn new(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(Self(folder.to_owned()))
    }

    fn enter(&self, run: &str) -> io::Result<u64> {
        fs::write(self.0.join(run), "")?;
        self.inside()
    }

    /// How many are inside.
    pub fn inside(&self) -> io::Result<u64> {
        Ok(fs::read_dir(&self.0)?.count() as u64)
    }

    fn leave(&self, run: &str) -> io::Result<u64> {
        let seen = self.inside()?;
        match fs::remove_file(self.0.join(run)) {
            // It left, and died before anybody heard of it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(seen),
            removed => removed.map(|()| seen),
        }
    }
}

const ENTER: Node = Node::new("enter");
const STAY: Node = Node::new("stay");
const LEAVE: Node = Node::new("leave");

async fn enter(mut ctx: hapax::Ctx<Visit, Hall>) -> hapax::Result<VisitDelta> {
    let (hall, run) = (ctx.app(), ctx.run_id().to_string());
    let seen: u64 = ctx.effect("enter", Write, &run, async |_| hall.enter(&run)).await?;
    Ok(Visit::delta().seen(seen))
}

async fn stay(mut ctx: hapax::Ctx<Visit, Hall>) -> hapax::Result<VisitDelta> {
    let hall = ctx.app();
    let seen: u64 = ctx.effect("look", Write, "", async |_| hall.inside()).await?;
    Ok(Visit::delta().seen(seen))
}

async fn leave(mut ctx: hapax::Ctx<Visit, Hall>) -> hapax::Result<VisitDelta> {
    let (hall, run) = (ctx.app(), ctx.run_id().to_string());
    let seen: u64 = ctx.effect("leave", Write, &run, async |_| hall.leave(&run)).await?;
    Ok(Visit::delta().seen(seen))
}

/// The graph.
pub fn graph() -> Graph<Visit, Hall> {
    Graph::new("visits", 1, ENTER)
        .node(ENTER, enter)
        .node(STAY, stay)
        .node(LEAVE, leave)
        .edge(ENTER, STAY)
        .edge(STAY, LEAVE)
}

/// Behind the one door, through which only so many go at a time.
pub fn through_the_door() -> StartOptions {
    StartOptions::default().key("door", MOST).unheld()
}

/// Behind the one door, and for some behind others, which three databases have one each of.
pub fn through_several_doors(visit: u32) -> StartOptions {
    match visit % 3 {
        0 => through_the_door(),
        1 => through_the_door().key("gate", MOST + 1),
        _ => through_the_door().key("stairs", MOST).key("gate", MOST + 1),
    }
}

/// So many starts in a second.
pub const A_SECOND: u32 = 50;

/// At a rate that all who start share.
pub fn in_turn() -> StartOptions {
    at_the_rate(StartOptions::default()).unheld()
}

/// The same, beside other terms.
pub fn at_the_rate(options: StartOptions) -> StartOptions {
    options.rate(Rate::new("turnstile", A_SECOND, Duration::from_secs(1)).burst(2))
}

/// One that lives, whoever starts it.
pub fn alone() -> StartOptions {
    StartOptions::default().singleton("guest-of-honour").unheld()
}

/// One that begins when it is quiet: not while a test lasts.
pub fn when_quiet() -> StartOptions {
    StartOptions::default().debounce(Debounce::new("latecomers", Duration::from_secs(3600))).unheld()
}
