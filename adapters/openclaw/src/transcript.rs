//! Converts the events of a run to the bridge's and keeps what the result needs of them. Pure.

use forge_adapter_api::AdapterEvent;
use serde_json::{Value, json};

#[derive(Default)]
pub(crate) struct Transcript {
    /// Text of the current message of the model.
    pub(crate) text: String,
    /// The gateway's kind of the failure, such as `rate_limit`.
    pub(crate) failure: Option<String>,
    /// Id of the message in `text`.
    message: String,
    thought: String,
}

impl Transcript {
    /// Events for one `agent` event. The same text also comes as `chat` events, and the same tool calls as streams for
    /// user interfaces; neither is read.
    pub(crate) fn event(&mut self, payload: &Value) -> Option<AdapterEvent> {
        let data = &payload["data"];
        match payload["stream"].as_str()? {
            "assistant" => self.said(data),
            "thinking" => {
                let delta = added(&mut self.thought, data)?;
                Some(AdapterEvent::new("assistant.thinking").with(json!({ "delta": delta })))
            }
            "tool" => tool(data),
            "lifecycle" => {
                let reason = data["errorObservation"]["failoverReason"].as_str();
                if let Some(reason) = reason {
                    self.failure = Some(reason.to_owned());
                }
                None
            }
            _ => None,
        }
    }

    fn said(&mut self, data: &Value) -> Option<AdapterEvent> {
        let message = data["itemId"].as_str().unwrap_or_default();
        if message != self.message {
            message.clone_into(&mut self.message);
            self.text.clear();
        }
        let delta = added(&mut self.text, data)?;
        let data = json!({"delta": delta, "messageId": self.message});
        Some(AdapterEvent::new("assistant.text").with(data))
    }
}

/// The new part of a text. The gateway sends the whole text each time and leaves out events when it is busy.
fn added(known: &mut String, data: &Value) -> Option<String> {
    let whole = data["text"].as_str()?;
    let delta = match whole.strip_prefix(known.as_str()) {
        Some(delta) => delta.to_owned(),
        // A text that was rewritten: its own delta is all that can be emitted.
        None => data["delta"].as_str()?.to_owned(),
    };
    whole.clone_into(known);
    (!delta.is_empty()).then_some(delta)
}

fn tool(data: &Value) -> Option<AdapterEvent> {
    let (id, name) = (&data["toolCallId"], &data["name"]);
    let (kind, data) = match data["phase"].as_str()? {
        "start" => {
            let data = json!({"toolCallId": id, "name": name, "input": data["args"]});
            ("tool.invoked", data)
        }
        "result" => {
            let is_error = data["isError"].as_bool().unwrap_or(false);
            let output = match texts(&data["result"]["content"]) {
                text if text.is_empty() => data["result"].clone(),
                text => text.into(),
            };
            let data =
                json!({"toolCallId": id, "name": name, "output": output, "isError": is_error});
            ("tool.completed", data)
        }
        _ => return None,
    };
    Some(AdapterEvent::new(kind).with(data))
}

/// The texts of a message's or a tool's content, joined.
pub(crate) fn texts(content: &Value) -> String {
    let blocks = content.as_array().into_iter().flatten();
    let texts: Vec<&str> = blocks.filter_map(|block| block["text"].as_str()).collect();
    texts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_once_and_left_out_events_lose_none() {
        let mut transcript = Transcript::default();
        let mut seen = String::new();
        for (item, text, delta) in [
            ("1", "a", "a"),
            ("1", "abc", "c"),
            ("1", "abc", ""),
            ("2", "d", "d"),
        ] {
            let payload = json!({"stream": "assistant", "data": {"itemId": item, "text": text, "delta": delta}});
            if let Some(event) = transcript.event(&payload) {
                seen += event.data.unwrap()["delta"].as_str().unwrap();
            }
        }
        assert_eq!((seen.as_str(), transcript.text.as_str()), ("abcd", "d"));
    }
}
