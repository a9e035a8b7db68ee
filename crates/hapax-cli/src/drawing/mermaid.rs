//! A drawing for Markdown: <https://mermaid.js.org>.

use super::{Drawing, Edge, Kind, Mark};

/// The drawing as text.
pub(crate) fn render(drawing: &Drawing) -> String {
    let mut text = format!("---\ntitle: {}\n---\nflowchart TD\n", quoted_title(&drawing.title));
    for (at, node) in drawing.nodes.iter().enumerate() {
        let visits = if node.visits > 1 { format!(" ×{}", node.visits) } else { String::new() };
        let label = format!("\"{}{visits}\"", escaped(&node.id));
        let shape = match (node.start, node.end) {
            (true, _) => format!("([{label}])"),
            (_, true) => format!("(({label}))"),
            _ => format!("[{label}]"),
        };
        text.push_str(&format!("    n{at}{shape}\n"));
    }
    for edge in &drawing.edges {
        text.push_str(&format!("    n{} {} n{}\n", edge.from, arrow(edge), edge.to));
    }
    text.push_str(&styles(drawing));
    text
}

fn arrow(edge: &Edge) -> String {
    let line = match edge.kind {
        Kind::OnError | Kind::Routed | Kind::Presumed => "-.->",
        _ => "-->",
    };
    edge.label.as_ref().map_or_else(|| line.to_owned(), |label| format!("{line}|\"{}\"|", escaped(label)))
}

fn styles(drawing: &Drawing) -> String {
    let mut text = String::new();
    let marks = [
        (Mark::Visited, "visited", "fill:#d3f9d8,stroke:#2b8a3e,color:#000"),
        (Mark::Next, "next", "fill:#d0ebff,stroke:#1971c2,color:#000,stroke-width:3px"),
        (Mark::Failed, "failed", "fill:#ffe3e3,stroke:#c92a2a,color:#000,stroke-width:3px"),
    ];
    for (mark, name, style) in marks {
        let nodes = drawing.nodes.iter().enumerate().filter(|(_, node)| node.mark == mark);
        let nodes: Vec<_> = nodes.map(|(at, _)| format!("n{at}")).collect();
        if !nodes.is_empty() {
            text.push_str(&format!("    classDef {name} {style}\n    class {} {name}\n", nodes.join(",")));
        }
    }
    let taken = drawing.edges.iter().enumerate().filter(|(_, edge)| edge.taken);
    let taken: Vec<_> = taken.map(|(at, _)| at.to_string()).collect();
    if !taken.is_empty() {
        text.push_str(&format!("    linkStyle {} stroke:#2b8a3e,stroke-width:3px\n", taken.join(",")));
    }
    text
}

/// What could end a label, or be taken for markup, as its number.
fn escaped(text: &str) -> String {
    let special = |c: char| c.is_control() || "\"#&<>;`|\\[](){}".contains(c);
    text.chars().map(|c| if special(c) { format!("#{};", u32::from(c)) } else { c.to_string() }).collect()
}

/// A title is YAML, in which JSON strings are strings.
fn quoted_title(title: &str) -> String {
    serde_json::Value::from(title).to_string()
}
