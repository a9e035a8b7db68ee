//! A drawing for browsers: ranks from top to bottom, no program needed to lay it out.

use super::{Drawing, Edge, Kind, Mark, Node};
use crate::output::{clean, steers};
use std::collections::VecDeque;
use unicode_width::UnicodeWidthStr;

const CHAR: f64 = 8.5;
const HEIGHT: f64 = 36.0;
const RANK: f64 = 92.0;
const GAP: f64 = 36.0;
const MARGIN: f64 = 48.0;
const TITLE: f64 = 34.0;

/// Where a node is: its middle, and its width.
#[derive(Clone, Copy)]
struct Place {
    x: f64,
    y: f64,
    width: f64,
}

/// The drawing as text.
pub(crate) fn render(drawing: &Drawing) -> String {
    let ranks = ranks(drawing);
    let (places, width, height) = places(drawing, &ranks);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"14\">\n"
    );
    text.push_str(&format!("<title>{}</title>\n", escaped(&drawing.title)));
    text.push_str("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<defs>\n");
    for (name, color) in [("plain", "#868e96"), ("taken", "#2b8a3e")] {
        text.push_str(&format!(
            "<marker id=\"{name}\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" \
             markerUnits=\"userSpaceOnUse\" orient=\"auto-start-reverse\"><path d=\"M0 0L10 5L0 10z\" fill=\"{color}\"/></marker>\n"
        ));
    }
    let title = escaped(&drawing.title);
    text.push_str(&format!("</defs>\n<text x=\"16\" y=\"24\" font-weight=\"bold\">{title}</text>\n"));
    for (at, edge) in drawing.edges.iter().enumerate() {
        text.push_str(&line(edge, &places, &ranks, at));
    }
    for (node, place) in drawing.nodes.iter().zip(&places) {
        text.push_str(&shape(node, *place));
    }
    text.push_str("</svg>\n");
    text
}

/// The rank of each node: its distance from the start, later where a join or a longer way without loops demands it.
fn ranks(drawing: &Drawing) -> Vec<usize> {
    let count = drawing.nodes.len();
    let mut ranks = vec![usize::MAX; count];
    let starts = (0..count).filter(|at| drawing.nodes[*at].start);
    let mut queue: VecDeque<usize> = starts.collect();
    queue.iter().for_each(|at| ranks[*at] = 0);
    loop {
        while let Some(at) = queue.pop_front() {
            for edge in drawing.edges.iter().filter(|edge| edge.from == at) {
                if ranks[edge.to] == usize::MAX {
                    ranks[edge.to] = ranks[at] + 1;
                    queue.push_back(edge.to);
                }
            }
        }
        // What only a route at run time reaches is below everything that it isn't known to follow.
        let Some(next) = (0..count).find(|at| ranks[*at] == usize::MAX) else {
            return lowered(drawing, ranks);
        };
        let below = ranks.iter().filter(|rank| **rank != usize::MAX).max().map_or(0, |rank| rank + 1);
        ranks[next] = below.min(1);
        queue.push_back(next);
    }
}

/// A join stands below all of its sources. Bounded, since a loop could go on forever.
fn lowered(drawing: &Drawing, mut ranks: Vec<usize>) -> Vec<usize> {
    for _ in 0..drawing.nodes.len() {
        let joins = drawing.edges.iter().filter(|edge| matches!(edge.kind, Kind::Join | Kind::Presumed));
        let low: Vec<_> = joins.filter(|edge| ranks[edge.to] <= ranks[edge.from]).collect();
        for edge in &low {
            ranks[edge.to] = ranks[edge.from] + 1;
        }
        if low.is_empty() {
            break;
        }
    }
    ranks
}

fn label(node: &Node) -> String {
    let id = clean(&node.id);
    if node.visits > 1 { format!("{id} ×{}", node.visits) } else { id }
}

fn places(drawing: &Drawing, ranks: &[usize]) -> (Vec<Place>, f64, f64) {
    let widths: Vec<f64> =
        drawing.nodes.iter().map(|node| label(node).width() as f64 * CHAR + 28.0).collect();
    let last = ranks.iter().max().copied().unwrap_or(0);
    let row = |rank: usize| (0..ranks.len()).filter(move |at| ranks[*at] == rank);
    let row_width = |rank: usize| row(rank).map(|at| widths[at] + GAP).sum::<f64>() - GAP;
    let title = clean(&drawing.title).width() as f64 * CHAR + 32.0;
    let inner = (0..=last).map(row_width).fold(title, f64::max);
    let mut places = vec![Place { x: 0.0, y: 0.0, width: 0.0 }; ranks.len()];
    for rank in 0..=last {
        let mut x = MARGIN + (inner - row_width(rank)) / 2.0;
        for at in row(rank) {
            let y = TITLE + MARGIN / 2.0 + HEIGHT / 2.0 + rank as f64 * RANK;
            places[at] = Place { x: x + widths[at] / 2.0, y, width: widths[at] };
            x += widths[at] + GAP;
        }
    }
    (places, inner + 2.0 * MARGIN, TITLE + MARGIN + HEIGHT + last as f64 * RANK)
}

fn shape(node: &Node, place: Place) -> String {
    let (fill, stroke) = match node.mark {
        Mark::Plain => ("#f8f9fa", "#868e96"),
        Mark::Visited => ("#d3f9d8", "#2b8a3e"),
        Mark::Next => ("#d0ebff", "#1971c2"),
        Mark::Failed => ("#ffe3e3", "#c92a2a"),
    };
    let radius = if node.start { HEIGHT / 2.0 } else { 6.0 };
    let stroke_width = if node.end || node.mark != Mark::Plain { 2.0 } else { 1.2 };
    let (x, y) = (place.x - place.width / 2.0, place.y - HEIGHT / 2.0);
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{HEIGHT}\" rx=\"{radius}\" fill=\"{fill}\" \
         stroke=\"{stroke}\" stroke-width=\"{stroke_width}\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
        place.width,
        place.x,
        place.y + 5.0,
        escaped(&label(node)),
    )
}

fn line(edge: &Edge, places: &[Place], ranks: &[usize], at: usize) -> String {
    let (from, to) = (places[edge.from], places[edge.to]);
    let (path, x, y) = if ranks[edge.to] > ranks[edge.from] { down(from, to) } else { around(from, to, at) };
    let (name, color, width) = if edge.taken { ("taken", "#2b8a3e", 2.5) } else { ("plain", "#868e96", 1.2) };
    let dashes = match edge.kind {
        Kind::OnError | Kind::Routed => " stroke-dasharray=\"6 4\"",
        Kind::Presumed => " stroke-dasharray=\"2 4\"",
        _ => "",
    };
    let mut text = format!(
        "<path d=\"{path}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"{dashes} marker-end=\"url(#{name})\"/>\n"
    );
    if let Some(label) = &edge.label {
        text.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" font-size=\"11\" fill=\"{color}\" \
             stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\">{}</text>\n",
            escaped(label)
        ));
    }
    text
}

fn down(from: Place, to: Place) -> (String, f64, f64) {
    let (top, bottom) = (from.y + HEIGHT / 2.0, to.y - HEIGHT / 2.0);
    let bend = (bottom - top) / 2.0;
    let path = format!(
        "M{:.1} {top:.1}C{:.1} {:.1} {:.1} {:.1} {:.1} {bottom:.1}",
        from.x,
        from.x,
        top + bend,
        to.x,
        bottom - bend,
        to.x
    );
    (path, f64::midpoint(from.x, to.x), f64::midpoint(top, bottom))
}

/// To the same rank, or back up: around the right side.
fn around(from: Place, to: Place, at: usize) -> (String, f64, f64) {
    let (start, end) = (from.x + from.width / 2.0, to.x + to.width / 2.0);
    let side = start.max(end) + 24.0 + (at % 3) as f64 * 8.0;
    let (y, back) = if from.y == to.y { (from.y + 8.0, to.y - 8.0) } else { (from.y, to.y) };
    let path = format!("M{start:.1} {y:.1}C{side:.1} {y:.1} {side:.1} {back:.1} {end:.1} {back:.1}");
    (path, side, f64::midpoint(y, back))
}

/// A text from elsewhere in a page: no markup, and what would turn the order of what is shown is seen instead.
pub(crate) fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        c if steers(c) => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_from_elsewhere_is_no_markup_and_turns_nothing_around() {
        assert_eq!(escaped("<b>\"a\" & b</b>"), "&lt;b&gt;&quot;a&quot; &amp; b&lt;/b&gt;");
        assert_eq!(escaped("order-\u{202e}24\u{2069}\u{1b}[2J"), "order-\\u{202e}24\\u{2069}\\u{1b}[2J");
        assert_eq!(
            escaped("größe שלום"),
            "größe שלום",
            "scripts that are written the other way are as they are"
        );
    }

    #[test]
    fn names_in_a_drawing_turn_nothing_around() {
        let mut drawing = Drawing::empty("orders\u{202e}");
        drawing.line("a\u{2066}", "b", Kind::When, Some("\u{200f}if".into()));
        let svg = render(&drawing);
        assert!(!svg.contains(['\u{202e}', '\u{2066}', '\u{200f}']), "{svg}");
        for shown in ["orders\\u{202e}", "a\\u{2066}", "\\u{200f}if"] {
            assert!(svg.contains(shown), "{shown}: {svg}");
        }
    }
}
