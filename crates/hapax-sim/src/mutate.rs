//! Changed code: a case in which one node does one thing otherwise than the record says.
//!
//! Invariant: a mutation leaves the graph's shape alone, and shows wherever its node ends well.

use crate::generate::{At, Case};
use hapax::Rng;

/// What a node does otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutation {
    /// It writes another value.
    Value,
    /// Two effects that follow each other change places; this is the first of them.
    Swap(usize),
    /// It draws once more.
    Draw,
    /// One effect asks for something else.
    Request(usize),
}

impl Mutation {
    /// All that can be done to a node.
    pub fn of(case: &Case, at: At) -> Vec<Self> {
        let effects = &case.nodes[at].effects;
        let differ = |first: &usize| effects[*first].request != effects[first + 1].request;
        let swaps = (0..effects.len().saturating_sub(1)).filter(differ).map(Self::Swap);
        let requests = (0..effects.len()).map(Self::Request);
        [Self::Value, Self::Draw].into_iter().chain(swaps).chain(requests).collect()
    }

    /// One of those that can be done to a node.
    pub fn draw(rng: &mut Rng, case: &Case, at: At) -> Self {
        let all = Self::of(case, at);
        all[rng.below(all.len() as u64) as usize]
    }

    /// Its kind, for people.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Value => "another value",
            Self::Swap(_) => "effects swapped",
            Self::Draw => "another draw",
            Self::Request(_) => "another request",
        }
    }

    /// What a replay names as the difference, behind the part of the record in which it is found.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Value => "total",
            Self::Draw => "draws",
            Self::Swap(_) | Self::Request(_) => "request",
        }
    }

    /// The case with the change in it.
    pub fn apply(self, case: &Case, at: At) -> Case {
        let mut case = case.clone();
        let node = &mut case.nodes[at];
        match self {
            Self::Value => node.surplus = 1,
            Self::Draw => node.wasted_draws = 1,
            Self::Swap(first) => node.effects.swap(first, first + 1),
            Self::Request(nth) => node.effects[nth].request += 1000,
        }
        case
    }
}
