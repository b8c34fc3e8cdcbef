//! Signals of the engine API: only listed and bounded values are kept of one, content is refused wherever it stands, and
//! each refusal says why.

use forge_base::json;
use forge_base::text::id_complaint;
use forge_signals::engine::fuzzing::read;
use serde_json::Value;

const DETAILS: [&str; 12] = [
    "duration_ms",
    "tasks_completed",
    "pause_reason",
    "context_snapshot_id",
    "from_tool",
    "to_tool",
    "previous_tool",
    "tokens_used",
    "milestone",
    "intervention_id",
    "ack_delay_ms",
    "goal_id",
];
const GOALS: [&str; 3] = ["goal_declared", "original_goal", "current_trajectory"];
const CONTENT: [&str; 11] = [
    "prompt",
    "completion",
    "input",
    "output",
    "userinput",
    "messages",
    "content",
    "toolinput",
    "toolresponse",
    "transcript",
    "filecontent",
];

/// True if a member at any depth is named as content.
fn has_content(tree: &Value) -> bool {
    match tree {
        Value::Object(members) => members.iter().any(|(name, value)| {
            let name = name.to_lowercase().replace(['_', '-'], "");
            CONTENT.contains(&&*name) || has_content(value)
        }),
        Value::Array(items) => items.iter().any(has_content),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn is_short(text: &str) -> bool {
    id_complaint(text).is_none()
}

/// Input: the body of a signal.
pub(crate) fn run(data: &[u8]) {
    let Ok(tree) = json::parse(data) else {
        return;
    };
    let kept = match read(&tree) {
        Ok(kept) => kept,
        Err(problems) => {
            assert!(!problems.is_empty());
            assert!(problems.iter().all(|one| !one.message.is_empty()));
            return;
        }
    };
    assert!(!has_content(&tree));
    assert!(kept.texts.iter().all(|text| is_short(text)));
    let usage = kept.usage;
    let tokens = [usage.tokens_in, usage.tokens_out, kept.delay_ms];
    assert!(tokens.iter().flatten().all(|count| *count <= 1 << 53));
    let cost = usage.cost_micros.unwrap_or(0);
    assert!(cost <= 1_000_000_000_000);
    assert!(kept.latency_ms.is_none_or(|latency| latency >= 0.0));
    assert!(kept.shares.iter().all(|share| (0.0..=1.0).contains(share)));
    for (name, value) in &kept.details {
        assert!(DETAILS.contains(&&**name), "{name}");
        let is_bounded = match value {
            Value::String(text) => is_short(text),
            value => value.as_f64().is_some_and(|number| number >= 0.0),
        };
        assert!(is_bounded, "{name}");
    }
    for (name, value) in &kept.goals {
        assert!(GOALS.contains(&&**name), "{name}");
        assert!(
            value
                .as_str()
                .is_some_and(|text| text.chars().count() <= 256)
        );
    }
}
