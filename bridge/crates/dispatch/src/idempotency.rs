//! Idempotency key of a dispatch, and the part of the request that must be the same when it is sent again.

use std::time::Duration;

use forge_adapter_api::folder::FolderId;
use forge_adapter_api::request::{Budget, Tool, ToolResult};
use forge_adapter_api::{ModelOptions, OutputStrategy};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use forge_base::digest::{Digest, sha256};
use forge_base::id::DispatchId;
use forge_external::Identity;
use forge_store::record::{IdempotencyKey, KeyOwner, KeySpace};

use super::request::{
    Attachment, Callback, DispatchRequest, Preferences, Recovery, Workspace, optional_seconds,
    seconds,
};
use super::trace::Trace;

/// Members of a request that must be the same when it is sent again, as they are stored. Contains neither secrets nor
/// headers of the callback. The digest of its JSON is stored: a new member is left out while it has its default, and none
/// is renamed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Compared<'a> {
    task_id: &'a String,
    agent_id: &'a String,
    message: &'a String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: &'a Vec<Attachment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callback: &'a Option<Callback>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: &'a Option<String>,
    #[serde(skip_serializing_if = "ModelOptions::is_empty")]
    options: &'a ModelOptions,
    #[serde(rename = "timeoutSeconds", with = "seconds")]
    timeout: &'a Duration,
    #[serde(
        rename = "idleTimeoutSeconds",
        with = "optional_seconds",
        skip_serializing_if = "Option::is_none"
    )]
    idle_timeout: &'a Option<Duration>,
    #[serde(rename = "queueTimeoutSeconds", with = "seconds")]
    queue_timeout: &'a Duration,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: &'a Vec<Tool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_results: &'a Vec<ToolResult>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mcp_servers: &'a Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    external_tools: &'a Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: &'a Option<Identity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: &'a Option<Workspace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_strategy: &'a Option<OutputStrategy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_schema: &'a Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_file: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: &'a Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requires: &'a Vec<String>,
    #[serde(skip_serializing_if = "Preferences::is_empty")]
    preferences: &'a Preferences,
    priority: &'a i8,
    recovery: &'a Recovery,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: &'a Option<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project_id: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_id: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway_id: &'a Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_of: &'a Option<DispatchId>,
}

/// Members that can differ when a request is sent again, as they are stored.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Free<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: &'a Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline: &'a Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: &'a Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace_id: &'a Option<FolderId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    submitter: &'a Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_step: bool,
    #[serde(flatten)]
    trace: &'a Trace,
}

/// A request as it is stored.
pub struct Recorded {
    pub request: Box<RawValue>,
    /// Digest of the members that must be the same when the request is sent again. The order of members in the request does
    /// not matter: those of objects are sorted.
    pub fingerprint: Digest,
}

/// Encodes a request for the store, each member once. All members are listed, so that a new one needs a decision.
pub fn record(dispatch: &DispatchRequest) -> Recorded {
    let DispatchRequest {
        task_id,
        agent_id,
        message,
        attachments,
        callback,
        provider,
        system_prompt,
        model,
        options,
        timeout,
        idle_timeout,
        queue_timeout,
        tools,
        tool_results,
        mcp_servers,
        external_tools,
        caller,
        workspace,
        workspace_id,
        output_strategy,
        output_schema,
        output_file,
        session_id,
        requires,
        preferences,
        priority,
        recovery,
        budget,
        user_id,
        project_id,
        submitter,
        is_step,
        run_id,
        step_id,
        gateway_id,
        retry_of,
        not_before,
        deadline,
        metadata,
        trace,
    } = dispatch;
    let compared = Compared {
        task_id,
        agent_id,
        message,
        attachments,
        callback,
        provider,
        system_prompt,
        model,
        options,
        timeout,
        idle_timeout,
        queue_timeout,
        tools,
        tool_results,
        mcp_servers,
        external_tools,
        caller,
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
        user_id,
        project_id,
        run_id,
        step_id,
        gateway_id,
        retry_of,
    };
    let free = Free {
        not_before,
        deadline,
        metadata,
        workspace_id,
        submitter,
        is_step: *is_step,
        trace,
    };
    let mut json = serde_json::to_string(&compared).expect("a request has only text keys");
    let free = serde_json::to_string(&free).expect("metadata has only text keys");
    let fingerprint = sha256(&json);
    // Both are objects, and neither is empty: a request has a task id, and a trace.
    json.truncate(json.len() - 1);
    json.push(',');
    json.push_str(&free[1..]);
    Recorded {
        request: RawValue::from_string(json)
            .expect("two objects without their braces between are one"),
        fingerprint,
    }
}

/// Idempotency key of a dispatch of this caller: the one in the header, else its task id.
pub fn key(dispatch: &DispatchRequest, owner: KeyOwner, header: Option<&str>) -> IdempotencyKey {
    let (space, value) = match header {
        Some(header) => (KeySpace::Header, header.to_owned()),
        None => (KeySpace::Task, dispatch.task_id.clone()),
    };
    IdempotencyKey {
        owner,
        space,
        value,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::Config;
    use crate::request::tests::minimal;
    use crate::validate::{Envelope, Limits, validate};
    use forge_net::backoff::Policy;

    fn canonical(dispatch: &DispatchRequest) -> Digest {
        record(dispatch).fingerprint
    }

    const RETRIED: &str = "dsp_01a21721361f70b3b74d463fc12b7f63";

    /// A body with every member set to a value that is not its default.
    pub(crate) fn full() -> Value {
        json!({
            "taskId": "t", "agentId": "a", "message": "m", "callbackUrl": "https://a.example/",
            "attachments": [{"name": "a.txt", "mediaType": "text/plain", "data": "YQ=="}],
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
            "userId": "u", "projectId": "p", "runId": "r", "stepId": "s", "gatewayId": "g", "retryOf": RETRIED, "metadata": {"a": 1, "b": 2},
        })
    }

    fn of_text(text: &str) -> Digest {
        let (config, none) = (Config::default(), Default::default());
        let limits = Limits {
            is_step: false,
            config: &config,
            mcp_servers: &none,
            external: &|name| Err(format!("unknown service {name:?}")),
            callback: &|_| Ok(()),
        };
        let body = serde_json::from_str(text).unwrap();
        let valid = validate(&body, &Envelope::default(), &limits).unwrap();
        canonical(&valid.dispatch)
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
            change(|d| d.user_id = Some("u".into())),
            change(|d| d.project_id = Some("p".into())),
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
        let by_header = key(&dispatch, KeyOwner::EVERYONE, Some("task"));
        let by_task = key(&dispatch, KeyOwner::EVERYONE, None);
        assert_eq!(by_header.value, by_task.value);
        assert_ne!(by_header, by_task);
    }
}
