//! Plain aligned tables that fit the terminal.

use crate::output::{FAINT, Output, clean};
use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Between two columns.
const GAP: usize = 2;
/// A column that is cut keeps at least this much: every status is whole.
const LEAST: usize = 9;

/// One cell.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>) -> Self {
        Self { text: clean(text.as_ref()), style: Style::new() }
    }

    pub(crate) fn styled(text: impl AsRef<str>, style: Style) -> Self {
        Self { style, ..Self::new(text) }
    }
}

/// Rows under headings. On a narrow terminal the widest columns are cut first, then the last ones left out. The first
/// column says which row it is: it keeps half of the room, and both of its ends.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|text| Cell::styled(text, FAINT)).collect(), rows: vec![] }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// The table as text, each line ended.
    pub(crate) fn render(&self, out: &Output) -> String {
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let column = |at: usize| {
            lines().map(|line| line.get(at).map_or(0, |cell| cell.text.width())).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.head.len()).map(column).collect();
        if let Some(room) = out.width() {
            fit(&mut widths, room);
        }
        lines().map(|line| render_line(line, &widths, out)).collect()
    }
}

fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// Makes the columns fit, as far as they can.
fn fit(widths: &mut Vec<usize>, room: usize) {
    let least = |at: usize| if at == 0 { LEAST.max(room / 2) } else { LEAST };
    while total(widths) > room {
        let excess = total(widths) - room;
        let wide = widths.iter().copied().enumerate().filter(|(at, width)| *width > least(*at));
        match wide.max_by_key(|(_, width)| *width) {
            Some((at, width)) => {
                let next = widths.iter().filter(|other| **other < width).max().copied().unwrap_or(LEAST);
                widths[at] = width.saturating_sub(excess).max(next.max(least(at))).min(width - 1);
            }
            None if widths.len() > 1 => drop(widths.pop()),
            _ => {
                widths[0] = room.max(1);
                return;
            }
        }
    }
}

fn render_line(cells: &[Cell], widths: &[usize], out: &Output) -> String {
    let mut line = String::new();
    for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let text = if at == 0 { cut_within(&cell.text, *width) } else { cut(&cell.text, *width) };
        let padding = if at + 1 == widths.len() { 0 } else { width - text.width() + GAP };
        let painted = if text.is_empty() { text } else { out.paint(cell.style, &text) };
        line.push_str(&painted);
        line.extend(std::iter::repeat_n(' ', padding));
    }
    line.truncate(line.trim_end_matches(' ').len());
    line.push('\n');
    line
}

/// Cuts a text to so many columns, with a mark where it was cut.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut kept, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used > width.saturating_sub(1) {
            break;
        }
        kept.push(c);
    }
    kept.push('…');
    kept
}

/// Cuts a text in its middle: names often differ only at their ends.
pub(crate) fn cut_within(text: &str, width: usize) -> String {
    let room = width.saturating_sub(1);
    if text.width() <= width || room < 2 {
        return cut(text, width);
    }
    let (mut end, mut used) = (text.len(), 0);
    for (at, c) in text.char_indices().rev() {
        used += c.width().unwrap_or(0);
        if used > room / 2 {
            break;
        }
        end = at;
    }
    let tail = &text[end..];
    cut(text, width - tail.width()) + tail
}

/// A text in lines of so many columns, broken between words where that is possible.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if !line.is_empty() && line.width() + 1 + word.width() > width {
            lines.push(word.to_owned());
            continue;
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines
}

/// The same, but a word that is wider than a line is broken too.
pub(crate) fn folded(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![];
    for line in wrapped(text, width) {
        let (mut part, mut used) = (String::new(), 0);
        for c in line.chars() {
            let wide = c.width().unwrap_or(0);
            if used + wide > width && !part.is_empty() {
                lines.push(std::mem::take(&mut part));
                used = 0;
            }
            part.push(c);
            used += wide;
        }
        lines.push(part);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_text_is_never_wider_than_its_column() {
        assert_eq!(cut("order-42", 8), "order-42");
        assert_eq!(cut("order-420", 8), "order-4…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut_within("order-42", 8), "order-42");
        assert_eq!(cut_within("demo-1794769416993-012", 12), "demo-1…3-012");
        for width in 1..8 {
            assert!(cut_within("日本語日本語", width).width() <= width, "{width}");
        }
    }

    #[test]
    fn a_long_text_is_broken_between_words() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("incomprehensible", 7), ["incomprehensible"]);
        assert_eq!(folded("an incomprehensible 日本", 7), ["an", "incompr", "ehensib", "le", "日本"]);
        assert_eq!(folded("日本", 1), ["日", "本"]);
    }

    #[test]
    fn the_widest_columns_give_way_first_then_the_last() {
        let mut widths = vec![40, 10, 20];
        fit(&mut widths, 60);
        assert_eq!(total(&widths), 60);
        assert_eq!(widths[1], 10);
        fit(&mut widths, 22);
        assert_eq!(widths, [11, 9]);
        fit(&mut widths, 5);
        assert_eq!(widths, [5]);
    }
}
