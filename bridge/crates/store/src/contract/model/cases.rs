//! Cases of the model test: sequences of steps, each run on a new store.
#![allow(
    clippy::print_stdout,
    reason = "the seed, which repeats a sequence, belongs to the output of the test"
)]

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::memory::Memory;

use super::step::{Step, step, step_of_runs, step_of_signals};
use super::{Killable, Pair};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Sequences of all changes.
pub fn answers_as_the_model<K: Killable>(new: fn() -> K, cases: u32) {
    compare(2 * cases, step(), new);
}

/// Sequences that are mostly of signals.
pub fn answers_about_signals_as_the_model<K: Killable>(new: fn() -> K, cases: u32) {
    compare(cases, step_of_signals(), new);
}

/// Sequences that are mostly of runs.
pub fn answers_about_runs_as_the_model<K: Killable>(new: fn() -> K, cases: u32) {
    compare(cases, step_of_runs(), new);
}

/// Declares the tests for the stores that `$open` makes, with this many sequences, of all changes twice as many.
#[macro_export]
macro_rules! model_tests {
    ($open:path, $cases:literal) => {
        $crate::model_tests! {
            @cases $open, $cases => answers_as_the_model answers_about_signals_as_the_model answers_about_runs_as_the_model
        }
    };
    (@cases $open:path, $cases:literal => $($name:ident)+) => {
        mod model {$(
            #[test]
            fn $name() {
                $crate::contract::model::$name($open, $cases);
            }
        )+}
    };
}

fn compare<K: Killable>(cases: u32, step: impl Strategy<Value = Step>, new: fn() -> K) {
    let seed = number("FORGE_MODEL_SEED").unwrap_or_else(rand::random);
    let steps = number("FORGE_MODEL_STEPS").map_or(60, |steps| steps as usize);
    println!("FORGE_MODEL_SEED={seed}");
    let mut runner = TestRunner::new(ProptestConfig {
        cases: number("FORGE_MODEL_CASES").map_or(cases, |cases| cases as u32),
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed),
        ..ProptestConfig::default()
    });
    let sequences = prop::collection::vec((step, 0..4i64), 1..steps);
    let outcome = runner.run(&sequences, |steps| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(run(Box::new(new()), steps));
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("FORGE_MODEL_SEED={seed}: {failure}");
    }
}

async fn run(disk: Box<dyn Killable>, steps: Vec<(Step, i64)>) {
    let mut pair = Pair {
        model: Memory::new(),
        store: disk.open().await,
        disk,
        dispatches: Vec::new(),
        deliveries: Vec::new(),
        leases: Vec::new(),
        runs: Vec::new(),
        now: 1,
    };
    for (step, passes) in steps {
        pair.now += passes;
        pair.make(step).await;
        pair.look().await;
    }
    let mut problems = pair.disk.problems().await;
    // Steps finish dispatches without the delivery that they owe.
    problems.retain(|problem| !problem.ends_with("a callback have no delivery"));
    assert_eq!(problems, Vec::<String>::new());
}
