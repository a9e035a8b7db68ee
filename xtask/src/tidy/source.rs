//! The tracked text files, with the views of Rust files that the checks look at.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;

use super::Finding;
use super::lex::{Kind, classify, test_modules, view};

/// A file of the tree. The views are empty unless it is Rust.
pub(super) struct SourceFile {
    /// Relative to the root, with forward slashes.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) code: String,
    pub(super) comments: String,
    pub(super) literals: String,
    pub(super) test_modules: Vec<RangeInclusive<usize>>,
}

impl SourceFile {
    pub(super) fn new(path: &str, text: &str) -> Self {
        let classified = if path.ends_with(".rs") { classify(text) } else { Vec::new() };
        let code = view(&classified, Kind::Code);
        SourceFile {
            path: path.to_owned(),
            text: text.to_owned(),
            comments: view(&classified, Kind::Comment),
            literals: view(&classified, Kind::Literal),
            test_modules: test_modules(&code),
            code,
        }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Whether the file lies in a folder of this name, at any depth.
    pub(super) fn is_in(&self, folder: &str) -> bool {
        self.path.split('/').rev().skip(1).any(|part| part == folder)
    }

    pub(super) fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// Whether the line belongs to a test: by its folder, its file or its module.
    pub(super) fn is_test_line(&self, line: usize) -> bool {
        let is_test_file = self.is_in("tests") || self.file_name() == "tests.rs";
        is_test_file || self.test_modules.iter().any(|lines| lines.contains(&line))
    }

    pub(super) fn finding(&self, line: usize, message: String, why: &'static str) -> Finding {
        Finding { path: self.path.clone(), line, message, why }
    }
}

/// The lines of a view, numbered from 1.
pub(super) fn numbered(view: &str) -> impl Iterator<Item = (usize, &str)> {
    view.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Every file that is text, unless git is told to ignore it.
pub(super) fn load(root: &Path) -> Result<Vec<SourceFile>, String> {
    let mut paths = match listed(root) {
        Some(paths) => paths,
        None => {
            println!("git does not list the files here: looking at every file outside of target instead");
            let mut paths = Vec::new();
            walk(root, "", &mut paths).map_err(|e| format!("{} is unreadable: {e}", root.display()))?;
            paths
        }
    };
    paths.sort();
    // What is listed but unreadable is a binary file, or was deleted and not yet staged.
    let read = |path: &String| Some(SourceFile::new(path, &fs::read_to_string(root.join(path)).ok()?));
    Ok(paths.iter().filter_map(read).collect())
}

/// What git knows of, and what is new: a file is tidy before it is added, not after.
fn listed(root: &Path) -> Option<Vec<String>> {
    // A checkout owned by another user, as in many containers, is safe enough to list.
    let list_files =
        ["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = git(root).args(list_files).output().ok()?;
    let list = output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())?;
    let paths: Vec<String> = list.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    (!paths.is_empty()).then_some(paths)
}

/// Git in that folder, also when a hook of another repository calls us.
fn git(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.current_dir(folder);
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(variable);
    }
    git
}

/// The files of a source archive, which has no git.
fn walk(root: &Path, folder: &str, paths: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_file() {
            paths.push(path);
        } else if entry.file_type()?.is_dir() && name != "target" && name != ".git" {
            walk(root, &path, paths)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_known_by_folder_and_by_module() {
        let inline = SourceFile::new("src/a.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n");
        assert!(!inline.is_test_line(1) && inline.is_test_line(3));
        assert!(SourceFile::new("crates/x/tests/it.rs", "").is_test_line(1));
        assert!(SourceFile::new("crates/x/src/tests.rs", "").is_test_line(1));
        assert!(!SourceFile::new("crates/x/src/latests/a.rs", "").is_test_line(1));
    }

    #[test]
    fn a_new_file_is_looked_at_before_it_is_added() {
        let folder = std::env::temp_dir().join(format!("hapax-tidy-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        for name in ["added.rs", "new.rs"] {
            fs::write(folder.join(name), "").unwrap();
        }
        // Without git every file is looked at in any case.
        for args in [["init", "--quiet"], ["add", "added.rs"]] {
            let _ = git(&folder).args(args).status();
        }
        let files = load(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let seen = |name: &str| files.iter().any(|file| file.path == name);
        assert!(seen("added.rs") && seen("new.rs"));
    }

    #[test]
    fn only_rust_has_views() {
        assert!(SourceFile::new("a.md", "fn a() {}").code.is_empty());
        assert_eq!(SourceFile::new("a/b.rs", "fn a() {}").code, "fn a() {}");
        assert_eq!(SourceFile::new("a/b.rs", "").file_name(), "b.rs");
    }
}
