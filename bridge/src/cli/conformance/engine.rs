//! Checks of an engine: the ten types of signals, their fields, tokens, signatures and answers.

use forge_base::digest::hex;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::{Value, json};
use url::Url;

use super::case::{Answer, Change, Receiver, Right};
use super::report::{Check, Report};

const CASES: &str = include_str!("engine.json");
/// Bytes of the token that are the key.
const KEY_BYTES: usize = 32;

/// Types with their fields besides `type`, `ts` and `session_id`, all required.
const TYPES: [(&str, &str); 10] = [
    ("session-start", r#"{"adapter_id": "a"}"#),
    (
        "session-pause",
        r#"{"pause_reason": "idle", "context_snapshot_id": "c"}"#,
    ),
    (
        "goal-drift",
        r#"{"drift_score": 0.5, "original_goal": "g", "current_trajectory": "t"}"#,
    ),
    (
        "context-switch",
        r#"{"from_tool": "editor", "to_tool": "browser"}"#,
    ),
    (
        "tool-switch",
        r#"{"tool": "cursor", "previous_tool": "editor"}"#,
    ),
    (
        "token-milestone",
        r#"{"tokens_used": 10050, "milestone": 10000}"#,
    ),
    (
        "refocus-ack",
        r#"{"intervention_id": "int_unknown", "ack_delay_ms": 1200}"#,
    ),
    (
        "completion-verified",
        r#"{"goal_id": "g", "confidence": 1}"#,
    ),
    (
        "adapter-heartbeat",
        r#"{"adapter_id": "a", "latency_ms": 4}"#,
    ),
    (
        "session-end",
        r#"{"duration_ms": 1000, "tasks_completed": 3}"#,
    ),
];

pub(super) async fn check(
    url: &Url,
    token: Option<String>,
    adapter: &str,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    // Without a configured token an engine takes any.
    let made_up = || format!("forg_live_{}", hex(&rand::random::<[u8; 16]>()));
    let token = token.map_or_else(made_up, |token| token.trim().to_owned());
    anyhow::ensure!(
        token.is_ascii() && !token.is_empty(),
        "the token is not ASCII text"
    );
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, format!("Bearer {token}").parse()?);
    headers.insert("x-forg-adapter-protocol", HeaderValue::from_static("v1"));
    let session = format!("sess_{}", hex(&rand::random::<[u8; 6]>()));
    let engine = Engine {
        receiver: Receiver::new(url)?,
        right: Right {
            path: "/engine/v1/signals",
            key: token.as_bytes()[..token.len().min(KEY_BYTES)].to_vec(),
            headers,
            value: json!({
                "type": "token-milestone", "ts": "2025-05-29T10:00:00.000Z", "session_id": session,
                "tokens_used": 10_050, "milestone": 10_000,
            }),
        },
    };
    for (kind, fields) in TYPES {
        let rule =
            "the type is accepted with its fields, and refused without one or with a wrong one";
        let check = Check::new(&format!("type-{kind}"), "000: Signal types", rule);
        if report.wants(&check.id) {
            let problem = engine.kind(kind, fields, adapter).await?;
            report.hold(&check, problem)?;
        }
    }
    engine.receiver.check(&engine.right, CASES, report).await?;
    engine.answers(adapter, report).await
}

struct Engine {
    receiver: Receiver,
    right: Right,
}

impl Engine {
    async fn send(&self, value: Value) -> anyhow::Result<Answer> {
        let right = Right {
            value,
            ..self.right.clone()
        };
        Ok(self.receiver.send(right.with(&Change::default())?).await?)
    }

    /// A value with the time and the session of the checks.
    fn signal(&self, mut value: Value) -> Value {
        for name in ["ts", "session_id"] {
            value[name] = self.right.value[name].clone();
        }
        value
    }

    /// Sends a type with all its fields, then without each, and with each of a wrong type.
    async fn kind(
        &self,
        kind: &str,
        fields: &str,
        adapter: &str,
    ) -> anyhow::Result<Option<String>> {
        let fields: Value = serde_json::from_str(fields)?;
        let names: Vec<String> = fields
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        let mut value = self.signal(fields);
        value["type"] = kind.into();
        if names.iter().any(|name| name == "adapter_id") {
            value["adapter_id"] = adapter.into();
        }
        if kind == "adapter-heartbeat" {
            value["session_id"] = Value::Null;
        }
        let answer = self.send(value.clone()).await?;
        if let Some(problem) = wrong(&answer, &value["session_id"]) {
            return Ok(Some(problem));
        }
        for name in names {
            for other in [Value::Null, json!({"a": 1})] {
                let mut value = value.clone();
                value[&name] = other;
                if let Some(problem) = self.send(value).await?.wrong(400) {
                    return Ok(Some(format!("`{name}`: {problem}")));
                }
            }
        }
        Ok(None)
    }

    async fn answers(&self, adapter: &str, report: &mut Report<'_>) -> anyhow::Result<()> {
        let mut value = self.right.value.clone();
        value["session_id"] = Value::Null;
        let seed = "000: or a newly assigned ID if omitted in the request";
        let check = Check::new(
            "session-assigned",
            seed,
            "without a session one is assigned",
        );
        report.hold(&check, wrong(&self.send(value).await?, &Value::Null))?;

        let logged = |answer: &Answer| {
            answer
                .wrong(200)
                .or_else(|| answer.unless(answer.body["action"] == "log"))
        };
        let seed =
            "000: Minor, additive changes (… new signal types) are made within the current version";
        let check = Check::new("type-unknown", seed, "an unknown type is logged");
        let answer = self.send(self.signal(json!({"type": "later"}))).await?;
        report.hold(&check, logged(&answer))?;

        let seed = "000: ID of the intervention being acknowledged, from the engine response";
        let check = Check::new(
            "acknowledgement-unknown",
            seed,
            "an acknowledgement of nothing is logged",
        );
        let value =
            json!({"type": "refocus-ack", "intervention_id": "int_unknown", "ack_delay_ms": 1});
        report.hold(&check, logged(&self.send(self.signal(value)).await?))?;

        let seed = "000: Emitted when the session terminates cleanly";
        let check = Check::new("session-end-twice", seed, "a second end changes nothing");
        let value =
            self.signal(json!({"type": "session-end", "duration_ms": 1, "tasks_completed": 0}));
        self.send(value.clone()).await?;
        let again = self.send(value).await?;
        let problem = again
            .wrong(200)
            .or_else(|| again.unless(again.body["action"] == "noop"));
        report.hold(&check, problem)?;

        let seed = "ours: signals with `adapter` and `metadata` are accepted as well";
        let check = Check::new(
            "seventeen-types",
            seed,
            "this shape is answered with `ok` and `signal_id` too",
        );
        let metadata = json!({"model": "m", "tokens_in": 1, "tokens_out": 1, "cost_usd": 0.01});
        let value = json!({"type": "post-tool", "adapter": adapter, "metadata": metadata, "session_id": self.right.value["session_id"]});
        let answer = self.send(value).await?;
        let right = answer.body["ok"] == true && answer.body["signal_id"].is_string();
        report.hold(
            &check,
            wrong(&answer, &Value::Null).or_else(|| answer.unless(right)),
        )
    }
}

/// Difference of an answer from a right one; a session that is not `null` must come back.
fn wrong(answer: &Answer, session: &Value) -> Option<String> {
    let body = &answer.body;
    let known = ["noop", "intervention", "log"]
        .into_iter()
        .any(|action| body["action"] == action);
    let same = session.is_null() || body["session_id"] == *session;
    let right = known && same && body["session_id"].is_string() && body["logged"].is_boolean();
    answer.wrong(200).or_else(|| answer.unless(right))
}
