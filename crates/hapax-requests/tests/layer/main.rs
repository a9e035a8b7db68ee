//! The layer over real sockets with a real client: each row of its table of faults, over every store.
//!
//! What happens is waited for, never timed. A new store is one line below.

mod bodies;
mod databases;
mod executions;
mod faults;
mod keys;
mod malformed;
mod probe;
mod server;
mod time;

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
                who_has_waited_long_enough_is_refused,
                a_client_that_goes_away_ends_nothing,
                a_handler_that_panics_leaves_a_request_that_can_be_tried_again,
                a_failure_that_may_pass_is_executed_again,
                of_many_who_try_again_at_once_one_executes,
                a_failure_that_is_final_is_not,
                two_principals_have_keys_of_their_own,
                reads_are_left_alone_and_other_methods_may_have_a_key,
                a_handler_that_ends_its_record_is_believed,
                a_handler_that_ends_its_record_as_the_layer_would_keeps_its_whole_answer,
                an_error_of_the_service_is_handed_on_and_may_be_tried_again,
                what_was_decided_is_counted_and_traced,
            }
            keys {
                another_payload_is_refused_in_flight_and_afterwards,
                json_that_differs_in_a_digit_or_its_version_is_another_request,
                a_key_that_is_missing_or_none_is_refused,
                a_quoted_key_and_a_plain_one_are_the_same,
                who_is_nobody_is_refused,
                a_nested_route_counts_whole,
            }
            bodies {
                large_binary_and_streamed_bodies_come_back_byte_for_byte,
                empty_bodies_are_bodies,
                a_request_over_the_limit_is_refused_before_it_executes,
                an_answer_over_the_limit_is_refused_for_good,
                only_headers_of_the_list_are_given_again,
                plain_hyper_is_served_too,
            }
            faults {
                nothing_executes_while_the_store_is_down,
                a_store_that_hangs_is_given_up_and_its_late_claim_ends_with_its_lease,
                a_store_that_stumbles_is_told_again_how_it_ended,
                what_the_store_never_heard_is_not_answered,
                a_request_that_an_operator_released_is_not_answered_by_its_old_execution,
            }
        }
    )*};
}

over!(memory, sqlite, postgres, mysql);
