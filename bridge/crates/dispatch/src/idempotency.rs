//! Idempotency key of a dispatch, and the part of the request that must be the same when it is sent again.

use std::time::Duration;

use forge_adapter_api::OutputStrategy;
use forge_adapter_api::request::{Budget, Tool, ToolResult};
use serde::Serialize;
use serde_json::Value;

use forge_base::digest::{Digest, sha256};
use forge_store::record::{IdempotencyKey, KeySpace};

use super::request::{Callback, DispatchRequest, Preferences, Recovery, Workspace};

/// Members of a request that must be the same when it is sent again. Contains neither secrets nor headers of the callback. Its
/// JSON is hashed and the hash is stored: a new member is left out while it has its default, and none is renamed.
#[derive(Serialize)]
struct Fingerprint<'a> {
    task_id: &'a str,
    agent_id: &'a str,
    message: &'a str,
    callback: &'a Option<Callback>,
    provider: &'a Option<String>,
    system_prompt: &'a Option<String>,
    model: &'a Option<String>,
    timeout: &'a Duration,
    idle_timeout: &'a Option<Duration>,
    queue_timeout: &'a Duration,
    tools: &'a [Tool],
    tool_results: &'a [ToolResult],
    mcp_servers: &'a [String],
    workspace: &'a Option<Workspace>,
    output_strategy: &'a Option<OutputStrategy>,
    output_schema: &'a Option<Value>,
    output_file: &'a Option<String>,
    session_id: &'a Option<String>,
    requires: &'a [String],
    preferences: &'a Preferences,
    priority: &'a i8,
    recovery: &'a Recovery,
    budget: &'a Option<Budget>,
    run_id: &'a Option<String>,
    step_id: &'a Option<String>,
    gateway_id: &'a Option<String>,
}

/// Digest of the members that must be the same when a request is sent again. The order of members in the request does not
/// matter: those of objects are sorted. Every member of a request is listed here, so that a new one needs a decision.
pub fn fingerprint(dispatch: &DispatchRequest) -> Digest {
    let DispatchRequest {
        task_id,
        agent_id,
        message,
        callback,
        provider,
        system_prompt,
        model,
        timeout,
        idle_timeout,
        queue_timeout,
        tools,
        tool_results,
        mcp_servers,
        workspace,
        output_strategy,
        output_schema,
        output_file,
        session_id,
        requires,
        preferences,
        priority,
        recovery,
        budget,
        run_id,
        step_id,
        gateway_id,
        not_before: _,
        deadline: _,
        metadata: _,
        trace: _,
    } = dispatch;
    let fingerprint = Fingerprint {
        task_id,
        agent_id,
        message,
        callback,
        provider,
        system_prompt,
        model,
        timeout,
        idle_timeout,
        queue_timeout,
        tools,
        tool_results,
        mcp_servers,
        workspace,
        output_strategy,
        output_schema,
        output_file,
        session_id,
        requires,
        preferences,
        priority,
        recovery,
        budget,
        run_id,
        step_id,
        gateway_id,
    };
    let json = serde_json::to_vec(&fingerprint).expect("a request has only text keys");
    sha256(json)
}

/// Idempotency key of a dispatch: the one in the header, else its task id.
pub fn key(dispatch: &DispatchRequest, header: Option<&str>) -> IdempotencyKey {
    match header {
        Some(header) => IdempotencyKey {
            space: KeySpace::Header,
            value: header.to_owned(),
        },
        None => IdempotencyKey {
            space: KeySpace::Task,
            value: dispatch.task_id.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::Config;
    use crate::request::tests::minimal;
    use crate::trace::Trace;
    use crate::validate::{Envelope, Limits, validate};
    use forge_net::backoff::Policy;

    fn canonical(dispatch: &DispatchRequest) -> Digest {
        fingerprint(dispatch)
    }

    /// A body with every member set to a value that is not its default.
    fn full() -> Value {
        json!({
            "taskId": "t", "agentId": "a", "message": "m", "callbackUrl": "https://a.example/",
            "provider": "echo", "systemPrompt": "s", "model": "m", "timeout": 5,
            "idleTimeoutSeconds": 5, "queueTimeoutSeconds": 5, "notBefore": "2026-01-01T00:00:00Z",
            "deadline": "2026-01-02T00:00:00Z",
            "tools": [{"name": "t", "inputSchema": {"type": "object", "title": "x"}}],
            "toolResults": [{"toolCallId": "1", "name": "t", "output": {"a": 1, "b": [2, 3]}}],
            "workspace": {"files": [{"path": "a.md", "content": "x"}]},
            "outputStrategy": "structured", "outputSchema": {"type": "object", "title": "y"},
            "outputFile": "o.md", "sessionId": "s", "requires": ["streaming"],
            "preferences": {"costTier": "low", "providers": ["echo"]}, "priority": 3,
            "recovery": "retry", "budget": {"maxTokens": 5, "maxCostUsd": 1.5},
            "callback": {"headers": {"x-a": "1"}, "retry": "compat"},
            "runId": "r", "stepId": "s", "gatewayId": "g", "metadata": {"a": 1, "b": 2},
        })
    }

    fn of_text(text: &str) -> Digest {
        let (config, none) = (Config::default(), Default::default());
        let limits = Limits {
            config: &config,
            mcp_servers: &none,
            callback: &|_| Ok(()),
        };
        let body = serde_json::from_str(text).unwrap();
        let (dispatch, _) = validate(&body, &Envelope::default(), &limits).unwrap();
        canonical(&dispatch)
    }

    /// Serialises a value with the members of its objects in another order.
    fn spelt(value: &Value, turn: usize) -> String {
        match value {
            Value::Object(members) => {
                let mut spelt: Vec<String> = members
                    .iter()
                    .map(|(name, value)| format!("{}:{}", json!(name), spelt(value, turn)))
                    .collect();
                spelt.rotate_left(turn % members.len().max(1));
                if turn.is_multiple_of(2) {
                    spelt.reverse();
                }
                format!("{{{}}}", spelt.join(" ,"))
            }
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(|item| spelt(item, turn)).collect();
                format!("[{}]", items.join(", "))
            }
            leaf => leaf.to_string(),
        }
    }

    proptest! {
        #[test]
        fn no_order_of_members_counts(turn in 0..1000_usize) {
            let full = full();
            prop_assert_eq!(of_text(&spelt(&full, turn)), of_text(&full.to_string()));
        }
    }

    #[test]
    fn every_member_counts_but_those_that_may_differ() {
        let full = full();
        let whole = of_text(&full.to_string());
        for name in full.as_object().unwrap().keys() {
            let mut without = full.clone();
            match name.as_str() {
                "taskId" | "agentId" | "message" => without[name] = "another".into(),
                // `toolResults` need a session.
                "sessionId" => without[name] = "another".into(),
                "callbackUrl" => without[name] = "https://b.example/".into(),
                _ => drop(without.as_object_mut().unwrap().remove(name)),
            }
            let free = ["notBefore", "deadline", "metadata"].contains(&name.as_str());
            assert_eq!(of_text(&without.to_string()) == whole, free, "{name}");
        }
    }

    fn callback() -> Callback {
        Callback {
            url: "https://a.example/".into(),
            origin: "https://a.example:443".into(),
            retry: Policy::Default,
        }
    }

    #[test]
    fn what_may_differ_does_not_count() {
        let base = DispatchRequest {
            callback: Some(callback()),
            ..minimal()
        };
        let again = DispatchRequest {
            not_before: Some(Timestamp::UNIX_EPOCH),
            deadline: Some(Timestamp::MAX),
            metadata: json!({"try": 2}).as_object().cloned(),
            trace: Trace::from_header(Some(
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            )),
            ..base.clone()
        };
        assert_eq!(canonical(&base), canonical(&again));
    }

    #[test]
    fn everything_else_counts() {
        let base = DispatchRequest {
            callback: Some(callback()),
            ..minimal()
        };
        let change = |change: fn(&mut DispatchRequest)| {
            let mut changed = base.clone();
            change(&mut changed);
            changed
        };
        for changed in [
            change(|d| d.task_id.push('x')),
            change(|d| d.message.push('x')),
            change(|d| d.provider = Some("echo".into())),
            change(|d| d.system_prompt = Some(String::new())),
            change(|d| d.timeout *= 2),
            change(|d| d.priority = 1),
            change(|d| d.session_id = Some("s".into())),
            change(|d| d.run_id = Some("r".into())),
            change(|d| d.callback = None),
            change(|d| d.callback.as_mut().unwrap().retry = Policy::Compat),
        ] {
            assert_ne!(canonical(&base), canonical(&changed), "{changed:?}");
        }
    }

    #[test]
    fn the_order_of_members_does_not_count_but_that_of_elements_does() {
        let with_schema = |text: &str| {
            let input_schema = serde_json::from_str(text).unwrap();
            let tool = Tool {
                name: "t".into(),
                description: None,
                input_schema,
            };
            canonical(&DispatchRequest {
                tools: vec![tool],
                trace: Trace::from_header(None),
                ..minimal()
            })
        };
        let one = with_schema(r#"{"a": [1, 2], "b": {"c": 1, "d": 2}}"#);
        assert_eq!(one, with_schema(r#"{"b": {"d": 2, "c": 1}, "a": [1, 2]}"#));
        assert_ne!(one, with_schema(r#"{"a": [2, 1], "b": {"c": 1, "d": 2}}"#));
    }

    #[test]
    fn a_header_and_a_task_id_never_meet() {
        let dispatch = minimal();
        let by_header = key(&dispatch, Some("task"));
        let by_task = key(&dispatch, None);
        assert_eq!(by_header.value, by_task.value);
        assert_ne!(by_header, by_task);
    }
}
