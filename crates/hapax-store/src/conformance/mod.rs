//! What every store must keep, as tests: one file per promise, listed once in [`store_conformance!`](crate::store_conformance).
//!
//! Invariant: a promise is checked through the [`Store`] trait alone, so that it means the same on every store.
//! What the trait can't show (a failing statement, damaged bytes) comes in through the hooks of the [`Fixture`].
//!
//! A store's crate needs `hapax-store` with the feature `conformance`, and `tokio` with `macros` and
//! `rt-multi-thread`. Then its tests say:
//!
//! ```
//! use hapax_store::{MemoryStore, conformance::Fixture, store_conformance};
//!
//! store_conformance!(memory, || Fixture::new(MemoryStore::shared()));
//! # fn main() {}
//! ```

pub mod atomicity;
pub mod cancel;
pub mod corruption;
pub mod divergence;
pub mod duplicates;
pub mod fencing;
pub mod flow;
pub mod frontier;
pub mod house;
pub mod leases;
pub mod lifecycle;
pub mod limits;
pub mod listing;
pub mod mailbox;
pub mod order;
pub mod outbox;
pub mod requests;
pub mod retention;
pub mod round_trip;
pub mod sample;
pub mod schedules;
pub mod settle;
pub mod snapshot;
pub mod whereabouts;

pub use sample::{Holder, Picture, Sample};

use crate::store::Store;
use hapax_core::id::RunKey;
use std::{any::Any, fmt, sync::Arc};

/// A second handle on the same data; the first one stays open.
///
/// ```
/// use hapax_store::{MemoryStore, Store, conformance::{Reopen, Sample, sample::key}};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), hapax_store::StoreError> {
/// let store: Arc<dyn Store> = MemoryStore::shared();
/// let same = store.clone();
/// let reopen: Reopen = Box::new(move || same.clone());
/// Sample::run("order-42").create(&store).await;
/// assert!(reopen().run(key("order-42")).await?.is_some());
/// # Ok(())
/// # }
/// ```
pub type Reopen = Box<dyn Fn() -> Arc<dyn Store> + Send + Sync>;
/// Damages a run behind the store's back; false: this store has nothing to damage there.
///
/// ```
/// use hapax_store::conformance::{Corrupt, Damage, sample::key};
/// // A store without a file of its own: there is nothing behind its back.
/// let corrupt: Corrupt = Box::new(|_, _| false);
/// assert!(!corrupt(&key("order-42"), Damage::State));
/// ```
pub type Corrupt = Box<dyn Fn(&RunKey, Damage) -> bool + Send + Sync>;
/// Makes the n-th statement (from 0) of the next write fail; the answer disarms it and tells whether it fired.
///
/// ```
/// use hapax_store::conformance::{FailAt, Fired};
/// // A write of two statements: the third is never reached.
/// let fail_at: FailAt = Box::new(|statement| -> Fired { Box::new(move || statement < 2) });
/// let reached = (0..).take_while(|statement| fail_at(*statement)()).count();
/// assert_eq!(reached, 2, "a promise tries them all, until none fires");
/// ```
pub type FailAt = Box<dyn Fn(u64) -> Fired + Send + Sync>;
/// Disarms a fail point and tells whether it fired.
///
/// ```
/// use hapax_store::conformance::Fired;
/// use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
/// let armed = Arc::new(AtomicBool::new(true));
/// let point = armed.clone();
/// let fired: Fired = Box::new(move || !point.swap(false, Ordering::Relaxed));
/// assert!(!fired(), "no statement came, so it was armed still");
/// assert!(!armed.load(Ordering::Relaxed), "it is disarmed now");
/// ```
pub type Fired = Box<dyn Fn() -> bool + Send + Sync>;

/// What to damage of a run.
///
/// ```
/// use hapax_store::{MemoryStore, conformance::{Damage, Fixture, sample::key}};
/// // A store tells which of its rows it can damage; a promise about the others says nothing.
/// let fixture = Fixture::new(MemoryStore::shared()).corrupt(|_, damage| damage == Damage::State);
/// let corrupt = fixture.corrupt.as_ref().unwrap();
/// assert!(corrupt(&key("order-42"), Damage::State) && !corrupt(&key("order-42"), Damage::Journal));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    /// The bytes of the latest checkpoint's state.
    State,
    /// An item in the first page of the latest checkpoint's frontier.
    Frontier,
    /// An item in the last page of the latest checkpoint's frontier.
    LastPage,
    /// The digest of the latest checkpoint.
    Digest,
    /// The digest of the latest step, as the run's own row names it.
    Row,
    /// The entry of the latest journal row, so that it can't be read.
    Journal,
}

/// A fresh, empty store and the ways to trouble it.
///
/// A promise that needs a hook says nothing about a store without it: leave one out only where there is nothing to
/// hook into, as in memory, where no statement can fail.
///
/// ```
/// use hapax_store::{MemoryStore, conformance::Fixture};
/// let store = MemoryStore::shared();
/// let fixture = Fixture::new(store.clone()).reopen(move || store.clone());
/// assert!(fixture.reopen.is_some() && fixture.corrupt.is_none());
/// ```
pub struct Fixture {
    /// The store.
    pub store: Arc<dyn Store>,
    /// A second handle on the same data.
    pub reopen: Option<Reopen>,
    /// Damages a run behind the store's back.
    pub corrupt: Option<Corrupt>,
    /// Makes a statement fail.
    pub fail_at: Option<FailAt>,
    keep: Vec<Box<dyn Any + Send + Sync>>,
}

impl Fixture {
    /// A store without hooks.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, reopen: None, corrupt: None, fail_at: None, keep: vec![] }
    }

    /// How to get a second handle on the same data.
    #[must_use]
    pub fn reopen(mut self, reopen: impl Fn() -> Arc<dyn Store> + Send + Sync + 'static) -> Self {
        self.reopen = Some(Box::new(reopen));
        self
    }

    /// How to damage a run behind the store's back.
    #[must_use]
    pub fn corrupt(mut self, corrupt: impl Fn(&RunKey, Damage) -> bool + Send + Sync + 'static) -> Self {
        self.corrupt = Some(Box::new(corrupt));
        self
    }

    /// How to make the n-th statement of the next write fail.
    #[must_use]
    pub fn fail_at(mut self, fail_at: impl Fn(u64) -> Fired + Send + Sync + 'static) -> Self {
        self.fail_at = Some(Box::new(fail_at));
        self
    }

    /// Keeps something, say a temporary directory, for as long as the test runs.
    #[must_use]
    pub fn keep(mut self, thing: impl Any + Send + Sync) -> Self {
        self.keep.push(Box::new(thing));
        self
    }

    /// Another handle on the same data; the same one where there can't be two.
    pub fn other_handle(&self) -> Arc<dyn Store> {
        self.reopen.as_ref().map_or_else(|| self.store.clone(), |reopen| reopen())
    }
}

impl fmt::Debug for Fixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixture").field("kept", &self.keep.len()).finish_non_exhaustive()
    }
}

/// Runs the whole suite: a module of that name with one test per promise. The factory is a function or closure
/// that answers a fresh [`Fixture`](crate::conformance::Fixture).
///
/// ```
/// use hapax_store::{MemoryStore, conformance::Fixture, store_conformance};
///
/// store_conformance!(memory, || Fixture::new(MemoryStore::shared()));
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! store_conformance {
    ($name:ident, $factory:expr) => {
        $crate::promises! { $name, $factory;
            atomicity {
                a_failure_at_any_statement_leaves_nothing,
                a_refused_write_leaves_nothing,
            }
            duplicates {
                a_refused_duplicate_leaves_the_original_unchanged,
                of_a_hundred_concurrent_identical_commits_one_is_committed,
                a_repeated_step_does_not_stop_the_next_one,
                repeated_journal_rows_are_written_once,
                a_repeated_change_of_status_is_written_once,
            }
            divergence {
                a_divergent_commit_of_a_step_is_a_conflict,
                a_commit_upon_another_base_is_a_conflict,
                divergent_journal_rows_are_a_conflict,
                a_step_whose_rows_collide_is_refused,
                a_used_key_is_refused,
            }
            fencing {
                a_stale_worker_cannot_write_anything,
                a_takeover_between_any_two_calls_fences_the_worker,
                a_writer_without_its_nonce_is_fenced,
                a_write_to_a_run_that_is_gone_is_fenced,
            }
            order {
                writes_become_visible_in_the_order_of_their_submission,
                rows_behind_a_missing_step_are_not_applied,
                a_write_after_a_failed_one_is_not_applied,
            }
            snapshot {
                a_loaded_journal_belongs_to_its_checkpoint,
                rows_of_another_base_are_not_loaded,
            }
            leases {
                a_lease_is_held_while_it_is_alive,
                an_expired_lease_is_taken_over,
                a_renewed_lease_is_kept_and_a_lost_one_reported,
                a_released_run_is_free_at_once,
                ready_runs_are_claimed_oldest_first_and_once,
                a_run_that_is_not_runnable_is_not_claimed,
                of_many_concurrent_claims_one_wins,
                what_can_be_claimed_is_in_the_outlook,
                what_each_worker_holds_is_told,
            }
            cancel {
                a_cancel_is_durable_and_its_holder_sees_it,
                a_cancel_refuses_intents_and_the_end,
                a_finished_run_cannot_be_cancelled,
                a_parked_run_to_be_cancelled_can_be_claimed,
            }
            mailbox {
                a_letter_wakes_whoever_waits_for_it,
                a_letter_that_came_first_keeps_the_run_awake,
                a_letter_sent_twice_arrives_once,
                letters_of_a_subject_keep_their_order,
                a_letter_is_taken_with_its_row,
                a_letter_that_cannot_arrive_is_refused,
                a_parked_run_is_ready_when_its_time_comes,
                the_end_of_a_child_wakes_its_parent,
                a_cancel_reaches_the_children,
                a_live_runs_child_is_not_swept,
            }
            outbox {
                messages_are_claimed_in_their_order,
                of_many_concurrent_relays_one_gets_a_channel,
                a_channel_is_held_while_its_claim_is_alive,
                a_message_that_was_not_marked_is_delivered_again_with_the_same_id,
                a_relay_whose_claim_is_over_changes_nothing,
                a_mark_told_twice_is_the_same,
                a_message_that_is_refused_rests_and_stops_its_channel,
                a_message_that_is_refused_too_often_is_dead_and_leaves_a_gap,
                only_refusals_count_towards_the_death_of_a_message,
                an_operator_ends_the_rest_of_a_runs_channels,
                a_message_that_may_not_die_blocks_its_channel,
                a_dead_message_is_retried_or_dropped_by_an_operator,
                channels_are_claimed_by_topic_and_tenant,
                messages_are_listed_as_they_were_written,
                a_failure_at_any_statement_of_a_mark_leaves_nothing,
                what_is_undelivered_is_counted_with_its_age,
            }
            schedules {
                a_schedule_is_kept_as_it_was_added,
                a_schedule_over_its_limits_is_refused,
                of_many_concurrent_firings_one_starts_its_run,
                a_schedule_that_changed_since_it_was_read_fires_nothing,
                a_schedule_does_not_fire_before_its_time,
                a_firing_is_skipped_while_the_run_before_it_lives,
                a_queued_firing_waits_for_the_run_before_it,
                a_cancelling_firing_asks_for_the_cancel_of_the_run_before_it,
                what_is_passed_over_is_counted,
                what_was_due_while_a_schedule_was_paused_is_counted,
                a_run_that_is_there_already_is_not_started_again,
                only_what_is_due_is_told,
                a_failure_at_any_statement_of_a_firing_leaves_nothing,
            }
            flow {
                a_key_lets_only_so_many_runs_go_at_a_time,
                a_slot_that_is_given_back_goes_to_the_next,
                however_many_come_at_once_no_key_lets_one_too_many_go,
                a_run_waits_for_all_of_its_keys,
                runs_that_share_keys_never_wait_for_each_other,
                a_retried_run_takes_its_place_again,
                a_run_that_is_retried_never_waits_for_itself,
                what_a_dead_engine_did_not_give_back_is_swept,
                a_place_in_a_queue_that_nobody_gave_back_is_swept,
                what_a_run_had_before_it_was_deleted_is_not_its_own,
                a_run_that_leaves_a_queue_lets_those_behind_it_go,
                a_run_that_waits_for_a_key_can_be_cancelled,
                a_run_of_higher_priority_goes_first,
                a_bucket_is_one_for_all_who_share_it,
                a_rate_parks_a_start_until_its_time,
                one_run_lives_under_a_singletons_name,
                debounced_starts_become_one_run,
                a_run_that_was_claimed_is_not_replaced,
                a_debounced_run_is_one_run_wherever_it_moves,
                terms_over_their_limits_are_refused,
                a_failure_at_any_statement_of_a_release_leaves_nothing,
            }
            round_trip {
                what_is_committed_is_read_back,
                chunks_are_read_back_and_not_loaded,
                numbers_up_to_their_limits_survive,
                checkpoints_are_read_in_order_from_any_step,
            }
            limits {
                an_oversized_state_is_refused,
                an_oversized_payload_is_refused,
                too_many_or_unnameable_tags_are_refused,
            }
            corruption {
                damage_is_detected_and_named,
            }
            frontier {
                a_large_frontier_is_read_back_in_pages,
                a_damaged_page_is_detected,
            }
            settle {
                settling_tells_what_became_of_a_write,
                settling_writes_nothing,
            }
            lifecycle {
                a_taken_id_is_left_alone,
                of_many_concurrent_starts_one_creates,
                a_run_may_begin_with_a_record,
                a_failed_run_can_be_retried,
                a_failure_told_again_undoes_no_retry,
                only_a_failed_run_can_be_retried,
                what_was_written_survives_a_reopening,
            }
            listing {
                runs_are_listed_newest_first,
                tags_status_and_graph_filter_the_list,
                namespaces_are_separate,
                where_runs_stand_is_counted,
            }
            house {
                an_export_is_the_same_bytes_from_every_store,
                what_a_store_wrote_itself_survives_its_export,
                a_damaged_export_changes_nothing,
                a_run_moves_there_and_back,
                a_run_that_is_held_does_not_leave,
                a_run_on_its_way_takes_nothing_in,
                a_run_that_moved_says_where_it_is,
                a_run_that_moved_says_so_before_its_rows_are_deleted,
                the_dead_messages_of_a_run_that_leaves_are_its_next_homes_to_retry,
                a_family_moves_as_a_whole,
                who_came_home_leaves_again_whatever_became_of_its_family,
                the_only_copy_of_a_run_is_not_deleted,
                what_was_swept_in_its_new_home_is_deleted_on_demand,
                a_late_call_back_takes_nothing_from_a_later_mover,
                what_is_not_there_any_more_is_not_opened,
                another_run_of_its_name_is_not_the_one_that_arrived,
                a_late_mover_deletes_nothing_of_a_run_that_left_again,
                a_copy_that_differs_is_refused,
                what_broke_off_on_its_way_arrives_anew,
                an_import_goes_on_where_another_broke_off,
                of_two_movers_the_earlier_one_is_fenced,
                a_run_does_not_arrive_over_another,
                a_run_that_moves_takes_its_place_again,
                a_run_that_comes_home_never_waits_for_itself,
                a_run_that_stays_has_the_slot_that_it_was_given_meanwhile,
                a_failure_at_any_statement_of_a_move_leaves_nothing,
            }
            whereabouts {
                an_arrival_that_is_given_up_leaves_the_word_of_where_the_run_is,
                an_import_that_fails_leaves_the_word_of_where_a_run_is,
                a_run_that_its_new_home_has_lost_arrives_anew_on_demand,
                a_run_that_lives_is_not_taken_back,
                nobody_calls_back_what_goes_elsewhere,
                an_imported_parent_waits_for_no_child_that_is_over,
            }
            retention {
                a_finished_run_is_deleted_whole,
                a_live_run_is_not_deleted,
                a_run_with_an_unsent_message_is_not_deleted,
                retention_goes_by_age_and_count,
                a_run_that_begins_anew_keeps_only_what_follows,
            }
        }
    };
}

/// Expands the list of promises; [`store_conformance!`](crate::store_conformance) is the one to call.
#[doc(hidden)]
#[macro_export]
macro_rules! promises {
    ($name:ident, $factory:expr; $($file:ident { $($promise:ident),* $(,)? })*) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $(mod $file {
                #[allow(unused_imports)]
                use super::*;
                $(#[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    $crate::conformance::$file::$promise(($factory)()).await;
                })*
            })*
        }
    };
}
