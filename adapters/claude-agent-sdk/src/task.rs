//! The user message of a run, with its attachments.

use forge_adapter_api::{ExecutionRequest, Result};
use forge_adapter_transport::attachments::{Attachments, Kind};
use forge_adapter_transport::caller_tools;
use serde_json::json;

use crate::control;
use crate::launch::Conversation;

/// Prefix of the prompt on an attempt that resumes an interrupted one.
const RESUME_PROMPT: &str =
    "You were interrupted in the middle of your work. Go on where you stopped. The task was:\n\n";

/// The line for the program's stdin.
pub(crate) async fn line(
    request: &ExecutionRequest,
    conversation: &Conversation,
) -> Result<String> {
    let text = text(request, conversation);
    if request.attachments.is_empty() || !request.turns.is_empty() {
        return Ok(control::user(&text.into()).to_string());
    }
    let attachments = Attachments::new(&request.attachments);
    let text = attachments.prompt(&text).await?;
    let mut blocks = vec![json!({"type": "text", "text": text})];
    for part in attachments.parts() {
        let source = json!({"type": "base64", "media_type": part.media_type, "data": part.base64});
        match part.kind {
            Kind::Image => blocks.push(json!({"type": "image", "source": source})),
            Kind::Pdf => {
                let document = json!({"type": "document", "title": part.name, "source": source});
                blocks.push(document);
            }
            Kind::Text | Kind::Other => {}
        }
    }
    attachments.fill(&control::user(&blocks.into())).await
}

/// The text of the message.
fn text(request: &ExecutionRequest, conversation: &Conversation) -> String {
    let mut parts = Vec::new();
    if !request.tool_results.is_empty() {
        parts.push(caller_tools::results(&request.tool_results));
    }
    // Later rounds of the same attempt have the task in the session already.
    if request.turns.is_empty() {
        parts.push(match conversation {
            Conversation::Resumed(_) if request.resume => {
                format!("{RESUME_PROMPT}{}", request.message)
            }
            Conversation::New(_) | Conversation::Resumed(_) | Conversation::ForkOf(_) => {
                request.message.clone()
            }
        });
    }
    parts.join("\n\n")
}
