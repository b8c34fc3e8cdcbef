//! Tests of the schema `DispatchRequest` of `openapi.json`, field by field: valid values, invalid values and the
//! default.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::Config;
use crate::request::{DispatchRequest, Preferences, Recovery};

use super::{Envelope, FieldError, Limits, validate};

fn minimal() -> Map<String, Value> {
    let body = json!({
        "taskId": "task", "agentId": "agent", "message": "hello",
        "callbackUrl": "https://receiver.example/cb",
    });
    body.as_object().unwrap().clone()
}

fn check(body: &Value, envelope: &Envelope<'_>) -> Result<DispatchRequest, Vec<FieldError>> {
    let limits = Limits {
        is_step: false,
        config: &Config::default(),
        mcp_servers: &BTreeSet::from(["files".to_owned(), "web".to_owned()]),
        external: &|name| Err(format!("unknown service {name:?}")),
        callback: &|_| Ok(()),
    };
    validate(body, envelope, &limits).map(|valid| valid.dispatch)
}

/// Fields with a complaint when this member is set to this value.
fn complaints_about(name: &str, value: &Value) -> Vec<String> {
    let mut body = minimal();
    body.insert(name.to_owned(), value.clone());
    match check(&Value::Object(body), &Envelope::default()) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.into_iter().map(|error| error.field).collect(),
    }
}

fn snake(camel: &str) -> String {
    camel
        .chars()
        .flat_map(|c| {
            let underscore = c.is_ascii_uppercase().then_some('_');
            underscore.into_iter().chain([c.to_ascii_lowercase()])
        })
        .collect()
}

/// Values of one field.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) good: Vec<Value>,
    /// Invalid values, each with the field named in the complaint.
    pub(super) bad: Vec<(Value, &'static str)>,
}

fn rows() -> Vec<Row> {
    let row = |name, good: Value, bad: Value| {
        let bad = bad
            .as_array()
            .unwrap()
            .iter()
            .map(|value| (value.clone(), name));
        Row {
            name,
            good: good.as_array().unwrap().clone(),
            bad: bad.collect(),
        }
    };
    let inner = |name, good: Value, bad: Vec<(Value, &'static str)>| Row {
        name,
        good: good.as_array().unwrap().clone(),
        bad,
    };
    let tool = json!({"name": "a", "inputSchema": {"type": "object"}});
    vec![
        row(
            "taskId",
            json!(["t", "x".repeat(256)]),
            json!(["", "x".repeat(257), "a\u{7}", "dsp_1", 5, null, [], {}]),
        ),
        row(
            "agentId",
            json!(["a", "ü"]),
            json!(["", "x".repeat(257), "\n", 5, null, true]),
        ),
        row(
            "message",
            json!(["m", " ", "a\u{0}b"]),
            json!(["", 5, null, ["m"], {"text": "m"}]),
        ),
        super::attachments::tests::row(),
        row(
            "callbackUrl",
            json!(["http://a.example", "https://a.example:8443/x?y", null]),
            json!(["", "a.example", "ftp://a.example", 5, {}, []]),
        ),
        row(
            "provider",
            json!(["echo", "acme-ai"]),
            json!(["", 5, ["echo"]]),
        ),
        row("systemPrompt", json!(["You are.", ""]), json!([5, [], {}])),
        row("model", json!(["fast-1"]), json!(["", 5, {}])),
        row(
            "timeout",
            json!([1, 0.5, 600, 86_400]),
            json!([0, -1, 86_401, 1e300, "600", true, []]),
        ),
        inner(
            "timeoutSeconds",
            json!([1, 0.5]),
            vec![(json!(0), "timeout"), (json!("1"), "timeout")],
        ),
        row(
            "idleTimeoutSeconds",
            json!([1, 0.5]),
            json!([0, -1, 1e300, "1"]),
        ),
        row(
            "queueTimeoutSeconds",
            json!([1, 86_400, 0.1]),
            json!([0, -1, 1e300, "1"]),
        ),
        row(
            "notBefore",
            json!(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+01:00"]),
            json!(["tomorrow", "", 5, "2026-01-01", 1_700_000_000]),
        ),
        row(
            "deadline",
            json!(["2026-01-01T00:00:00Z"]),
            json!(["soon", 5, "2026-13-01T00:00:00Z"]),
        ),
        inner(
            "tools",
            json!([[], [tool]]),
            vec![
                (json!({}), "tools"),
                (json!([{"name": "a"}]), "tools[0].inputSchema"),
                (json!([tool, tool]), "tools[1].name"),
                (json!([tool, {"inputSchema": {}}]), "tools[1].name"),
                (json!(["external:svc.entry"]), "tools[0]"),
            ],
        ),
        inner(
            "mcpServers",
            json!([[], ["files"], ["files", "web", "files"]]),
            vec![
                (json!(["unknown"]), "mcpServers"),
                (json!(["https://mcp.example/"]), "mcpServers"),
                (json!([{"command": "sh"}]), "mcpServers[0]"),
                (json!([""]), "mcpServers[0]"),
                (json!("files"), "mcpServers"),
            ],
        ),
        inner(
            "workspace",
            json!([{}, {"files": [{"path": "a", "content": "b"}]}]),
            vec![
                (json!([]), "workspace"),
                (json!({"dir": "/"}), "workspace.dir"),
                (json!({"dir": 5}), "workspace.dir"),
                (json!({"files": {}}), "workspace.files"),
                (json!({"files": [5]}), "workspace.files[0]"),
                (
                    json!({"files": [{"path": "../a", "content": "b"}]}),
                    "workspace.files[0].path",
                ),
            ],
        ),
        row(
            "outputStrategy",
            json!(["stream", "structured"]),
            json!(["file", "", "Stream", 5]),
        ),
        row(
            "outputSchema",
            json!([{}, {"type": "object", "properties": {"a": {"type": "string"}}}]),
            json!([true, "x", [], {"type": "nonsense"}, {"$ref": "https://a.example/s"}, {"x": "y".repeat(300_000)}]),
        ),
        row(
            "outputFile",
            json!(["a.md", "out/a.md"]),
            json!(["", "/a.md", "../a.md", 5]),
        ),
        row("sessionId", json!(["s"]), json!(["", "\n", 5, {}])),
        inner(
            "requires",
            json!([[], ["streaming", "what_comes"]]),
            vec![
                (json!("streaming"), "requires"),
                (json!([5]), "requires[0]"),
                (json!(["streaming", ""]), "requires[1]"),
            ],
        ),
        inner(
            "preferences",
            json!([{}, {"costTier": "low", "latencyProfile": "fast", "providers": ["a"]}, {"cost_tier": "low"}]),
            vec![
                (json!([]), "preferences"),
                (json!({"costTier": "cheap"}), "preferences.costTier"),
                (json!({"latencyProfile": 5}), "preferences.latencyProfile"),
                (json!({"providers": "a"}), "preferences.providers"),
                (
                    json!({"cost_tier": "low", "costTier": "high"}),
                    "preferences.costTier",
                ),
            ],
        ),
        inner(
            "options",
            json!([
                {},
                {"temperature": 0, "topP": 1, "maxOutputTokens": 1.0, "reasoning": "off", "seed": -5},
                {"top_p": 0.5, "max_output_tokens": 9, "stop": ["a"], "toolChoice": "none"},
                {"toolChoice": null, "unknown": 1},
            ]),
            vec![
                (json!([]), "options"),
                (json!({"temperature": 2.1}), "options.temperature"),
                (json!({"temperature": "1"}), "options.temperature"),
                (json!({"topP": 0}), "options.topP"),
                (json!({"topP": 1.1}), "options.topP"),
                (json!({"maxOutputTokens": 0}), "options.maxOutputTokens"),
                (json!({"reasoning": "much"}), "options.reasoning"),
                (json!({"stop": "a"}), "options.stop"),
                (json!({"stop": ["x".repeat(257)]}), "options.stop"),
                (json!({"seed": 0.5}), "options.seed"),
                (json!({"toolChoice": "all"}), "options.toolChoice"),
                (json!({"toolChoice": {"name": "a"}}), "options.toolChoice"),
                // Without tools.
                (json!({"toolChoice": "required"}), "options.toolChoice"),
                (json!({"toolChoice": {"tool": "a"}}), "options.toolChoice"),
            ],
        ),
        row(
            "priority",
            json!([-10, 0, 10, 2.0]),
            json!([-11, 11, 0.5, "1", true]),
        ),
        row(
            "recovery",
            json!(["fail", "retry", "resume"]),
            json!(["", "never", 5]),
        ),
        inner(
            "budget",
            json!([{}, {"maxCostUsd": 0.01}, {"maxTokens": 1}, {"max_tokens": 5, "max_cost_usd": 1}]),
            vec![
                (json!(5), "budget"),
                (json!({"maxCostUsd": 0}), "budget.maxCostUsd"),
                (json!({"maxCostUsd": "1"}), "budget.maxCostUsd"),
                (json!({"maxTokens": 0}), "budget.maxTokens"),
                (json!({"maxTokens": 1.5}), "budget.maxTokens"),
                (json!({"maxTokens": -5}), "budget.maxTokens"),
            ],
        ),
        inner(
            "callback",
            json!([{}, {"headers": {"X-A": "1"}, "bearer": "t", "retry": "compat"}]),
            vec![
                (json!([]), "callback"),
                (json!({"headers": {"host": "x"}}), "callback.headers.host"),
                (json!({"secret": "plain"}), "callback.secret"),
            ],
        ),
        row(
            "retryOf",
            json!(["dsp_01a21721361f70b3b74d463fc12b7f63"]),
            json!([
                "",
                "task",
                "dsp_",
                "dlv_01a21721361f70b3b74d463fc12b7f63",
                5
            ]),
        ),
        row("userId", json!(["u"]), json!(["", "x".repeat(257), 5])),
        row("projectId", json!(["p"]), json!(["", "x".repeat(257), 5])),
        row("runId", json!(["r"]), json!(["", "x".repeat(257), 5])),
        row("stepId", json!(["s"]), json!(["", "\t", {}])),
        row("gatewayId", json!(["g"]), json!(["", 5])),
        row(
            "metadata",
            json!([{}, {"any": [1, {"deep": null}]}]),
            json!([5, "x", []]),
        ),
    ]
}

#[test]
fn every_row_accepts_its_good_forms_in_either_spelling() {
    for row in rows() {
        for value in &row.good {
            let found = complaints_about(row.name, value);
            assert!(found.is_empty(), "{} = {value}: {found:?}", row.name);
            let mut body = minimal();
            body.remove(row.name);
            body.insert(snake(row.name), value.clone());
            let checked = check(&Value::Object(body), &Envelope::default());
            assert!(
                checked.is_ok(),
                "{} = {value}: {checked:?}",
                snake(row.name)
            );
        }
    }
}

#[test]
fn every_row_names_its_bad_forms() {
    for row in rows() {
        for (value, field) in &row.bad {
            let found = complaints_about(row.name, value);
            assert_eq!(found, [*field], "{} = {value}", row.name);
        }
    }
}

#[test]
fn spellings_that_differ_are_refused_for_every_row() {
    for row in rows().iter().filter(|row| snake(row.name) != row.name) {
        let mut body = minimal();
        body.insert(row.name.to_owned(), row.good[0].clone());
        body.insert(snake(row.name), json!({"differs": "x"}));
        assert!(
            check(&Value::Object(body), &Envelope::default()).is_err(),
            "{}",
            row.name
        );
    }
    let timeouts = json!({"timeout": 5, "timeout_seconds": 6});
    let mut body = minimal();
    body.extend(timeouts.as_object().unwrap().clone());
    let errors = check(&Value::Object(body), &Envelope::default()).unwrap_err();
    assert_eq!(errors[0].field, "timeout");
}

#[test]
fn required_rows_are_missed_and_all_at_once() {
    let errors = check(&json!({}), &Envelope::default()).unwrap_err();
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["taskId", "agentId", "message", "callbackUrl"]);
}

#[test]
fn absent_and_null_rows_have_their_defaults() {
    let mut nulls = minimal();
    for row in rows() {
        if !minimal().contains_key(row.name) {
            nulls.insert(row.name.to_owned(), Value::Null);
        }
    }
    for body in [minimal(), nulls] {
        let dispatch = check(&Value::Object(body), &Envelope::default()).unwrap();
        assert_eq!(dispatch.timeout, Duration::from_secs(600));
        assert_eq!(dispatch.queue_timeout, Duration::from_secs(86_400));
        assert_eq!(dispatch.idle_timeout, None);
        assert_eq!((dispatch.not_before, dispatch.deadline), (None, None));
        assert_eq!(dispatch.priority, 0);
        assert_eq!(dispatch.recovery, Recovery::Fail);
        assert_eq!(dispatch.preferences, Preferences::default());
        assert!(dispatch.tools.is_empty() && dispatch.mcp_servers.is_empty());
        assert!(dispatch.provider.is_none() && dispatch.budget.is_none());
        assert_eq!(dispatch.output_file(), "output.md");
    }
}

#[test]
fn unknown_fields_change_nothing() {
    let mut body = minimal();
    let plain = check(&Value::Object(body.clone()), &Envelope::default()).unwrap();
    body.insert("whatComes".to_owned(), json!({"any": [1]}));
    body.insert("callbackURL".to_owned(), json!(5));
    let with = check(&Value::Object(body), &Envelope::default()).unwrap();
    assert_eq!(
        DispatchRequest {
            trace: plain.trace.clone(),
            ..with
        },
        plain
    );
}

#[test]
fn a_deadline_comes_after_not_before() {
    for (not_before, deadline, good) in [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z", true),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", false),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:30:00+01:00", false),
    ] {
        let mut body = minimal();
        body.insert("notBefore".to_owned(), json!(not_before));
        body.insert("deadline".to_owned(), json!(deadline));
        let checked = check(&Value::Object(body), &Envelope::default());
        assert_eq!(checked.is_ok(), good, "{not_before} {deadline}");
    }
}

#[test]
fn a_body_that_is_no_object_is_one_complaint() {
    for body in [json!(null), json!([]), json!("x"), json!(5)] {
        let errors = check(&body, &Envelope::default()).unwrap_err();
        assert_eq!(errors.len(), 1, "{body}");
    }
}

#[test]
fn the_idempotency_key_is_short_and_visible() {
    let long = "k".repeat(257);
    for (key, good) in [
        ("k", true),
        ("\"8e03978e-40d5-43e8-bc93\"", true),
        (&long[..256], true),
        (&long, false),
        ("", false),
        ("two words", false),
        ("ü", false),
    ] {
        let envelope = Envelope {
            idempotency_key: Some(key),
            traceparent: None,
        };
        let checked = check(&Value::Object(minimal()), &envelope);
        assert_eq!(checked.is_ok(), good, "{key}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let names: Vec<&'static str> = rows().iter().map(|row| row.name).collect();
    let inner = [
        "name", "path", "content", "headers", "retry", "function", "dir", "files",
    ];
    let name = prop::sample::select([names.as_slice(), inner.as_slice()].concat());
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, move |element| {
        let member = (name.clone(), element.clone());
        prop_oneof![
            prop::collection::vec(element, 0..5).prop_map(Value::from),
            prop::collection::vec(member, 0..12).prop_map(|members| {
                let members = members
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value));
                Value::Object(members.collect())
            }),
        ]
    })
}

proptest! {
    /// Any body results in a dispatch that survives its own JSON, or in complaints with a text each.
    #[test]
    fn no_body_makes_it_panic(extra in any_json()) {
        let mut body = minimal();
        if let Value::Object(extra) = extra {
            body.extend(extra);
        }
        match check(&Value::Object(body), &Envelope::default()) {
            Ok(dispatch) => {
                let text = crate::idempotency::record(&dispatch).request.get().to_owned();
                prop_assert!(serde_json::from_str::<DispatchRequest>(&text).is_ok());
            }
            Err(complaints) => {
                prop_assert!(!complaints.is_empty());
                prop_assert!(complaints.iter().all(|c| !c.message.is_empty()));
            }
        }
    }
}
