//! A loop with a condition: a text is written and reviewed until the review is content.

use hapax::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Draft {
    text: String,
    #[state(append)]
    remarks: Vec<String>,
    content: bool,
}
type Ctx = hapax::Ctx<Draft>;

const WRITE: Node = Node::new("write");
const REVIEW: Node = Node::new("review");
const PUBLISH: Node = Node::new("publish");

async fn write(ctx: Ctx) -> DraftDelta {
    let draft = ctx.state();
    let text = match draft.remarks.len() {
        0 => "Once upon a time.".to_owned(),
        round => format!("{} Once more ({round}).", draft.text),
    };
    Draft::delta().text(text)
}

async fn review(ctx: Ctx) -> DraftDelta {
    let words = ctx.state().text.split_whitespace().count();
    Draft::delta().remarks(format!("{words} words")).content(words >= 9)
}

async fn publish(ctx: Ctx) {
    println!("published: {}", ctx.state().text);
}

#[tokio::main]
async fn main() -> hapax::Result<()> {
    let graph = Graph::new("drafts", 1, WRITE)
        .node(WRITE, write)
        .node(REVIEW, review)
        .node(PUBLISH, publish)
        .edge(WRITE, REVIEW)
        .edge_if(REVIEW, WRITE, "too short", |draft: &Draft| !draft.content)
        .edge_if(REVIEW, PUBLISH, "content", |draft: &Draft| draft.content);
    let engine = Engine::open("sqlite:drafts.db").await?;
    let drafts = engine.register(graph, ()).await?;
    let draft = drafts.start("draft-1", Draft::default()).await?.wait().await?;
    println!("after {} reviews: {}", draft.remarks.len(), draft.remarks.join(", "));
    Ok(())
}
