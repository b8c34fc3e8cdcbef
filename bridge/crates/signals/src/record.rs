//! Usage records of the local agent's protocol: checked, with all problems at once. Content of prompts and answers is
//! refused, wherever it stands.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value};

use forge_base::digest::{Digest, sha256};
use forge_base::text::id_complaint;
use forge_base::time;
use forge_store::record::SignalRecord;

use crate::FieldProblem;
use crate::money::micros;

/// Difference between `ts` and arrival above which a signal is refused in strict mode.
const MOST_SKEW: Duration = Duration::from_secs(5 * 60);
const MAX_TOKENS: f64 = 9_007_199_254_740_992.0;
const MAX_USD: f64 = 1_000_000.0;

/// Names of fields that carry content, in lower case without `_` and `-`.
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

/// Usage of one call of a tool, or a step in the life of its session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    pub adapter: String,
    /// Time that the tool states. Windows run on the time of arrival.
    pub ts: Timestamp,
    pub hook: Option<Hook>,
    pub model: Option<String>,
    pub usage: Usage,
    pub latency_ms: Option<f64>,
    pub session_id: Option<String>,
    pub project_id: Option<String>,
    pub user_id: Option<String>,
    /// `None` for a call that succeeded.
    pub error_code: Option<String>,
    /// Name of the tool that an agent uses.
    pub tool: Option<String>,
    /// The same in each repeat of a record.
    pub call_id: Option<String>,
}

impl Record {
    /// Form in which a record of this user is stored when it arrives.
    pub fn stored(&self, user_id: Option<String>, at: Timestamp) -> SignalRecord {
        SignalRecord {
            at,
            ts: self.ts,
            kind: self.hook.map(|hook| hook.as_str().to_owned()),
            model: self.model.clone(),
            tool: self.tool.clone(),
            user_id,
            project_id: self.project_id.clone(),
            error_code: self.error_code.clone(),
            tokens_in: self.usage.tokens_in,
            tokens_out: self.usage.tokens_out,
            cost_micros: self.usage.cost_micros,
            cache_read_tokens: self.usage.cache_read_tokens,
            cache_write_tokens: self.usage.cache_write_tokens,
            latency_ms: self.latency_ms,
            drift_score: None,
            confidence: None,
            details: None,
            blocked: false,
            intervention_id: None,
        }
    }
}

/// Tokens and cost of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub tokens_in: Option<u64>,
    pub tokens_out: Option<u64>,
    /// Micro-dollars.
    pub cost_micros: Option<u64>,
    /// Both are part of `tokens_in`.
    pub cache_read_tokens: Option<u64>,
    pub cache_write_tokens: Option<u64>,
}

/// Event of a tool that calls hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    PreToolUse,
    PostToolUse,
    SessionStart,
    SessionEnd,
    Stop,
    PreCompact,
    UserPromptSubmit,
}

const HOOKS: [Hook; 7] = [
    Hook::PreToolUse,
    Hook::PostToolUse,
    Hook::SessionStart,
    Hook::SessionEnd,
    Hook::Stop,
    Hook::PreCompact,
    Hook::UserPromptSubmit,
];

impl Hook {
    pub fn as_str(self) -> &'static str {
        match self {
            Hook::PreToolUse => "PreToolUse",
            Hook::PostToolUse => "PostToolUse",
            Hook::SessionStart => "SessionStart",
            Hook::SessionEnd => "SessionEnd",
            Hook::Stop => "Stop",
            Hook::PreCompact => "PreCompact",
            Hook::UserPromptSubmit => "UserPromptSubmit",
        }
    }

    /// The hook with this name.
    pub fn named(name: &str) -> Option<Self> {
        HOOKS.into_iter().find(|hook| hook.as_str() == name)
    }

    /// True if a record of this hook states no usage.
    fn is_lifecycle(self) -> bool {
        self != Hook::PostToolUse
    }
}

impl Record {
    /// Reads the body of a signal.
    pub fn read(tree: &Value) -> Result<Self, Vec<FieldProblem>> {
        let Some(members) = tree.as_object() else {
            return Err(FieldProblem::whole("must be a JSON object"));
        };
        let mut reader = Reader::new(members);
        let record = reader.record();
        reader.end(record)
    }
}

/// Request for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) adapter: String,
    pub(crate) user_id: Option<String>,
    /// Id of the tool's own session; asked for again, it leads to the same one.
    pub(crate) client_session_id: Option<String>,
}

impl Start {
    pub(crate) fn read(tree: &Value) -> Result<Self, Vec<FieldProblem>> {
        let Some(members) = tree.as_object() else {
            return Err(FieldProblem::whole("must be a JSON object"));
        };
        let mut reader = Reader {
            members,
            problems: Vec::new(),
        };
        reader.require("adapter");
        let start = Self {
            adapter: reader.id("adapter").unwrap_or_default(),
            user_id: reader.id("user_id"),
            client_session_id: reader.id("client_session_id"),
        };
        reader.end(start)
    }
}

/// Fields that carry content, at any depth.
pub fn content_problems(tree: &Value) -> Vec<FieldProblem> {
    let mut problems = Vec::new();
    content_of_value(tree, "", &mut problems);
    problems
}

/// Finds fields that carry content, at any depth.
fn content(members: &Map<String, Value>, parent: &str, problems: &mut Vec<FieldProblem>) {
    for (name, value) in members {
        let path = match parent {
            "" => name.clone(),
            parent => format!("{parent}.{name}"),
        };
        let plain: String = name.chars().filter(|c| !matches!(c, '_' | '-')).collect();
        if CONTENT.contains(&plain.to_lowercase().as_str()) {
            let message = "carries content, which signals must not contain; leave it out";
            problems.push(FieldProblem::new(&path, message));
        }
        content_of_value(value, &path, problems);
    }
}

fn content_of_value(value: &Value, path: &str, problems: &mut Vec<FieldProblem>) {
    match value {
        Value::Object(members) => content(members, path, problems),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                content_of_value(item, &format!("{path}[{index}]"), problems);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Problem of a time that is not near the present one, in strict mode.
pub(crate) fn skewed(ts: Timestamp, now: Timestamp) -> Option<FieldProblem> {
    let is_near = time::wall_age(ts, now).max(time::left(now, ts)) <= MOST_SKEW;
    let message = "differs from the present time by more than five minutes (signals.strict)";
    (!is_near).then(|| FieldProblem::new("ts", message))
}

/// Identity of a signal among the repeats of its session: the caller's own, or its bytes where they state a time to
/// the millisecond.
pub(crate) fn repeat_key(call_id: Option<&str>, body: &[u8], tree: &Value) -> Option<Digest> {
    if let Some(call_id) = call_id {
        return Some(sha256(format!("call:{call_id}")));
    }
    let is_exact = match &tree["ts"] {
        Value::String(text) => text.contains('.'),
        value => value.is_number(),
    };
    is_exact.then(|| sha256(body))
}

/// Reads the members of an object and collects their problems.
pub(crate) struct Reader<'a> {
    pub(crate) members: &'a Map<String, Value>,
    pub(crate) problems: Vec<FieldProblem>,
}

impl<'a> Reader<'a> {
    /// Refuses content.
    pub(crate) fn new(members: &'a Map<String, Value>) -> Self {
        let mut problems = Vec::new();
        content(members, "", &mut problems);
        Self { members, problems }
    }

    /// Returns a value that was read, unless something had a problem.
    pub(crate) fn end<T>(self, read: T) -> Result<T, Vec<FieldProblem>> {
        match self.problems.is_empty() {
            true => Ok(read),
            false => Err(self.problems),
        }
    }

    fn record(&mut self) -> Record {
        let hook = self.hook();
        let record = Record {
            adapter: self.id("adapter").unwrap_or_default(),
            ts: self.time().unwrap_or_default(),
            hook,
            model: self.id("model"),
            usage: Usage {
                tokens_in: self.tokens("tokens_in"),
                tokens_out: self.tokens("tokens_out"),
                cost_micros: self.cost(),
                cache_read_tokens: self.tokens("cache_read_tokens"),
                cache_write_tokens: self.tokens("cache_write_tokens"),
            },
            latency_ms: self.number("latency_ms", f64::MAX),
            session_id: self.id("session_id"),
            project_id: self.id("project_id"),
            user_id: self.id("user_id"),
            error_code: self.id("error_code"),
            tool: self.id("tool"),
            call_id: self.id("call_id"),
        };
        self.require("adapter");
        self.require("ts");
        if !hook.is_some_and(Hook::is_lifecycle) {
            self.require("model");
            let usage = ["tokens_in", "tokens_out", "cost_usd"];
            if usage.iter().all(|name| self.value(name).is_none()) {
                let message = "is required, or tokens_out, or cost_usd";
                self.problems.push(FieldProblem::new("tokens_in", message));
            }
        }
        record
    }

    /// The member, unless it is absent or `null`.
    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn complain<T>(&mut self, name: &str, message: &str) -> Option<T> {
        self.problems.push(FieldProblem::new(name, message));
        None
    }

    pub(crate) fn require(&mut self, name: &str) {
        if self.value(name).is_none() {
            self.problems.push(FieldProblem::new(name, "is required"));
        }
    }

    pub(crate) fn id(&mut self, name: &str) -> Option<String> {
        let text = self.value(name)?.as_str().map(str::to_owned);
        match text {
            Some(text) => match id_complaint(&text) {
                None => Some(text),
                Some(complaint) => self.complain(name, complaint),
            },
            None => self.complain(name, "must be a text of 1 to 256 bytes"),
        }
    }

    fn hook(&mut self) -> Option<Hook> {
        let value = self.value("hook")?;
        let known = HOOKS.into_iter().find(|hook| value == hook.as_str());
        known.or_else(|| {
            let names = HOOKS.map(Hook::as_str).join(", ");
            self.complain("hook", &format!("must be one of {names}"))
        })
    }

    pub(crate) fn number(&mut self, name: &str, most: f64) -> Option<f64> {
        let number = self.value(name)?.as_f64();
        let fits = number.filter(|number| (0.0..=most).contains(number));
        fits.or_else(|| match most {
            f64::MAX => self.complain(name, "must be a number from 0"),
            _ => self.complain(name, &format!("must be a number from 0 to {most}")),
        })
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the number is whole and from 0 to 2^53"
    )]
    pub(crate) fn tokens(&mut self, name: &str) -> Option<u64> {
        let number = self.number(name, MAX_TOKENS)?;
        match number.fract() == 0.0 {
            true => Some(number as u64),
            false => self.complain(name, "must be a whole number"),
        }
    }

    pub(crate) fn cost(&mut self) -> Option<u64> {
        let dollars = self.number("cost_usd", MAX_USD)?;
        Some(micros(dollars))
    }

    /// Text with a zone, or milliseconds since 1970.
    pub(crate) fn time(&mut self) -> Option<Timestamp> {
        let time = match self.value("ts")? {
            Value::String(text) => text.parse().ok(),
            value => value
                .as_i64()
                .and_then(|millis| Timestamp::from_millisecond(millis).ok()),
        };
        time.or_else(|| {
            self.complain(
                "ts",
                "must be a time with a zone, such as 2026-11-25T10:00:00.000Z, or whole milliseconds",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn usage() -> Value {
        json!({
            "adapter": "my-tool-forg", "ts": "2025-05-28T10:00:00.000Z", "model": "claude-opus-4-5",
            "tokens_in": 100, "tokens_out": 50, "latency_ms": 500, "cost_usd": null, "error_code": null,
            "session_id": "sess_4f9a2e1b8c3d", "project_id": null,
        })
    }

    fn refused(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut tree = usage();
        change(&mut tree);
        let problems = Record::read(&tree).err().unwrap_or_default();
        problems.into_iter().map(|one| one.field).collect()
    }

    #[test]
    fn a_record_of_the_protocol_is_read() {
        let record = Record::read(&usage()).unwrap();
        assert_eq!(record.adapter, "my-tool-forg");
        assert_eq!(record.ts.to_string(), "2025-05-28T10:00:00Z");
        assert_eq!(
            record.usage,
            Usage {
                tokens_in: Some(100),
                tokens_out: Some(50),
                ..Usage::default()
            }
        );
        assert_eq!((record.project_id, record.error_code), (None, None));
        let end = json!({"adapter": "a", "session_id": "s", "hook": "SessionEnd", "ts": "2026-01-01T00:00:00Z"});
        assert_eq!(Record::read(&end).unwrap().hook, Some(Hook::SessionEnd));
    }

    #[test]
    fn each_wrong_field_is_named() {
        for (name, wrong) in [
            ("adapter", json!(5)),
            ("adapter", json!("")),
            ("adapter", json!("a\nb")),
            ("adapter", json!("é".repeat(129))),
            ("ts", json!("2025-05-28T10:00:00")),
            ("ts", json!("2025-05-28")),
            ("ts", json!(1.5)),
            ("ts", json!("soon")),
            ("model", json!(["m"])),
            ("tokens_in", json!("100")),
            ("tokens_in", json!(-1)),
            ("tokens_in", json!(1.5)),
            ("tokens_out", json!(9_007_199_254_740_994_u64)),
            ("cost_usd", json!(1_000_000.5)),
            ("latency_ms", json!(true)),
            ("hook", json!("Later")),
            ("session_id", json!(7)),
        ] {
            assert_eq!(
                refused(|tree| tree[name] = wrong.clone()),
                [name],
                "{wrong}"
            );
        }
        for name in ["adapter", "ts", "model"] {
            assert_eq!(refused(|tree| tree[name] = Value::Null), [name]);
        }
        let none = |tree: &mut Value| {
            tree["tokens_in"] = Value::Null;
            tree["tokens_out"] = Value::Null;
        };
        assert_eq!(refused(none), ["tokens_in"]);
        let all = Record::read(&json!({"cost_usd": "1"})).unwrap_err();
        assert_eq!(all.len(), 4, "{all:?}");
        assert_eq!(Record::read(&json!([])).unwrap_err()[0].field, "");
    }

    #[test]
    fn odd_but_right_values_are_read() {
        for (name, right) in [
            ("ts", json!(1_748_426_400_000_u64)),
            ("ts", json!("2025-05-28T12:00:00+02:00")),
            ("tokens_in", json!(100.0)),
            ("tokens_in", json!(9_007_199_254_740_992_u64)),
            ("cost_usd", json!(1_000_000)),
            ("later", json!({"than": "this"})),
        ] {
            assert_eq!(
                refused(|tree| tree[name] = right.clone()),
                [""; 0],
                "{right}"
            );
        }
        let mut tree = usage();
        tree["cost_usd"] = json!(0.000_000_6);
        assert_eq!(Record::read(&tree).unwrap().usage.cost_micros, Some(1));
    }

    #[test]
    fn content_is_refused_at_any_depth_and_in_any_case() {
        assert_eq!(refused(|tree| tree["prompt"] = "x".into()), ["prompt"]);
        let deep = json!([{"Tool_Input": {"a": 1}}, {"file-content": null}]);
        assert_eq!(
            refused(|tree| tree["metadata"] = deep.clone()),
            ["metadata[0].Tool_Input", "metadata[1].file-content"]
        );
    }
}
