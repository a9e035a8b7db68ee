//! Graphs and the behaviour of their nodes, from a seed.
//!
//! Invariant: the same seed gives the same case on every machine, and every case ends: blocks follow each other,
//! and a loop goes back only while its node was visited less often than its bound.

use hapax::{ConflictPolicy, Rng};
use hapax_core::order::PathHash;

/// The names of generated nodes; a graph has at most this many.
pub const NAMES: [&str; 32] = [
    "n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9", "n10", "n11", "n12", "n13", "n14", "n15",
    "n16", "n17", "n18", "n19", "n20", "n21", "n22", "n23", "n24", "n25", "n26", "n27", "n28", "n29", "n30",
    "n31",
];

/// A node, by its position in [`NAMES`].
pub type At = usize;

/// A generated graph with its behaviour.
#[derive(Debug, Clone)]
pub struct Case {
    /// Where it came from.
    pub seed: u64,
    /// The nodes; the first is the start.
    pub nodes: Vec<Behaviour>,
    /// The edges, in declaration order.
    pub edges: Vec<Edge>,
    /// The joins: sources and target.
    pub joins: Vec<([At; 2], At)>,
    /// Nodes with an error handler.
    pub handlers: Vec<(At, At)>,
    /// What happens to conflicts.
    pub policy: ConflictPolicy,
    /// What is in it.
    pub features: Vec<Feature>,
}

/// How a node is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reached {
    /// By edges, joins and gotos.
    #[default]
    Plainly,
    /// By a fork, with a number as its input.
    ByFork,
    /// By a failure, which is its input.
    ByFailure,
}

/// What a node does.
#[derive(Debug, Clone, Default)]
pub struct Behaviour {
    /// How it is reached.
    pub reached: Reached,
    /// Its calls to the outside, in order.
    pub effects: Vec<Effect>,
    /// Whatever else it does, in order, each behind so many of its effects.
    pub between: Vec<(usize, Deed)>,
    /// Two more calls, side by side, each in a scope of its own.
    pub scopes: bool,
    /// It draws in a lane of its own, and in one of those with calls.
    pub lane_draws: bool,
    /// Attempts that fail, after the calls.
    pub fails_first: u32,
    /// Attempts that its policy allows.
    pub attempts: u32,
    /// It draws, and writes the draw.
    pub draws: bool,
    /// It draws so often more, and forgets what.
    pub wasted_draws: u32,
    /// It writes so much more than the others would.
    pub surplus: u64,
    /// It writes this into the field that conflicts.
    pub last: Option<u64>,
    /// It forks into these, each with its input.
    pub forks: Vec<(At, u64)>,
}

/// A call to the outside.
#[derive(Debug, Clone)]
pub struct Effect {
    /// What is asked.
    pub request: u64,
    /// Attempts of the node in which the call itself fails.
    pub fails_first: u32,
}

/// Something besides a plain write. What the outside, the clock or chance told enters no state: only
/// [`Deed::Rests`] shows it, to the outside.
#[derive(Debug, Clone)]
pub enum Deed {
    /// A read, whose answer is never the same twice.
    Looks(Effect),
    /// What time it is.
    Now,
    /// A fresh UUID.
    Uuid,
    /// A sleep that is over at once.
    Sleeps,
    /// A decision about a change of the code.
    Decides,
    /// A message.
    Sends,
    /// A write that must not be repeated.
    Once(u64),
    /// A write whose request holds everything that was seen so far and nothing can repeat.
    Rests,
}

/// An edge.
#[derive(Debug, Clone, Copy)]
pub struct Edge {
    /// From where.
    pub from: At,
    /// To where.
    pub to: At,
    /// When.
    pub when: When,
}

/// When an edge is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// While the node was visited less often than that.
    Fewer(At, u64),
    /// Once the node was visited that often.
    Enough(At, u64),
    /// While the total is even.
    Even,
    /// While the total is odd.
    Odd,
}

/// What a case may contain. Each must be in at least a fifth of all cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Feature {
    Loop,
    Conditional,
    UnequalJoin,
    Fork,
    Retry,
    Handler,
    Fails,
    Conflict,
    Effects,
    Scopes,
    Draws,
    Reads,
    Clock,
    Sleeps,
    Versions,
    Emits,
    AtMostOnce,
    LaneDraws,
}

/// All features.
pub const FEATURES: [Feature; 18] = [
    Feature::Loop,
    Feature::Conditional,
    Feature::UnequalJoin,
    Feature::Fork,
    Feature::Retry,
    Feature::Handler,
    Feature::Fails,
    Feature::Conflict,
    Feature::Effects,
    Feature::Scopes,
    Feature::Draws,
    Feature::Reads,
    Feature::Clock,
    Feature::Sleeps,
    Feature::Versions,
    Feature::Emits,
    Feature::AtMostOnce,
    Feature::LaneDraws,
];

/// More nodes than this, and no further block is begun: the largest block has seven.
const ENOUGH_NODES: usize = NAMES.len() - 7;

/// Makes a case.
pub fn case(seed: u64) -> Case {
    let mut maker = Maker { rng: Rng::for_item(seed, 0, PathHash::ROOT, "case"), case: Case::empty(seed) };
    maker.make();
    maker.case
}

impl Case {
    fn empty(seed: u64) -> Self {
        let policy = ConflictPolicy::Fail;
        let (nodes, edges, joins, handlers, features) = Default::default();
        Self { seed, nodes, edges, joins, handlers, policy, features }
    }

    /// Whether it has a feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }
}

struct Maker {
    rng: Rng,
    case: Case,
}

impl Maker {
    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.rng.below(high - low + 1)
    }

    fn make(&mut self) {
        let mut tail = self.node(Reached::Plainly);
        let mut blocks: Vec<Feature> = [
            Feature::Loop,
            Feature::Conditional,
            Feature::UnequalJoin,
            Feature::Fork,
            Feature::Handler,
            Feature::Conflict,
        ]
        .into_iter()
        .filter(|_| self.chance(32))
        .collect();
        self.rng.shuffle(&mut blocks);
        for block in blocks {
            if self.case.nodes.len() < ENOUGH_NODES {
                self.case.features.push(block);
                tail = self.block(block, tail);
            }
        }
        if self.chance(30) {
            self.case.features.push(Feature::Fails);
            self.fail(tail);
        }
        self.decorate();
        // Drawn apart, so that a seed's graph and writes don't depend on how many kinds of deeds there are.
        self.rng = Rng::for_item(self.case.seed, 0, PathHash::ROOT, "deeds");
        self.add_deeds();
        self.case.features.sort();
    }

    fn block(&mut self, block: Feature, tail: At) -> At {
        match block {
            Feature::Loop => self.repeat(tail),
            Feature::Conditional => self.choose(tail),
            Feature::UnequalJoin => self.join(tail),
            Feature::Fork => self.fork(tail),
            Feature::Handler => self.handle(tail),
            _ => self.conflict(tail),
        }
    }

    fn node(&mut self, reached: Reached) -> At {
        self.case.nodes.push(Behaviour { reached, attempts: 1, ..Behaviour::default() });
        self.case.nodes.len() - 1
    }

    fn edge(&mut self, from: At, to: At, when: When) {
        self.case.edges.push(Edge { from, to, when });
    }

    fn after(&mut self, tail: At) -> At {
        let next = self.node(Reached::Plainly);
        self.edge(tail, next, When::Always);
        next
    }

    /// A body of one node, or with a join inside, that is run two or three times.
    fn repeat(&mut self, tail: At) -> At {
        let first = self.after(tail);
        let last = if self.chance(30) { self.join(first) } else { first };
        let times = self.between(2, 3);
        let next = self.node(Reached::Plainly);
        self.edge(last, first, When::Fewer(last, times));
        self.edge(last, next, When::Enough(last, times));
        next
    }

    fn choose(&mut self, tail: At) -> At {
        let asks = self.after(tail);
        let (even, odd) = (self.node(Reached::Plainly), self.node(Reached::Plainly));
        let next = self.node(Reached::Plainly);
        self.edge(asks, even, When::Even);
        self.edge(asks, odd, When::Odd);
        self.edge(even, next, When::Always);
        self.edge(odd, next, When::Always);
        next
    }

    fn join(&mut self, tail: At) -> At {
        let (short, mut long) = (self.after(tail), self.after(tail));
        for _ in 0..self.between(1, 2) {
            long = self.after(long);
        }
        let next = self.node(Reached::Plainly);
        self.case.joins.push(([short, long], next));
        next
    }

    fn fork(&mut self, tail: At) -> At {
        let splits = self.after(tail);
        let (left, right) = (self.node(Reached::ByFork), self.node(Reached::ByFork));
        let pairs = self.between(1, 2);
        for pair in 0..pairs {
            let (a, b) = (self.rng.below(1000), self.rng.below(1000));
            self.case.nodes[splits].forks.extend([(left, 10 * a + pair), (right, 10 * b + pair)]);
        }
        let next = self.node(Reached::Plainly);
        if self.chance(50) {
            self.case.joins.push(([left, right], next));
        } else {
            self.edge(left, next, When::Always);
            self.edge(right, next, When::Always);
        }
        next
    }

    /// A node that never succeeds, and the handler that goes on; sometimes beside a healthy node.
    fn handle(&mut self, tail: At) -> At {
        let (fails, handler) = (self.after(tail), self.node(Reached::ByFailure));
        let beside = self.chance(50).then(|| self.after(tail));
        let attempts = self.between(1, 3) as u32;
        self.case.nodes[fails].attempts = attempts;
        self.case.nodes[fails].fails_first = attempts;
        self.case.handlers.push((fails, handler));
        let next = self.node(Reached::Plainly);
        for from in [Some(fails), Some(handler), beside].into_iter().flatten() {
            self.edge(from, next, When::Always);
        }
        next
    }

    fn conflict(&mut self, tail: At) -> At {
        let (left, right) = (self.after(tail), self.after(tail));
        let next = self.after(left);
        self.edge(right, next, When::Always);
        for node in [left, right] {
            self.case.nodes[node].last = Some(node as u64);
        }
        if self.chance(60) {
            self.case.policy = ConflictPolicy::LastWriterWins;
        }
        next
    }

    /// The end of the run: a node that never succeeds and has no handler.
    fn fail(&mut self, tail: At) {
        let fails = self.after(tail);
        if self.chance(50) {
            self.after(tail);
        }
        let attempts = self.between(1, 2) as u32;
        self.case.nodes[fails].attempts = attempts;
        self.case.nodes[fails].fails_first = attempts;
    }

    fn decorate(&mut self) {
        let wanted: Vec<Feature> = [Feature::Retry, Feature::Effects, Feature::Scopes, Feature::Draws]
            .into_iter()
            .filter(|_| self.chance(60))
            .collect();
        for at in 0..self.case.nodes.len() {
            for feature in &wanted {
                // The start always shows what the case has, even when a run ends early.
                if at == 0 || self.chance(12) {
                    self.add(*feature, at);
                }
            }
        }
        self.case.features.extend(wanted);
    }

    fn add(&mut self, feature: Feature, at: At) {
        match feature {
            Feature::Effects => {
                let requests: Vec<u64> = (0..self.between(1, 3)).map(|_| self.rng.below(1000)).collect();
                let effect = |request| Effect { request, fails_first: 0 };
                self.case.nodes[at].effects = requests.into_iter().map(effect).collect();
            }
            Feature::Scopes => self.case.nodes[at].scopes = true,
            Feature::Draws => self.case.nodes[at].draws = true,
            Feature::Retry if self.case.nodes[at].fails_first == 0 => self.retry(at),
            _ => {}
        }
    }

    /// The node fails its first attempts, or its first call does.
    fn retry(&mut self, at: At) {
        let (failures, in_the_call) = (self.between(1, 2) as u32, self.chance(50));
        let node = &mut self.case.nodes[at];
        node.attempts = failures + 1;
        if in_the_call {
            node.effects.push(Effect { request: 7, fails_first: failures });
        } else {
            node.fails_first = failures;
        }
    }

    fn add_deeds(&mut self) {
        let wanted: Vec<Feature> = FEATURES[11..].iter().copied().filter(|_| self.chance(35)).collect();
        for at in 0..self.case.nodes.len() {
            let mut deeds = vec![];
            for feature in &wanted {
                if at == 0 || self.chance(8) {
                    deeds.extend(self.deeds(*feature, at));
                }
            }
            self.rng.shuffle(&mut deeds);
            self.place(at, deeds);
        }
        self.case.features.extend(wanted);
    }

    fn deeds(&mut self, feature: Feature, at: At) -> Vec<Deed> {
        match feature {
            Feature::Reads => {
                let fails = self.case.nodes[at].attempts > 1 && self.chance(40);
                let read = Effect { request: self.rng.below(1000), fails_first: fails.into() };
                let again = Effect { fails_first: 0, ..read.clone() };
                [Deed::Looks(read), Deed::Looks(again)]
                    .into_iter()
                    .take(self.between(1, 2) as usize)
                    .collect()
            }
            Feature::Clock => vec![Deed::Now, Deed::Uuid],
            Feature::Sleeps => vec![Deed::Sleeps],
            Feature::Versions => vec![Deed::Decides],
            Feature::Emits => vec![Deed::Sends],
            Feature::AtMostOnce => vec![Deed::Once(self.rng.below(1000))],
            _ => {
                self.case.nodes[at].lane_draws = true;
                vec![]
            }
        }
    }

    /// Puts the deeds between the effects of a node. Where one of them is fickle, a write that rests on it follows.
    fn place(&mut self, at: At, deeds: Vec<Deed>) {
        let effects = self.case.nodes[at].effects.len() as u64;
        let mut slots: Vec<usize> = deeds.iter().map(|_| self.between(0, effects) as usize).collect();
        slots.sort_unstable();
        let mut placed: Vec<_> = slots.into_iter().zip(deeds).collect();
        let is_fickle = |deed: &Deed| matches!(deed, Deed::Looks(_) | Deed::Now | Deed::Uuid);
        if let Some(first) = placed.iter().position(|(_, deed)| is_fickle(deed)) {
            let behind = self.between(first as u64 + 1, placed.len() as u64) as usize;
            placed.insert(behind, (placed[behind - 1].0, Deed::Rests));
        }
        self.case.nodes[at].between = placed;
    }
}
