//! The kit against a bench: its lines in, its lines out, and what is left on the disk.

use super::*;
use crate::agent::{
    clock_text,
    desk::message_id,
    install::staging_of,
    protocol::{Ack, Address, Attempt, FromAgent, Version, read_from_agent},
};
use hapax_core::key::command_key;
use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::AtomicU64,
};

/// What was written, line by line.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<u8>>>);

impl Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Bench {
    folder: tempfile::TempDir,
    worked: Arc<AtomicU64>,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("work")).unwrap();
        Self { folder, worked: Arc::default() }
    }

    /// One life of an agent: what it answers to these lines.
    fn live(
        &self,
        lines: &[Vec<u8>],
        work: impl Fn(&mut Task) -> Result<Answer, Failure> + Send + Sync + 'static,
    ) -> Vec<Event> {
        let (heard, worked) = (Heard::default(), self.worked.clone());
        let place = place::bench::place(self.folder.path(), heard.clone());
        let counted = move |task: &mut Task| {
            worked.fetch_add(1, Ordering::SeqCst);
            work(task)
        };
        Kit::new(place, Box::new(counted)).serve(&*lines.concat()).unwrap();
        heard.events()
    }

    fn staging(&self) -> PathBuf {
        staging_of(&self.folder.path().join("staging"), &command("").idempotency_key)
    }

    fn worked(&self) -> u64 {
        self.worked.load(Ordering::SeqCst)
    }
}

impl Heard {
    fn events(&self) -> Vec<Event> {
        let bytes = lock(&self.0).clone();
        let events = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        events
            .filter_map(|line| match read_from_agent(line).unwrap() {
                FromAgent::Event(event) => Some(event),
                _ => None,
            })
            .collect()
    }
}

fn command(correlation_id: &str) -> Command {
    let key = command_key("work", "T-1", "snap-1", b"{}", b"[]").unwrap();
    Command {
        message_id: message_id(),
        correlation_id: correlation_id.into(),
        task_id: "T-1".into(),
        idempotency_key: key.to_string(),
        to: Address { agent_type: "kit".into(), agent_id: None },
        action: "work".into(),
        inputs: empty_object(),
        expected_outputs: vec![],
        version: Version::of("snap-1"),
        deadline: clock_text(0),
        retry: Attempt { attempt: 1, max_attempts: 6 },
        priority: 5,
        traceparent: None,
    }
}

fn line(correlation_id: &str) -> Vec<u8> {
    frame::line(&command(correlation_id)).unwrap()
}

fn ack(forget: bool) -> Vec<u8> {
    frame::line(&Ack { idempotency_key: command("").idempotency_key, forget }).unwrap()
}

fn write_x(task: &mut Task) -> Result<Answer, Failure> {
    task.write("x", b"1")?;
    Ok(Answer::success())
}

#[test]
fn a_command_that_comes_again_is_answered_from_memory_also_after_a_restart() {
    let bench = Bench::new();
    let first = bench.live(&[line("a")], write_x);
    let again = bench.live(&[line("b")], write_x);
    assert_eq!((first.len(), again.len(), bench.worked()), (1, 1, 1));
    assert_eq!((first[0].correlation_id.as_str(), again[0].correlation_id.as_str()), ("a", "b"));
    assert_eq!((&first[0].artifacts, &first[0].status), (&again[0].artifacts, &again[0].status));
    assert_ne!(first[0].message_id, again[0].message_id);
}

#[test]
fn a_duplicate_waits_for_the_one_that_is_under_way() {
    let bench = Bench::new();
    let (go, is_on) = mpsc::channel();
    let is_on = Mutex::new(is_on);
    let seen = bench.worked.clone();
    thread::spawn(move || {
        while seen.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        go.send(()).unwrap();
    });
    let answers = bench.live(&[line("a"), line("b"), line("c")], move |task| {
        lock(&is_on).recv().unwrap();
        write_x(task)
    });
    let mut ids: Vec<_> = answers.iter().map(|event| event.correlation_id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!((ids, bench.worked()), (vec!["a", "b", "c"], 1));
}

#[test]
fn a_failure_that_may_pass_is_not_remembered_and_a_final_one_is_until_the_engine_has_it() {
    let bench = Bench::new();
    let busy = |_: &mut Task| Err(Failure::new("busy", "later").retryable());
    assert!(bench.live(&[line("a")], busy)[0].failure().unwrap().retryable);
    let never = |_: &mut Task| Err(Failure::new("no", "never"));
    assert_eq!(bench.live(&[line("b")], never)[0].failure().unwrap().code, "no");
    assert_eq!(bench.live(&[line("c")], write_x)[0].failure().unwrap().code, "no", "it is remembered");
    assert_eq!(bench.worked(), 2);
    assert_eq!(bench.live(&[ack(true), line("d")], write_x)[0].status.as_deref(), Some("success"));
}

#[test]
fn an_answer_whose_files_are_gone_after_the_engine_had_it_is_made_again() {
    let bench = Bench::new();
    bench.live(&[line("a"), ack(false)], write_x);
    let staging = bench.folder.path().join("staging");
    bench.live(&[ack(false)], write_x);
    bench.live(&[line("b")], write_x);
    assert_eq!(bench.worked(), 1, "the files are still staged");
    fs::remove_dir_all(&staging).unwrap();
    fs::write(bench.folder.path().join("work/x"), "1").unwrap();
    bench.live(&[line("c")], write_x);
    assert_eq!(bench.worked(), 1, "the engine has installed them");
    fs::remove_file(bench.folder.path().join("work/x")).unwrap();
    assert_eq!(bench.live(&[line("d")], write_x)[0].artifacts.len(), 1);
    assert_eq!(bench.worked(), 2, "somebody undid it: it is new work");
}

#[test]
fn a_line_that_cannot_be_read_is_answered_and_the_next_one_is_read() {
    let bench = Bench::new();
    let long = [vec![b'x'; 300_000], b"\n".to_vec()].concat();
    let odd = b"{\"correlation_id\":\"odd\",\"kind\":\"what\"}\n".to_vec();
    let answers = bench.live(&[b"garbage\n".to_vec(), b"\xff\n".to_vec(), long, odd, line("a")], write_x);
    let codes: Vec<_> = answers.iter().map(|e| e.failure().map_or("ok".into(), |f| f.code)).collect();
    assert_eq!(codes, ["protocol", "protocol", "protocol", "protocol", "ok"]);
    assert_eq!(answers[3].correlation_id, "odd");
}

fn code(events: &[Event]) -> (String, bool) {
    let failure = events.iter().find(|event| event.is_terminal()).unwrap().failure().unwrap();
    (failure.code, failure.retryable)
}

#[test]
fn what_nobody_foresaw_may_pass_and_is_not_remembered() {
    let bench = Bench::new();
    let panics = |_: &mut Task| -> Result<Answer, Failure> { panic!("a bug") };
    let events = bench.live(&[line("a")], panics);
    assert_eq!(code(&events), ("exception".into(), true));
    assert!(events[0].failure().unwrap().message.contains("a bug"));
    let breaks = |task: &mut Task| {
        task.read("no/such/file")?;
        Ok(Answer::success())
    };
    assert_eq!(code(&bench.live(&[line("b")], breaks)), ("exception".into(), true));
    assert!(!bench.live(&[line("c")], write_x)[0].is_failed(), "it is tried again");
    assert_eq!(bench.worked(), 3);
}

#[test]
fn a_memory_that_cannot_be_written_is_a_failure_that_may_pass() {
    let bench = Bench::new();
    let file = bench.folder.path().join("state").join(&command("").idempotency_key["ik:".len()..]);
    // In the entry's place stands a folder.
    let events = bench.live(&[line("a")], move |task| {
        fs::remove_file(file.with_extension("json"))?;
        fs::create_dir(file.with_extension("json"))?;
        write_x(task)
    });
    assert_eq!(code(&events), ("cache".into(), true));
}

#[test]
fn an_answer_leaves_room_for_a_longer_correlation_id() {
    let sized = |bytes: usize| {
        move |_: &mut Task| Ok(Answer::success().payload(&HashMap::from([("text", "x".repeat(bytes))])))
    };
    let bench = Bench::new();
    let small = bench.live(&[line("a")], sized(0))[0].clone();
    let most = limits::AGENT_LINE_BYTES - ANSWER_ROOM - frame::line(&small).unwrap().len();
    for (bytes, fits) in [(most + 1, false), (300_000, false), (most, true)] {
        let events = bench.live(&[ack(true), line("a")], sized(bytes));
        assert_eq!(
            events[0].failure().map_or("fits".into(), |f| f.code),
            if fits { "fits" } else { "too_large" }
        );
    }
    let long = "\u{1}".repeat(255);
    let again = bench.live(&[line(&long)], sized(0));
    assert_eq!((again.len(), again[0].correlation_id == long, again[0].is_failed()), (1, true, false));
}

#[test]
fn a_command_with_a_task_of_any_length_has_an_answer() {
    let task_id = "t".repeat(limits::AGENT_LINE_BYTES - 1000);
    let idempotency_key = command_key("work", &task_id, "snap-1", b"{}", b"[]").unwrap().to_string();
    let command = Command { task_id, idempotency_key, ..command("a") };
    let events = Bench::new().live(&[frame::line(&command).unwrap()], |_| Ok(Answer::success()));
    assert_eq!((events.len(), &*events[0].correlation_id, &*events[0].task_id), (1, "a", ""));
    assert_eq!(events[0].failure().unwrap().code, "too_large");
}

#[test]
fn a_long_token_is_shown_in_pieces() {
    let bench = Bench::new();
    let text = "é\u{1}".repeat(100_000);
    let tells = text.clone();
    let events = bench.live(&[line("a")], move |task| {
        task.token(&tells);
        Ok(Answer::success())
    });
    let pieces = events.iter().filter(|event| event.event == "token");
    let told: String = pieces
        .map(|event| event.payload.read::<HashMap<String, String>>().unwrap().remove("text").unwrap())
        .collect();
    assert!(told == text, "{} of {} bytes", told.len(), text.len());
}

#[test]
fn what_an_answer_or_a_word_on_the_way_may_not_be_is_not_said() {
    let odd = [
        Answer::new("Done"),
        Answer::new(""),
        Answer::new("7_up"),
        Answer::clarification(&[]),
        Answer::success().payload(&[1]),
        Answer::success().payload("text"),
    ];
    for answer in odd {
        let said = format!("{answer:?}");
        assert_eq!(
            code(&Bench::new().live(&[line("a")], move |_| Ok(answer.clone()))).0,
            "exception",
            "{said}"
        );
    }
    let failed = Answer::new("failed").payload(&Failure::new("no_model", "which?"));
    let events = Bench::new().live(&[line("a")], move |_| Ok(failed.clone()));
    assert_eq!((events[0].event.as_str(), code(&events).0.as_str()), ("error", "no_model"));
    let events = Bench::new().live(&[line("a")], |task| {
        [-1.0, 200.0, f64::NAN, f64::INFINITY].into_iter().for_each(|percent| task.progress(percent, "m"));
        Ok(Answer::clarification(&["Which?"]))
    });
    let payloads: Vec<_> = events[..4].iter().map(|event| event.payload.as_str()).collect();
    let [none, all] = [r#"{"message":"m","percent":0}"#, r#"{"message":"m","percent":100}"#];
    assert_eq!(payloads, [none, all, r#"{"message":"m"}"#, all]);
    assert_eq!((events[4].event.as_str(), events[4].is_failed()), ("work.completed", false));
    let heard = Heard::default();
    out::Out::new(heard.clone()).log("loud", "m");
    assert!(String::from_utf8_lossy(&lock(&heard.0)).contains(r#""level":"info""#));
}

#[test]
fn a_key_that_is_new_begins_with_an_empty_staging_folder_too() {
    let bench = Bench::new();
    fs::create_dir_all(bench.staging()).unwrap();
    fs::write(bench.staging().join("left"), "by an agent whose memory is gone").unwrap();
    let events = bench.live(&[line("a")], |task| {
        let left = fs::read_dir(task.staging())?.count();
        assert!(!task.was_cut_off());
        Ok(Answer::success().payload(&HashMap::from([("left", left)])))
    });
    assert_eq!(events[0].payload.as_str(), r#"{"left":0}"#);
}

#[test]
fn work_that_was_cut_off_is_told_so() {
    let bench = Bench::new();
    place::bench::place(bench.folder.path(), io::sink()).cache.begin(&command("").idempotency_key).unwrap();
    let events = bench.live(&[line("a"), ack(true), line("b")], |task| {
        Ok(Answer::success().payload(&HashMap::from([("was_cut_off", task.was_cut_off())])))
    });
    assert_eq!(events[0].payload.as_str(), r#"{"was_cut_off":true}"#);
}

#[test]
fn a_path_that_is_no_good_is_refused_for_good_before_anything_is_touched() {
    for path in ["../x", "/x", ".git/config", ".hapax/x", "a\\b", "a\nb", "a//b", "", &"x".repeat(256)] {
        for is_made in [false, true] {
            let bench = Bench::new();
            let own = path.to_owned();
            let events = bench.live(&[line("a")], move |task| {
                if is_made {
                    task.made(&own)?;
                } else {
                    task.write(&own, b"evil")?;
                }
                Ok(Answer::success())
            });
            assert_eq!(code(&events), ("path".into(), false), "{path}");
            assert_eq!(fs::read_dir(bench.staging()).unwrap().count(), 0, "{path}");
        }
    }
}

#[test]
fn no_file_is_written_or_read_through_a_link_in_the_staging_folder() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    type Does = fn(&mut Task, &Path) -> Result<(), Error>;
    let through: [Does; 3] = [
        |task, outside| {
            symlink(outside, task.staging().join("folder")).unwrap();
            task.write("folder/new", b"evil")
        },
        |task, outside| {
            symlink(outside, task.staging().join("folder")).unwrap();
            task.made("folder/secret")
        },
        |task, outside| {
            symlink(outside.join("secret"), task.staging().join("x")).unwrap();
            task.made("x")
        },
    ];
    for does in through {
        let at = outside.path().to_owned();
        let events = Bench::new().live(&[line("a")], move |task| {
            does(task, &at)?;
            Ok(Answer::success())
        });
        assert_eq!(code(&events), ("path".into(), false));
    }
    let (bench, at) = (Bench::new(), outside.path().join("secret"));
    let events = bench.live(&[line("a")], move |task| {
        symlink(&at, task.staging().join("x"))?;
        write_x(task)
    });
    assert_eq!(events[0].artifacts.len(), 1, "the link itself is replaced");
    assert_eq!(fs::read_to_string(bench.staging().join("x")).unwrap(), "1");
    assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "secret");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_was_made_by_other_means_is_listed_as_it_is() {
    let bench = Bench::new();
    let events = bench.live(&[line("a")], |task| {
        fs::create_dir(task.staging().join("deep"))?;
        fs::write(task.staging().join("deep/x"), "1")?;
        task.made("deep/x")?;
        Ok(Answer::success())
    });
    let artifact = &events[0].artifacts[0];
    assert_eq!((artifact.path.as_str(), artifact.size), ("deep/x", 1));
    assert_eq!(fs::read_dir(bench.staging().join("deep")).unwrap().count(), 1, "nothing beside it");
}

#[test]
fn half_a_line_at_the_end_is_answered_and_not_done() {
    let bench = Bench::new();
    let whole = line("half");
    let events = bench.live(&[whole[..whole.len() - 1].to_vec()], write_x);
    assert_eq!((events.len(), bench.worked()), (1, 0), "even if it looks whole");
    assert_eq!((events[0].correlation_id.as_str(), code(&events).0.as_str()), ("half", "protocol"));
}

#[test]
fn a_refusal_says_about_which_task_it_is_and_blames_nobody_else() {
    let odd = br#"{"kind":"command","correlation_id":"c","task_id":"T-9","inputs":{"task_id":"inner"}}"#;
    let events = Bench::new().live(&[[&odd[..], b"\n"].concat()], write_x);
    assert_eq!((events[0].correlation_id.as_str(), events[0].task_id.as_str()), ("c", "T-9"));
    let message = events[0].failure().unwrap().message;
    assert!(!message.contains("the agent broke"), "{message}");
}

/// Nobody reads any more.
struct Closed;

impl Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn when_nobody_reads_any_more_it_leaves_and_its_answer_is_kept() {
    let bench = Bench::new();
    let place = place::bench::place(bench.folder.path(), Closed);
    let kit = Kit::new(place, Box::new(write_x));
    let (left, has_left) = mpsc::channel();
    let leaving = kit.clone();
    kit.place.out.on_lost(move || {
        leaving.leave(limits::AGENT_GRACE);
        left.send(()).unwrap();
    });
    kit.take(command("a"));
    has_left.recv().unwrap();
    kit.take(Command { idempotency_key: "ik:01".into(), ..command("b") });
    assert!(lock(&kit.running).is_empty(), "nothing new is taken");
    drop(kit);
    assert_eq!(bench.live(&[line("c")], write_x)[0].artifacts.len(), 1);
    assert_eq!(bench.worked(), 0, "it is answered from memory");
}

#[test]
fn a_key_that_is_not_that_of_the_content_is_refused_and_nothing_is_done() {
    let bench = Bench::new();
    let other = Command { task_id: "T-2".into(), ..command("c1") };
    let events = bench.live(&[frame::line(&other).unwrap(), line("c2")], write_x);
    let failure = events.iter().find(|event| event.correlation_id == "c1").unwrap().failure();
    assert_eq!(failure.unwrap().code, "protocol");
    assert_eq!(bench.worked(), 1, "the other one is done");
    let outputs = r#"[{"path":"x","required":true,"unheard_of":1}]"#;
    let key = command_key("work", "T-1", "snap-1", b"{}", outputs.as_bytes()).unwrap();
    let newer = String::from_utf8(
        frame::line(&Command { idempotency_key: key.to_string(), ..command("c3") }).unwrap(),
    );
    let newer =
        newer.unwrap().replace(r#""expected_outputs":[]"#, &format!(r#""expected_outputs":{outputs}"#));
    let events = bench.live(&[newer.into_bytes()], write_x);
    assert!(!events[0].is_failed(), "fields that a newer engine knows are part of its key");
}

#[test]
fn the_action_of_the_check_is_the_kits_own() {
    let bench = Bench::new();
    let output = protocol::Output { path: "a/b".into(), description: None, required: true };
    let inputs = Json::of(&CheckInputs { text: "x".into(), pause_ms: 0 }).unwrap();
    let outputs = Json::of(&[&output]).unwrap();
    let key = command_key(CHECK_ACTION, "T-1", "snap-1", inputs.as_bytes(), outputs.as_bytes()).unwrap();
    let command = |id| Command {
        action: CHECK_ACTION.into(),
        inputs: inputs.clone(),
        expected_outputs: vec![output.clone()],
        idempotency_key: key.to_string(),
        ..command(id)
    };
    let lines = ["c1", "c2"].map(|id| frame::line(&command(id)).unwrap());
    let answers: Vec<Event> = bench.live(&lines, write_x).into_iter().filter(Event::is_terminal).collect();
    assert_eq!((answers.len(), bench.worked()), (2, 0), "the agent's own code isn't asked");
    assert_eq!(answers[0].artifacts[0].path, "a/b");
    assert_eq!(answers[0].payload, answers[1].payload, "one execution");
}
