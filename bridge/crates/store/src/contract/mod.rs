//! Requirements on every store, as one test suite that runs on each implementation.
#![allow(
    clippy::unwrap_used,
    reason = "tests, compiled as a library for the crates that run them"
)]

pub mod accept;
pub mod approval;
pub mod breaker;
pub mod deliver;
pub mod events;
pub mod execute;
pub mod judgement;
pub mod model;
pub mod queue;
pub mod read;
pub mod runs;
pub mod sample;
pub mod sessions;
pub mod signals;
pub mod tickets;

use std::sync::Arc;

use async_trait::async_trait;

use super::Store;
use super::memory::Memory;

/// A store that can be opened again; each time is the next boot.
#[async_trait]
pub trait Subject: Sync {
    async fn open(&self) -> Arc<dyn Store>;
}

pub struct InMemory(std::sync::Mutex<Memory>);

#[async_trait]
impl Subject for InMemory {
    async fn open(&self) -> Arc<dyn Store> {
        let mut memory = self.0.lock().unwrap();
        *memory = memory.restart();
        Arc::new(memory.clone())
    }
}

pub fn in_memory() -> InMemory {
    InMemory(std::sync::Mutex::new(Memory::new()))
}

/// Declares every test of the suite for the stores that `$open` makes.
#[macro_export]
macro_rules! contract_tests {
    ($open:path) => {
        $crate::contract_tests! { @cases $open =>
            accept:
                one_with_room_begins_at_once one_that_has_to_wait_does_not_begin
                an_accepted_dispatch_reads_as_it_was_given
                the_same_body_is_a_duplicate_and_another_a_conflict
                a_duplicate_of_a_finished_one_makes_its_delivery_due_again
                a_failed_one_gives_its_task_key_to_a_new_one
                the_caller_names_what_it_repeats_unless_a_key_is_taken_over a_dead_delivery_is_superseded_too
                a_header_key_is_never_taken_over header_and_task_keys_do_not_meet
                keys_of_different_owners_do_not_meet
                a_task_key_must_be_the_task_id a_full_queue_refuses_new_ones_but_knows_duplicates;
            approval:
                a_held_one_starts_only_when_approved a_rejection_finishes_it_with_its_delivery
                only_the_first_decision_counts a_held_one_is_overdue_and_delayed_as_any_other
                approvals_are_listed_newest_first_in_pages;
            breaker:
                what_is_open_survives_a_restart_until_it_closes
                the_longest_waits_are_kept_when_there_are_too_many;
            deliver:
                a_finished_dispatch_owes_its_delivery_at_once
                without_a_callback_nothing_is_owed an_attempt_moves_the_due_time_or_ends_the_delivery
                one_receiver_does_not_hide_the_others every_receiver_gets_its_turn
                the_first_5_and_the_last_20_attempts_are_kept one_is_replayed_whatever_its_state
                many_are_replayed_by_host_time_and_state what_is_due_survives_a_restart
                what_waits_beyond_its_time_is_overdue_until_it_ends_without_an_attempt
                after_the_clock_was_set_back_a_wait_is_as_long_as_it_was;
            events:
                a_dispatch_counts_its_events_without_a_gap
                a_reader_resumes_anywhere_and_sees_each_event_once
                filters_choose_and_still_make_progress events_of_no_dispatch_stand_in_the_log
                an_id_is_never_issued_twice the_log_keeps_its_name
                readers_are_woken_by_what_is_committed old_events_of_no_dispatch_go
                sweeping_goes_in_steps_and_takes_only_what_is_past;
            execute:
                an_attempt_is_handed_all_that_it_needs a_stale_lease_writes_nothing
                what_an_attempt_recorded_is_there_for_the_next
                a_result_carries_its_events a_result_that_is_no_object_is_refused_whole
                a_cancel_before_the_finish_wins a_cancel_after_the_finish_is_too_late
                a_cancelled_attempt_does_not_go_back_to_the_queue
                what_ran_at_a_crash_is_found_at_the_next_boot
                only_the_interrupted_claim_ends_what_a_crash_left contents_are_read_in_pieces
                claims_on_what_is_unknown_are_not_found;
            judgement:
                a_record_is_judged_as_it_is_stored a_repeat_is_answered_as_the_first_was
                an_intervention_is_acknowledged_once interventions_are_listed_newest_first
                amounts_are_added_up_by_minute_up_to_a_mark amounts_are_added_up_by_property old_interventions_go
                usage_of_a_dispatch_is_charged_once;
            queue:
                priority_goes_before_age ready_is_per_adapter_and_bounded
                one_that_waits_for_its_time_is_promoted_then only_what_can_start_is_claimed
                a_last_attempt_runs_alone
                those_that_never_started_in_time_are_overdue a_session_runs_one_after_another
                a_delayed_one_enters_its_session_when_promoted a_requeued_attempt_keeps_its_place
                a_cancelled_one_in_a_session_lets_the_next_go_only_when_finished
                rerouting_moves_queue_and_session only_what_never_started_is_rerouted
                sessions_of_two_adapters_do_not_meet;
            read:
                dispatches_are_listed_newest_first_in_pages
                a_list_of_dispatches_is_filtered usage_is_added_up_by_property deliveries_are_listed_newest_first_and_filtered
                a_sealed_value_is_written_once what_is_sealed_is_found_and_resealed;
            runs:
                a_run_reads_as_it_was_changed a_key_of_a_run_is_used_once
                events_of_a_run_are_numbered_in_the_log
                the_whole_log_leaves_out_what_dispatches_report
                a_refused_change_of_a_run_changes_nothing a_run_that_ended_without_completing_is_reopened
                artifacts_replace_those_of_their_path
                runs_are_listed_newest_first_and_by_status
                an_expired_run_goes_with_all_that_it_has;
            sessions:
                a_session_is_stored_with_its_events a_session_ends_once
                a_signal_pauses_its_session_and_the_next_resumes_it
                recent_sessions_are_listed_by_their_id
                records_are_read_on_from_the_position_that_was_kept
                the_position_of_a_removed_record_is_not_given_again
                sessions_are_listed_newest_first_and_filtered;
            signals:
                a_record_counts_in_its_session a_signal_of_an_unknown_session_is_not_found
                a_repeat_writes_nothing a_successor_opens_as_the_former_session_ends
                old_signals_go_in_steps_and_their_sessions_after_them;
            tickets: a_ticket_is_good_for_once_and_for_a_minute one_token_has_a_share_of_the_tickets;
        }
    };
    (@cases $open:path => $($file:ident: $($name:ident)+;)+) => {$(
        mod $file {$(
            #[tokio::test]
            async fn $name() {
                $crate::contract::$file::$name($open()).await;
            }
        )+}
    )+};
}

#[cfg(test)]
mod tests {
    crate::contract_tests!(crate::contract::in_memory);

    /// A case that is written and not declared would never run.
    #[test]
    fn every_case_is_declared() {
        let written = [
            include_str!("accept.rs"),
            include_str!("approval.rs"),
            include_str!("breaker.rs"),
            include_str!("deliver.rs"),
            include_str!("events.rs"),
            include_str!("execute.rs"),
            include_str!("judgement.rs"),
            include_str!("queue.rs"),
            include_str!("read.rs"),
            include_str!("runs.rs"),
            include_str!("sessions.rs"),
            include_str!("signals.rs"),
            include_str!("tickets.rs"),
        ];
        let cases = written
            .iter()
            .flat_map(|file| file.split("subject: impl Subject").skip(1));
        let declared = include_str!("mod.rs");
        let declared = declared.split("@cases").nth(1).unwrap_or_default();
        assert_eq!(
            cases.count(),
            declared
                .split_whitespace()
                .filter(|word| word.contains('_'))
                .count()
        );
    }
}
