//! Conversations of all kinds of turns with a model that refuses what a real one refuses.

use forge_adapter_api::{ExecutionAdapter, ExecutionRequest, ExecutionResult};
use serde_json::json;

use crate::execution::{Execution, run, run_until};
use crate::tool::find;

/// Kinds of turns, by the marker that makes the fake model answer so.
const KINDS: [&str; 7] = [
    "a text",
    "EMPTY",
    "BLANK",
    "THINKONLY",
    "THINK and answer",
    "CALL find {\"who\":\"bob\"}",
    "SLOW and cancelled",
];

/// Runs every sequence of two turns and a text in one session each, with and without results for calls. Asserts that the
/// model refuses none.
pub async fn every_order(adapter: &impl ExecutionAdapter, model: Option<&str>) {
    for first in KINDS {
        for second in KINDS {
            for is_answered in [true, false] {
                let order = [first, second, "a last text"];
                let mut earlier: Option<Execution> = None;
                let mut session = None;
                for message in order {
                    let mut request = ExecutionRequest {
                        model: model.map(str::to_owned),
                        session_id: session.clone(),
                        tools: vec![find("find")],
                        ..ExecutionRequest::sample(message)
                    };
                    if let Some(earlier) = earlier.take().filter(|_| is_answered) {
                        request.tool_results = earlier.tool_results(&json!("seven"));
                    }
                    let ran = turn(adapter, request).await;
                    assert_turn(message, &ran.result, &format!("{model:?} {order:?}"));
                    // A turn that was cancelled leaves a session that it began without one.
                    let is_kept = session.is_some() || ran.result.error.is_none();
                    session = ran.result.session_id.clone().filter(|_| is_kept);
                    earlier = Some(ran);
                }
            }
        }
    }
}

async fn turn(adapter: &impl ExecutionAdapter, request: ExecutionRequest) -> Execution {
    if !request.message.contains("cancelled") {
        return run(adapter, request).await;
    }
    run_until(adapter, request, "assistant.text", async || {
        assert!(adapter.cancel("task-sample").await.unwrap());
    })
    .await
}

#[track_caller]
fn assert_turn(message: &str, result: &ExecutionResult, order: &str) {
    let ended = (result.error_code.as_deref(), result.error.as_deref());
    let said = result.output.as_deref().unwrap_or_default().trim();
    if message.contains("cancelled") {
        assert_eq!(ended.0, Some("cancelled"), "{order}: {result:?}");
        return;
    }
    assert_eq!(ended, (None, None), "{order}: {message}");
    assert_eq!(
        result.tool_calls.len(),
        usize::from(message.contains("CALL"))
    );
    assert_eq!(
        !said.is_empty(),
        message.contains("text") || message.contains("answer"),
        "{order}: {message}: {said}"
    );
}
