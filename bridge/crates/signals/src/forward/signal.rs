//! Signals of the engine API that a stored record is forwarded as.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use forge_base::time;
use forge_store::record::{SignalEntry, SignalRecord};

use crate::money::dollars;

const START: &str = "session-start";
pub(super) const END: &str = "session-end";
pub(super) const HEARTBEAT: &str = "adapter-heartbeat";

/// Signals of a record in the order in which they are sent; none for a hook that the engine API has no type for. Their
/// `call_id` is the same each time, so the engine counts none of them twice.
pub(super) fn signals(entry: &SignalEntry, milestones: &[u64]) -> Vec<Value> {
    let record = &entry.record;
    let Some(kind) = kind(record) else {
        return Vec::new();
    };
    let at = time::format(record.at);
    let session = &entry.session;
    let of_type = |kind: &str, call_id: String| {
        json!({
            "type": kind, "adapter": session.adapter, "session_id": session.id, "ts": at, "call_id": call_id,
        })
    };
    let mut signals = Vec::new();
    if entry.is_first && kind != START {
        signals.push(of_type(START, "start".to_owned()));
    }
    // Positions can begin again; with the time they are unique.
    let call_id = format!("{}-{}", entry.position, record.at.as_nanosecond());
    let mut own = of_type(kind, call_id);
    let metadata = metadata(record);
    if !metadata.is_empty() {
        own["metadata"] = metadata.into();
    }
    let before = entry.tokens.saturating_sub(record.tokens());
    let reached = milestones.iter().filter(|milestone| {
        (before..entry.tokens).contains(&milestone.saturating_sub(1)) && **milestone > 0
    });
    let reached = reached.map(|milestone| {
        json!({
            "type": "token-milestone", "adapter_id": session.adapter, "session_id": session.id, "ts": at,
            "tokens_used": entry.tokens, "milestone": milestone, "call_id": format!("milestone-{milestone}"),
        })
    });
    // A signal after the end would open another session.
    if kind == END {
        signals.extend(reached);
        signals.push(own);
    } else {
        signals.push(own);
        signals.extend(reached);
    }
    signals
}

/// Signal without a record.
pub(super) fn bare(kind: &str, session_id: &str, adapter: &str, at: Timestamp) -> Value {
    json!({"type": kind, "adapter": adapter, "session_id": session_id, "ts": time::format(at)})
}

pub(super) fn is_end(entry: &SignalEntry) -> bool {
    kind(&entry.record) == Some(END)
}

fn kind(record: &SignalRecord) -> Option<&'static str> {
    match record.kind.as_deref() {
        Some("SessionStart") => Some(START),
        Some("SessionEnd") => Some(END),
        _ if record.tokens() > 0 || record.cost_micros.is_some() => Some("post-tool"),
        Some("UserPromptSubmit") => Some("user-prompt"),
        Some("PreCompact") => Some("pre-compact"),
        Some("Stop") => Some("stop"),
        Some("PreToolUse") => None,
        _ => Some("post-tool"),
    }
}

fn metadata(record: &SignalRecord) -> Map<String, Value> {
    let cost = record.cost_micros.map(dollars);
    let members = [
        ("model", record.model.clone().map(Value::from)),
        ("tool", record.tool.clone().map(Value::from)),
        ("tokens_in", record.tokens_in.map(Value::from)),
        ("tokens_out", record.tokens_out.map(Value::from)),
        ("cost_usd", cost.map(Value::from)),
    ];
    let present = members.into_iter();
    present
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use forge_store::contract::signals::{record, session};

    use super::*;

    fn entry(kind: Option<&str>, tokens: Option<u64>) -> SignalEntry {
        let record = SignalRecord {
            kind: kind.map(str::to_owned),
            tokens_in: tokens,
            tokens_out: None,
            cost_micros: tokens,
            ..record(1)
        };
        SignalEntry {
            position: 7,
            session: session("s"),
            is_first: false,
            tokens: 30,
            record,
        }
    }

    fn types(entry: &SignalEntry, milestones: &[u64]) -> Vec<String> {
        let signals = signals(entry, milestones);
        let types = signals.iter().map(|signal| signal["type"].as_str());
        types.map(|kind| kind.unwrap().to_owned()).collect()
    }

    #[test]
    fn each_hook_has_its_type() {
        for (hook, idle, with_usage) in [
            (None, Some("post-tool"), "post-tool"),
            (Some("PostToolUse"), Some("post-tool"), "post-tool"),
            (Some("PreToolUse"), None, "post-tool"),
            (Some("UserPromptSubmit"), Some("user-prompt"), "post-tool"),
            (Some("PreCompact"), Some("pre-compact"), "post-tool"),
            (Some("Stop"), Some("stop"), "post-tool"),
            (Some("SessionStart"), Some("session-start"), "session-start"),
            (Some("SessionEnd"), Some("session-end"), "session-end"),
        ] {
            assert_eq!(types(&entry(hook, None), &[]), Vec::from_iter(idle));
            assert_eq!(types(&entry(hook, Some(5)), &[]), [with_usage]);
        }
    }

    #[test]
    fn usage_is_in_the_metadata() {
        let signal = signals(&entry(None, Some(5)), &[]).remove(0);
        let at = time::format(record(1).at);
        let expected = json!({
            "type": "post-tool", "adapter": "claude-code", "session_id": "s", "ts": at,
            "call_id": format!("7-{}", record(1).at.as_nanosecond()),
            "metadata": {"model": "model", "tool": "Bash", "tokens_in": 5, "cost_usd": 0.000_005},
        });
        assert_eq!(signal, expected);
    }

    #[test]
    fn starts_and_milestones_are_derived() {
        let first = |kind| SignalEntry {
            is_first: true,
            ..entry(kind, Some(5))
        };
        assert_eq!(types(&first(None), &[]), ["session-start", "post-tool"]);
        assert_eq!(types(&first(Some("SessionStart")), &[]), ["session-start"]);
        let milestones = [0, 25, 26, 30, 31];
        let reached = ["post-tool", "token-milestone", "token-milestone"];
        assert_eq!(types(&entry(None, Some(5)), &milestones), reached);
        assert_eq!(types(&entry(None, None), &milestones), ["post-tool"]);
        let ends = ["session-start", "token-milestone", "session-end"];
        assert_eq!(types(&first(Some("SessionEnd")), &[30]), ends);
    }
}
