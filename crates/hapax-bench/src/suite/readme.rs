//! The measured parts of the README and of the guide: what stands between two markers is rewritten, and nothing else.

use super::{rows::Row, table};

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";

/// The limits, and every case that has a goal.
pub(super) fn section(rows: &[Row], notes: &[String]) -> String {
    let shown =
        rows.iter().filter(|row| !row.has_own_table() && (row.is_limit() || !row.verdicts.is_empty()));
    format!("{}\n{}.\n", table::markdown(shown), notes.join(".\n"))
}

/// The text with another section between the markers.
pub(super) fn replaced(page: &str, section: &str) -> Result<String, String> {
    let missing = || format!("the page has no `{BEGIN}` before a `{END}`");
    let (before, rest) = page.split_once(BEGIN).ok_or_else(missing)?;
    let (_, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok(format!("{before}{BEGIN}\n{section}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::{super::table::tests::row, *};

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let before = "# A\n<!-- bench:begin -->\nold\n<!-- bench:end -->\n\nB\n";
        let after = "# A\n<!-- bench:begin -->\nnew\n<!-- bench:end -->\n\nB\n";
        assert_eq!(replaced(before, "new\n").as_deref(), Ok(after));
        assert_eq!(replaced(after, "new\n").as_deref(), Ok(after));
        assert!(replaced("# A\n<!-- bench:end --><!-- bench:begin -->", "new").is_err());
    }

    #[test]
    fn each_table_has_its_place_in_the_guide() {
        let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
        for table in super::super::TABLES {
            let page = std::fs::read_to_string(guide.join(format!("{}.md", table.page))).unwrap();
            assert!(replaced(&page, "new\n").is_ok(), "{}", table.page);
        }
    }

    #[test]
    fn cases_without_a_goal_are_left_out() {
        let section = section(&[row("bare", "", 3000.0), row("W1", "strict", 1.0)], &["medians of 3".into()]);
        assert!(section.contains("| bare |") && !section.contains("| W1 |"));
        assert!(section.ends_with("\n\nmedians of 3.\n"), "{section}");
    }
}
