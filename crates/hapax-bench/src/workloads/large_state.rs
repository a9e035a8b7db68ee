//! W4: a large state, of which only a counter changes (a), or that is replaced in every step (b).
//!
//! The text can't be compressed, so that no codec wins by it.

use super::{close, open};
use crate::{
    Result,
    args::Drive,
    meter::{Meter, Tally, extra, transactions},
};
use hapax::prelude::*;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const STEP: Node = Node::new("step");

#[derive(State, Clone, Default, Serialize, Deserialize)]
struct Document {
    text: String,
    #[state(sum)]
    done: u64,
    of: u64,
}
type Ctx = hapax::Ctx<Document, Arc<Tally>>;

async fn count(ctx: Ctx) -> DocumentDelta {
    ctx.app().tick();
    Document::delta().done(1u64)
}

async fn replace(ctx: Ctx) -> DocumentDelta {
    ctx.app().tick();
    let before = ctx.state();
    Document::delta().done(1u64).text(incompressible(before.text.len(), before.done + 1))
}

pub(super) async fn run(drive: &Drive, steps: u64, bytes: usize, replaced: bool) -> Result<()> {
    let (engine, tally) = (open(drive).await?, Tally::new(steps));
    let graph = Graph::new("w4", 1, STEP);
    let graph = if replaced { graph.node(STEP, replace) } else { graph.node(STEP, count) };
    let graph = graph.edge_if(STEP, STEP, "more", |document: &Document| document.done < document.of);
    let flow = engine.register(graph.end(STEP), tally.clone()).await?;
    let begin = Document { text: incompressible(bytes, 0), done: 0, of: steps };
    let (store, before) = (engine.store(), engine.store().stats());
    let meter = Meter::begin(tally);
    let end = flow.start("w4", begin).await?.wait().await?;
    let extra = extra("steps", "between the starts of two steps");
    meter.end(end.done, transactions(before, store.stats()), extra);
    close(&engine).await;
    Ok(())
}

/// Letters with six random bits in each.
fn incompressible(bytes: usize, seed: u64) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
    let mut text = String::with_capacity(bytes + 10);
    while text.len() < bytes {
        let mut draw = splitmix(&mut state);
        for _ in 0..10 {
            text.push(char::from(LETTERS[(draw & 63) as usize]));
            draw >>= 6;
        }
    }
    text.truncate(bytes);
    text
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn texts_have_their_size_and_nothing_in_common() {
        let texts: Vec<String> = (0..20).map(|seed| incompressible(1001, seed)).collect();
        assert!(texts.iter().all(|text| text.len() == 1001));
        let pieces: HashSet<&str> =
            texts.iter().flat_map(|text| (0..125).map(|n| &text[n * 8..][..8])).collect();
        assert_eq!(pieces.len(), 20 * 125);
    }
}
