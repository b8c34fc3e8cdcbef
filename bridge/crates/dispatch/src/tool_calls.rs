//! Number, start and end of an attempt's tool calls, taken from its events. Arguments and results are not read.

use jiff::Timestamp;
use serde_json::Value;

use forge_base::event::kind;

/// Maximum number of calls tracked in one attempt; further ones are only counted.
const FOLLOWED: usize = 256;
const NAME_BYTES: usize = 128;

/// One tool call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolRun {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) start: Timestamp,
    /// `None` if no event reported its end.
    pub(super) end: Option<Timestamp>,
    pub(super) failed: bool,
}

/// Tracks the tool calls of one attempt.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    pub(super) count: u64,
    /// `None` if calls are only counted.
    runs: Option<Vec<ToolRun>>,
}

impl ToolCalls {
    /// Starts to track each call.
    pub(super) fn follow(&mut self) {
        self.runs.get_or_insert_default();
    }

    /// Updates the calls from an event; ignores events that are not about tools.
    pub(super) fn notice(&mut self, event: &str, data: Option<&Value>, now: Timestamp) {
        match event {
            kind::TOOL_INVOKED => self.invoked(data, now),
            kind::TOOL_COMPLETED => self.completed(data, now),
            _ => {}
        }
    }

    pub(super) fn take(&mut self) -> Vec<ToolRun> {
        self.runs.take().unwrap_or_default()
    }

    fn invoked(&mut self, data: Option<&Value>, now: Timestamp) {
        self.count += 1;
        let Some(runs) = self.runs.as_mut().filter(|runs| runs.len() < FOLLOWED) else {
            return;
        };
        runs.push(ToolRun {
            id: text(data, "toolCallId"),
            name: text(data, "name"),
            start: now,
            end: None,
            failed: false,
        });
    }

    fn completed(&mut self, data: Option<&Value>, now: Timestamp) {
        let id = text(data, "toolCallId");
        let mut open = self.runs.iter_mut().flatten();
        if let Some(run) = open.find(|run| run.end.is_none() && run.id == id) {
            run.end = Some(now);
            run.failed = data.is_some_and(|data| data["isError"] == true);
        }
    }
}

fn text(data: Option<&Value>, name: &str) -> String {
    let text = data.and_then(|data| data.get(name)?.as_str()).unwrap_or("");
    text[..text.floor_char_boundary(NAME_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_paired_by_their_id() {
        let mut calls = ToolCalls::default();
        calls.follow();
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut tell = |event, id, error, second| {
            let data = json!({"toolCallId": id, "name": "read", "isError": error});
            calls.notice(event, Some(&data), at(second));
        };
        tell(kind::TOOL_INVOKED, "a", false, 1);
        tell(kind::TOOL_INVOKED, "b", false, 2);
        tell(kind::TOOL_COMPLETED, "b", true, 3);
        tell(kind::TOOL_COMPLETED, "never heard of", false, 4);
        tell("assistant.text", "a", false, 5);
        assert_eq!(calls.count, 2);
        let runs: Vec<_> = calls
            .take()
            .into_iter()
            .map(|r| (r.id, r.end, r.failed))
            .collect();
        let expected = [
            ("a".to_owned(), None, false),
            ("b".to_owned(), Some(at(3)), true),
        ];
        assert_eq!(runs, expected);
    }
}
