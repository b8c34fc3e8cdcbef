//! Sessions as threads, and queries on a thread's state. Pure.

use std::collections::HashSet;

use forge_adapter_api::ExecutionRequest;
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// Namespace of UUIDs derived from the bridge's ids.
const NAMESPACE: Uuid = Uuid::from_u128(0x8f2b_6a60_6f5d_5b0e_9f3a_5d3c_41c7_2ed1);

/// A session and its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) thread: Uuid,
}

impl Session {
    /// The session of a request. A UUID is used as the thread's id itself, so threads created by other clients can be
    /// continued.
    pub(crate) fn of(request: &ExecutionRequest) -> Self {
        match &request.session_id {
            Some(id) => Self {
                id: id.clone(),
                thread: named(id),
            },
            None => {
                let thread = Uuid::now_v7();
                Self {
                    id: thread.to_string(),
                    thread,
                }
            }
        }
    }
}

/// The UUID of a bridge id at the server: the id itself if it is a UUID, else a version 5 UUID derived from it.
pub(crate) fn named(id: &str) -> Uuid {
    id.parse()
        .unwrap_or_else(|_| Uuid::new_v5(&NAMESPACE, id.as_bytes()))
}

/// A thread's state as returned by the server.
#[derive(Clone, Debug, Default)]
pub(crate) struct State(Value);

impl State {
    pub(crate) fn new(state: Option<Value>) -> Self {
        Self(state.unwrap_or_default())
    }

    /// Questions that wait for a human, as `{id, value}` each.
    pub(crate) fn interrupts(&self) -> Vec<Value> {
        let tasks = list(&self.0["tasks"]).iter();
        tasks
            .flat_map(|task| list(&task["interrupts"]))
            .map(|interrupt| json!({"id": interrupt["id"], "value": interrupt["value"]}))
            .collect()
    }

    /// Returns true if the graph has steps left to run.
    pub(crate) fn is_unfinished(&self) -> bool {
        !list(&self.0["next"]).is_empty()
    }

    pub(crate) fn messages(&self) -> &[Value] {
        list(&self.0["values"]["messages"])
    }

    /// Ids of the messages up to and including this one, or of all if it is absent.
    pub(crate) fn message_ids_until(&self, last: Option<&str>) -> HashSet<String> {
        let messages = self.messages();
        let is_last = |message: &Value| last.is_some() && message["id"].as_str() == last;
        let found = messages.iter().position(is_last);
        let until = found.map_or(messages.len(), |at| at + 1);
        let ids = messages[..until].iter();
        ids.filter_map(|message| Some(message["id"].as_str()?.to_owned()))
            .collect()
    }

    /// The value at a dotted path such as `reply.text`; numbers index lists.
    pub(crate) fn at(&self, path: &str) -> Option<&Value> {
        let mut value = &self.0["values"];
        for name in path.split('.') {
            value = match value {
                Value::Array(items) => items.get(name.parse::<usize>().ok()?)?,
                value => value.get(name)?,
            };
        }
        Some(value).filter(|value| !value.is_null())
    }

    /// A state with these values.
    #[cfg(test)]
    pub(crate) fn of(values: &Value) -> Self {
        Self(json!({ "values": values }))
    }
}

/// The text of a message: a string, or the joined text blocks.
pub(crate) fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        blocks => list(blocks)
            .iter()
            .filter_map(|block| block.as_str().or(block["text"].as_str()))
            .collect(),
    }
}

/// The model's reasoning, from `thinking` or `reasoning` blocks.
pub(crate) fn thoughts_of(message: &Value) -> String {
    let block = |block: &Value| {
        let thought = block["thinking"].as_str().or(block["reasoning"].as_str());
        thought.map(str::to_owned)
    };
    list(&message["content"]).iter().filter_map(block).collect()
}

/// Returns true if the model wrote the message.
pub(crate) fn is_the_models(message: &Value) -> bool {
    matches!(message["type"].as_str(), Some("ai" | "AIMessageChunk"))
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn members(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_the_same_thread_each_time() {
        let of = |id: Option<&str>| {
            Session::of(&ExecutionRequest {
                session_id: id.map(str::to_owned),
                ..ExecutionRequest::sample("m")
            })
        };
        assert_eq!(of(Some("chat-1")), of(Some("chat-1")));
        assert_ne!(of(Some("chat-1")).thread, of(Some("chat-2")).thread);
        assert_eq!(of(Some("chat-1")).thread.get_version_num(), 5);
        let thread = "01a1fb7f-7e7c-7446-adf5-92b6e06f8104";
        assert_eq!(of(Some(thread)).thread.to_string(), thread);
        let fresh = of(None);
        assert_eq!(fresh.id, fresh.thread.to_string());
        assert_ne!(fresh, of(None));
    }

    #[test]
    fn a_state_is_read_by_path_and_its_questions_by_task() {
        let state = State::new(Some(json!({
            "values": {"reply": {"parts": [{"text": "a"}, {"text": "b"}]}, "none": null},
            "next": ["think"],
            "tasks": [{"interrupts": [{"id": "1", "value": "x?", "ns": []}]}, {"interrupts": []}, {}],
        })));
        assert_eq!(state.at("reply.parts.1.text"), Some(&json!("b")));
        for path in ["reply.parts.7", "none", "", "reply.parts.text"] {
            assert_eq!(state.at(path), None, "{path}");
        }
        assert_eq!(state.interrupts(), [json!({"id": "1", "value": "x?"})]);
        assert!(state.is_unfinished());
        assert!(State::default().interrupts().is_empty());
    }

    #[test]
    fn messages_are_known_up_to_one_or_all_of_them() {
        let state =
            State::of(&json!({"messages": [{"id": "a"}, {"id": null}, {"id": "b"}, {"id": "c"}]}));
        for (last, known) in [
            (Some("b"), vec!["a", "b"]),
            (Some("z"), vec!["a", "b", "c"]),
            (None, vec!["a", "b", "c"]),
        ] {
            let mut ids: Vec<String> = state.message_ids_until(last).into_iter().collect();
            ids.sort();
            assert_eq!(ids, known, "{last:?}");
        }
    }

    #[test]
    fn texts_and_thoughts_are_told_apart() {
        let message = json!({"content": [
            "a", {"type": "text", "text": "b"}, {"type": "thinking", "thinking": "hm"},
            {"type": "image_url", "image_url": "x"}, {"type": "reasoning", "reasoning": "so"},
        ]});
        assert_eq!(text_of(&message), "ab");
        assert_eq!(thoughts_of(&message), "hmso");
    }
}
