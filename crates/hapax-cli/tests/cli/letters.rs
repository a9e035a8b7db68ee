//! What people send to runs from the stock program, which doesn't hold their code: signals, answers, resolutions.

use crate::common::desk::{Desk, Note, NoteDelta, WORK};
use hapax::{Graph, Question, prelude::*};

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_from_the_command_line_wakes_a_run() {
    let desk = Desk::open().await;
    async fn work(mut ctx: hapax::Ctx<Note>) -> hapax::Result<NoteDelta> {
        Ok(Note::delta().text(ctx.signal::<String>("approved").await?))
    }
    let run = desk.parked(Graph::new("notes", 1, WORK).node(WORK, work)).await;
    assert!(desk.hapax(&["list", "--status", "waiting"]).ok().contains("note-1"));
    let bad = desk.hapax(&["signal", "note-1", "approved", "Ada"]).fails(2);
    assert!(bad.contains("HX0060") && bad.contains("quotes of its own"), "{bad}");
    assert!(desk.hapax(&["signal", "note-2", "approved", "1"]).fails(1).starts_with("error[HX0028]"));
    let sent = desk.hapax(&["signal", "note-1", "approved", "\"Ada\"", "--id", "7", "--json"]).json();
    assert_eq!(
        sent,
        serde_json::json!({ "v": 1, "run": "note-1", "signal": "approved", "id": "7", "new": true })
    );
    assert_eq!(run.wait().await.unwrap().text.as_deref(), Some("Ada"));
    let again = desk.hapax(&["signal", "note-1", "approved", "\"Ada\"", "--id", "7"]).ok();
    assert_eq!(again, "note-1 had the signal 7 already\n");
    assert!(desk.hapax(&["signal", "note-1", "approved"]).fails(1).starts_with("error[HX0026]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_shown_and_only_a_fitting_answer_is_taken() {
    let desk = Desk::open().await;
    assert_eq!(desk.hapax(&["inbox"]).ok(), "nobody asks anything\n");
    async fn work(mut ctx: hapax::Ctx<Note>) -> hapax::Result<NoteDelta> {
        let question = Question::new("Which colour?").schema(serde_json::json!({ "enum": ["red", "blue"] }));
        Ok(Note::delta().text(ctx.ask::<String>("colour", question).await?))
    }
    let run = desk.parked(Graph::new("notes", 1, WORK).node(WORK, work)).await;
    let inbox = desk.hapax(&["inbox"]).ok();
    assert!(inbox.contains("note-1 asks colour:\n  Which colour?\n"), "{inbox}");
    assert!(inbox.contains("hapax answer note-1 colour JSON"), "{inbox}");
    let open = desk.hapax(&["inbox", "--json"]).json();
    assert_eq!(open["questions"][0]["schema"], serde_json::json!({ "enum": ["red", "blue"] }));
    let refused = desk.hapax(&["answer", "note-1", "colour", "\"green\""]).fails(1);
    assert!(refused.starts_with("error[HX0051]"), "{refused}");
    let refused = desk.hapax(&["answer", "note-1", "size", "1"]).fails(1);
    assert!(refused.starts_with("error[HX0052]") && refused.contains("it asks: colour"), "{refused}");
    desk.hapax(&["answer", "note-1", "colour", "\"red\""]).ok();
    assert_eq!(run.wait().await.unwrap().text.as_deref(), Some("red"));
    assert!(desk.hapax(&["answer", "note-1", "colour", "\"red\""]).fails(1).starts_with("error[HX0026]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_doubt_is_settled_by_a_person() {
    let desk = Desk::open().await;
    async fn work(mut ctx: hapax::Ctx<Note>) -> hapax::Result<NoteDelta> {
        let send = async |_: hapax::Call| Err::<String, _>(NodeError::new("the line went dead"));
        Ok(Note::delta().text(ctx.effect("send", WriteAtMostOnce, &1, send).await?))
    }
    let retry = NodePolicy::default().retry(Retry::standard().backoff(|_| std::time::Duration::ZERO));
    let run = desk.parked(Graph::new("notes", 1, WORK).node(WORK, work).policy(WORK, retry)).await;
    assert!(desk.hapax(&["show", "note-1"]).ok().contains("in_doubt"));
    assert!(desk.hapax(&["resolve", "note-1", "send"]).fails(2).contains("HX0060"));
    let refused = desk.hapax(&["resolve", "note-1", "receive", "--retry"]).fails(1);
    assert!(refused.starts_with("error[HX0038]") && refused.contains("fx:"), "{refused}");
    let settled = desk.hapax(&["resolve", "note-1", "send", "--result", "\"it arrived\""]).ok();
    assert_eq!(settled, "note-1 goes on: send is settled\n");
    assert_eq!(run.wait().await.unwrap().text.as_deref(), Some("it arrived"));
}
