//! Retries, an error handler, and an operator's retry.

use hapax::{Status, prelude::*};
use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Mail {
    #[state(append)]
    log: Vec<String>,
}
type Ctx = hapax::Ctx<Mail, Server>;

/// A mail server that can be mended while the program runs.
#[derive(Default)]
struct Server {
    mended: AtomicBool,
}

const SEND: Node = Node::new("send");
const APOLOGISE: Node<NodeFailure> = Node::new("apologise");
const ARCHIVE: Node = Node::new("archive");

async fn send(ctx: Ctx) -> hapax::Result<MailDelta> {
    // Fails twice in passing, then for good: no retry helps against a wrong address.
    match ctx.attempt() {
        1 | 2 => Err(NodeError::new("line busy")),
        _ => Err(NodeError::new("no such address").fatal()),
    }
}

async fn apologise(_: Ctx, failure: NodeFailure) -> Outcome<Mail> {
    let line = format!("{} after {} attempts: sorry", failure.message, failure.attempt);
    Mail::delta().log(line).goto(ARCHIVE)
}

async fn archive(ctx: Ctx) -> hapax::Result<MailDelta> {
    if ctx.app().mended.load(Ordering::SeqCst) {
        Ok(Mail::delta().log("archived"))
    } else {
        Err(NodeError::new("the archive is closed"))
    }
}

#[tokio::main]
async fn main() -> hapax::Result<()> {
    let patient = NodePolicy::default().retry(Retry::standard().backoff(|_| Duration::from_millis(1)));
    let graph = Graph::new("mails", 1, SEND)
        .node(SEND, send)
        .node(APOLOGISE, apologise)
        .node(ARCHIVE, archive)
        .policy(SEND, patient)
        .on_error(SEND, APOLOGISE);
    let engine = Engine::open("sqlite:mails.db").await?;
    let mails = engine.register(graph, Server::default()).await?;
    let run = mails.start("mail-1", Mail::default()).await?;
    if let Err(error) = run.wait().await {
        println!("{error}");
    }
    if let Status::Failed { error } = run.status().await? {
        println!("stored as {} in step {}", error.code, error.step);
    }

    println!("an operator mends the archive and retries");
    mails.app().mended.store(true, Ordering::SeqCst);
    let mail = mails.retry("mail-1").await?.wait().await?;
    println!("{}", mail.log.join("; "));
    Ok(())
}
