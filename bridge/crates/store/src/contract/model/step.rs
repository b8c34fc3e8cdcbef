//! Changes that the model test makes, and their random choice.

use proptest::prelude::*;

use super::runs::{RunStep, run_step};
use super::signals::{SignalStep, signal_step};

/// Change to make. A number selects an existing item, modulo their count.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Accept {
        task: u8,
        header: Option<u8>,
        body: u8,
        session: Option<u8>,
        priority: i8,
        delay: Option<u8>,
        other: bool,
        start: bool,
        is_held: bool,
    },
    Promote,
    Claim(usize, bool),
    Append(usize),
    FinishAttempt(usize, Option<u8>, bool),
    FinishQueued(usize, Option<u8>),
    FinishInterrupted(usize),
    Requeue(usize),
    RequeueInterrupted(usize),
    Cancel(usize),
    Approve(usize),
    Reject(usize),
    Reroute(usize, bool, Option<u8>),
    Settle(usize, u8),
    ReplayOne(usize),
    ReplayMany(u8),
    /// Seconds by which the clock was set back.
    FollowClock(u8),
    Unbound,
    Sweep(usize),
    Seal(u8, u8),
    Run(RunStep),
    Signal(SignalStep),
    Restart,
    Kill,
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let session = || prop::option::of(0..2u8);
    let accept = (
        (
            0..6u8,
            prop::option::weighted(0.2, 0..3u8),
            0..2u8,
            session(),
        ),
        (
            -1..2i8,
            prop::option::weighted(0.3, 1..20u8),
            prop::bool::weighted(0.3),
            any::<bool>(),
            prop::bool::weighted(0.2),
        ),
    );
    prop_oneof![
        8 => accept.prop_map(|((task, header, body, session), (priority, delay, other, start, is_held))| {
            Step::Accept { task, header, body, session, priority, delay, other, start, is_held }
        }),
        2 => Just(Step::Promote),
        6 => (1..4usize, prop::bool::weighted(0.3)).prop_map(|(count, o)| Step::Claim(count, o)),
        3 => any::<usize>().prop_map(Step::Append),
        6 => (any::<usize>(), prop::option::of(0..3u8), any::<bool>())
            .prop_map(|(n, code, owed)| Step::FinishAttempt(n, code, owed)),
        2 => (any::<usize>(), prop::option::of(0..3u8)).prop_map(|(n, c)| Step::FinishQueued(n, c)),
        2 => any::<usize>().prop_map(Step::FinishInterrupted),
        2 => any::<usize>().prop_map(Step::Requeue),
        2 => any::<usize>().prop_map(Step::RequeueInterrupted),
        2 => any::<usize>().prop_map(Step::Cancel),
        3 => any::<usize>().prop_map(Step::Approve),
        1 => any::<usize>().prop_map(Step::Reject),
        2 => (any::<usize>(), any::<bool>(), session()).prop_map(|(n, o, s)| Step::Reroute(n, o, s)),
        6 => (any::<usize>(), 0..3u8).prop_map(|(n, next)| Step::Settle(n, next)),
        1 => any::<usize>().prop_map(Step::ReplayOne),
        1 => (0..4u8).prop_map(Step::ReplayMany),
        1 => (0..60u8).prop_map(Step::FollowClock),
        1 => Just(Step::Unbound),
        2 => (1..3usize).prop_map(Step::Sweep),
        1 => (0..2u8, any::<u8>()).prop_map(|(name, value)| Step::Seal(name, value)),
        3 => run_step().prop_map(Step::Run),
        2 => signal_step().prop_map(Step::Signal),
        1 => Just(Step::Restart),
        1 => Just(Step::Kill),
    ]
}

/// Mostly changes of signals, which are rare among all changes.
pub(super) fn step_of_signals() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => signal_step().prop_map(Step::Signal),
        1 => Just(Step::Unbound),
        1 => Just(Step::Restart),
        1 => Just(Step::Kill),
    ]
}

/// Mostly changes of runs, between those of a few dispatches.
pub(super) fn step_of_runs() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => run_step().prop_map(Step::Run),
        4 => step(),
        3 => (1..3usize).prop_map(Step::Sweep),
    ]
}
