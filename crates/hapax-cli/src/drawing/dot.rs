//! A drawing for Graphviz: <https://graphviz.org>.

use super::{Drawing, Edge, Kind, Mark};

const GREEN: &str = "#2b8a3e";

/// The drawing as text.
pub(crate) fn render(drawing: &Drawing) -> String {
    let mut text = format!(
        "digraph {} {{\n    label={};\n    labelloc=t;\n    node [shape=box, style=\"rounded,filled\", \
         fillcolor=white, fontname=\"sans-serif\"];\n    edge [fontname=\"sans-serif\", fontsize=11];\n",
        quoted(&drawing.graph),
        quoted(&drawing.title),
    );
    for (at, node) in drawing.nodes.iter().enumerate() {
        let visits = if node.visits > 1 { format!(" ×{}", node.visits) } else { String::new() };
        let mut attributes = vec![format!("label={}", quoted(&format!("{}{visits}", node.id)))];
        if node.start {
            attributes.push("shape=oval".into());
        }
        if node.end {
            attributes.push("peripheries=2".into());
        }
        attributes
            .extend(colors(node.mark).map(|(fill, line)| format!("fillcolor=\"{fill}\", color=\"{line}\"")));
        text.push_str(&format!("    n{at} [{}];\n", attributes.join(", ")));
    }
    for edge in &drawing.edges {
        text.push_str(&format!("    n{} -> n{}{};\n", edge.from, edge.to, attributes(edge)));
    }
    text.push_str("}\n");
    text
}

fn colors(mark: Mark) -> Option<(&'static str, &'static str)> {
    match mark {
        Mark::Plain => None,
        Mark::Visited => Some(("#d3f9d8", GREEN)),
        Mark::Next => Some(("#d0ebff", "#1971c2")),
        Mark::Failed => Some(("#ffe3e3", "#c92a2a")),
    }
}

fn attributes(edge: &Edge) -> String {
    let mut all = vec![];
    all.extend(edge.label.as_ref().map(|label| format!("label={}", quoted(label))));
    if matches!(edge.kind, Kind::OnError | Kind::Routed) {
        all.push("style=dashed".into());
    }
    if edge.kind == Kind::Presumed {
        all.push("style=dotted".into());
    }
    if edge.taken {
        all.push(format!("color=\"{GREEN}\", penwidth=2"));
    }
    if all.is_empty() { String::new() } else { format!(" [{}]", all.join(", ")) }
}

fn quoted(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    format!("\"{}\"", clean.replace('\\', "\\\\").replace('"', "\\\""))
}
