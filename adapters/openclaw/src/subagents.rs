//! Subagents of a run, which ends without them: the gateway gives each result to the agent in a later turn of the same
//! session. The execution ends after the last of these turns.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::frame::Failure;
use crate::health::list;
use crate::outcome::{End, said};
use crate::progress::{Progress, abort};
use crate::run::Execution;
use crate::session::Session;
use crate::transcript::texts;

/// Wait between two looks at the subagents.
const LOOK: Duration = Duration::from_millis(500);
/// Text of a turn that adds nothing.
const SILENCE: &str = "NO_REPLY";

/// True for a turn in which an agent gets results of its subagents.
pub(crate) fn is_report(run: &str) -> bool {
    run.starts_with("announce:")
}

/// True unless the receipt of the run says that it began none.
fn can_have_begun(answer: &Value) -> bool {
    let own = &answer["result"]["meta"]["agentMeta"]["terminalReceipt"];
    let tools = &own["successfulToolNames"];
    let waited = &answer["terminalReceipt"]["successfulToolNames"];
    match tools.as_array().or(waited.as_array()) {
        Some(names) => names.iter().any(|name| name == "sessions_spawn"),
        None => true,
    }
}

/// True if the result of the subagent is still to be given to its parent.
fn is_owed(task: &Value) -> bool {
    matches!(
        task["deliveryStatus"].as_str(),
        Some("pending" | "session_queued")
    )
}

/// Subagents that this session began.
fn begun_by(mut tasks: Vec<Value>, session_key: &str) -> Vec<Value> {
    tasks.retain(|task| task["kind"] == "subagent" && task["ownerKey"] == session_key);
    tasks
}

impl Execution<'_> {
    /// Waits for the subagents of a run that succeeded, and adds their part to its end.
    pub(crate) async fn settle(
        &self,
        session: &Session,
        run: &str,
        progress: &Progress,
        mut end: End,
    ) -> Result<End, Failure> {
        let has_begun = end.answer["status"] == "ok" && can_have_begun(&end.answer);
        if has_begun {
            progress.end();
            if self.cancel.is_cancelled() {
                // The run was too far to be aborted with them.
                abort(self.gateway, &progress.target(session, run)).await;
            }
            let messages = loop {
                match self.reported(session, run, &mut end.text).await {
                    Ok(Some(messages)) => break messages,
                    Ok(None) => sleep(LOOK).await,
                    Err(failure) if failure.is_passing() => drop(self.gateway.up().await),
                    Err(failure) => return Err(failure),
                }
            };
            end.messages.extend(messages);
        }
        if self.cancel.is_cancelled() && (has_begun || end.answer["status"] == "timeout") {
            end.answer["stopReason"] = "rpc".into();
        }
        Ok(end)
    }

    /// Messages of the turns after the run, and of its subagents and theirs; `None` if some still work. The text is that
    /// of the last turn.
    async fn reported(
        &self,
        session: &Session,
        run: &str,
        text: &mut Option<String>,
    ) -> Result<Option<Vec<Value>>, Failure> {
        let tasks = self.tasks(&session.key).await?;
        let begun = tasks.iter().find(|task| task["runId"] == run);
        let begun = begun.map_or(0, |task| task["createdAt"].as_u64().unwrap_or_default());
        let mut subagents = begun_by(tasks, &session.key);
        subagents.retain(|task| task["createdAt"].as_u64() >= Some(begun));
        if subagents.iter().any(is_owed) {
            return Ok(None);
        }
        if subagents.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let history = self.history(&session.key).await?;
        let messages = list(&history["messages"]);
        let is_own = |message: &Value| message["__openclaw"]["runId"] == run;
        let begin = messages.iter().position(is_own).unwrap_or_default();
        let mut messages = said(&messages[begin..], is_report);
        let mut texts = messages.iter().map(|message| texts(&message["content"]));
        *text = texts.rfind(|text| !text.is_empty() && text != SILENCE);
        while let Some(subagent) = subagents.pop() {
            let key = subagent["childSessionKey"].as_str().unwrap_or_default();
            let history = self.history(key).await?;
            let is_own = |run: &str| subagent["runId"] == run || is_report(run);
            messages.extend(said(list(&history["messages"]), is_own));
            subagents.extend(begun_by(self.tasks(key).await?, key));
        }
        Ok(Some(messages))
    }

    /// Tasks of a session: its runs and its subagents.
    async fn tasks(&self, session_key: &str) -> Result<Vec<Value>, Failure> {
        let params = json!({"sessionKey": session_key, "limit": 500});
        let answer = self.gateway.call("tasks.list", &params).await?;
        Ok(list(&answer["tasks"]).to_vec())
    }
}
