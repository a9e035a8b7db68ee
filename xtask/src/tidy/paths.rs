//! No path of the machine on which a line was written: it would mean nothing on any other.

use super::Finding;
use super::source::{SourceFile, numbered};

const WHY: &str = "such a path exists on one machine only";

/// Split, so that this file passes its own check.
const FOLDERS: &[&str] = &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

pub(super) fn machine(files: &[SourceFile]) -> Vec<Finding> {
    files.iter().flat_map(in_file).collect()
}

fn in_file(file: &SourceFile) -> Vec<Finding> {
    let hits = numbered(&file.text).flat_map(|(number, line)| {
        FOLDERS.iter().filter(|folder| holds_path(line, folder)).map(move |folder| (number, folder))
    });
    hits.map(|(number, folder)| {
        file.finding(number, format!("path of a developer's machine `{folder}`"), WHY)
    })
    .collect()
}

/// Whether the folder begins a path; in the middle of a longer one it is only a name.
fn holds_path(line: &str, folder: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_-.~*})]".contains(c);
    line.match_indices(folder).any(|(at, _)| !line[..at].ends_with(continues))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        machine(&[SourceFile::new("docs/a.md", text)]).len()
    }

    #[test]
    fn an_absolute_path_of_a_machine_is_found() {
        for folder in FOLDERS {
            assert_eq!(found(&format!("see\n`{folder}x`")), 1);
            assert_eq!(found(&format!("file://{folder}x")), 1);
            assert_eq!(found(&format!("{folder}x")), 1);
        }
    }

    #[test]
    fn the_same_name_inside_another_path_is_fine() {
        for folder in FOLDERS {
            assert_eq!(
                found(&format!("https://example.com{folder}x and src{folder}y and ${{A}}{folder}")),
                0
            );
        }
    }
}
