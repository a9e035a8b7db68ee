//! Whatever is lost between the engine and the database, at whichever message.

use crate::{
    common::*,
    shop::{CO_COMMIT, Kind, Shop, Way, known_by, on_servers, paying},
};
use hapax::store::db::Strategy;
use hapax_servers::Proxy;
use std::time::Duration;

on_servers! {
    row_05_a_lost_reply_at_any_point_leaves_one_effect,
    row_06_a_lost_request_at_any_point_leaves_one_effect,
}

/// Where the runs are in the same database, whose messages of its own aren't lost.
mod in_the_database_of_the_runs {
    use super::*;

    #[test]
    fn row_05_a_lost_reply_leaves_one_effect_on_postgres_by_co_commit() {
        each_loss(Kind::Postgres, CO_COMMIT, Proxy::swallow_replies);
    }

    #[test]
    fn row_05_a_lost_reply_leaves_one_effect_on_mysql_by_co_commit() {
        each_loss(Kind::MySql, CO_COMMIT, Proxy::swallow_replies);
    }

    #[test]
    fn row_06_a_lost_request_leaves_one_effect_on_postgres_by_co_commit() {
        each_loss(Kind::Postgres, CO_COMMIT, Proxy::swallow_requests);
    }

    #[test]
    fn row_06_a_lost_request_leaves_one_effect_on_mysql_by_co_commit() {
        each_loss(Kind::MySql, CO_COMMIT, Proxy::swallow_requests);
    }
}

fn row_05_a_lost_reply_at_any_point_leaves_one_effect(kind: Kind, strategy: Strategy) {
    each_loss(kind, strategy, Proxy::swallow_replies);
}

fn row_06_a_lost_request_at_any_point_leaves_one_effect(kind: Kind, strategy: Strategy) {
    each_loss(kind, strategy, Proxy::swallow_requests);
}

/// A run for each message of a transaction that may be lost, until there is none left to lose.
fn each_loss(kind: Kind, strategy: Strategy, lose: fn(&Proxy, u64)) {
    let shop = Shop::open(kind, strategy);
    let (proxy, url) = shop.proxy();
    let (runs, way) = (shop.runs(), Way::default());
    let process = Process::healthy(&runs.open());
    process.run(async {
        let engine = process.build(known_by(&url));
        let flow = engine.register(paying(&shop, &way), ()).await.unwrap();
        // The first opens what all use.
        flow.start("run-0", Board::default()).await.unwrap().wait().await.unwrap();
        for lost in 1.. {
            let before = proxy.counts().bytes_lost;
            lose(&proxy, lost);
            let name = format!("run-{lost}");
            let run = flow.start(&name, Board::default()).await.unwrap();
            let ending = run.wait();
            tokio::pin!(ending);
            let ended = loop {
                tokio::select! {
                    ended = &mut ending => break Some(ended),
                    () = tokio::task::yield_now() => {}
                }
                if proxy.counts().bytes_lost > before {
                    break None;
                }
            };
            proxy.pass();
            let is_lost = ended.is_none();
            if is_lost {
                proxy.cut();
            }
            let board = match ended {
                Some(ended) => ended.unwrap(),
                None => ending.await.unwrap(),
            };
            let there: Vec<String> = shop.effects().into_iter().filter(|what| *what == name).collect();
            assert_eq!(there.len(), 1, "message {lost} was lost");
            assert_eq!(board.total, lost + 1, "message {lost} was lost");
            if !is_lost {
                assert!(lost > 4, "a transaction has more than {lost} messages");
                break;
            }
        }
        engine.shutdown(Duration::from_secs(60)).await;
    });
}
