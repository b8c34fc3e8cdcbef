//! One run: starts the agent, holds the conversation, stops the agent, and builds the result.

use std::sync::PoisonError;
use std::time::Duration;

use forge_adapter_api::child::{Child, StartError};
use forge_adapter_api::folder::{Folder, TempFolder};
use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Result, Run,
};
use forge_adapter_transport::attachments::Attachments;
use forge_adapter_transport::caller_tools::SERVER;
use forge_adapter_transport::json_rpc::JsonRpc;

use crate::Acp;
use crate::attachments;
use crate::config::UsageScope;
use crate::conversation::Conversation;
use crate::launch::{self, Session};
use crate::meter::Mark;
use crate::outcome::{self, End, outcome};
use crate::policy::Policy;
use crate::tool_server::ToolServer;
use crate::transcript::Transcript;

/// Time for the agent to exit after its stdin was closed.
const END_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn execute(
    adapter: &Acp,
    request: &ExecutionRequest,
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let session = request.session_id.as_deref();
    let result = attempt(adapter, request, session, events, run).await?;
    // The earlier attempt might have ended before the agent stored the session.
    if request.resume && result.error_code.as_deref() == Some("session_not_found") {
        let earlier = request.attempt.saturating_sub(1);
        events.send(AdapterEvent::attempt_retracted(earlier)).await;
        return attempt(adapter, request, None, events, run).await;
    }
    Ok(result)
}

async fn attempt(
    adapter: &Acp,
    request: &ExecutionRequest,
    session: Option<&str>,
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let instance = adapter.host.instance();
    let path = adapter.settings.table.program.as_ref();
    let path = path.ok_or_else(|| outcome::unavailable(launch::not_named(instance)))?;
    let folder = TempFolder::create(instance).map_err(|error| internal(&error))?;
    let workspace = request.open_workspace()?;
    let work = workspace
        .as_ref()
        .map(Folder::path)
        .or(adapter.settings.table.dir.as_deref())
        .unwrap_or(folder.path())
        .to_owned();
    let mut program = launch::program(&adapter.settings, path, work.clone(), &folder)
        .map_err(|error| internal(&error))?;
    program.workspace = workspace.clone();
    let desk = ToolServer::open(&adapter.host, request, folder.path())
        .map_err(|error| internal(&error))?;
    let child = Child::start(&adapter.host, Some(&request.execution_id), &program);
    let child = child.map_err(|error| match error {
        StartError::Missing(path) => outcome::unavailable(launch::missing(instance, &path)),
        StartError::Start { path, source } => {
            outcome::unavailable(format!("cannot start {}: {source}", path.display()))
        }
    })?;
    let policy = Policy::new(
        &adapter.settings.table,
        workspace,
        request
            .mcp_servers
            .keys()
            .cloned()
            .chain(desk.is_some().then(|| SERVER.to_owned()))
            .collect(),
    );
    let mut conversation = Conversation::new(JsonRpc::new(child), policy, desk, events, run);
    let begun = conversation
        .begin(adapter, request, session, &program)
        .await;
    note(adapter, &begun);
    let end = match begun {
        Ok(kind) => {
            let mut prompt = launch::prompt(request, kind);
            let attachments = Attachments::new(&request.attachments);
            // Later rounds of the same attempt have them in the session already.
            if request.turns.is_empty() {
                prompt.extend(attachments::blocks(&attachments, conversation.agent.prompt).await?);
            }
            conversation.turn(prompt, &attachments).await?
        }
        Err(end) => end,
    };
    Ok(conclude(adapter, conversation, end).await)
}

/// Records the start's success or failure for the health check.
fn note(adapter: &Acp, begun: &std::result::Result<Session, End>) {
    let reason = match begun {
        Ok(_) => None,
        Err(End::Lost(text) | End::Garbled(text) | End::Unguarded(text)) => Some(text.clone()),
        Err(End::Refused("initialize" | "session/new", error)) => Some(error.message.clone()),
        Err(
            End::Turn(_)
            | End::Cancelled
            | End::Refused(..)
            | End::NoSession(_)
            | End::NoServer(_)
            | End::Impossible(_),
        ) => return,
    };
    *adapter
        .unusable
        .lock()
        .unwrap_or_else(PoisonError::into_inner) = reason;
}

/// Stops the program and builds the result.
async fn conclude(adapter: &Acp, mut conversation: Conversation<'_>, end: End) -> ExecutionResult {
    let patience = match &end {
        End::Turn(_)
        | End::Refused(..)
        | End::NoSession(_)
        | End::NoServer(_)
        | End::Impossible(_) => END_PATIENCE,
        // A cancelled agent had its time; a broken one is not waited for, and one that acts without asking is stopped.
        End::Cancelled | End::Lost(_) | End::Garbled(_) | End::Unguarded(_) => Duration::ZERO,
    };
    // The result does not depend on the exit; the program is killed after the timeout.
    let stopped = conversation.rpc.stop(patience).await;
    let end = match end {
        End::Lost(reason) => {
            let status =
                stopped.map_or_else(|error| error.to_string(), |status| status.to_string());
            let tail = conversation.rpc.stderr_tail();
            let colon = if tail.is_empty() { "" } else { ": " };
            End::Lost(format!("{reason} ({status}){colon}{tail}"))
        }
        end => end,
    };
    let handed_over = conversation.desk.map(|desk| desk.take_calls());
    let Transcript {
        meter,
        text,
        tool_calls,
        model,
        ..
    } = conversation.transcript;
    let scope = match adapter.settings.table.usage {
        UsageScope::Auto => conversation.agent.usage_scope(),
        said => said,
    };
    let usage = meter.usage(scope, tool_calls);
    let is_failure = matches!(&end, End::Turn(answer) if answer["usage"].is_null())
        && conversation.agent.says_failures_as_text()
        && outcome::is_failure(&text);
    let session_id = match &end {
        End::NoSession(_) => None,
        _ => conversation.session,
    };
    if let Some(session) = &session_id {
        let mut marks = adapter.marks();
        let before = marks.get(session);
        marks.set(session, later(before, meter.mark()));
    }
    // Agents that do not bill cancelled turns report the cost of the calls before.
    let is_billed = !matches!(end, End::Cancelled) || conversation.agent.bills_cancelled_turns();
    let result = match (end, handed_over) {
        // The bridge decides how handed-back calls end the run.
        (End::Turn(_), Some(tool_calls)) if !tool_calls.is_empty() => ExecutionResult {
            tool_calls,
            ..ExecutionResult::default()
        },
        (end, _) => outcome(end, is_failure.then_some(text.as_str())),
    };
    ExecutionResult {
        output: Some(text).filter(|text| !is_failure && !text.is_empty()),
        usage,
        cost_usd: meter.cost_usd().filter(|_| is_billed),
        model,
        session_id,
        ..result
    }
}

/// The newer mark; counts that the agent did not report this time keep their earlier values.
fn later(before: Mark, now: Mark) -> Mark {
    Mark {
        cost_usd: now.cost_usd.or(before.cost_usd),
        usage: if now.usage.total_tokens.is_some() {
            now.usage
        } else {
            before.usage
        },
    }
}

fn internal(error: &std::io::Error) -> AdapterError {
    AdapterError::new("internal", format!("cannot prepare the run: {error}")).retryable()
}
