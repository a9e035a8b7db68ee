//! Services whose clocks are off by an hour, or step back by one: nothing is executed twice. On a server nothing is even
//! noticed; a file has no clock but its machine's, by which leases end.

use crate::shop::{KEY, Kind, Reply, Service, Shop, Terms, on_each};
use hapax_sim::charges::CHARGES;
use std::fs;

on_each! {
    row_09_a_service_that_is_an_hour_behind,
    row_09_a_service_that_is_an_hour_ahead,
    row_09_a_clock_that_steps_back_by_an_hour,
}

fn off_by(shift: &str) -> Vec<String> {
    let off = hapax_servers::clock_off_by(shift).expect("libfaketime");
    off.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// A clock that is off by what the file says at the moment.
fn off_by_file(file: &std::path::Path) -> Vec<String> {
    let others = off_by("+0").into_iter().filter(|variable| !variable.starts_with("FAKETIME="));
    let file = format!("FAKETIME_TIMESTAMP_FILE={}", file.display());
    others.chain([file, "FAKETIME_NO_CACHE=1".to_owned()]).collect()
}

/// Long enough that no busy machine loses it.
fn terms<'a>(env: Vec<String>) -> Terms<'a> {
    Terms { lease_ms: 30_000, refuses: true, env, ..Terms::default() }
}

/// One has claimed and stands still; what another is told, and what both answer in the end.
fn meet(shop: &Shop, first: &Service, second: &Service) -> [Reply; 3] {
    let asked = shop.asked(first, CHARGES, KEY);
    first.until("stands");
    let meanwhile = shop.ask(second, CHARGES, KEY);
    first.process.tell("go on");
    let end = shop.reply(asked);
    let again = shop.ask(second, CHARGES, KEY);
    [meanwhile, end, again]
}

fn assert_no_effect(shop: &Shop, [meanwhile, end, again]: [Reply; 3]) {
    assert_eq!(meanwhile.status, 409, "its lease holds: {meanwhile:?}");
    assert!(!end.is_replayed && again.is_replayed && again.body == end.body, "{end:?}, {again:?}");
    shop.check_one(CHARGES, &[end.answer(), again.answer()]);
}

/// By its own clock its lease would be over for everybody else, and its answer expired.
fn row_09_a_service_that_is_an_hour_behind(shop: &Shop) {
    let behind = shop.service(&terms(off_by("-3600s")).stands_at("claimed"));
    let other = shop.service(&terms(vec![]));
    if shop.kind == Kind::Sqlite {
        return taken_at_once(shop, &behind, &other);
    }
    assert_no_effect(shop, meet(shop, &behind, &other));
}

/// By its own clock everybody else's lease would be over, and their answers expired.
fn row_09_a_service_that_is_an_hour_ahead(shop: &Shop) {
    let first = shop.service(&terms(vec![]).stands_at("claimed"));
    let ahead = shop.service(&terms(off_by("+3600s")));
    if shop.kind == Kind::Sqlite {
        return taken_at_once(shop, &first, &ahead);
    }
    assert_no_effect(shop, meet(shop, &first, &ahead));
}

/// By the clock of whoever asks the lease is over: it is taken, and who had it can't finish.
fn taken_at_once(shop: &Shop, first: &Service, second: &Service) {
    let asked = shop.asked(first, CHARGES, KEY);
    first.until("stands");
    let taken = shop.ask(second, CHARGES, KEY);
    assert_eq!(second.until("executes "), format!("{KEY} 2 -"));
    first.process.tell("go on");
    let late = shop.reply(asked);
    assert_eq!(first.until("stale "), KEY);
    assert_eq!(late.body, taken.body, "all get the same");
    shop.check_one(CHARGES, &[taken.answer(), late.answer()]);
}

/// While a request is executed. In a file its lease lasts for an hour longer; it ends all the same.
fn row_09_a_clock_that_steps_back_by_an_hour(shop: &Shop) {
    let file = shop.beside("clock");
    fs::write(&file, "+3600s\n").expect("a file");
    let steps = shop.service(&terms(off_by_file(&file)).stands_at("claimed"));
    let other = shop.service(&terms(vec![]));
    let asked = shop.asked(&steps, CHARGES, KEY);
    steps.until("stands");
    fs::write(&file, "+0s\n").expect("a file");
    assert_eq!(shop.ask(&other, CHARGES, KEY).status, 409, "its lease holds");
    steps.process.tell("go on");
    let end = shop.reply(asked);
    let (there, here) = (shop.ask(&other, CHARGES, KEY), shop.ask(&steps, CHARGES, KEY));
    assert!(!end.is_replayed && there.is_replayed && here.is_replayed, "{end:?}, {there:?}, {here:?}");
    shop.check_one(CHARGES, &[end.answer(), there.answer(), here.answer()]);
}
