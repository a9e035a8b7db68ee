//! The stage `canaries`: proves that the tests can fail.
//!
//! A canary is a mistake planted in the shipped path behind the feature `canary` and woken by
//! `HAPAX_CANARY=name`. Each line of the list names the one test that must notice it:
//! `name | package | test binary | test name`, where the binary `lib` means the unit tests.
//! Caught means that libtest itself reported exactly this test as failed. A name that matches no
//! test, a build that breaks, a crash of the binary or a timeout is an error, never a catch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use super::{Context, cargo::TESTED};
use crate::process::{Captured, Cmd, Failure};
use crate::servers::Servers;

/// How often a test may look for a mistake that takes luck to show, such as one between two threads.
const CHANCES: u32 = 3;
/// Far more than any test that catches a canary needs; its binary is built before.
const TEST_LIMIT: Duration = Duration::from_secs(300);
/// All that is tested from scratch.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Canary {
    name: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    package: String,
    binary: String,
    name: String,
}

/// What libtest said about the one test that was to run.
#[derive(Debug, PartialEq)]
enum Verdict {
    Passed,
    Failed,
    /// No verdict, and why.
    Error(String),
}

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let path = context.canaries.display();
    let fail = |what: String| Failure { what, reproduce: "cargo xtask test --only canaries".to_owned() };
    let list = fs::read_to_string(&context.canaries)
        .map_err(|e| fail(format!("the list of canaries {path} is unreadable: {e}")))?;
    let canaries = parse(&list).map_err(|e| fail(format!("{path}:{e}")))?;
    let binaries: BTreeSet<&str> = canaries.iter().map(|canary| canary.test.binary.as_str()).collect();
    let programs = build(&binaries.into_iter().fold(tested(context), target))?;
    let servers = Servers::start().map_err(fail)?;
    let run = |test: &Test, canary: Option<&str>| match programs
        .get(&(test.package.clone(), test.binary.clone()))
    {
        Some(program) => {
            let shown = reproduce(context, test, canary);
            run_test(&servers.shared_with(command(context, program, test, canary)), &shown, canary)
        }
        None => Verdict::Error(format!("{} has no test binary `{}`", test.package, test.binary)),
    };
    check_all(&canaries, at_a_time(), run).map_err(fail)
}

/// One for each core: a mistake between two threads shows where they really run side by side.
fn at_a_time() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Where each test binary is: by its package and its name. Cargo itself would take a second for each test to find that out.
type Programs = BTreeMap<(String, String), PathBuf>;

fn build(command: &Cmd) -> Result<Programs, Failure> {
    println!("$ {command} --no-run");
    let telling = command.clone().args("--no-run --message-format=json-render-diagnostics");
    let captured =
        telling.capture(BUILD_LIMIT).map_err(|e| command.failure(format!("it could not start: {e}")))?;
    if !captured.status.is_some_and(|status| status.success()) {
        eprintln!("{}", captured.stderr);
        return Err(command.failure("the tests could not be built".to_owned()));
    }
    Ok(captured.stdout.lines().filter_map(program).collect())
}

/// A test binary that a line of cargo's speaks of.
fn program(line: &str) -> Option<((String, String), PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let executable = message["executable"].as_str()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let package = manifest.parent()?.file_name()?.to_str()?;
    let binary = match message["target"]["kind"][0].as_str()? {
        "test" => message["target"]["name"].as_str()?,
        "lib" => "lib",
        _ => return None,
    };
    Some(((package.to_owned(), binary.to_owned()), PathBuf::from(executable)))
}

/// As the stage `tests` builds them, so that nothing is built anew.
fn tested(context: &Context) -> Cmd {
    context.cargo("test").args(TESTED)
}

fn target(command: Cmd, binary: &str) -> Cmd {
    match binary {
        "lib" => command.arg("--lib"),
        binary => command.arg("--test").arg(binary),
    }
}

fn parse(list: &str) -> Result<Vec<Canary>, String> {
    let mut canaries = Vec::new();
    for (index, line) in list.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let fields: Vec<String> = line.split('|').map(|field| field.trim().to_owned()).collect();
        let Ok([name, package, binary, test]) = <[String; 4]>::try_from(fields) else {
            return Err(format!("{}: want `name | package | test binary | test name`", index + 1));
        };
        if [&name, &package, &binary, &test].iter().any(|field| field.is_empty()) {
            return Err(format!("{}: a field is empty", index + 1));
        }
        canaries.push(Canary { name, test: Test { package, binary, name: test } });
    }
    if canaries.is_empty() { Err("1: the list is empty".to_owned()) } else { Ok(canaries) }
}

/// Checks every canary, some at a time, and prints the table; the error sums up what was not caught.
fn check_all(
    canaries: &[Canary],
    at_a_time: usize,
    run: impl Fn(&Test, Option<&str>) -> Verdict + Sync,
) -> Result<(), String> {
    let name_width = width(canaries.iter().map(|canary| canary.name.as_str()), "canary");
    let test_width = width(canaries.iter().map(|canary| canary.test.name.as_str()), "test");
    println!("{:<name_width$}  {:<test_width$}  caught", "canary", "test");
    let waiting = Mutex::new(by_test(canaries).into_iter());
    let wrong = Mutex::new(Vec::new());
    let next = || waiting.lock().expect("no checker panics").next();
    let work = || {
        while let Some((test, names)) = next() {
            for (name, caught) in check(test, &names, &run) {
                println!("{name:<name_width$}  {:<test_width$}  {}", test.name, shown(&caught));
                if let Err(reason) = caught {
                    wrong.lock().expect("no checker panics").push(format!("{name}: {reason}"));
                }
            }
        }
    };
    std::thread::scope(|scope| (0..at_a_time).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().expect("no checker panics");
    let (bad, all) = (wrong.len(), canaries.len());
    if bad == 0 { Ok(()) } else { Err(format!("{bad} of {all} canaries not caught ({})", wrong.join("; "))) }
}

/// The tests in the order of the list, each with all that it must notice.
fn by_test(canaries: &[Canary]) -> Vec<(&Test, Vec<&str>)> {
    let mut tests: Vec<(&Test, Vec<&str>)> = Vec::new();
    for Canary { name, test } in canaries {
        match tests.iter_mut().find(|(known, _)| *known == test) {
            Some((_, names)) => names.push(name),
            None => tests.push((test, vec![name])),
        }
    }
    tests
}

fn shown(caught: &Result<u32, String>) -> String {
    match caught {
        Ok(1) => "yes".to_owned(),
        Ok(chances) => format!("yes, at try {chances}"),
        Err(reason) => reason.clone(),
    }
}

/// One test: it passes while all canaries sleep, and fails when one of its own is awake; answers at which try.
fn check<'a>(
    test: &Test,
    names: &[&'a str],
    run: impl Fn(&Test, Option<&str>) -> Verdict,
) -> Vec<(&'a str, Result<u32, String>)> {
    let asleep = match run(test, None) {
        Verdict::Passed => Ok(()),
        Verdict::Failed => Err("error: the test fails without any canary".to_owned()),
        Verdict::Error(reason) => Err(format!("error: without any canary, {reason}")),
    };
    let awake = |name: &&'a str| (*name, asleep.clone().and_then(|()| caught(test, name, &run)));
    names.iter().map(awake).collect()
}

fn caught(test: &Test, name: &str, run: impl Fn(&Test, Option<&str>) -> Verdict) -> Result<u32, String> {
    for chance in 1..=CHANCES {
        match run(test, Some(name)) {
            Verdict::Failed => return Ok(chance),
            Verdict::Passed => {}
            Verdict::Error(reason) => return Err(format!("error: {reason}")),
        }
    }
    Err("NO: the test passes".to_owned())
}

fn run_test(command: &Cmd, shown: &Cmd, canary: Option<&str>) -> Verdict {
    let captured = match command.capture(TEST_LIMIT) {
        Ok(captured) => captured,
        Err(e) => return Verdict::Error(format!("`{command}` could not start: {e}")),
    };
    let verdict = judge(&captured);
    // A catch is one line of the table; anything unexpected is shown whole.
    if !matches!((&verdict, canary), (Verdict::Failed, Some(_)) | (Verdict::Passed, None)) {
        println!("$ {shown}\n{}", captured.stdout);
        eprintln!("{}", captured.stderr);
    }
    verdict
}

/// The test binary itself, in the folder in which cargo would run it.
fn command(context: &Context, program: &Path, test: &Test, canary: Option<&str>) -> Cmd {
    let folder = context.root.join("crates").join(&test.package);
    let command = Cmd::new("", &folder).program(program).arg("--exact").arg(&test.name);
    let command = command.env("CARGO_MANIFEST_DIR", &folder.display().to_string());
    awake(command, canary)
}

/// The line for a person, who has cargo find the binary.
fn reproduce(context: &Context, test: &Test, canary: Option<&str>) -> Cmd {
    let command = target(tested(context), &test.binary);
    awake(command.args("-- --exact").arg(&test.name), canary)
}

fn awake(command: Cmd, canary: Option<&str>) -> Cmd {
    match canary {
        Some(name) => command.env("HAPAX_CANARY", name),
        None => command.without_env("HAPAX_CANARY"),
    }
}

fn judge(captured: &Captured) -> Verdict {
    let Some(status) = captured.status else {
        return Verdict::Error(format!("killed after {TEST_LIMIT:?}"));
    };
    let has = |start: &str| captured.stdout.lines().any(|line| line.starts_with(start));
    if !captured.stdout.lines().any(|line| line == "running 1 test") {
        return Verdict::Error("not exactly one test ran".to_owned());
    }
    if status.success() && has("test result: ok. 1 passed; 0 failed; 0 ignored;") {
        return Verdict::Passed;
    }
    if !status.success() && has("test result: FAILED. 0 passed; 1 failed;") {
        return Verdict::Failed;
    }
    Verdict::Error(format!("no verdict from the test binary ({status})"))
}

fn width<'a>(texts: impl Iterator<Item = &'a str>, heading: &str) -> usize {
    texts.map(|text| text.chars().count()).chain([heading.len()]).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    fn canary(name: &str, test: &str) -> Canary {
        Canary {
            name: name.into(),
            test: Test { package: "hapax".into(), binary: "steps".into(), name: test.into() },
        }
    }

    fn said(code: Option<i32>, stdout: &str) -> Captured {
        let status = code.map(|code| ExitStatus::from_raw(code << 8));
        Captured { status, stdout: stdout.into(), stderr: String::new() }
    }

    #[test]
    fn the_list_is_read_and_its_mistakes_are_located() {
        let list = "# why\n\nno_fence | hapax | steps | a::b # c\n";
        assert_eq!(parse(list), Ok(vec![canary("no_fence", "a::b # c")]));
        assert!(parse("a | b | c\n").unwrap_err().starts_with("1: want"));
        assert_eq!(parse("# x\na | b | | d\n").unwrap_err(), "2: a field is empty");
        assert!(parse("# nothing\n").is_err(), "an empty list proves nothing");
    }

    #[test]
    fn only_a_reported_failure_of_one_test_is_a_failure() {
        let failed =
            "running 1 test\ntest a ... FAILED\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored;\n";
        let passed =
            "running 1 test\ntest a ... ok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n";
        let ignored = "running 1 test\n\ntest result: ok. 0 passed; 0 failed; 1 ignored; 0 measured\n";
        let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(judge(&said(Some(101), failed)), Verdict::Failed);
        assert_eq!(judge(&said(Some(0), passed)), Verdict::Passed);
        for (code, stdout) in [
            (Some(0), none),
            (Some(0), ignored),
            (Some(101), ""),
            (None, failed),
            (Some(134), "running 1 test\n"),
        ] {
            assert!(matches!(judge(&said(code, stdout)), Verdict::Error(_)), "{code:?} {stdout}");
        }
    }

    #[test]
    fn a_canary_is_caught_only_when_its_test_fails_because_of_it() {
        let run = |test: &Test, canary: Option<&str>| match (test.name.as_str(), canary) {
            ("good", None) | ("blind", _) => Verdict::Passed,
            ("good", Some("seen")) | ("broken", _) => Verdict::Failed,
            _ => Verdict::Error("not exactly one test ran".into()),
        };
        let outcome = |name: &str, test: &str| check_all(&[canary(name, test)], 1, run);
        assert_eq!(outcome("seen", "good"), Ok(()));
        assert!(outcome("seen", "blind").unwrap_err().contains("NO: the test passes"));
        assert!(outcome("seen", "broken").unwrap_err().contains("fails without any canary"));
        assert!(outcome("seen", "absent").unwrap_err().contains("not exactly one test ran"));
    }

    #[test]
    fn a_mistake_that_takes_luck_to_show_gets_its_chances() {
        for unlucky in [CHANCES - 1, CHANCES] {
            let tries = AtomicU32::new(0);
            let run = |_: &Test, canary: Option<&str>| {
                let before = tries.fetch_add(u32::from(canary.is_some()), Relaxed);
                if canary.is_some() && before >= unlucky { Verdict::Failed } else { Verdict::Passed }
            };
            assert_eq!(check_all(&[canary("a", "t")], 1, run).is_ok(), unlucky < CHANCES);
        }
    }

    #[test]
    fn a_test_shared_by_canaries_is_proved_sound_once() {
        let sleeping = AtomicU32::new(0);
        let run = |_: &Test, canary: Option<&str>| {
            sleeping.fetch_add(u32::from(canary.is_none()), Relaxed);
            if canary.is_some() { Verdict::Failed } else { Verdict::Passed }
        };
        check_all(&[canary("a", "t"), canary("b", "t")], 2, run).unwrap();
        assert_eq!(sleeping.into_inner(), 1);
    }

    #[test]
    fn the_command_wakes_one_canary_for_one_test() {
        let context = Context { root: PathBuf::from("/hapax"), long: false, canaries: PathBuf::new() };
        let mut canary = canary("a", "t");
        assert_eq!(
            reproduce(&context, &canary.test, Some("a")).to_string(),
            format!("HAPAX_CANARY=a cargo test {TESTED} --test steps -- --exact t")
        );
        assert_eq!(
            command(&context, Path::new("/deps/steps-1"), &canary.test, Some("a")).to_string(),
            "CARGO_MANIFEST_DIR=/hapax/crates/hapax HAPAX_CANARY=a /deps/steps-1 --exact t"
        );
        canary.test.binary = "lib".into();
        assert_eq!(
            reproduce(&context, &canary.test, None).to_string(),
            format!("cargo test {TESTED} --lib -- --exact t")
        );
    }

    #[test]
    fn cargo_tells_where_the_test_binaries_are() {
        let line = |kind: &str, executable: &str| {
            format!(
                r#"{{"manifest_path":"/w/crates/hapax/Cargo.toml","target":{{"kind":["{kind}"],"name":"steps"}},"executable":{executable}}}"#
            )
        };
        let found = |binary: &str| Some((("hapax".to_owned(), binary.to_owned()), PathBuf::from("/deps/x")));
        assert_eq!(program(&line("test", r#""/deps/x""#)), found("steps"));
        assert_eq!(program(&line("lib", r#""/deps/x""#)), found("lib"));
        assert_eq!(program(&line("bin", r#""/deps/x""#)), None, "a program that the tests start");
        assert_eq!(program(&line("test", "null")), None);
        assert_eq!(program("Compiling"), None);
    }
}
