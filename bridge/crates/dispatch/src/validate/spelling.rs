//! Warnings about misspelt members: one that is unknown and similar to a documented name is ignored, and reported.

use std::borrow::Cow;

use forge_base::spelling::nearest;

use super::fields::Fields;

/// Members of the schema `DispatchRequest` of `openapi.json`, and the other spelling of one; sorted, as each list here.
pub(crate) const DISPATCH: &[&str] = &[
    "agentId",
    "attachments",
    "budget",
    "callback",
    "callbackUrl",
    "deadline",
    "gatewayId",
    "idleTimeoutSeconds",
    "mcpServers",
    "message",
    "metadata",
    "model",
    "notBefore",
    "options",
    "outputFile",
    "outputSchema",
    "outputStrategy",
    "preferences",
    "priority",
    "projectId",
    "provider",
    "queueTimeoutSeconds",
    "recovery",
    "requires",
    "retryOf",
    "runId",
    "sessionId",
    "stepId",
    "systemPrompt",
    "taskId",
    "timeout",
    "timeoutSeconds",
    "toolResults",
    "tools",
    "userId",
    "workspace",
];
pub(super) const ATTACHMENT: &[&str] = &["data", "mediaType", "name", "path", "url"];
pub(super) const BUDGET: &[&str] = &["maxCostUsd", "maxTokens"];
pub(super) const CALLBACK: &[&str] = &["bearer", "headers", "retry", "secret"];
pub(super) const FILE: &[&str] = &["content", "path"];
pub(super) const OPTIONS: &[&str] = &[
    "maxOutputTokens",
    "reasoning",
    "seed",
    "stop",
    "temperature",
    "toolChoice",
    "topP",
];
pub(super) const PREFERENCES: &[&str] = &["costTier", "latencyProfile", "providers"];
pub(super) const RETRY: &[&str] = &["maxElapsedSeconds"];
/// Of our format, OpenAI's and MCP's.
pub(super) const TOOL: &[&str] = &[
    "annotations",
    "description",
    "function",
    "inputSchema",
    "name",
    "outputSchema",
    "parameters",
    "strict",
    "title",
    "type",
];
pub(super) const TOOL_RESULT: &[&str] = &["isError", "name", "output", "toolCallId"];
pub(super) const WORKSPACE: &[&str] = &["dir", "files"];

/// Maximum warnings of a request, names compared in one object, and bytes of such a name.
const MAX_WARNINGS: usize = 8;
const MAX_COMPARED: usize = 32;
const MAX_NAME_BYTES: usize = 64;

/// Warns about the members of `fields` that are similar to one of `known` but equal to none.
pub(super) fn warn(fields: &Fields<'_>, known: &[&str]) {
    report(fields, known, |_| None);
}

/// Warns about all members of `fields` that are not among `known`.
pub(super) fn warn_about_all(fields: &Fields<'_>, known: &[&str]) {
    report(fields, known, |given| {
        let known = known.join(", ");
        Some(format!(
            "{given:?} is ignored, because there is no such field; there are {known}"
        ))
    });
}

fn report(fields: &Fields<'_>, known: &[&str], other: impl Fn(String) -> Option<String>) {
    let is_known = |name: &str| known.binary_search(&&*camel_case(name)).is_ok();
    let unknown = fields
        .names()
        .filter(|name| !is_known(name) && name.len() <= MAX_NAME_BYTES);
    for name in unknown.take(MAX_COMPARED) {
        let complaints = fields.complaints();
        if complaints.warning_count() >= MAX_WARNINGS {
            return;
        }
        let given = fields.path(name);
        let warning = match nearest(&camel_case(name), known.iter().copied()) {
            Some(meant) => Some(format!(
                "{given:?} is ignored, because there is no such field; did you mean {}?",
                fields.path(meant)
            )),
            None => other(given),
        };
        if let Some(warning) = warning {
            complaints.warn(warning);
        }
    }
}

/// `callback_url` → `callbackUrl`.
fn camel_case(name: &str) -> Cow<'_, str> {
    if !name.contains('_') {
        return Cow::Borrowed(name);
    }
    let mut parts = name.split('_');
    let mut camel = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut letters = part.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    Cow::Owned(camel)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::super::{Envelope, Limits, validate};
    use super::*;
    use crate::Config;

    fn warnings(more: &Value) -> Vec<String> {
        let mut body = json!({"taskId": "t", "agentId": "a", "message": "m", "callbackUrl": null});
        let members = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(members);
        let (config, none) = (Config::default(), BTreeSet::new());
        let limits = Limits {
            is_step: false,
            config: &config,
            mcp_servers: &none,
            external: &|name| Err(format!("unknown service {name:?}")),
            callback: &|_| Ok(()),
        };
        let valid = validate(&body, &Envelope::default(), &limits);
        valid.unwrap_or_else(|e| panic!("{body}: {e:?}")).warnings
    }

    #[test]
    fn a_misspelt_member_is_reported_with_the_documented_one() {
        for (members, meant) in [
            (json!({"timeoutSecs": 5}), "timeoutSeconds"),
            (json!({"timeout_secs": 5}), "timeoutSeconds"),
            (json!({"Timeout": 5}), "timeout"),
            (json!({"callback_uri": "x"}), "callbackUrl"),
            (json!({"sessionID": "s"}), "sessionId"),
            (json!({"pririoty": 3}), "priority"),
            (json!({"budget": {"maxToken": 5}}), "budget.maxTokens"),
            (json!({"callback": {"retrys": "compat"}}), "callback.retry"),
            (
                json!({"preferences": {"costTeir": "low"}}),
                "preferences.costTier",
            ),
            (json!({"workspace": {"file": []}}), "workspace.files"),
            (
                json!({"options": {"max_output_token": 1}}),
                "options.maxOutputTokens",
            ),
            (
                json!({"tools": [{"name": "t", "inputSchema": {}, "descripton": "d"}]}),
                "tools[0].description",
            ),
        ] {
            let found = warnings(&members);
            let hint = format!("did you mean {meant}?");
            assert!(
                found.len() == 1 && found[0].ends_with(&hint),
                "{members}: {found:?}"
            );
        }
    }

    #[test]
    fn an_unknown_option_is_always_reported() {
        let found = warnings(&json!({"options": {"mirostat": 2, "seed": 1, "top_p": 0.5}}));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("\"options.mirostat\" is ignored"),
            "{found:?}"
        );
    }

    #[test]
    fn a_documented_member_is_known_in_both_spellings_and_a_foreign_one_is_silent() {
        for members in [
            json!({"timeoutSeconds": 5, "run_id": "r", "idle_timeout_seconds": 5}),
            json!({"timeout_seconds": 5, "budget": {}, "workspace": {"files": []}}),
            json!({"budget": {"max_tokens": 5}}),
            json!({"metadata": {"timeoutSecs": 5}}),
            json!({"callback": {"headers": {"x-retries": "5"}}}),
            json!({"colour": "red", "x_internal_reference": 7, "": 1}),
            json!({"tools": [{"type": "function", "function": {"name": "t", "parameters": {}, "strict": true}}]}),
        ] {
            assert_eq!(warnings(&members), Vec::<String>::new(), "{members}");
        }
    }

    #[test]
    fn the_names_are_those_of_the_reference() {
        let reference = include_str!("../../../../openapi.json");
        let reference: Value = serde_json::from_str(reference).unwrap();
        let schema = &reference["components"]["schemas"]["DispatchRequest"];
        let documented = schema["properties"].as_object().unwrap();
        let mut documented: BTreeSet<&str> = documented.keys().map(String::as_str).collect();
        documented.insert("timeoutSeconds");
        assert_eq!(documented, DISPATCH.iter().copied().collect());
        for (member, known) in [
            ("budget", BUDGET),
            ("callback", CALLBACK),
            ("options", OPTIONS),
            ("preferences", PREFERENCES),
            ("workspace", WORKSPACE),
        ] {
            let path = schema["properties"][member]["$ref"].as_str().unwrap();
            let inner = reference.pointer(&path[1..]).unwrap();
            let inner = inner["properties"].as_object().unwrap();
            let inner: BTreeSet<&str> = inner.keys().map(String::as_str).collect();
            assert_eq!(inner, known.iter().copied().collect(), "{member}");
        }
    }

    #[test]
    fn the_names_are_sorted() {
        for names in [
            DISPATCH,
            BUDGET,
            CALLBACK,
            FILE,
            OPTIONS,
            PREFERENCES,
            RETRY,
            TOOL,
            TOOL_RESULT,
            WORKSPACE,
        ] {
            assert!(names.is_sorted(), "{names:?}");
        }
    }

    #[test]
    fn many_misspelt_members_are_not_many_warnings() {
        let letters = 'a'..='z';
        let members = letters.map(|letter| (format!("timeout{letter}"), json!(1)));
        let members = Value::Object(members.collect());
        assert_eq!(warnings(&members).len(), MAX_WARNINGS);
    }
}
