//! What a run streams, shown by the stock program, which doesn't hold the code of the run.

use crate::common::{Said, said, stock, url};
use hapax::{Call, Engine, Graph, Node, prelude::*};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};
use tokio::sync::Semaphore;

#[derive(State, Clone, Debug, Default, Serialize, Deserialize)]
struct Story {
    text: Option<String>,
}

const TELL: Node = Node::new("tell");

/// A store with a run that streams; the last chunks come when they are let.
struct Desk {
    folder: tempfile::TempDir,
    more: Arc<Semaphore>,
    run: hapax::Run<Story>,
}

impl Desk {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(&format!("sqlite:{}", folder.path().join("s.db").display())).await.unwrap();
        let twice = NodePolicy::default().retry(Retry::standard().attempts(2).backoff(|_| Duration::ZERO));
        async fn tell(mut ctx: hapax::Ctx<Story, Arc<Semaphore>>) -> hapax::Result<()> {
            ctx.stream("Once\nupon \u{1b}[31m").await?;
            if ctx.attempt() == 1 {
                return Err(NodeError::new("once more"));
            }
            let model = async |call: Call| {
                call.stream(&("a", 1)).await?;
                Ok::<_, NodeError>(())
            };
            ctx.effect("model", Read, &(), model).await?;
            ctx.stream("waits").await?;
            ctx.app().acquire().await?.forget();
            for n in 0..2000 {
                ctx.stream(&n).await?;
            }
            Ok(())
        }
        let more = Arc::new(Semaphore::new(0));
        let graph = Graph::new("stories", 1, TELL).node(TELL, tell).policy(TELL, twice);
        let flow = engine.register(graph, more.clone()).await.unwrap();
        let run = flow.start("story-1", Story::default()).await.unwrap();
        let mut tail = engine.tail("story-1");
        // Until it waits: failed, superseded, and three chunks.
        for _ in 0..5 {
            tail.next().await.unwrap().unwrap();
        }
        Self { folder, more, run }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("s.db")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = stock(args);
        command.arg("--store").arg(url(&self.path()));
        command
    }

    fn hapax(&self, args: &[&str]) -> Said {
        said(self.command(args))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_there_is_shown_and_what_was_superseded_is_marked() {
    let desk = Desk::open().await;
    let Said { code, out: shown, err: remark } = desk.hapax(&["tail", "story-1"]);
    assert_eq!((code, remark.as_str()), (0, "the run is not over: --follow --from 9 goes on\n"));
    let once = "Once\nupon \\u{1b}[31m\n";
    assert_eq!(shown, format!("{once}-- tell: attempt 1 (epoch 1) was superseded\n{once}[\"a\",1]\nwaits\n"));
    let lines = desk.hapax(&["tail", "story-1", "--json"]).ok();
    let events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().all(|event| event["v"] == 1), "{lines}");
    assert_eq!((&events[1]["event"], &events[1]["attempt"]), (&"superseded".into(), &1.into()));
    assert_eq!(
        (&events[3]["payload"], &events[3]["call"]["index"]),
        (&serde_json::json!(["a", 1]), &0.into())
    );
    assert!(events[0]["path_hash"].is_string(), "a hash is no number");
    let cursor = events[2]["cursor"].to_string();
    assert_eq!(desk.hapax(&["tail", "story-1", "--from", &cursor]).out, "[\"a\",1]\nwaits\n");
    let journal = desk.hapax(&["show", "story-1"]).ok();
    assert!(journal.contains("streams in call 0 [\"a\",1]"), "{journal}");
    assert!(journal.contains("attempt 2 (epoch 1) streams instead of attempt 1 (epoch 1)"), "{journal}");
    let error = desk.hapax(&["tail", "nope"]).fails(1);
    assert!(error.starts_with("error[HX0028]: there is no run `nope`\n"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_elsewhere_is_followed_to_its_end() {
    let desk = Desk::open().await;
    let mut follow =
        desk.command(&["tail", "story-1", "-f", "--from", "6"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.by_ref().find(|line| line == "waits").as_deref(), Some("waits"));
    desk.more.add_permits(1);
    let rest: Vec<String> = lines.collect();
    assert_eq!(rest, (0..2000).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(follow.wait().unwrap().code(), Some(0));
    desk.run.wait().await.unwrap();
}

/// What is shown of an interruption fits the command: nothing of `resume`, where nothing was executed.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_command_says_how_to_go_on() {
    let desk = Desk::open().await;
    let mut follow = desk.command(&["tail", "story-1", "--follow", "--json"]);
    let mut follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    let mut lines = BufReader::new(follow.stdout.take().unwrap());
    lines.read_line(&mut first).unwrap();
    assert!(Command::new("kill").args(["-INT", &follow.id().to_string()]).status().unwrap().success());
    let ended = follow.wait_with_output().unwrap();
    let error: Value = serde_json::from_slice(&ended.stderr).unwrap();
    assert_eq!((ended.status.code(), &error["error"]["code"]), (Some(130), &"HX0064".into()));
    let told = format!("{} {}", error["error"]["message"], error["error"]["cure"]);
    assert!(told.contains("--from") && !told.contains("resume"), "{told}");
    assert!(error["error"]["page"].as_str().unwrap().ends_with("HX0064.md"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_went_away_ends_it_quietly() {
    let desk = Desk::open().await;
    let mut follow = desk.command(&["tail", "story-1", "--follow"]);
    let mut follow = follow.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(follow.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(first, "Once\n");
    desk.more.add_permits(1);
    let ended = follow.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8_lossy(&ended.stderr).as_ref()), (Some(0), ""));
}
