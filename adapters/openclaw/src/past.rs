//! State of a run by its session's messages, for a gateway that was restarted and has forgotten the run. Pure.

use serde_json::{Value, json};

use crate::health::list;
use crate::transcript::texts;

/// State of a run.
#[derive(Debug, PartialEq)]
pub(crate) enum Past {
    /// Its message did not reach the session.
    Unknown,
    /// Begun and not ended: another request for the same run continues it.
    Interrupted,
    /// Continued by the gateway, in this run of its own.
    ContinuedBy(String),
    /// Ended, with the answer that `agent.wait` would have given.
    Ended(Value),
}

/// Reads the messages of a session, oldest first.
pub(crate) fn past(run: &str, history: &Value) -> Past {
    let messages = list(&history["messages"]);
    let key = |message: &Value| message["idempotencyKey"].as_str().map(str::to_owned);
    let own = Some(format!("{run}:user"));
    let Some(first) = messages.iter().position(|message| key(message) == own) else {
        return Past::Unknown;
    };
    let mut past = Past::Interrupted;
    for message in &messages[first + 1..] {
        if message["role"] == "user" {
            let provenance = &message["provenance"];
            if provenance.is_null() {
                // The message of another run.
                break;
            } else if provenance["sourceTool"] == "main_session_restart_recovery" {
                let key = key(message).unwrap_or_default();
                past = Past::ContinuedBy(key.trim_end_matches(":user").to_owned());
            }
        } else if message["__openclaw"]["runId"] == run {
            past = match message["stopReason"] == "stop" {
                true => Past::Ended(ended(message)),
                false => Past::Interrupted,
            };
        }
    }
    past
}

fn ended(message: &Value) -> Value {
    json!({
        "status": "ok",
        "terminalReply": {"text": texts(&message["content"])},
        "terminalReceipt": {"effective": {"provider": message["provider"], "model": message["model"]}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_tell_what_became_of_a_run() {
        let user = |run: &str| json!({"role": "user", "idempotencyKey": format!("{run}:user")});
        let answer = |run: &str, reason: &str| {
            json!({
                "role": "assistant", "stopReason": reason, "content": [{"type": "text", "text": "done"}],
                "provider": "p", "model": "m", "__openclaw": {"runId": run},
            })
        };
        let again = |run: &str| {
            let mut message = user(run);
            message["provenance"] =
                json!({"kind": "internal_system", "sourceTool": "main_session_restart_recovery"});
            message
        };
        let mut announced = user("announce");
        announced["provenance"] = json!({"kind": "inter_session"});
        let continued = |run: &str| Past::ContinuedBy(run.to_owned());
        let called = answer("a", "toolUse");
        for (messages, expected) in [
            (json!([]), Past::Unknown),
            (json!([user("b"), answer("b", "stop")]), Past::Unknown),
            (json!([user("b"), user("a")]), Past::Interrupted),
            (json!([user("a"), called]), Past::Interrupted),
            (json!([user("a"), answer("a", "error")]), Past::Interrupted),
            (
                json!([user("a"), called, again("r"), answer("r", "stop")]),
                continued("r"),
            ),
            (json!([user("a"), again("r"), again("s")]), continued("s")),
            (json!([user("a"), user("b"), again("r")]), Past::Interrupted),
            (
                json!([user("a"), called, announced, answer("a", "stop"), user("b")]),
                Past::Ended(ended(&answer("a", "stop"))),
            ),
        ] {
            let history = json!({ "messages": messages });
            assert_eq!(past("a", &history), expected, "{history}");
        }
    }
}
