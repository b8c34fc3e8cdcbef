//! Calls of the protocol: JSON-RPC over HTTP, with the method names of either version.

use forge_adapter_api::AdapterError;
use forge_adapter_transport::attachments::Attachments;
use forge_adapter_transport::http::Http;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::card::{Endpoint, Version};
use crate::config::Settings;
use crate::update::Ids;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Send,
    Stream,
    Get,
    Cancel,
    Resubscribe,
}

/// The protocol's error code of an unknown task.
const TASK_NOT_FOUND: i64 = -32001;
/// Code of the adapter error for it.
pub(crate) const UNKNOWN_TASK: &str = "session_not_found";

impl Call {
    fn name(self, version: Version) -> &'static str {
        match (version, self) {
            (Version::One, Self::Send) => "SendMessage",
            (Version::One, Self::Stream) => "SendStreamingMessage",
            (Version::One, Self::Get) => "GetTask",
            (Version::One, Self::Cancel) => "CancelTask",
            (Version::One, Self::Resubscribe) => "SubscribeToTask",
            (Version::Old, Self::Send) => "message/send",
            (Version::Old, Self::Stream) => "message/stream",
            (Version::Old, Self::Get) => "tasks/get",
            (Version::Old, Self::Cancel) => "tasks/cancel",
            (Version::Old, Self::Resubscribe) => "tasks/resubscribe",
        }
    }
}

/// Body of a call.
pub(crate) fn body(endpoint: &Endpoint, call: Call, params: &Value) -> Value {
    let mut params = params.clone();
    if let Some(tenant) = &endpoint.tenant {
        params["tenant"] = tenant.as_str().into();
    }
    json!({"jsonrpc": "2.0", "id": 1, "method": call.name(endpoint.version), "params": params})
}

pub(crate) fn request(
    http: &Http,
    settings: &Settings,
    endpoint: &Endpoint,
    body: String,
) -> RequestBuilder {
    let version = match endpoint.version {
        Version::One => "1.0",
        Version::Old => "0.3",
    };
    let request = http
        .request(Method::POST, endpoint.url.as_str())
        .header("content-type", "application/json")
        .header("accept", "text/event-stream, application/json")
        .header("a2a-version", version)
        .body(body);
    settings.with_credentials(settings.with_extensions(request, endpoint.version))
}

/// Params of a message with this id that continues this conversation. `SendMessage` returns before the task is done.
pub(crate) fn message(
    version: Version,
    id: &str,
    ids: &Ids,
    text: &str,
    attachments: &Attachments,
    metadata: Option<&Value>,
) -> Value {
    let (role, part, at_once) = match version {
        Version::One => (
            "ROLE_USER",
            json!({"text": text}),
            json!({"returnImmediately": true}),
        ),
        Version::Old => (
            "user",
            json!({"kind": "text", "text": text}),
            json!({"blocking": false}),
        ),
    };
    let files = attachments.parts().map(|file| match version {
        Version::One => json!({
            "raw": file.base64, "filename": file.name, "mediaType": file.media_type,
        }),
        Version::Old => json!({"kind": "file", "file": {
            "bytes": file.base64, "name": file.name, "mimeType": file.media_type,
        }}),
    });
    let parts: Value = std::iter::once(part).chain(files).collect();
    let mut message = json!({"role": role, "messageId": id, "parts": parts});
    if version == Version::Old {
        message["kind"] = "message".into();
    }
    for (name, id) in [("taskId", &ids.task), ("contextId", &ids.context)] {
        if let Some(id) = id {
            message[name] = id.as_str().into();
        }
    }
    let mut params = json!({"message": message, "configuration": at_once});
    if let Some(metadata) = metadata {
        params["metadata"] = metadata.clone();
    }
    params
}

pub(crate) fn of_task(id: &str) -> Value {
    json!({ "id": id })
}

/// The `result` of an answer, or the agent's error mapped to a code.
pub(crate) fn result(mut answer: Value) -> Result<Value, AdapterError> {
    let error = &answer["error"];
    if error.is_object() {
        let code = error["code"].as_i64().unwrap_or_default();
        let said = error["message"].as_str().unwrap_or("no reason given");
        let (name, retryable) = match code {
            TASK_NOT_FOUND => (UNKNOWN_TASK, false),
            // Parameters or content that the agent does not accept.
            -32602 | -32005 => ("invalid_request", false),
            -32603 => ("upstream_error", true),
            _ => ("upstream_error", false),
        };
        let mut error = AdapterError::new(name, format!("the agent answered {code}: {said}"));
        error.retryable = retryable;
        return Err(error);
    }
    match answer.get_mut("result") {
        Some(result) => Ok(result.take()),
        None => Err(AdapterError::new(
            "upstream_error",
            "the agent's answer is not a JSON-RPC response",
        )),
    }
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::request::Attachment;

    use super::*;

    #[test]
    fn a_message_goes_on_with_its_task_and_context_and_has_its_files() {
        let attachments = Attachments::new(&[Attachment {
            name: "a.png".to_owned(),
            media_type: "image/png".to_owned(),
            bytes: 3,
            path: "/absent".into(),
        }]);
        let content = attachments.parts().next().unwrap().base64;
        let ids = Ids {
            task: Some("t".to_owned()),
            context: Some("c".to_owned()),
        };
        let metadata = json!({"k": 1});
        let one = message(
            Version::One,
            "e/1",
            &ids,
            "x",
            &attachments,
            Some(&metadata),
        );
        assert_eq!(
            (&one["metadata"], &one["message"]["messageId"]),
            (&metadata, &json!("e/1"))
        );
        assert_eq!(
            (&one["message"]["taskId"], &one["message"]["contextId"]),
            (&json!("t"), &json!("c"))
        );
        assert_eq!(
            (&one["message"]["role"], &one["message"]["parts"]),
            (
                &json!("ROLE_USER"),
                &json!([
                    {"text": "x"},
                    {"raw": content, "filename": "a.png", "mediaType": "image/png"},
                ])
            )
        );
        let old = message(
            Version::Old,
            "e/1",
            &Ids::default(),
            "x",
            &attachments,
            None,
        );
        // Servers that check their input refuse a null that the protocol does not have.
        assert!(!old.to_string().contains("null"), "{old}");
        assert_eq!(
            (&old["message"]["kind"], &old["message"]["taskId"]),
            (&json!("message"), &Value::Null)
        );
        assert_eq!(
            old["message"]["parts"],
            json!([
                {"kind": "text", "text": "x"},
                {"kind": "file", "file": {"bytes": content, "name": "a.png", "mimeType": "image/png"}},
            ])
        );
    }

    #[test]
    fn an_error_has_a_code() {
        for (answer, code) in [
            (
                json!({"error": {"code": -32001, "message": "Task not found"}}),
                "session_not_found",
            ),
            (json!({"error": {"code": -32602}}), "invalid_request"),
            (json!({"error": {"code": -32603}}), "upstream_error"),
            (json!({"jsonrpc": "2.0"}), "upstream_error"),
            (json!([]), "upstream_error"),
        ] {
            assert_eq!(result(answer.clone()).unwrap_err().code, code, "{answer}");
        }
        assert_eq!(
            result(json!({"result": {"a": 1}})).unwrap(),
            json!({"a": 1})
        );
    }
}
