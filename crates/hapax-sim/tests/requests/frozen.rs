//! Services that are frozen with SIGSTOP at each phase of a request, and go on when another has taken it over.

use crate::{
    kills::{about_to_commit, proxy},
    shop::{KEY, Kind, PATIENCE, Shop, Terms, on_each},
};
use hapax_servers::Proxy;
use hapax_sim::{
    charges::{CHARGES, FEES},
    kills::Waits,
};
use hapax_store::clock::now_us;

on_each! {
    row_07_frozen_before_its_claim,
    row_07_frozen_after_its_claim,
    row_07_frozen_amid_its_handler,
    row_07_frozen_behind_its_recovery_point,
    row_07_frozen_after_its_call_to_the_outside,
    row_07_frozen_after_its_effect_before_the_finish,
    row_07_frozen_after_the_commit_of_finish_in_before_its_answer,
}

/// Who must have the effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wins {
    Zombie,
    Successor,
}

/// One service is frozen where it stands until another has answered, which waits for the end of its lease. Both clients get
/// the same answer, and the zombie says this once it goes on.
fn frozen_at(shop: &Shop, point: &str, wins: Wins, says: &[&str]) {
    let zombie = shop.service(&Terms::quick().stands_at(point));
    let successor = shop.service(&Terms::quick());
    let asked = shop.asked(&zombie, CHARGES, KEY);
    zombie.until("stands");
    zombie.process.freeze();
    let answer = shop.ask(&successor, CHARGES, KEY);
    zombie.process.tell("go on");
    zombie.process.thaw();
    let late = shop.reply(asked);
    let has = if wins == Wins::Zombie { &zombie } else { &successor };
    assert!(answer.answer().token.starts_with(&format!("{}-", has.process.id())), "{wins:?}: {answer:?}");
    assert_eq!(late.body, answer.body, "all get the same");
    assert_eq!((answer.is_replayed, late.is_replayed), (wins == Wins::Zombie, wins == Wins::Successor));
    shop.check_one(CHARGES, &[answer.answer(), late.answer()]);
    for word in says {
        assert_eq!(zombie.line().as_deref(), Some(&*format!("{word} {KEY}")));
    }
    assert_eq!(zombie.said(), Vec::<String>::new(), "and no more");
}

/// It isn't executed twice: there is nothing to take over.
fn row_07_frozen_before_its_claim(shop: &Shop) {
    frozen_at(shop, "asked", Wins::Successor, &[]);
}

fn row_07_frozen_after_its_claim(shop: &Shop) {
    frozen_at(shop, "claimed", Wins::Successor, &["stale"]);
}

fn row_07_frozen_amid_its_handler(shop: &Shop) {
    if shop.kind == Kind::Sqlite {
        return frozen_with_the_file_locked(shop, "reserving");
    }
    frozen_at(shop, "reserving", Wins::Successor, &["stale"]);
}

/// It calls the outside once more, under the same key, and can't charge.
fn row_07_frozen_behind_its_recovery_point(shop: &Shop) {
    frozen_at(shop, "reserved", Wins::Successor, &["in", "stale"]);
}

fn row_07_frozen_after_its_call_to_the_outside(shop: &Shop) {
    frozen_at(shop, "called", Wins::Successor, &["in", "stale"]);
}

/// The transaction with its effect is rolled back.
fn row_07_frozen_after_its_effect_before_the_finish(shop: &Shop) {
    if shop.kind == Kind::Sqlite {
        return frozen_with_the_file_locked(shop, "charging");
    }
    frozen_at(shop, "charging", Wins::Successor, &["stale"]);
}

fn row_07_frozen_after_the_commit_of_finish_in_before_its_answer(shop: &Shop) {
    frozen_at(shop, "charged", Wins::Zombie, &[]);
}

/// Who is frozen in a transaction holds the file's only lock, and nobody can take over before it goes on. Its lease is over
/// then, so either may win.
fn frozen_with_the_file_locked(shop: &Shop, point: &str) {
    let zombie = shop.service(&Terms::quick().stands_at(point));
    let successor = shop.service(&Terms::quick());
    let asked = shop.asked(&zombie, CHARGES, KEY);
    zombie.until("stands");
    zombie.process.freeze();
    until_its_lease_is_over(shop);
    let rival = shop.asked(&successor, CHARGES, KEY);
    zombie.process.tell("go on");
    zombie.process.thaw();
    let (late, answer) = (shop.reply(asked), shop.reply(rival));
    assert_eq!(late.body, answer.body, "all get the same");
    shop.check_one(CHARGES, &[late.answer(), answer.answer()]);
}

fn until_its_lease_is_over(shop: &Shop) {
    let waits = Waits::begin(PATIENCE);
    while shop.record(CHARGES, KEY).expect("it is claimed").lease_until_us > now_us() {
        waits.check("its lease ends");
    }
}

mod on_servers {
    use super::{Kind, Shop};

    #[test]
    fn row_07_frozen_with_its_commit_on_its_way_on_postgres() {
        super::row_07_frozen_with_its_commit_on_its_way(&Shop::open(Kind::Postgres));
    }

    #[test]
    fn row_07_frozen_with_its_commit_on_its_way_on_mysql() {
        super::row_07_frozen_with_its_commit_on_its_way(&Shop::open(Kind::MySql));
    }
}

/// Its finish was accepted and its COMMIT arrives late: whoever would take over waits for that, and gives its answer.
fn row_07_frozen_with_its_commit_on_its_way(shop: &Shop) {
    let (proxy, successor) = (proxy(shop), shop.service(&Terms::quick()));
    let (zombie, asked) = about_to_commit(shop, &proxy, Proxy::hold_request);
    zombie.process.freeze();
    let rival = shop.asked(&successor, FEES, KEY);
    proxy.release();
    let answer = shop.reply(rival);
    zombie.process.thaw();
    let late = shop.reply(asked);
    assert!(answer.is_replayed && !late.is_replayed && late.body == answer.body, "{answer:?}, {late:?}");
    shop.check_one(FEES, &[answer.answer(), late.answer()]);
}
