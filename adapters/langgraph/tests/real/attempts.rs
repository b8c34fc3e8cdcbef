//! Further attempts after a crash of the bridge, while the run continues at the server.

use forge_adapter_api::{Events, ExecutionAdapter as _, ExecutionRequest};
use forge_test_support::execution::run_until;
use serde_json::json;

use crate::bench::{self, Bench, in_session, paths, until, used};

fn resumed(session: &str, message: &str) -> ExecutionRequest {
    ExecutionRequest {
        attempt: 2,
        resume: true,
        ..in_session(session, message)
    }
}

/// Starts a run and drops the adapter, including its clean-up tasks, before the run ends.
fn dies(bench: &Bench, request: ExecutionRequest, message: &str) {
    let config = bench::config(bench.server.url(), bench.model.url());
    let message = message.to_owned();
    let life = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let adapter = bench::adapter(config).await;
            let (events, mut received) = Events::channel(1_000);
            tokio::select! {
                result = adapter.execute(request, events) => panic!("{result:?}"),
                () = async { while received.recv().await.unwrap().kind != message {} } => {}
            }
        });
        // Pending clean-up tasks are dropped with the runtime.
        runtime.shutdown_background();
    };
    std::thread::spawn(life).join().unwrap();
}

#[tokio::test]
async fn a_run_that_goes_on_is_joined_from_its_beginning() {
    let bench = Bench::with(json!({"assistant": "agent"})).await;
    dies(
        &bench,
        in_session("joined", "TICK and say"),
        "exec.progress",
    );
    let ran = bench.run(resumed("joined", "TICK and say")).await;
    ran.succeeded();
    used(&ran, 1);
    assert_eq!(ran.output(), "pong: TICK and say");
    assert_eq!(bench.model.requests().len(), 1, "it was run once");
    let ticks: Vec<u64> = ran
        .progress("custom")
        .iter()
        .filter_map(|data| data["value"]["tick"].as_u64())
        .collect();
    assert_eq!(ticks, (0..30).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_run_that_has_ended_meanwhile_is_the_answer() {
    let bench = Bench::new().await;
    dies(&bench, in_session("ended", "just this"), "session.updated");
    until("the model to be asked", async || {
        (!bench.model.requests().is_empty()).then_some(())
    })
    .await;
    let ran = bench.run(resumed("ended", "just this")).await;
    ran.succeeded();
    used(&ran, 1);
    assert_eq!(ran.output(), "pong: just this");
    assert_eq!(bench.model.requests().len(), 1);
}

#[tokio::test]
async fn an_attempt_before_which_nothing_ran_begins() {
    let bench = Bench::new().await;
    let ran = bench.run(resumed("never", "hello")).await;
    ran.succeeded();
    assert_eq!(ran.output(), "pong: hello");
}

#[tokio::test]
async fn a_run_that_was_ended_goes_on_at_its_checkpoint() {
    let bench = Bench::new().await;
    let request = || in_session("checkpoint", "TICK and say");
    let first = run_until(&bench.adapter, request(), "exec.progress", async || {
        assert!(bench.adapter.cancel("task-1").await.unwrap());
    })
    .await;
    first.failed("cancelled");
    let ran = bench.run(resumed("checkpoint", "TICK and say")).await;
    ran.succeeded();
    used(&ran, 1);
    assert_eq!(ran.output(), "pong: TICK and say");
    let (_, run) = paths(&ran);
    let run = bench.get(&run).await.unwrap();
    assert_eq!(
        run["kwargs"]["input"],
        json!(null),
        "nothing was said again"
    );
}

#[tokio::test]
async fn an_attempt_that_begins_again_ends_the_earlier_one() {
    let bench = Bench::new().await;
    dies(&bench, in_session("again", "SLOW please"), "exec.progress");
    let again = ExecutionRequest {
        resume: false,
        ..resumed("again", "SLOW please")
    };
    let ran = run_until(&bench.adapter, again, "assistant.text", async || {
        assert!(bench.adapter.cancel("task-1").await.unwrap());
    })
    .await;
    ran.failed("cancelled");
    let (thread, _) = paths(&ran);
    let runs = bench.get(&format!("{thread}/runs")).await.unwrap();
    let runs = runs.as_array().unwrap();
    assert_eq!(runs.len(), 2);
    assert!(
        runs.iter().all(|run| run["status"] == "interrupted"),
        "{runs:?}"
    );
}
