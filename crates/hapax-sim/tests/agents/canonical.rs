//! Canonical JSON held against an implementation that shares nothing with ours: the Python kit's, in a process of its own.
//!
//! Texts are made by chance, right ones and wrong ones. Both must give the same canonical form, to the byte, or both refuse.

use crate::kills::rng;
use hapax::core::{canonical, rng::Rng};
use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
    thread,
};

const KIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/agents");

/// A text a line, as a JSON string; answers `=` and its canonical form, or `!`.
const OTHER: &str = "\
import json, sys
sys.path.insert(0, sys.argv[1])
from hapax_agent import CanonicalError, canonical_json, parse_json
for line in sys.stdin.buffer:
    try:
        answer = '=' + canonical_json(parse_json(json.loads(line)))
    except CanonicalError:
        answer = '!'
    sys.stdout.buffer.write(answer.encode('utf-8') + b'\\n')
";

/// Documents that are sent before their answers are compared.
const BATCH: usize = 1000;

fn documents() -> usize {
    if env::var_os("HAPAX_LONG").is_some() { 1_000_000 } else { 20_000 }
}

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.below(from.len() as u64) as usize]
}

fn space(rng: &mut Rng) -> &'static str {
    pick(rng, &["", "", "", "", " ", "\n", "\t\r", "  "])
}

fn digits(rng: &mut Rng, most: u64) -> String {
    let count = 1 + rng.below(most);
    (0..count).map(|_| char::from(b'0' + rng.below(10) as u8)).collect()
}

fn integer(rng: &mut Rng) -> String {
    let sign = pick(rng, &["", "", "-"]);
    match rng.below(4) {
        0 => format!("{sign}{}", rng.below(10)),
        // Around the largest that a float tells apart from its neighbours.
        1 => format!("{sign}{}", (1u64 << 53) - 4 + rng.below(8)),
        2 => format!("{sign}{}", rng.next_u64()),
        _ => format!("{sign}{}{}", 1 + rng.below(9), digits(rng, 30)),
    }
}

fn number(rng: &mut Rng) -> String {
    let integer = integer(rng);
    match rng.below(5) {
        0 | 1 => integer,
        2 => format!("{integer}.{}", digits(rng, 20)),
        3 => format!("{integer}{}{}", pick(rng, &["e", "E", "e+", "E-", "e-"]), digits(rng, 3)),
        _ => {
            let float = f64::from_bits(rng.next_u64());
            if float.is_finite() { format!("{float:e}") } else { "0.1".into() }
        }
    }
}

fn character(rng: &mut Rng) -> String {
    match rng.below(12) {
        0 => pick(rng, &["\\n", "\\\"", "\\\\", "\\/", "\\b", "\\f", "\\r", "\\t"]).into(),
        1 => format!("\\u{:04x}", rng.below(0x80)),
        2 => format!("\\u{:04X}", rng.below(0x1_0000)),
        3 => format!("\\u{:04x}\\u{:04x}", 0xd800 + rng.below(0x400), 0xdc00 + rng.below(0x400)),
        4 => char::from_u32(rng.below(0x11_0000) as u32)
            .filter(|c| *c >= ' ' && *c != '"' && *c != '\\')
            .map_or("é".into(), String::from),
        5 => pick(rng, &["é", "€", "😀", "\u{7f}", "\u{2028}", "\u{ffff}", "\u{e000}"]).into(),
        _ => char::from(b'a' + rng.below(26) as u8).into(),
    }
}

fn string(rng: &mut Rng) -> String {
    let length = rng.below(6);
    format!("\"{}\"", (0..length).map(|_| character(rng)).collect::<String>())
}

fn value(rng: &mut Rng, depth: u64) -> String {
    match rng.below(if depth < 4 { 9 } else { 6 }) {
        0 => pick(rng, &["null", "true", "false"]).into(),
        1..=3 => number(rng),
        4 | 5 => string(rng),
        6 => {
            let items: Vec<_> = (0..rng.below(5)).map(|_| spaced(rng, depth)).collect();
            format!("[{}{}]", space(rng), items.join(","))
        }
        _ => {
            let field =
                |rng: &mut Rng| format!("{}{}{}:{}", space(rng), string(rng), space(rng), spaced(rng, depth));
            let fields: Vec<_> = (0..rng.below(6)).map(|_| field(rng)).collect();
            format!("{{{}{}}}", fields.join(","), space(rng))
        }
    }
}

fn spaced(rng: &mut Rng, depth: u64) -> String {
    format!("{}{}{}", space(rng), value(rng, depth + 1), space(rng))
}

/// A text that is JSON, mostly: some are nested about as deep as they may be, and some miss a character.
fn document(rng: &mut Rng) -> String {
    let mut text = spaced(rng, 0);
    if rng.below(200) == 0 {
        let deep = 120 + rng.below(12) as usize;
        text = format!("{}{text}{}", "[".repeat(deep), "]".repeat(deep));
    }
    if rng.below(20) == 0 {
        let at = rng.below(text.chars().count() as u64) as usize;
        text = text.chars().enumerate().filter(|(place, _)| *place != at).map(|(_, c)| c).collect();
    }
    text
}

fn ours(text: &str) -> String {
    canonical::from_text(text).map_or_else(|_| "!".to_owned(), |canonical| format!("={canonical}"))
}

#[test]
fn canonical_json_is_what_an_independent_implementation_says() {
    let mut rng = rng("canonical");
    let mut other = Command::new("python3");
    let other = other.args(["-B", "-c", OTHER, KIT]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = other.spawn().expect("python3 is needed");
    let (mut to, from) = (other.stdin.take().expect("piped"), other.stdout.take().expect("piped"));
    let (mut said, mut refused, wanted) = (BufReader::new(from).lines(), 0, documents());
    for _ in 0..wanted / BATCH {
        let texts: Vec<_> = (0..BATCH).map(|_| document(&mut rng)).collect();
        let lines: String =
            texts.iter().map(|text| serde_json::to_string(text).expect("a text") + "\n").collect();
        let writer =
            thread::spawn(move || to.write_all(lines.as_bytes()).and_then(|()| to.flush()).map(|()| to));
        for text in &texts {
            let (ours, theirs) = (ours(text), said.next().expect("an answer to each").expect("UTF-8"));
            assert_eq!(ours, theirs, "{text}");
            refused += usize::from(ours == "!");
        }
        to = writer.join().expect("no panic").expect("it listens");
    }
    drop(to);
    assert!(other.wait().expect("our own child").success());
    println!("{wanted} documents, {refused} refused by both");
    assert!(refused > wanted / 100 && refused < wanted / 2, "{refused} of {wanted}");
}
