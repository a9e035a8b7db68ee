//! The stage `examples`: every folder of `examples/` is a program whose output is a promise.
//!
//! Each runs in an empty temporary folder, so that none depends on files left by another, and its
//! stdout must equal its `expected.txt` to the byte. Arguments, for one that does more when it is shown, are in `args.txt`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Context;
use crate::process::{Cmd, Failure};
use crate::workspace::package_name;

/// Examples are built before; none has more than a few seconds of work.
const RUN_LIMIT: Duration = Duration::from_secs(120);

struct Example {
    package: String,
    /// Separated by spaces.
    args: String,
    expected: String,
}

pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let unread = |what: String| Failure { what, reproduce: "ls examples/*".to_owned() };
    let examples = find(&context.root.join("examples")).map_err(unread)?;
    if examples.is_empty() {
        println!("no examples yet");
        return Ok(());
    }
    let build = context.cargo("build -q");
    examples.iter().fold(build, |build, example| build.arg("-p").arg(&example.package)).run()?;
    examples.iter().try_for_each(check)
}

/// The kit for agents in Python has tests in its own language: it must work where there is no Rust.
pub(super) fn python(context: &Context) -> Result<(), Failure> {
    Cmd::new("python3 -m unittest discover -s examples/agents", &context.root).run()
}

fn find(folder: &Path) -> Result<Vec<Example>, String> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect();
    folders.sort();
    folders.iter().map(|folder| load(folder)).collect()
}

fn load(folder: &Path) -> Result<Example, String> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(|e| format!("every example needs {}: {e}", path.display()))
    };
    let manifest = read("Cargo.toml")?;
    let package =
        package_name(&manifest).ok_or_else(|| format!("{} has no package name", folder.display()))?;
    // Most of them take none.
    let args = read("args.txt").unwrap_or_default().trim().to_owned();
    Ok(Example { package: package.to_owned(), args, expected: read("expected.txt")? })
}

fn check(example: &Example) -> Result<(), Failure> {
    let Example { package, args, .. } = example;
    let separator = if args.is_empty() { "" } else { " -- " };
    let reproduce = format!("cargo run -q -p {package}{separator}{args}");
    let fail = |what: String| Failure { what, reproduce: reproduce.clone() };
    let folder = ScratchFolder::new(package).map_err(|e| fail(format!("no temporary folder: {e}")))?;
    // All are built at once, with one set of features: cargo would build what they share anew for each of them.
    let built = std::env::current_exe().map_err(|e| fail(format!("no folder of programs: {e}")))?;
    let command = Cmd::new("env", &folder.0).arg(built.with_file_name(package).to_string_lossy()).args(args);
    println!("$ {reproduce}");
    let captured = command.capture(RUN_LIMIT).map_err(|e| fail(format!("{package} could not start: {e}")))?;
    let what = match captured.status {
        None => Some(format!("{package} ran longer than {RUN_LIMIT:?}")),
        Some(status) if !status.success() => Some(format!("{package} ended with {status}")),
        Some(_) => first_difference(&example.expected, &captured.stdout)
            .map(|difference| format!("{package} differs from its expected.txt {difference}")),
    };
    let Some(what) = what else { return Ok(()) };
    print!("{}", captured.stdout);
    eprint!("{}", captured.stderr);
    Err(fail(what))
}

/// Where two texts part, as a phrase; none when they are equal.
fn first_difference(expected: &str, actual: &str) -> Option<String> {
    if expected == actual {
        return None;
    }
    let (mut wanted, mut got) = (expected.lines(), actual.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (wanted.next(), got.next()) {
            (None, None) => return Some("in how its lines end".to_owned()),
            (wanted, got) if wanted != got => {
                let shown = |line: Option<&str>| line.map_or("nothing more".to_owned(), |l| format!("{l:?}"));
                return Some(format!("in line {number}: expected {}, got {}", shown(wanted), shown(got)));
            }
            _ => {}
        }
    }
}

/// An empty folder that is removed when dropped.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new(name: &str) -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("hapax-example-{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(ScratchFolder(path))
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // A folder that can't be removed is litter in the temporary folder, not a failed example.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_shown() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n").unwrap(), "in line 2: expected \"b\", got \"c\"");
        assert_eq!(first_difference("a\n", "").unwrap(), "in line 1: expected \"a\", got nothing more");
        assert_eq!(first_difference("a\n", "a").unwrap(), "in how its lines end");
    }

    #[test]
    fn an_example_without_its_expectation_is_an_error() {
        let scratch = ScratchFolder::new("unit-test").unwrap();
        assert!(find(&scratch.0.join("none")).unwrap().is_empty());
        let folder = scratch.0.join("hello");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("Cargo.toml"), "[package]\nname = \"hello\"\n").unwrap();
        assert!(find(&scratch.0).err().unwrap().contains("expected.txt"));
        fs::write(folder.join("expected.txt"), "hello\n").unwrap();
        assert_eq!(find(&scratch.0).unwrap()[0].package, "hello");
        fs::write(folder.join("args.txt"), "--twice\n").unwrap();
        assert_eq!(find(&scratch.0).unwrap()[0].args, "--twice");
    }
}
