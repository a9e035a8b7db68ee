//! Messages seen and delivered by the stock program, which doesn't hold the code of the runs that sent them.

use crate::common::{
    desk::{Desk, Note, WORK},
    said, steady, steady_json, stock, url,
};
use futures::future::BoxFuture;
use hapax::{
    Graph,
    outbox::{Delivery, RelayOptions, Sink, SinkError},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    ffi::{OsStr, OsString},
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    os::unix::ffi::OsStrExt,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// A desk on which two runs have sent.
async fn sent() -> Desk {
    async fn work(mut ctx: hapax::Ctx<Note>) -> hapax::Result<()> {
        let run = ctx.run_id().to_string();
        ctx.emit("notes", &run, "written")?;
        ctx.emit("audit", "", &(1, "of two"))?;
        ctx.emit("notes", &run, "read \u{1b}[31m")?;
        Ok(())
    }
    let desk = Desk::open().await;
    let flow = desk.engine.register(Graph::new("notes", 1, WORK).node(WORK, work), ()).await.unwrap();
    for run in ["note-1", "note-2"] {
        flow.start(run, Note::default()).await.unwrap().wait().await.unwrap();
    }
    desk
}

/// Every message to `notes` is refused once too often.
async fn poison(desk: &Desk) {
    let options = RelayOptions::default().topics(["notes"]).max_attempts(1);
    assert_eq!(desk.engine.deliver(options, &Refuses).await.unwrap().dead, 4);
}

struct Refuses;

impl Sink for Refuses {
    fn publish<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        Box::pin(std::future::ready(Err(SinkError::refused("no such topic"))))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_wait_are_listed() {
    let desk = sent().await;
    insta::assert_snapshot!("outbox_pending", steady(&desk.hapax(&["outbox"]).ok()));
    assert_eq!(steady(&desk.hapax(&["outbox", "list"]).ok()), steady(&desk.hapax(&["outbox"]).ok()));
    assert_eq!(desk.hapax(&["outbox", "list", "--dead"]).ok(), "no dead messages\n");
    assert_eq!(desk.hapax(&["outbox", "--dead"]).ok(), "no dead messages\n");
    poison(&desk).await;
    insta::assert_snapshot!("outbox_dead", steady(&desk.hapax(&["outbox", "--dead"]).ok()));
    let mut one = desk.hapax(&["outbox", "--run", "note-1", "--limit", "1", "--json"]).json();
    one["messages"][0]["written_at"] = "[redacted]".into();
    insta::assert_snapshot!("outbox_json", steady_json(one));
    assert!(desk.hapax(&["outbox", "--run", ""]).fails(2).starts_with("error[HX0001]"));
    assert!(
        desk.hapax(&["outbox", "--run", "nope"])
            .fails(1)
            .starts_with("error[HX0028]: there is no run `nope`")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_messages_are_retried_or_dropped() {
    let desk = sent().await;
    poison(&desk).await;
    assert_eq!(
        desk.hapax(&["outbox", "retry", "note-1"]).ok(),
        "2 dead messages are pending again; what rested is due now\n"
    );
    assert_eq!(
        desk.hapax(&["outbox", "retry", "note-1"]).ok(),
        "no message was dead; what rested is due now\n"
    );
    let mistyped = desk.hapax(&["outbox", "drop", "note-2", "nope"]).fails(1);
    assert!(mistyped.starts_with("error[HX0028]: there is no run `nope`\n"), "{mistyped}");
    assert!(desk.hapax(&["outbox", "--dead"]).ok().contains("note-2"), "nothing was dropped");
    let dropped = desk.hapax(&["outbox", "drop", "note-1", "note-2", "--json"]).json();
    assert_eq!(dropped["messages"], 2);
    assert_eq!(desk.hapax(&["outbox", "--dead"]).ok(), "no dead messages\n");
    let waiting = desk.hapax(&["outbox", "--json"]).json();
    assert_eq!(waiting["messages"].as_array().unwrap().len(), 4);
    let error = desk.hapax(&["outbox", "retry", "nope"]).fails(1);
    assert!(error.starts_with("error[HX0028]: there is no run `nope`\n"), "{error}");
    desk.hapax(&["outbox", "retry"]).fails(2);
    desk.hapax(&["outbox", "--dead", "drop", "note-1"]).fails(2);
}

/// The flags of every command may stand anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn flags_of_every_command_may_stand_before_the_word() {
    let desk = sent().await;
    let listed = desk.hapax(&["outbox", "--json", "list"]).json();
    assert_eq!(listed["messages"].as_array().unwrap().len(), 6);
    assert_eq!(desk.hapax(&["outbox", "--namespace", "x", "list"]).ok(), "no messages wait\n");
    assert_eq!(desk.hapax(&["outbox", "--json", "retry", "note-1"]).json()["messages"], 0);
    assert!(desk.hapax(&["outbox", "--limit", "2", "list"]).fails(2).contains("behind the word `list`"));
}

/// It asked to be left alone for an hour, and is mended now.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_rests_is_due_when_it_is_retried() {
    let desk = sent().await;
    let rested = desk.engine.deliver(RelayOptions::default(), &Busy).await.unwrap();
    assert_eq!((rested.sent, rested.refused), (0, 4), "the first of each run and topic");
    let to = |name: &str| format!("file:{}", desk.folder.path().join(name).display());
    let drain = |name: &str| desk.hapax(&["relay", "--drain", "--to", &to(name)]).ok();
    assert_eq!(drain("a"), "delivered 0 messages; left in the outbox: 6 pending, 0 dead\n");
    let listed = desk.hapax(&["outbox", "--json"]).json();
    assert!(listed["messages"].as_array().unwrap().iter().all(|message| message["refused"] == 0), "{listed}");
    desk.hapax(&["outbox", "retry", "note-1"]).ok();
    assert_eq!(drain("b"), "delivered 3 messages; left in the outbox: 3 pending, 0 dead\n");
    let mut printed = stock(&["relay", "--drain", "--to", "stdout", "--store"]);
    let printed = printed.arg(url(&desk.path())).output().unwrap();
    assert_eq!((printed.status.code(), printed.stdout.len()), (Some(0), 0));
    assert_eq!(String::from_utf8(printed.stderr).unwrap(), "left in the outbox: 3 pending, 0 dead\n");
}

struct Busy;

impl Sink for Busy {
    fn publish<'a>(&'a self, _: &'a Delivery) -> BoxFuture<'a, Result<(), SinkError>> {
        let busy = SinkError::busy("503").rest(Duration::from_secs(3600));
        Box::pin(std::future::ready(Err(busy)))
    }
}

/// The reader pauses for longer than the sink waits, with more to read than a pipe holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_pauses_gets_everything_once_and_the_pause_is_told() {
    async fn work(mut ctx: hapax::Ctx<Note>) -> hapax::Result<()> {
        (0..4).try_for_each(|number| ctx.emit("notes", "", &(number, "x".repeat(40_000))))?;
        Ok(())
    }
    let desk = Desk::open().await;
    let flow = desk.engine.register(Graph::new("large", 1, WORK).node(WORK, work), ()).await.unwrap();
    flow.start("large", Note::default()).await.unwrap().wait().await.unwrap();
    let mut command = stock(&["relay", "--to", "stdout", "--max-attempts", "1", "--store"]);
    command.arg(url(&desk.path())).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut relay = command.spawn().unwrap();
    let mut told = BufReader::new(relay.stderr.take().unwrap()).lines();
    let first = told.next().unwrap().unwrap();
    assert!(
        first.starts_with("warning: messages wait: the sink cannot be reached: it takes longer"),
        "{first}"
    );
    let mut lines = BufReader::new(relay.stdout.take().unwrap()).lines();
    for number in 0..4 {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["payload"][0], number);
    }
    assert_eq!(told.next().unwrap().unwrap(), "messages are delivered again");
    signal(&relay, Signal::TERM);
    assert_eq!(relay.wait().unwrap().code(), Some(130));
    assert!(lines.next().is_none(), "none came twice");
    assert_eq!(desk.hapax(&["outbox"]).ok(), "no messages wait\n");
}

/// A disk that is full says so once.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_to_programs_as_json() {
    let desk = sent().await;
    let mut command = stock(&["relay", "--json", "--to", "stdout", "--store"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    command.arg(url(&desk.path())).stdout(full).stderr(Stdio::piped());
    let mut relay = command.spawn().unwrap();
    let mut told = String::new();
    BufReader::new(relay.stderr.take().unwrap()).read_line(&mut told).unwrap();
    relay.kill().unwrap();
    relay.wait().unwrap();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["event"], &told["code"]), (&"waits".into(), &"HX0071".into()));
    assert!(told["why"].as_str().unwrap().contains("No space left on device"), "{told}");
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_without_the_code_delivers_to_stdout_and_to_a_file() {
    let desk = sent().await;
    insta::assert_snapshot!(
        "relay_stdout",
        desk.hapax(&["relay", "--to", "stdout", "--drain", "--topic", "audit"]).ok()
    );
    let path = desk.folder.path().join("notes.ndjson");
    let file = format!("file:{}", path.display());
    assert_eq!(
        desk.hapax(&["relay", "--to", &file, "--drain", "--batch", "1"]).ok(),
        "delivered 4 messages\n"
    );
    let text = std::fs::read_to_string(&path).unwrap();
    let payloads: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|line| line["run"] == "note-1")
        .map(|line| line["payload"].clone())
        .collect();
    assert_eq!(payloads, ["written", "read \u{1b}[31m"]);
    assert_eq!(text.lines().count(), 4);
    assert_eq!(desk.hapax(&["relay", "--to", "stdout", "--drain"]).ok(), "", "everything is sent");
    assert_eq!(desk.hapax(&["outbox"]).ok(), "no messages wait\n");
    let error = desk.hapax(&["relay", "--to", "file:/nowhere/at/all", "--drain"]).fails(1);
    assert!(error.starts_with("error[HX0071]: the sink cannot be reached: /nowhere/at/all"), "{error}");
    assert!(desk.hapax(&["relay", "--to", "mail"]).fails(2).contains("neither `stdout` nor `file:PATH`"));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_leave_as_cloud_events_where_that_is_wanted() {
    let desk = sent().await;
    let drain = |flag: &str, run: &str| {
        let said = desk.hapax(&["relay", "--to", "stdout", "--drain", "--batch", "1", flag]).ok();
        let lines = said.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter(|line| line["subject"] == run && line["type"] == "notes").collect::<Vec<_>>()
    };
    let events = drain("--cloudevents=/shop", "note-1");
    assert_eq!(events.len(), 2);
    let event = &events[0];
    assert_eq!((&event["specversion"], &event["source"]), (&"1.0".into(), &"/shop".into()));
    assert_eq!((&event["data"], &event["partitionkey"]), (&"written".into(), &"note-1".into()));
    assert_eq!(event["traceparent"].as_str().unwrap().len(), 55);
    let flow = desk.engine.register(more(), ()).await.unwrap();
    flow.start("more", Note::default()).await.unwrap().wait().await.unwrap();
    assert_eq!(drain("--cloudevents", "more")[0]["source"], "hapax:default");
    for source in ["--cloudevents=/a b", "--cloudevents=://"] {
        let error = desk.hapax(&["relay", "--to", "stdout", "--drain", source]).fails(1);
        assert!(error.starts_with("error[HX0075]"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_error_repeats_the_address_that_it_is_about() {
    let desk = sent().await;
    for to in ["nts://me:t0ps3cret@host", "amqp:me:t0ps3cret@host", "redis://me:t0ps3cret@:x/y"] {
        let error = desk.hapax(&["relay", "--to", to, "--drain"]).fails(2);
        assert!(!error.contains("t0ps3cret"), "{error}");
    }
    assert!(desk.hapax(&["relay", "--drain"]).fails(2).contains("it isn't said where messages go"));
    let stray = desk.hapax(&["relay", "--to", "stdout", "--drain", "--exchange", "shop"]).fails(2);
    assert!(stray.contains("for brokers and webhooks"), "{stray}");
}

/// Where they are built in.
#[cfg(feature = "full")]
mod to_brokers {
    use super::*;
    use hapax_servers::{Nats, redis_command};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_by_hand_delivers_to_redis() {
        let (desk, url) = (sent().await, hapax_servers::redis().unwrap());
        let args = ["relay", "--to", &url.replace("redis://", "Redis://"), "--prefix", "shop:", "--drain"];
        assert_eq!(desk.hapax(&args).ok(), "delivered 6 messages\n");
        assert_eq!(redis_command(&url, &["XLEN", "shop:notes"]).unwrap(), "4");
        assert_eq!(redis_command(&url, &["XLEN", "shop:audit"]).unwrap(), "2");
    }

    /// There is no stream: the messages wait, and the doctor says why.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_relay_to_nats_waits_for_a_stream_and_the_doctor_looks_for_it() {
        let (desk, server) = (sent().await, Nats::start().unwrap());
        let mut relay = stock(&["relay", "--drain", "--json"]);
        relay.env("HAPAX_STORE", url(&desk.path())).env("HAPAX_RELAY_TO", server.url());
        let told = said(relay);
        let answer: serde_json::Value = serde_json::from_str(&told.out).unwrap();
        assert_eq!(answer["refused"], 4, "the first of each run and topic");
        assert_eq!(told.err.matches("[HX0074]").count(), 2, "once for each topic: {}", told.err);
        let listed = desk.hapax(&["outbox", "--json"]).json();
        assert!(listed["messages"][0]["error"].as_str().unwrap().contains("[HX0074]"), "{listed}");
        let healthy = desk.hapax(&["doctor", "--nats", &server.url(), "--topic", "notes", "--json"]).json();
        let facts = healthy["facts"].as_array().unwrap().clone();
        let stream = facts.iter().find(|fact| fact["name"] == "stream").unwrap();
        assert!(stream["found"].as_str().unwrap().starts_with("notes: [HX0074]"), "{stream}");
        assert_eq!(stream["verdict"], "note");
    }

    /// A webhook that refuses whatever comes, until its thread ends with the test.
    fn refusing() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hooks", listener.local_addr().unwrap());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = BufReader::new(stream.try_clone().unwrap());
                let (mut line, mut length) = (String::new(), 0);
                while request.read_line(&mut line).unwrap() > 2 {
                    let header = std::mem::take(&mut line).to_lowercase();
                    if let Some(bytes) = header.strip_prefix("content-length:") {
                        length = bytes.trim().parse().unwrap();
                    }
                }
                request.read_exact(&mut vec![0; length]).unwrap();
                stream
                    .write_all(b"HTTP/1.1 422 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .unwrap();
            }
        });
        url
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn each_message_that_dies_is_told() {
        let (desk, hook) = (sent().await, refusing());
        let mut relay = stock(&["relay", "--drain", "--max-attempts", "1", "--to", &hook]);
        relay.env("HAPAX_STORE", url(&desk.path()));
        let told = said(relay);
        let dead = told.err.lines().filter(|line| line.contains(" is dead: ")).collect::<Vec<_>>();
        assert_eq!(dead.len(), 6, "{}", told.err);
        assert!(dead[0].starts_with("warning: a message of note-1 to `"), "{dead:?}");
        assert!(told.out.ends_with("left in the outbox: 0 pending, 6 dead\n"), "{}", told.out);
        assert_eq!(
            desk.hapax(&["outbox", "--dead", "--json"]).json()["messages"].as_array().unwrap().len(),
            6
        );
    }

    #[test]
    fn a_webhook_without_its_secret_sends_nothing() {
        let mut relay =
            stock(&["relay", "--drain", "--to", "https://shop.example", "--secret-env", "NO_SUCH"]);
        relay.env("HAPAX_STORE", "memory:").env_remove("NO_SUCH");
        assert!(said(relay).fails(2).contains("the variable NO_SUCH holds no secret"));
        let mut unfit = stock(&["relay", "--drain", "--to", "HTTPS://me:t0ps3cret@:x"]);
        let unfit = said({
            unfit.env("HAPAX_STORE", "memory:");
            unfit
        });
        assert!(unfit.fails(2).starts_with("error[HX0072]: the sink cannot be made: its address"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_versioned_messages_and_their_count() {
    let desk = sent().await;
    let drain = |to: &str| {
        let said = desk.hapax(&["relay", "--json", "--drain", "--to", to, "--topic", "audit"]).ok();
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<serde_json::Value>>()
    };
    let lines = drain("stdout");
    assert_eq!(lines.len(), 3, "two messages and a last word");
    assert!(lines.iter().all(|line| line["v"] == 1), "{lines:?}");
    assert_eq!(lines[0]["payload"], serde_json::json!([1, "of two"]));
    let told = |sent| {
        let left = serde_json::json!({ "pending": 0, "dead": 0 });
        serde_json::json!({ "v": 1, "sent": sent, "refused": 0, "dead": 0, "outbox": left })
    };
    assert_eq!(lines[2], told(2));
    let file = format!("file:{}", desk.folder.path().join("audit.ndjson").display());
    for to in ["stdout", &file] {
        assert_eq!(drain(to), [told(0)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_nobody_could_read_are_not_sent() {
    let desk = sent().await;
    let relay = stock(&["relay", "--to", "stdout"]);
    for drain in [" --drain", ""] {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec \"$0\" relay --to stdout{drain} >&-")).arg(relay.get_program());
        shell.env("HAPAX_STORE", url(&desk.path())).env_remove("HAPAX_NAMESPACE");
        let error = said(shell).fails(1);
        assert!(error.starts_with("error[HX0071]: standard output is closed: nothing was sent\n"), "{error}");
    }
    assert_eq!(desk.hapax(&["outbox", "--json"]).json()["messages"].as_array().unwrap().len(), 6);
    let mut away = stock(&["relay", "--to", "stdout", "--drain", "--store"]);
    away.arg(url(&desk.path())).stdout(Stdio::null());
    assert!(away.status().unwrap().success(), "whoever wants them thrown away may have it");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_go_to_any_path_that_the_system_allows() {
    let desk = sent().await;
    let path = desk.folder.path().join(OsStr::from_bytes(b"odd \xff name"));
    let mut sink = OsString::from("file:");
    sink.push(&path);
    let mut command = stock(&["relay", "--drain", "--to"]);
    command.arg(sink).arg("--store").arg(url(&desk.path()));
    assert_eq!(said(command).ok(), "delivered 6 messages\n");
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 6);
}

/// What keeps nothing would be told the same again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_no_file() {
    let desk = sent().await;
    let told = desk.hapax(&["relay", "--drain", "--to", "file:/dev/null"]);
    assert!(told.fails(1).contains("/dev/null: it is no regular file"));
    assert!(desk.hapax(&["outbox", "--json"]).json()["messages"].as_array().unwrap().len() == 6);
}

/// The reader takes one line and goes; the relay ends quietly, and what wasn't read is delivered to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_reader_went_away_ends_and_loses_nothing() {
    let desk = sent().await;
    let mut command = stock(&["relay", "--to", "stdout", "--batch", "1"]);
    command.arg("--store").arg(url(&desk.path())).stdout(std::process::Stdio::piped());
    let mut relay = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(relay.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("{\"id\":\"msg:"), "{first}");
    // More to say, in case all of it fitted into the pipe.
    let flow = desk.engine.register(more(), ()).await.unwrap();
    for number in 0.. {
        if relay.try_wait().unwrap().is_some() {
            break;
        }
        flow.start(&format!("more-{number}"), Note::default()).await.unwrap().wait().await.unwrap();
    }
    assert_eq!(relay.wait().unwrap().code(), Some(0));
    let waits = desk.hapax(&["outbox", "--json"]).json()["messages"].as_array().unwrap().len();
    assert!(waits > 0, "what nobody read is still there");
}

fn more() -> Graph<Note> {
    async fn say(mut ctx: hapax::Ctx<Note>) -> hapax::Result<()> {
        Ok(ctx.emit("notes", "", "more")?)
    }
    Graph::new("more", 1, WORK).node(WORK, say)
}
