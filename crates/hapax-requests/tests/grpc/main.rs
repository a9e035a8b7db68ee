//! The layer for tonic, with a real client and server over real sockets: each row of its table of faults, over every store.
//!
//! What happens is waited for, never timed. A new store is one line below.

mod bodies;
mod client;
mod executions;
mod faults;
mod keys;
#[path = "../layer/probe.rs"]
mod probe;
mod server;
mod time;
mod whole_server;

use hapax_store::requests::{RequestStore, open};
use std::sync::Arc;
use tempfile::TempDir;

/// A store, and the folder that must outlive it.
type Fresh = (Arc<dyn RequestStore>, Option<TempDir>);

async fn fresh(url: &str) -> Fresh {
    (open(url).await.expect("it opens"), None)
}

async fn memory() -> Fresh {
    fresh("memory:").await
}

async fn sqlite() -> Fresh {
    let folder = tempfile::tempdir().expect("a folder");
    let (store, _) = fresh(&format!("sqlite:{}", folder.path().join("requests.db").display())).await;
    (store, Some(folder))
}

async fn postgres() -> Fresh {
    fresh(&hapax_servers::postgres().expect("a server")).await
}

async fn mysql() -> Fresh {
    fresh(&hapax_servers::mysql().expect("a server")).await
}

/// One test for each promise.
macro_rules! promises {
    ($store:ident: $($file:ident { $($promise:ident,)* })*) => {
        mod $store {
            $(mod $file {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    let (store, _folder) = crate::$store().await;
                    crate::$file::$promise(store).await;
                })*
            })*
        }
    };
}

/// All promises, for each of these stores.
macro_rules! over {
    ($($store:ident),*) => {$(
        promises! { $store:
            executions {
                of_many_at_once_one_executes_and_the_rest_are_refused,
                of_many_at_once_one_executes_and_the_rest_get_its_bytes,
                a_client_that_goes_away_ends_nothing,
                a_handler_that_panics_leaves_a_request_that_can_be_tried_again,
                a_failure_that_may_pass_is_executed_again,
                a_failure_that_is_final_is_not,
                two_principals_have_keys_of_their_own,
                a_handler_that_ends_its_record_is_believed,
            }
            keys {
                another_message_is_refused_in_flight_and_afterwards,
                a_key_that_is_missing_or_none_is_refused,
                who_is_nobody_is_refused,
                methods_that_only_read_are_left_alone,
                methods_have_keys_of_their_own,
            }
            bodies {
                a_message_and_its_trailers_come_back_byte_for_byte,
                a_failure_comes_back_with_its_details_and_trailers,
                only_metadata_of_the_list_is_given_again,
                however_a_client_compresses_it_asks_for_the_same,
                a_message_over_the_limit_is_refused_before_it_executes,
                an_answer_over_the_limit_is_refused_for_good,
                streams_are_read_to_their_end_and_given_again,
                a_stream_that_fails_in_the_end_comes_back_with_its_end,
            }
            faults {
                nothing_executes_while_the_store_is_down,
                a_store_that_hangs_is_given_up_and_its_late_claim_ends_with_its_lease,
                a_store_that_stumbles_is_told_again_how_it_ended,
                what_the_store_never_heard_is_not_answered,
            }
        }
    )*};
}

over!(memory, sqlite, postgres, mysql);
