//! State of a run: its artifacts, the task's state, and the result built from them.

use forge_adapter_api::{AdapterEvent, ExecutionResult};
use serde_json::json;

use crate::update::{Appends, Artifact, Content, File, Ids, Message, State, Task, Update};

/// Separator of context id and task id in the id of a session that waits for an answer.
const TASK: &str = "|task:";
/// The same in the id of a session whose task is running. Only an attempt that resumes the run uses the task.
const RUN: &str = "|run:";

#[derive(Default)]
pub(crate) struct Transcript {
    pub(crate) ids: Ids,
    pub(crate) state: Option<State>,
    artifacts: Vec<(String, Content)>,
    /// The agent's latest content that is not an artifact.
    said: Option<Content>,
    /// The session id of the last event.
    told: Option<String>,
}

/// Conversation that a session id names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// Ids for the next message; with a task only while it waits for an answer.
    pub(crate) ids: Ids,
    /// Task that was running when the id was issued.
    pub(crate) running: Option<String>,
}

pub(crate) fn conversation(session: Option<&str>) -> Conversation {
    let Some(session) = session else {
        return Conversation::default();
    };
    let (context, task, running) = match (session.split_once(TASK), session.split_once(RUN)) {
        (Some((context, task)), _) => (context, Some(task.to_owned()), None),
        (None, Some((context, task))) => (context, None, Some(task.to_owned())),
        (None, None) => (session, None, None),
    };
    let context = Some(context.to_owned()).filter(|context| !context.is_empty());
    Conversation {
        ids: Ids { task, context },
        running,
    }
}

impl Transcript {
    /// Applies an update; returns the events to emit.
    pub(crate) fn hear(&mut self, update: Update) -> Vec<AdapterEvent> {
        let mut events = Vec::new();
        match update {
            Update::Task(task) => {
                self.meet(&task.ids, &mut events);
                for artifact in &task.artifacts {
                    self.artifact(artifact, &mut events);
                }
                self.status(task, &mut events);
            }
            Update::Status(task) => {
                self.meet(&task.ids, &mut events);
                self.status(task, &mut events);
            }
            Update::Artifact { ids, artifact } => {
                self.meet(&ids, &mut events);
                self.artifact(&artifact, &mut events);
            }
            Update::Message(message) => {
                self.meet(&message.ids, &mut events);
                self.said = Some(message.content);
                // An answer without a task is complete.
                self.state = Some(self.state.unwrap_or(State::Completed));
            }
        }
        events
    }

    /// Withdraws all text emitted so far.
    pub(crate) fn retracted(self) -> impl Iterator<Item = AdapterEvent> {
        let with_text = self
            .artifacts
            .into_iter()
            .filter(|(_, content)| !content.text.is_empty());
        with_text.map(|(id, _)| retracted(&id))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.is_some_and(State::is_over)
    }

    /// Adds output, usage and session to the result of the run's end.
    pub(crate) fn into_result(self, end: ExecutionResult) -> ExecutionResult {
        let text = self.text();
        let waits = matches!(self.state, Some(State::InputRequired | State::AuthRequired));
        let session = self
            .ids
            .context
            .map(|context| match (&self.ids.task, waits) {
                (Some(task), true) => format!("{context}{TASK}{task}"),
                (Some(_) | None, _) => context,
            });
        let (mut data, mut output_files) = (None, Vec::new());
        for (_, content) in self.artifacts {
            data = content.data.or(data);
            let files = content.files.into_iter();
            output_files.extend(files.filter_map(File::into_output));
        }
        ExecutionResult {
            output_files,
            output: Some(text).filter(|text| !text.is_empty()),
            structured_output: data.or_else(|| self.said.and_then(|content| content.data)),
            session_id: session,
            ..end
        }
    }

    /// The result for the task's state; `None` while the task is working.
    pub(crate) fn ended(&self) -> Option<ExecutionResult> {
        let said = || {
            self.said
                .as_ref()
                .map(|content| content.text.clone())
                .filter(|text| !text.is_empty())
        };
        let failed = |code: &str, otherwise: &str| {
            ExecutionResult::error(code, said().unwrap_or_else(|| otherwise.to_owned()))
        };
        let asks = |kind: &str, otherwise: &str| ExecutionResult {
            input_request: Some(json!({
                "kind": kind,
                "text": said(),
                "data": self.said.as_ref().and_then(|content| content.data.clone()),
            })),
            ..failed("input_required", otherwise)
        };
        Some(match self.state? {
            State::Working => return None,
            State::Completed => ExecutionResult::default(),
            State::Failed => failed("adapter_error", "the agent reported that the task failed"),
            State::Canceled => failed(
                "cancelled",
                "the agent reported that the task was cancelled",
            ),
            State::Rejected => failed("rejected", "the agent rejected the task"),
            State::InputRequired => asks("input", "the agent asks a question"),
            State::AuthRequired => asks("auth", "the agent requires authorization"),
        })
    }

    /// The text of the artifacts; without any, the agent's latest text, unless that is the error.
    fn text(&self) -> String {
        if !self.artifacts.is_empty() {
            let texts = self
                .artifacts
                .iter()
                .map(|(_, content)| content.text.as_str());
            return texts
                .filter(|text| !text.is_empty())
                .collect::<Vec<_>>()
                .join("\n\n");
        }
        match (self.state, &self.said) {
            (Some(State::Completed), Some(said)) => said.text.clone(),
            (_, _) => String::new(),
        }
    }

    /// The output text if the agent streamed none of it.
    pub(crate) fn unstreamed(&self) -> Option<String> {
        (self.artifacts.is_empty() && self.state == Some(State::Completed))
            .then(|| self.text())
            .filter(|text| !text.is_empty())
    }

    fn meet(&mut self, ids: &Ids, events: &mut Vec<AdapterEvent>) {
        if ids.task.is_some() {
            self.ids.task.clone_from(&ids.task);
        }
        if ids.context.is_some() {
            self.ids.context.clone_from(&ids.context);
        }
        let Some(context) = &self.ids.context else {
            return;
        };
        let session = match &self.ids.task {
            Some(task) => format!("{context}{RUN}{task}"),
            None => context.clone(),
        };
        if self.told.as_ref() != Some(&session) {
            events.push(AdapterEvent::new("session.updated").with(json!({"sessionId": session})));
            self.told = Some(session);
        }
    }

    fn status(&mut self, task: Task, events: &mut Vec<AdapterEvent>) {
        self.state = Some(task.state);
        let Some(Message { content, .. }) = task.said else {
            return;
        };
        if task.state == State::Working
            && !content.text.is_empty()
            && self.said.as_ref() != Some(&content)
        {
            events.push(
                AdapterEvent::new("exec.progress")
                    .with(json!({"kind": "status", "text": content.text})),
            );
        }
        self.said = Some(content);
    }

    fn artifact(&mut self, artifact: &Artifact, events: &mut Vec<AdapterEvent>) {
        let is_first = self
            .artifacts
            .iter()
            .all(|(_, content)| content.text.is_empty());
        let known = self.artifacts.iter().position(|(id, _)| *id == artifact.id);
        let at = known.unwrap_or_else(|| {
            self.artifacts
                .push((artifact.id.clone(), Content::default()));
            self.artifacts.len() - 1
        });
        let content = &mut self.artifacts[at].1;
        let new = &artifact.content;
        // A task that is read again contains what was streamed before.
        let delta = match (
            artifact.appends,
            new.text.strip_prefix(content.text.as_str()),
        ) {
            (Appends::Yes, _) => new.text.clone(),
            (Appends::No, Some(rest)) => rest.to_owned(),
            (Appends::No, None) => {
                events.push(retracted(&artifact.id));
                new.text.clone()
            }
        };
        match artifact.appends {
            Appends::Yes => content.text.push_str(&new.text),
            Appends::No => content.text.clone_from(&new.text),
        }
        if new.data.is_some() {
            content.data.clone_from(&new.data);
        }
        let files: Vec<&File> = new
            .files
            .iter()
            .filter(|file| !content.files.contains(file))
            .collect();
        for file in &files {
            events.push(
                AdapterEvent::new("exec.progress")
                    .with(json!({"kind": "file", "file": file.shown})),
            );
        }
        let files: Vec<File> = files.into_iter().cloned().collect();
        content.files.extend(files);
        if !delta.is_empty() {
            let gap = if known.is_none() && !is_first {
                "\n\n"
            } else {
                ""
            };
            let data = json!({"delta": format!("{gap}{delta}"), "messageId": artifact.id});
            events.push(AdapterEvent::new("assistant.text").with(data));
        }
    }
}

fn retracted(artifact: &str) -> AdapterEvent {
    AdapterEvent::new("assistant.retracted").with(json!({ "messageId": artifact }))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn hear(transcript: &mut Transcript, result: &Value) -> Vec<(String, Value)> {
        let events = transcript.hear(Update::read(result).unwrap());
        events
            .into_iter()
            .map(|event| (event.kind, event.data.unwrap()))
            .collect()
    }

    #[test]
    fn artifacts_are_streamed_once_also_when_the_task_is_seen_again() {
        let mut transcript = Transcript::default();
        let piece = |text: &str, append: bool| {
            json!({"artifactUpdate": {"taskId": "t", "contextId": "c", "append": append,
                "artifact": {"artifactId": "a", "parts": [{"text": text}]}}})
        };
        let mut texts = String::new();
        let mut kinds = Vec::new();
        let whole = json!({"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"},
            "artifacts": [{"artifactId": "a", "parts": [{"text": "one two"}]}]}});
        let done = json!({"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"},
            "artifacts": [{"artifactId": "a", "parts": [{"text": "one two three"}]}, {"artifactId": "b", "parts": [{"text": "four"}]}]});
        for result in [piece("one", false), piece(" two", true), whole, done] {
            for (kind, data) in hear(&mut transcript, &result) {
                texts.push_str(data["delta"].as_str().unwrap_or_default());
                kinds.push(kind);
            }
        }
        assert_eq!(texts, "one two three\n\nfour");
        assert_eq!(
            kinds
                .iter()
                .filter(|kind| *kind == "session.updated")
                .count(),
            1
        );
        let result = transcript.ended().unwrap();
        let result = transcript.into_result(result);
        assert_eq!(
            (result.output.as_deref(), result.session_id.as_deref()),
            (Some("one two three\n\nfour"), Some("c"))
        );
    }

    #[test]
    fn the_text_of_an_artifact_that_is_replaced_is_withdrawn() {
        let mut transcript = Transcript::default();
        let whole = |text: &str| {
            json!({"artifactUpdate": {"taskId": "t", "contextId": "c",
                "artifact": {"artifactId": "a", "parts": [{"text": text}]}}})
        };
        hear(&mut transcript, &whole("first"));
        let events = hear(&mut transcript, &whole("second"));
        let expected = [
            ("assistant.retracted", json!({"messageId": "a"})),
            (
                "assistant.text",
                json!({"delta": "second", "messageId": "a"}),
            ),
        ];
        assert_eq!(events, expected.map(|(kind, data)| (kind.to_owned(), data)));
        assert_eq!(transcript.retracted().collect::<Vec<_>>(), [retracted("a")]);
    }

    #[test]
    fn states_are_results() {
        for (state, code) in [
            ("completed", None),
            ("failed", Some("adapter_error")),
            ("canceled", Some("cancelled")),
            ("rejected", Some("rejected")),
            ("input-required", Some("input_required")),
            ("auth-required", Some("input_required")),
        ] {
            let mut transcript = Transcript::default();
            hear(
                &mut transcript,
                &json!({"kind": "status-update", "taskId": "t", "contextId": "c", "final": true,
                "status": {"state": state, "message": {"parts": [{"kind": "text", "text": "said"}]}}}),
            );
            let ended = transcript.ended().unwrap();
            assert_eq!(ended.error_code.as_deref(), code, "{state}");
            let result = transcript.into_result(ended);
            match code {
                None => assert_eq!(result.output.as_deref(), Some("said")),
                Some(_) => assert_eq!(result.error.as_deref(), Some("said"), "{state}"),
            }
        }
    }

    #[test]
    fn a_session_that_waits_holds_its_task() {
        let mut transcript = Transcript::default();
        let events = hear(
            &mut transcript,
            &json!({"id": "t:1", "contextId": "c", "status": {"state": "input-required"}}),
        );
        let transcript_session = events[0].1["sessionId"].clone();
        let ended = transcript.ended().unwrap();
        let session = transcript.into_result(ended).session_id.unwrap();
        assert_eq!(transcript_session, json!("c|run:t:1"));
        for (session, task, running) in [
            (session.as_str(), Some("t:1"), None),
            ("c|run:t:1", None, Some("t:1")),
            ("c", None, None),
        ] {
            let found = conversation(Some(session));
            assert_eq!(found.ids.context.as_deref(), Some("c"), "{session}");
            assert_eq!(found.ids.task.as_deref(), task, "{session}");
            assert_eq!(found.running.as_deref(), running, "{session}");
        }
    }
}
