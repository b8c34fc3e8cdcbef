//! Events of a dispatch as events of its run. Text deltas are joined, so that a fast model does not fill the log.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use forge_base::event::{self, kind};
use forge_base::time;

use crate::event::{ContentType, Entry, Event};

/// Longest time that text is held back.
pub(crate) const JOIN_FOR: Duration = Duration::from_millis(50);
/// Text that is written at once.
const JOIN_BYTES: usize = 4096;

/// Events that are written although young text is behind them.
const MANY: usize = 64;

/// Time between two heartbeats of an attempt.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// Owner of the events: an attempt of a task, or the Captain.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    /// `None` for the Captain.
    pub(crate) task: Option<String>,
    pub(crate) attempt: u32,
    /// Number of the agent; `None` for the attempt's own.
    pub(crate) agent: Option<usize>,
    /// Agent, for heartbeats.
    pub(crate) agent_id: String,
    pub(crate) started_at: Timestamp,
}

/// Translates the events of one dispatch in their order.
#[derive(Debug)]
pub(crate) struct Takeover {
    owner: Owner,
    /// Names of tools that the bridge itself offers; it writes their calls.
    own_tools: &'static [&'static str],
    text: Option<Text>,
    out: Vec<Entry>,
    /// An event arrived since the last heartbeat; an agent that is silent has none.
    is_alive: bool,
    beat_at: Timestamp,
}

/// Text that was not written yet.
#[derive(Debug)]
struct Text {
    since: Timestamp,
    content_type: ContentType,
    content: String,
}

impl Takeover {
    pub(crate) fn new(owner: Owner, own_tools: &'static [&'static str]) -> Self {
        Self {
            beat_at: time::after(owner.started_at, HEARTBEAT),
            owner,
            own_tools,
            text: None,
            out: Vec::new(),
            is_alive: false,
        }
    }

    /// Adds an event of the dispatch.
    pub(crate) fn add(&mut self, event: &event::Event) {
        let data: Value = event
            .data
            .as_ref()
            .and_then(|data| serde_json::from_str(data.get()).ok())
            .unwrap_or(Value::Null);
        let at = event.timestamp;
        self.is_alive = true;
        match (&*event.kind, &self.owner.task) {
            (kind::TEXT, Some(_)) => self.join(at, ContentType::Text, &data),
            (kind::THINKING, Some(_)) => self.join(at, ContentType::Thinking, &data),
            (kind::TOOL_INVOKED, _) if !self.is_own(&data) => {
                let (tool_name, call_id) = (text(&data, "name"), text(&data, "toolCallId"));
                let args = data.get("input").cloned().unwrap_or(json!({}));
                let event = match self.owner.task.clone() {
                    Some(task_id) => Event::ToolCall {
                        task_id,
                        tool_name,
                        args,
                        call_id,
                        agent: self.owner.agent,
                    },
                    None => Event::CaptainToolCall {
                        tool_name,
                        args,
                        call_id,
                    },
                };
                self.write(at, event);
            }
            (kind::TOOL_COMPLETED, _) if !self.is_own(&data) => {
                let (tool_name, call_id) = (text(&data, "name"), text(&data, "toolCallId"));
                let result = data.get("output").cloned().unwrap_or(Value::Null);
                let is_error = data
                    .get("isError")
                    .and_then(Value::as_bool)
                    .unwrap_or(false);
                let Some(task_id) = self.owner.task.clone() else {
                    return;
                };
                self.write(
                    at,
                    Event::ToolResult {
                        task_id,
                        tool_name,
                        result,
                        is_error,
                        call_id,
                        agent: self.owner.agent,
                    },
                );
            }
            _ => {}
        }
    }

    /// Time at which held back text must be written.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.text
            .as_ref()
            .map(|text| time::after(text.since, JOIN_FOR))
    }

    /// Everything to be written, with the text that was held back, and a heartbeat if it is time for one.
    pub(crate) fn flush(&mut self, now: Timestamp) -> Vec<Entry> {
        self.end_text();
        if self.is_beat_due(now) {
            self.is_alive = false;
            self.beat_at = time::after(now, HEARTBEAT);
            let uptime_seconds = time::wall_age(self.owner.started_at, now).as_secs();
            let agent_id = self.owner.agent_id.clone();
            if let Some(task_id) = self.owner.task.clone() {
                let beat = Event::TaskHeartbeat {
                    task_id,
                    agent_id,
                    uptime_seconds,
                    agent: self.owner.agent,
                };
                self.push(now, beat);
            }
        }
        std::mem::take(&mut self.out)
    }

    /// True if something other than young text waits. Events in front of young text wait for it, unless they are many:
    /// they are written with the position of the dispatch's last event, so the text cannot stay behind.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let waits = match &self.text {
            Some(_) => self.out.len() >= MANY,
            None => !self.out.is_empty(),
        };
        let is_due = |due| time::has_come(due, now, JOIN_FOR);
        waits || self.is_beat_due(now) || self.due().is_some_and(is_due)
    }

    fn is_beat_due(&self, now: Timestamp) -> bool {
        let is_due = time::has_come(self.beat_at, now, HEARTBEAT);
        self.is_alive && is_due && self.owner.task.is_some()
    }

    fn is_own(&self, data: &Value) -> bool {
        let name = data.get("name").and_then(Value::as_str).unwrap_or_default();
        self.own_tools.contains(&name)
    }

    fn join(&mut self, at: Timestamp, content_type: ContentType, data: &Value) {
        let delta = data
            .get("delta")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if delta.is_empty() {
            return;
        }
        let continues = self.text.as_ref().is_some_and(|text| {
            let end = time::after(text.since, JOIN_FOR);
            text.content_type == content_type && !time::has_come(end, at, JOIN_FOR)
        });
        if !continues {
            self.end_text();
        }
        let text = self.text.get_or_insert_with(|| Text {
            since: at,
            content_type,
            content: String::new(),
        });
        text.content.push_str(delta);
        if text.content.len() >= JOIN_BYTES {
            self.end_text();
        }
    }

    fn end_text(&mut self) {
        let Some(Text {
            since,
            content_type,
            content,
        }) = self.text.take()
        else {
            return;
        };
        if let Some(task_id) = self.owner.task.clone() {
            self.push(
                since,
                Event::TaskProgress {
                    task_id,
                    content,
                    content_type,
                    agent: self.owner.agent,
                },
            );
        }
    }

    fn write(&mut self, at: Timestamp, event: Event) {
        self.end_text();
        self.push(at, event);
    }

    fn push(&mut self, at: Timestamp, event: Event) {
        let attempt = self.owner.attempt;
        self.out.push(Entry { at, attempt, event });
    }
}

fn text(data: &Value, name: &str) -> String {
    data.get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    //! Joining of text, and what is left out.

    use forge_base::event::{LogName, Written};
    use serde_json::value::to_raw_value;

    use super::*;

    fn event(millis: i64, kind: &str, data: &Value) -> event::Event {
        event::Event {
            id: LogName::from_stored("abc".to_owned()).cursor(1),
            seq: 1,
            kind: kind.to_owned(),
            task_id: None,
            agent_id: None,
            dispatch_id: None,
            provider: None,
            timestamp: Timestamp::from_millisecond(millis).unwrap(),
            run_id: None,
            trace_id: None,
            attempt: 1,
            data: Some(to_raw_value(data).unwrap()),
            written: Written::default(),
        }
    }

    fn takeover() -> Takeover {
        let owner = Owner {
            task: Some("a".to_owned()),
            attempt: 2,
            agent: None,
            agent_id: "dsp".to_owned(),
            started_at: Timestamp::UNIX_EPOCH,
        };
        Takeover::new(owner, &["spawn_agent"])
    }

    fn written(takeover: &mut Takeover) -> Vec<String> {
        let entries = takeover.flush(Timestamp::UNIX_EPOCH).into_iter();
        let text = entries.map(|entry| match entry.event {
            Event::TaskProgress { content, .. } => content,
            Event::ToolCall { tool_name, .. } => format!("call {tool_name}"),
            Event::ToolResult { tool_name, .. } => format!("result {tool_name}"),
            other => panic!("{other:?}"),
        });
        text.collect()
    }

    #[test]
    fn deltas_of_one_moment_are_one_event() {
        let mut all = takeover();
        for n in 0..10_000 {
            all.add(&event(n / 100, kind::TEXT, &json!({"delta": "word "})));
        }
        let joined = written(&mut all);
        assert_eq!(joined.concat(), "word ".repeat(10_000));
        assert!(joined.len() <= 2 + 50_000 / JOIN_BYTES, "{}", joined.len());
    }

    #[test]
    fn text_stays_in_its_place_between_tools_and_thoughts() {
        let mut all = takeover();
        let call = json!({"toolCallId": "c", "name": "read", "input": {}});
        for (millis, kind, data) in [
            (0, kind::TEXT, json!({"delta": "a"})),
            (1, kind::THINKING, json!({"delta": "b"})),
            (2, kind::TOOL_INVOKED, call.clone()),
            (
                3,
                kind::TOOL_INVOKED,
                json!({"toolCallId": "d", "name": "spawn_agent"}),
            ),
            (4, kind::TEXT, json!({"delta": ""})),
            (5, kind::TOOL_COMPLETED, call),
            (6, kind::TEXT, json!({"delta": "c"})),
            (80, kind::TEXT, json!({"delta": "d"})),
            (81, kind::USAGE, json!({"totalTokens": 4})),
        ] {
            all.add(&event(millis, kind, &data));
        }
        let now = |millis| Timestamp::from_millisecond(millis).unwrap();
        assert_eq!(all.due(), Some(now(130)));
        assert!(!all.is_due(now(100)), "earlier events wait for the text");
        assert!(all.is_due(now(130)));
        assert_eq!(
            written(&mut all),
            ["a", "b", "call read", "result read", "c", "d"]
        );
        assert!(!all.is_due(now(200)));
    }

    #[test]
    fn an_agent_that_is_silent_has_no_heartbeat() {
        let now = |seconds| Timestamp::from_second(seconds).unwrap();
        let beats = |all: &mut Takeover, seconds| {
            let entries = all.flush(now(seconds)).into_iter();
            let beats = entries.filter_map(|entry| match entry.event {
                Event::TaskHeartbeat { uptime_seconds, .. } => Some(uptime_seconds),
                _ => None,
            });
            beats.collect::<Vec<_>>()
        };
        let mut all = takeover();
        assert!(!all.is_due(now(31)));
        all.add(&event(1, kind::USAGE, &json!({})));
        assert!(!all.is_due(now(29)));
        assert!(all.is_due(now(31)));
        assert_eq!(beats(&mut all, 31), [31]);
        assert!(!all.is_due(now(90)));
        all.add(&event(60_000, kind::USAGE, &json!({})));
        assert_eq!(beats(&mut all, 62), [62]);
    }
}
