//! The agent's messages in one form, for either protocol version or a mix of both.

use forge_adapter_api::result::{FileContent, OutputFile};
use serde_json::Value;

/// One `result` of an answer or of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Update {
    Task(Task),
    /// An answer without a task.
    Message(Message),
    Status(Task),
    Artifact {
        ids: Ids,
        artifact: Artifact,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) task: Option<String>,
    pub(crate) context: Option<String>,
}

/// A task; without artifacts if it comes from a status update.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) ids: Ids,
    pub(crate) state: State,
    /// Message of the agent with the state.
    pub(crate) said: Option<Message>,
    pub(crate) artifacts: Vec<Artifact>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Message {
    pub(crate) ids: Ids,
    pub(crate) content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Artifact {
    pub(crate) id: String,
    pub(crate) content: Content,
    /// `Yes` if the artifact continues the one with the same id.
    pub(crate) appends: Appends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appends {
    Yes,
    No,
}

/// The parts of a message or an artifact.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Content {
    pub(crate) text: String,
    pub(crate) data: Option<Value>,
    pub(crate) files: Vec<File>,
}

/// A file part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct File {
    /// `{name?, mediaType?, url?}`, without the content, which would exceed the size of an event.
    pub(crate) shown: Value,
    /// The content in base64; `None` for a file that is only named.
    pub(crate) base64: Option<String>,
}

impl File {
    /// The file with its content, if the agent sent that.
    pub(crate) fn into_output(self) -> Option<OutputFile> {
        let text = |member: &str| self.shown[member].as_str().map(str::to_owned);
        Some(OutputFile {
            name: text("name").unwrap_or_default(),
            media_type: text("mediaType"),
            content: FileContent::Data(self.base64?),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Working,
    Completed,
    Failed,
    Canceled,
    Rejected,
    InputRequired,
    AuthRequired,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither a task, a message, a status nor an artifact")]
pub(crate) struct Malformed;

impl Update {
    pub(crate) fn read(result: &Value) -> Result<Self, Malformed> {
        for (name, kind) in [
            ("task", "task"),
            ("message", "message"),
            ("msg", "message"),
            ("statusUpdate", "status-update"),
            ("artifactUpdate", "artifact-update"),
        ] {
            if result[name].is_object() && result["role"].is_null() && result["status"].is_null() {
                return Self::of(kind, &result[name]);
            }
        }
        match result["kind"].as_str() {
            Some(kind) => Self::of(kind, result),
            // `GetTask` returns the task itself.
            None if result["status"].is_object() => Self::of("task", result),
            None if result["parts"].is_array() => Self::of("message", result),
            None => Err(Malformed),
        }
    }

    fn of(kind: &str, value: &Value) -> Result<Self, Malformed> {
        match kind {
            "task" => task(value, "id").map(Self::Task),
            "status-update" => task(value, "taskId").map(Self::Status),
            "message" => Ok(Self::Message(message(value))),
            "artifact-update" => {
                let appends = if value["append"] == true {
                    Appends::Yes
                } else {
                    Appends::No
                };
                let artifact = artifact(&value["artifact"], appends).ok_or(Malformed)?;
                Ok(Self::Artifact {
                    ids: ids(value, "taskId"),
                    artifact,
                })
            }
            _ => Err(Malformed),
        }
    }
}

impl State {
    /// Parses a state; `TASK_STATE_INPUT_REQUIRED` and `input-required` are the same.
    fn read(text: &str) -> Self {
        let name = text.strip_prefix("TASK_STATE_").unwrap_or(text);
        match name.to_ascii_lowercase().replace('_', "-").as_str() {
            "completed" => Self::Completed,
            "failed" => Self::Failed,
            "canceled" | "cancelled" => Self::Canceled,
            "rejected" => Self::Rejected,
            "input-required" => Self::InputRequired,
            "auth-required" => Self::AuthRequired,
            // Submitted, working, and states of later versions: not over.
            _ => Self::Working,
        }
    }

    pub(crate) fn is_over(self) -> bool {
        match self {
            Self::Working => false,
            Self::Completed
            | Self::Failed
            | Self::Canceled
            | Self::Rejected
            | Self::InputRequired
            | Self::AuthRequired => true,
        }
    }
}

impl Content {
    fn read(parts: &Value) -> Self {
        let mut content = Self::default();
        for part in parts.as_array().into_iter().flatten() {
            if let Some(text) = part["text"].as_str() {
                content.text.push_str(text);
            } else if !part["data"].is_null() {
                content.data = Some(part["data"].clone());
            } else {
                content.files.extend(file(part));
            }
        }
        content
    }
}

fn file(part: &Value) -> Option<File> {
    let old = &part["file"];
    let first = |values: [&Value; 2]| {
        values
            .into_iter()
            .find(|value| value.is_string())
            .cloned()
            .unwrap_or_default()
    };
    let url = first([&part["url"], &old["uri"]]);
    let base64 = part["raw"].as_str().or_else(|| old["bytes"].as_str());
    (url.is_string() || base64.is_some()).then(|| File {
        shown: serde_json::json!({
            "name": first([&part["filename"], &old["name"]]),
            "mediaType": first([&part["mediaType"], &old["mimeType"]]),
            "url": url,
        }),
        base64: base64.map(str::to_owned),
    })
}

fn task(value: &Value, id: &str) -> Result<Task, Malformed> {
    let state = value["status"]["state"].as_str().ok_or(Malformed)?;
    let said = &value["status"]["message"];
    let artifacts = value["artifacts"].as_array().into_iter().flatten();
    Ok(Task {
        ids: ids(value, id),
        state: State::read(state),
        said: said.is_object().then(|| message(said)),
        artifacts: artifacts
            .filter_map(|value| artifact(value, Appends::No))
            .collect(),
    })
}

fn message(value: &Value) -> Message {
    Message {
        ids: ids(value, "taskId"),
        content: Content::read(&value["parts"]),
    }
}

fn artifact(value: &Value, appends: Appends) -> Option<Artifact> {
    value.is_object().then(|| Artifact {
        id: value["artifactId"].as_str().unwrap_or_default().to_owned(),
        content: Content::read(&value["parts"]),
        appends,
    })
}

fn ids(value: &Value, task: &str) -> Ids {
    let text = |name: &str| {
        value[name]
            .as_str()
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    Ids {
        task: text(task),
        context: text("contextId"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_protocols_and_their_mix_say_the_same() {
        let status = |state: &str| json!({"state": state, "message": {"role": "agent", "parts": [{"kind": "text", "text": "which?"}]}});
        for result in [
            json!({"task": {"id": "t", "contextId": "c", "status": status("TASK_STATE_INPUT_REQUIRED")}}),
            json!({"task": {"kind": "task", "id": "t", "contextId": "c", "status": status("input-required")}}),
            json!({"kind": "task", "id": "t", "contextId": "c", "status": status("input-required")}),
            json!({"id": "t", "contextId": "c", "status": status("TASK_STATE_INPUT_REQUIRED")}),
        ] {
            let Ok(Update::Task(task)) = Update::read(&result) else {
                panic!("{result}")
            };
            assert_eq!(
                (task.ids.task.as_deref(), task.ids.context.as_deref()),
                (Some("t"), Some("c"))
            );
            assert_eq!(
                (task.state, task.said.unwrap().content.text.as_str()),
                (State::InputRequired, "which?")
            );
        }
        for result in [
            json!({"statusUpdate": {"taskId": "t", "contextId": "c", "status": status("TASK_STATE_WORKING"), "final": false}}),
            json!({"kind": "status-update", "taskId": "t", "contextId": "c", "status": status("working")}),
        ] {
            let Ok(Update::Status(task)) = Update::read(&result) else {
                panic!("{result}")
            };
            assert_eq!(
                (task.state, task.ids.task.as_deref()),
                (State::Working, Some("t"))
            );
        }
    }

    #[test]
    fn parts_are_text_data_and_files() {
        let result = json!({"artifactUpdate": {"taskId": "t", "append": true, "artifact": {"artifactId": "a", "parts": [
            {"text": "x"}, {"kind": "text", "text": "y"}, {"data": {"n": 1}},
            {"url": "http://f", "filename": "f.txt"}, {"kind": "file", "file": {"name": "g", "bytes": "AAAA"}}, {"odd": 1},
        ]}}});
        let Ok(Update::Artifact { artifact, .. }) = Update::read(&result) else {
            panic!("{result}")
        };
        assert_eq!(
            (artifact.content.text.as_str(), artifact.appends),
            ("xy", Appends::Yes)
        );
        assert_eq!(artifact.content.data, Some(json!({"n": 1})));
        let outputs = artifact.content.files.into_iter().map(File::into_output);
        let expected = OutputFile {
            name: "g".to_owned(),
            media_type: None,
            content: FileContent::Data("AAAA".to_owned()),
        };
        assert_eq!(outputs.collect::<Vec<_>>(), [None, Some(expected)]);
    }

    #[test]
    fn what_is_nothing_of_it_is_malformed() {
        for result in [
            json!(null),
            json!({}),
            json!([1]),
            json!({"kind": "odd"}),
            json!({"task": {"id": "t"}}),
            json!({"artifactUpdate": {}}),
        ] {
            assert_eq!(Update::read(&result), Err(Malformed), "{result}");
        }
    }
}
