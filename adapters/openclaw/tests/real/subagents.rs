//! Subagents: their work belongs to the dispatch that began them.

use forge_adapter_api::{Events, ExecutionAdapter as _};
use forge_test_support::execution::{Execution, run_until};
use serde_json::json;

use crate::bench::{Bench, asked, request, used};

/// A call of the tool that begins a subagent with this task.
fn spawn(task: &str) -> String {
    let call = json!({"id": "sessions_spawn", "args": {"task": task, "label": "a task"}});
    format!("CALL tool_call {call}")
}

/// Asserts one subagent's call of a tool, and that its parent got the result.
fn worked(ran: &Execution, word: &str, calls: u64) {
    assert!(ran.succeeded().starts_with("pong: "), "{:?}", ran.result);
    let reports = asked(&format!("tool said: {word}"));
    assert!(!reports.is_empty(), "the parent did not get the result");
    let own = asked("[Subagent Task]");
    let own = own
        .iter()
        .filter(|asked| asked.body.to_string().contains(word));
    assert_eq!(own.count(), 2, "a call of a tool, and the answer after it");
    used(ran, calls);
    assert!(ran.text().ends_with(ran.output()), "{:?}", ran.events);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_ends_with_the_results_of_its_subagents() {
    let bench = Bench::new().await;
    let task = |word: &str| {
        spawn(&format!(
            r#"CALL exec {{"command": "sleep 1; echo {word}"}}"#
        ))
    };
    let plain = task("spawned-42");
    let yields = task("yielded-42") + " THEN CALL sessions_yield {}";
    let (plain, yielded) = tokio::join!(
        bench.say("dsp_spawns", &plain),
        bench.say("dsp_yields", &yields),
    );
    // Two calls before the result of the subagent, two of the subagent, and one after it.
    worked(&plain, "spawned-42", 5);
    worked(&yielded, "yielded-42", 5);
    let tools = plain.all("tool.invoked");
    assert!(tools.iter().any(|tool| tool["name"] == "sessions_spawn"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_the_subagents() {
    let bench = Bench::new().await;
    let (events, mut relayed) = Events::channel(1_000);
    bench.adapter.start_event_relay(events).await.unwrap();
    // In the run of the parent, and after it.
    for (id, is_late) in [("dsp_early", false), ("dsp_late", true)] {
        let session = json!(format!("agent:main:{id}"));
        let mut is_task = async |kind: &str, status: &str| loop {
            let task = relayed.recv().await.unwrap().data.unwrap()["task"].take();
            if task["ownerKey"] == session && task["kind"] == kind && task["status"] == status {
                break;
            }
        };
        let request = request(id, &spawn("HANG as a subagent"));
        let ran = run_until(&bench.adapter, request, "tool.completed", async || {
            if is_late {
                is_task("cli", "completed").await;
            }
            assert!(bench.adapter.cancel(&format!("task-{id}")).await.unwrap());
        });
        ran.await.failed("cancelled");
        is_task("subagent", "cancelled").await;
    }
}
