//! What people send to runs from the stock program, which doesn't hold their code: signals, answers, resolutions.

use crate::common::{
    desk::{Desk, Note, NoteDelta, WORK},
    said, stock, url,
};
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
async fn what_a_command_writes_lies_beside_its_row_where_it_is_large() {
    let desk = Desk::open().await;
    async fn work(mut ctx: hapax::Ctx<Note>) -> hapax::Result<NoteDelta> {
        Ok(Note::delta().text(ctx.signal::<String>("approved").await?))
    }
    let _run = desk.parked(Graph::new("notes", 1, WORK).node(WORK, work)).await;
    // More than 64 KiB, compressed.
    let noise = (0..3_750_u32).flat_map(|n| hapax::core::key::sha256(&n.to_be_bytes()).0);
    let noise = noise.map(|byte| char::from(b'#' + byte % 57)).collect::<String>();
    let large = format!("\"{noise}\"");
    let file = rusqlite::Connection::open(desk.path()).unwrap();
    for (over, beside) in [(Some("200000"), 0), (Some(""), 1), (None, 2)] {
        let mut command = stock(&["signal", "note-1", "other", &large]);
        command.env("HAPAX_STORE", url(&desk.path())).envs(over.map(|over| ("HAPAX_BLOBS_OVER", over)));
        said(command).ok();
        let count = "SELECT count(*) FROM hapax_letters WHERE substr(payload, 1, 8) = x'0268617061786201'";
        assert_eq!(file.query_row(count, (), |row| row.get::<_, u32>(0)).unwrap(), beside, "{over:?}");
    }
    let mut command = stock(&["signal", "note-1", "other"]);
    command.env("HAPAX_STORE", url(&desk.path())).env("HAPAX_BLOBS_OVER", "64k");
    let refused = said(command).fails(2);
    assert!(refused.contains("HAPAX_BLOBS_OVER is \"64k\"") && refused.contains("cure: "), "{refused}");
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
