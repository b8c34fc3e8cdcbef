//! One run: takes a warm process or starts one, holds the conversation, stops the agent, and builds the result.

use std::sync::PoisonError;
use std::time::Duration;

use forge_adapter_api::{AdapterEvent, Events, ExecutionRequest, ExecutionResult, Result, Run};
use forge_adapter_transport::attachments::Attachments;
use forge_adapter_transport::caller_tools::SERVER;

use crate::AcpClient;
use crate::attachments;
use crate::config::UsageScope;
use crate::conversation::Conversation;
use crate::launch::{self, Session};
use crate::meter::Mark;
use crate::outcome::{self, End, outcome};
use crate::policy::Policy;
use crate::process::{self, AgentProcess};
use crate::tool_server::ToolServer;
use crate::transcript::Transcript;
use crate::warm::SpareKind;

/// Time for the agent to exit after its stdin was closed.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Runs a request in a process that is started with `options` before its arguments.
pub(crate) async fn execute(
    adapter: &AcpClient,
    request: &ExecutionRequest,
    options: &[String],
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let session = request.session_id.as_deref();
    let result = attempt(adapter, request, session, options, events, run).await?;
    // The earlier attempt might have ended before the agent stored the session.
    if request.resume && result.error_code.as_deref() == Some("session_not_found") {
        let earlier = request.attempt.saturating_sub(1);
        events.send(AdapterEvent::attempt_retracted(earlier)).await;
        return attempt(adapter, request, None, options, events, run).await;
    }
    Ok(result)
}

async fn attempt(
    adapter: &AcpClient,
    request: &ExecutionRequest,
    session: Option<&str>,
    options: &[String],
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let workspace = request.open_workspace()?;
    let workspace = workspace.map(|folder| adapter.host.confine(folder));
    let kind = SpareKind {
        has_files: workspace.is_some(),
        options: options.to_owned(),
    };
    let warm = tokio::select! {
        warm = adapter.warm.take(&kind) => warm,
        () = run.cancelled() => None,
    };
    if let Some(mut process) = warm {
        process.enter(&adapter.settings, workspace.clone());
        let (result, was_opened) =
            converse(adapter, request, session, process, &kind, events, run).await?;
        if was_opened {
            return Ok(result);
        }
        // While it waited it can have lost its login or the sight of a new session, or be stuck.
    }
    let process = AgentProcess::start(
        &adapter.host,
        &adapter.settings,
        &request.execution_id,
        workspace,
        options,
        !request.tools.is_empty(),
    )?;
    let (result, _) = converse(adapter, request, session, process, &kind, events, run).await?;
    Ok(result)
}

/// Holds the conversation with a process. False if the agent itself failed to open the session.
async fn converse(
    adapter: &AcpClient,
    request: &ExecutionRequest,
    session: Option<&str>,
    process: AgentProcess,
    kind: &SpareKind,
    events: &Events,
    run: &Run,
) -> Result<(ExecutionResult, bool)> {
    // The directory outlives the process.
    let AgentProcess {
        rpc,
        program,
        socket,
        agent,
        folder: _folder,
    } = process;
    let desk = ToolServer::open(&adapter.host, request, socket)
        .map_err(|error| process::internal(&error))?;
    let workspace = program.workspace.clone();
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
    let mut conversation = Conversation::new(rpc, policy, desk, events, run);
    let begun = conversation
        .begin(adapter, request, session, &program, agent)
        .await;
    note(adapter, &begun);
    let was_opened = !matches!(
        begun,
        Err(End::Lost(_) | End::Garbled(_) | End::Refused(..) | End::NoSession(_))
    );
    let end = match begun {
        Ok(origin) => {
            let mut prompt = launch::prompt(request, origin);
            let attachments = Attachments::new(&request.attachments);
            // Later rounds of the same attempt have them in the session already.
            if request.turns.is_empty() {
                prompt.extend(attachments::blocks(&attachments, conversation.agent.prompt).await?);
            }
            // Now, while this agent waits for its model, another start delays it least.
            adapter.warm.refill(kind);
            conversation.turn(prompt, &attachments).await?
        }
        Err(end) => end,
    };
    Ok((conclude(adapter, conversation, end).await, was_opened))
}

/// Records the start's success or failure for the health check.
fn note(adapter: &AcpClient, begun: &std::result::Result<Session, End>) {
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
async fn conclude(
    adapter: &AcpClient,
    mut conversation: Conversation<'_>,
    end: End,
) -> ExecutionResult {
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
    let end = process::stop(&mut conversation.rpc, end, patience).await;
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
