//! A stored request in the form in which it was posted, so that it can be posted again.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::validate::spelling;

/// Converts a stored request into a body of `POST /api/v2/dispatch`: normalised, without secrets, and without what the
/// bridge added to it. `contents` are the attachments that came in the body, by position.
pub fn to_wire(stored: &RawValue, contents: &[Option<Vec<u8>>]) -> serde_json::Result<Value> {
    let mut stored: Map<String, Value> = serde_json::from_str(stored.get())?;
    let callback = stored.remove("callback").unwrap_or_default();
    let external = stored.remove("externalTools");
    let timeout = stored.remove("timeoutSeconds");
    let mut body: Map<String, Value> = stored
        .into_iter()
        .filter(|(name, _)| spelling::DISPATCH.contains(&name.as_str()))
        .collect();
    body.extend(timeout.map(|timeout| ("timeout".to_owned(), timeout)));
    body.insert("callbackUrl".to_owned(), callback["url"].clone());
    if let Some(retry) = callback.get("retry").filter(|retry| **retry != "default") {
        body.insert("callback".to_owned(), json!({ "retry": retry }));
    }
    if let Some(Value::Array(entries)) = external {
        let names = entries.iter().filter_map(Value::as_str);
        let names = names.map(|name| Value::from(format!("external:{name}")));
        let tools = body.entry("tools").or_insert_with(|| json!([]));
        tools
            .as_array_mut()
            .into_iter()
            .for_each(|tools| tools.extend(names.clone()));
    }
    let attachments = body.get_mut("attachments").and_then(Value::as_array_mut);
    for (position, attachment) in attachments.into_iter().flatten().enumerate() {
        let source = attachment["source"].take();
        let content = contents.get(position).and_then(Option::as_ref);
        let (name, value) = match (content, source) {
            (Some(content), _) => ("data", Value::from(STANDARD.encode(content))),
            // `path` or `url`, by its name.
            (None, Value::Object(source)) => match source.into_iter().next() {
                Some((name, place)) if name == "path" => ("path", place),
                Some((name, place)) if name == "url" => ("url", place),
                Some(_) | None => continue,
            },
            (None, _) => continue,
        };
        if let Some(members) = attachment.as_object_mut() {
            members.remove("source");
            members.insert(name.to_owned(), value);
        }
    }
    Ok(Value::Object(body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::idempotency::tests::full;
    use crate::idempotency::{Recorded, record};
    use crate::validate::{Envelope, Limits, Validated, validate};
    use forge_external::EntryName;
    use forge_external::manifest::EntryKind;

    fn read(body: &Value) -> Validated {
        let (config, none) = (Config::default(), ["files".to_owned()].into());
        let limits = Limits {
            is_step: false,
            config: &config,
            mcp_servers: &none,
            external: &|name| {
                let (service, entry) = name
                    .strip_prefix("query:")
                    .unwrap()
                    .split_once('.')
                    .unwrap();
                Ok(EntryName {
                    kind: EntryKind::Query,
                    service: service.to_owned(),
                    entry: entry.to_owned(),
                })
            },
            callback: &|_| Ok(()),
        };
        validate(body, &Envelope::default(), &limits).unwrap()
    }

    #[test]
    fn what_is_read_back_is_the_same_request() {
        let mut body = full();
        body["tools"]
            .as_array_mut()
            .unwrap()
            .push("external:query:billing.list".into());
        body["mcpServers"] = json!(["files"]);
        let attachments = body["attachments"].as_array_mut().unwrap();
        attachments
            .push(json!({"name": "b", "mediaType": "text/plain", "url": "https://a.example/b"}));
        body["callback"]["bearer"] = "hush".into();
        body["callback"]["retry"] = json!({"maxElapsedSeconds": 60.0});
        let first = read(&body);
        let Recorded {
            request,
            fingerprint,
        } = record(&first.dispatch);
        let contents: Vec<_> = first.attachments.into_iter().map(Some).collect();
        let contents = [contents[0].clone(), None];
        let wire = to_wire(&request, &contents).unwrap();
        let again = read(&wire);
        assert_eq!(record(&again.dispatch).fingerprint, fingerprint, "{wire:#}");
        assert_eq!(again.dispatch.metadata, first.dispatch.metadata);
        assert_eq!(again.dispatch.not_before, first.dispatch.not_before);
        assert_eq!((again.warnings, again.attachments.len()), (Vec::new(), 2));
        assert_eq!(
            wire["callback"],
            json!({"retry": {"maxElapsedSeconds": 60.0}})
        );
        let text = wire.to_string();
        for hidden in ["hush", "x-a", "traceparent", "origin", "caller", "isStep"] {
            assert!(!text.contains(hidden), "{hidden} is in {text}");
        }
    }

    #[test]
    fn without_a_callback_there_is_a_null() {
        let body = json!({"taskId": "t", "agentId": "a", "message": "m", "callbackUrl": null});
        let stored = record(&read(&body).dispatch).request;
        let wire = to_wire(&stored, &[]).unwrap();
        assert_eq!(wire["callbackUrl"], Value::Null);
        assert_eq!(wire.get("callback"), None);
    }
}
