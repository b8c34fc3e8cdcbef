//! Attachments in the user's message, in the parts of Chat Completions. A conversation keeps only a note about each:
//! their contents are sent with their own dispatch.

use forge_adapter_api::{ExecutionRequest, Result};
use forge_adapter_transport::attachments::{Attachments, Kind};
use serde_json::{Value, json};

/// The user's message of a request.
pub struct UserMessage {
    pub attachments: Attachments,
    /// Content to send: a text, or parts.
    now: Value,
    /// Content to keep in the conversation.
    later: Value,
}

impl UserMessage {
    /// Reads text attachments. Fails for a kind that the services do not take.
    pub async fn new(request: &ExecutionRequest) -> Result<Self> {
        if request.attachments.is_empty() {
            return Ok(Self::plain(&request.message));
        }
        let attachments = Attachments::new(&request.attachments);
        let text = attachments.prompt(&request.message).await?;
        let mut parts = vec![json!({"type": "text", "text": text})];
        let mut later = text;
        for part in attachments.parts() {
            let url = format!("data:{};base64,{}", part.media_type, part.base64);
            match part.kind {
                Kind::Image => {
                    parts.push(json!({"type": "image_url", "image_url": {"url": url}}));
                }
                Kind::Pdf => {
                    let file = json!({"filename": part.name, "file_data": url});
                    parts.push(json!({"type": "file", "file": file}));
                }
                Kind::Text | Kind::Other => continue,
            }
            later.push_str(&format!("\n\n[attached here: {}]", part.name));
        }
        Ok(Self {
            attachments,
            now: parts.into(),
            later: later.into(),
        })
    }

    /// A message without attachments.
    pub fn plain(text: &str) -> Self {
        Self {
            attachments: Attachments::default(),
            now: text.into(),
            later: text.into(),
        }
    }

    /// The message as it is sent.
    pub(crate) fn message(&self) -> Value {
        json!({"role": "user", "content": self.now})
    }

    /// Puts the contents back into the message of an earlier round of this attempt.
    pub fn restore(&self, history: &mut [Value]) {
        swap(history, &self.later, &self.now);
    }

    /// Replaces the contents by notes, for the conversation.
    pub fn forget(&self, history: &mut [Value]) {
        swap(history, &self.now, &self.later);
    }
}

fn swap(history: &mut [Value], from: &Value, to: &Value) {
    let mut users = history
        .iter_mut()
        .rev()
        .filter(|message| message["role"] == "user");
    if let Some(last) = users.next().filter(|last| last["content"] == *from) {
        last["content"] = to.clone();
    }
}

#[cfg(test)]
mod tests {
    use forge_test_support::attachment::attached;

    use super::*;

    #[tokio::test]
    async fn contents_are_sent_once_and_notes_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let attached =
            |name: &str, media_type: &str| attached(folder.path(), name, media_type, b"abc");
        let mut request = ExecutionRequest::sample("look");
        request.attachments = vec![
            attached("a.png", "image/png"),
            attached("b.txt", "text/plain"),
            attached("c.pdf", "application/pdf"),
        ];
        let user = UserMessage::new(&request).await.unwrap();
        let mut history = vec![
            user.message(),
            json!({"role": "assistant", "content": "ok"}),
        ];
        let filled = user.attachments.fill(&history[0]).await.unwrap();
        let filled: Value = serde_json::from_str(&filled).unwrap();
        let parts = json!([
            {"type": "text", "text": "look\n\n# b.txt\n\nabc"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}},
            {"type": "file", "file": {"filename": "c.pdf", "file_data": "data:application/pdf;base64,YWJj"}},
        ]);
        assert_eq!(filled["content"], parts);
        let sent = history.clone();
        user.forget(&mut history);
        let kept = "look\n\n# b.txt\n\nabc\n\n[attached here: a.png]\n\n[attached here: c.pdf]";
        assert_eq!(history[0]["content"], kept);
        user.restore(&mut history);
        assert_eq!(history, sent);
        request.attachments = vec![attached("d.zip", "application/zip")];
        let error = UserMessage::new(&request).await.err().unwrap();
        assert_eq!(error.code, "attachment_not_supported");
    }
}
