//! A desk with notes: a store, the engine at work on it, and the stock program beside.

use super::{Said, said, stock, url};
use hapax::{Engine, Event, Graph, Node, State, Status};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use tempfile::TempDir;

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) text: Option<String>,
}

pub(crate) const WORK: Node = Node::new("work");

pub(crate) struct Desk {
    pub(crate) folder: TempDir,
    pub(crate) engine: Engine,
}

impl Desk {
    pub(crate) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.db");
        let engine = Engine::open(&format!("sqlite:{}", path.display())).await.unwrap();
        Self { folder, engine }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("notes.db")
    }

    pub(crate) fn hapax(&self, args: &[&str]) -> Said {
        let mut command = stock(args);
        command.arg("--store").arg(url(&self.path()));
        said(command)
    }

    /// Starts a run and waits until it is parked.
    pub(crate) async fn parked(&self, graph: Graph<Note>) -> hapax::Run<Note> {
        let mut events = self.engine.events();
        let flow = self.engine.register(graph, ()).await.unwrap();
        let run = flow.start("note-1", Note::default()).await.unwrap();
        loop {
            let event = events.recv().await.unwrap();
            if matches!(event, Event::RunEnded { status: Status::Waiting { .. } | Status::InDoubt, .. }) {
                return run;
            }
        }
    }
}
