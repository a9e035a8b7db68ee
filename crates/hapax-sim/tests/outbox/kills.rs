//! Kills at random moments of whoever sends, hands on or receives.

use crate::post::{Post, Who};
use hapax::core::{order::PathHash, rng::Rng};
use hapax_sim::mails::PER_RUN;
use std::{
    collections::BTreeMap,
    env,
    hash::{BuildHasher, Hasher, RandomState},
    hint,
};

/// How often somebody is killed while all messages pass, on average.
const KILLS: u64 = 28;
/// Who is killed, in an order that is drawn, before anybody's turn comes again. The broker's death stops all the others.
const TURN: [Who; 7] = [
    Who::Emitter(0),
    Who::Emitter(0),
    Who::Emitter(1),
    Who::Emitter(1),
    Who::Broker,
    Who::Receiver,
    Who::Receiver,
];
/// And a kill comes up to so many turns of a loop after a line: some milliseconds.
const TURNS: u64 = 100_000;

/// Random numbers whose seed is printed, and may be given.
fn rng() -> Rng {
    let given = env::var("HAPAX_SEED").ok().map(|seed| seed.parse().expect("HAPAX_SEED is a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    println!("HAPAX_SEED={seed}");
    Rng::for_item(seed, 0, PathHash::ROOT, "post")
}

/// Kills somebody again and again until all is sent, and once more whoever receives behind that.
fn each_message_takes_effect_once(runs: u64, books: Option<String>) {
    let between = 2 * runs * PER_RUN / KILLS;
    let runs = if env::var_os("HAPAX_LONG").is_some() { runs * 5 } else { runs };
    let (mut rng, mut post) = (rng(), Post::open(runs, books));
    let mut turn = vec![];
    let mut struck: BTreeMap<Who, u32> = BTreeMap::new();
    let mut strike = |post: &mut Post, who: Who, turns: u64| {
        (0..turns).for_each(|_| hint::spin_loop());
        post.strike(who);
        *struck.entry(who).or_default() += 1;
    };
    let mut left = 1 + rng.below(between);
    loop {
        match post.line() {
            (_, line) if line == "drained" => break,
            (_, line) if line == "sent" => left -= 1,
            _ => {}
        }
        if left == 0 {
            if turn.is_empty() {
                turn.extend(TURN);
            }
            let who = turn.swap_remove(rng.below(turn.len() as u64) as usize);
            strike(&mut post, who, rng.below(TURNS));
            left = 1 + rng.below(between);
        }
    }
    strike(&mut post, Who::Receiver, rng.below(TURNS));
    let messages = post.messages();
    let delivered = post.check();
    println!("{messages} messages, {delivered:?}, killed: {struck:?}");
    assert!(delivered.to_stream as u64 >= messages && delivered.from_stream >= messages, "{delivered:?}");
}

mod sqlite {
    #[test]
    fn whoever_is_killed_each_of_20_000_messages_takes_effect_once() {
        super::each_message_takes_effect_once(200, None);
    }
}

mod postgres {
    #[test]
    fn whoever_is_killed_each_message_takes_effect_once() {
        super::each_message_takes_effect_once(30, Some(hapax_servers::postgres().expect("a server")));
    }
}

mod mysql {
    #[test]
    fn whoever_is_killed_each_message_takes_effect_once() {
        super::each_message_takes_effect_once(30, Some(hapax_servers::mysql().expect("a server")));
    }
}
