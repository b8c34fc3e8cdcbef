//! Runs with random plans, failures, agents that start agents, change requests, pauses and restarts: each ends, and no
//! rule of the order is broken.

mod simulation;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::command::Command;
use crate::event::HoldReason;
use simulation::{Simulation, WorkEnd};

#[derive(Clone, Debug)]
enum Step {
    Finish(usize, WorkEnd),
    Pause,
    Resume,
    Decide(CrStatus),
    /// The process ends: what was in flight is decided again.
    Restart,
}

fn ends() -> impl Strategy<Value = WorkEnd> {
    prop_oneof![
        5 => Just(WorkEnd::Well),
        2 => Just(WorkEnd::Fails),
        2 => Just(WorkEnd::Waits),
        2 => Just(WorkEnd::Calls),
        1 => Just(WorkEnd::Asks),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<usize>(), ends()).prop_map(|(place, how)| Step::Finish(place, how)),
        1 => Just(Step::Decide(CrStatus::Approved)),
        1 => Just(Step::Decide(CrStatus::Rejected)),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Check 11: no valid graph is stuck, also that of the public design.
    #[test]
    fn a_run_with_a_valid_plan_ends(
        edges in prop::collection::vec((0usize..9, 0usize..9), 0..24),
        steps in prop::collection::vec(step(), 0..120),
        cancels in prop::bool::weighted(0.1),
    ) {
        let mut run = Simulation::new(&edges, 9);
        run.decide();
        let hold = HoldReason::User;
        for step in steps {
            match step {
                _ if run.state.end.is_some() => break,
                Step::Finish(place, how) if !run.in_flight.is_empty() => run.finish(place, how),
                Step::Pause if !run.state.user_hold => {
                    run.write(0, Event::RunPaused { reason: hold, cr_id: None });
                }
                Step::Resume if run.state.user_hold => {
                    run.write(0, Event::RunResumed { reason: hold, cr_id: None });
                }
                Step::Decide(status) => run.decide_changes(status),
                Step::Restart => run.in_flight.clear(),
                Step::Finish(..) | Step::Pause | Step::Resume => {}
            }
            run.decide();
            if run.pass() {
                run.decide();
            }
        }
        if run.state.end.is_none() {
            if run.state.user_hold {
                run.write(0, Event::RunResumed { reason: hold, cr_id: None });
            }
            run.decide_changes(CrStatus::Rejected);
            if cancels {
                run.in_flight.clear();
                run.write(0, Event::RunCancelling {});
            }
            run.decide();
        }
        run.complete()?;
        let end = run.state.end.clone().expect("the run ends");
        let merged = run.state.tasks.values().all(|task| task.status == TaskStatus::Merged);
        let exhausted = run.state.tasks.values().any(|task| task.is_exhausted);
        // A run that is cancelled with its last merge is cancelled.
        let is_cancelled = run.state.is_cancelling;
        prop_assert_eq!(end.status == End::Cancelled, is_cancelled);
        prop_assert_eq!(end.status == End::Completed, merged && !is_cancelled);
        prop_assert_eq!(end.status == End::Failed, exhausted && !merged && !is_cancelled);
        // One that did not complete can be continued, and is completed by agents that do not fail.
        let retry = Command::Retry { budget: None };
        let events = retry.events(&run.state, run.now);
        prop_assert_eq!(events.is_err(), end.status == End::Completed);
        for (attempt, event) in events.unwrap_or_default() {
            run.write(attempt, event);
        }
        run.decide();
        run.complete()?;
        let end = run.state.end.as_ref().map(|end| end.status);
        prop_assert_eq!(end, Some(End::Completed));
        // The log alone gives the same state.
        let mut again = State::new(Timestamp::UNIX_EPOCH, false, Approval::User);
        for entry in &run.log {
            again.fold(entry);
        }
        prop_assert_eq!(again, run.state);
    }
}
