//! Requests that start runs, over real sockets and over every store; and services that are killed meanwhile.
//!
//! What happens is waited for, never timed. A new store is one line below.

mod crashes;
mod joins;
mod life;
mod shop;

use tempfile::TempDir;

/// Where the requests are kept, and the runs; and the folder that must outlive them.
struct Fresh {
    url: String,
    _folder: Option<TempDir>,
}

fn memory() -> Fresh {
    Fresh { url: "memory:".into(), _folder: None }
}

fn sqlite() -> Fresh {
    let folder = tempfile::tempdir().expect("a folder");
    Fresh { url: format!("sqlite:{}", folder.path().join("shop.db").display()), _folder: Some(folder) }
}

fn postgres() -> Fresh {
    Fresh { url: hapax_servers::postgres().expect("a server"), _folder: None }
}

fn mysql() -> Fresh {
    Fresh { url: hapax_servers::mysql().expect("a server"), _folder: None }
}

/// Not a test of its own: the service that the others start.
#[test]
fn service() {
    life::play();
}

/// One test for each promise.
macro_rules! promises {
    ($file:ident over $store:ident: $($promise:ident),*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() {
            let fresh = crate::$store();
            crate::$file::$promise(&fresh.url).await;
        })*
    };
}

macro_rules! joined {
    ($($store:ident),*) => {$(
        mod $store {
            promises! { joins over $store:
                a_request_starts_a_run_and_its_duplicates_join_it,
                of_many_at_once_one_starts_a_run_and_all_get_its_result,
                another_body_is_refused_while_the_run_is_under_way_and_afterwards,
                a_run_outlives_the_record_of_its_request,
                a_client_waits_as_long_as_it_prefers,
                a_run_that_failed_is_told_with_its_code,
                a_run_that_was_cancelled_is_gone,
                only_who_asked_learns_of_a_run,
                what_cannot_be_read_starts_nothing,
                a_request_without_a_key_starts_nothing
            }
        }
    )*};
}

joined!(memory, sqlite, postgres, mysql);

macro_rules! killed {
    ($($name:ident over $store:ident),*) => {$(
        mod $name {
            promises! { crashes over $store:
                a_service_killed_between_claim_and_start_starts_one_run,
                a_service_killed_between_start_and_finish_starts_one_run,
                a_service_killed_after_finish_starts_one_run,
                a_service_killed_between_two_steps_repeats_none
            }
        }
    )*};
}

killed!(killed_over_sqlite over sqlite, killed_over_postgres over postgres, killed_over_mysql over mysql);
