//! Tool rounds of one attempt: an adapter that returns calls of tools that the bridge runs is called again with their
//! results, until it is done. All rounds share one deadline, one idle timeout, one budget and one end.

use std::collections::BTreeMap;

use forge_adapter_api::request::{ToolResult, Turn};
use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{AdapterError, ExecutionRequest, ExecutionResult, Status};
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use crate::mcp::Answer;
use forge_base::event::kind;
use forge_base::failpoint;
use forge_process::program::Purpose;

use super::Inner;
use super::event_batcher::EventBatcher;
use super::execute::{Attempt, AttemptEnd, StopReason, WriteOutcome, encoded, execute};
use super::external_tools::{ExternalTools, Toolbox};
use super::normalise::answer;

/// Division of a result's tool calls between the bridge and the caller.
#[derive(Debug, PartialEq)]
enum Asked {
    /// No call for the bridge: it is the attempt's result.
    Nothing,
    /// All calls are for the bridge.
    Ours,
    /// This number of calls is for the bridge, the others are for the caller.
    Mixed(usize),
}

impl Inner {
    /// Executes an attempt, and calls the adapter again as long as it returns only calls of tools that the bridge runs.
    /// An adapter with the capability `mcp_servers` runs these tools itself, unless it also declares `tool_rounds`.
    pub(super) async fn rounds(
        &self,
        attempt: &Attempt<'_>,
        request: Box<ExecutionRequest>,
        batcher: &mut EventBatcher,
    ) -> AttemptEnd {
        let profile = attempt.adapter.profile();
        let supports = |name| profile.as_deref().is_some_and(|p| p.supports(name));
        let runs_servers = supports("mcp_servers") && !supports("tool_rounds");
        let is_without_servers = request.mcp_servers.is_empty() || runs_servers;
        if is_without_servers && attempt.dispatch.external_tools.is_empty() {
            let asked = encoded(&request);
            // Not needed any more, and the call can take long.
            drop(request);
            return execute(attempt, asked, batcher).await;
        }
        // Boxed: most attempts have no such tools and need no space for it.
        Box::pin(self.with_tools(attempt, request, runs_servers, batcher)).await
    }

    async fn with_tools(
        &self,
        attempt: &Attempt<'_>,
        mut request: Box<ExecutionRequest>,
        runs_servers: bool,
        batcher: &mut EventBatcher,
    ) -> AttemptEnd {
        let external = ExternalTools::of(&self.external, attempt.dispatch, &request);
        let external = match external {
            Ok(external) => external,
            Err(error) => return AttemptEnd::Answered(Err(error)),
        };
        // The descriptions can contain secrets, and an adapter that does not run the servers does not use them.
        let servers = match runs_servers {
            true => BTreeMap::new(),
            false => std::mem::take(&mut request.mcp_servers),
        };
        let purpose = Purpose {
            execution: &request.execution_id,
            traceparent: request.meta.traceparent.as_deref(),
        };
        failpoint::point("tool.open.before");
        let opened = tokio::select! {
            why = attempt.stop_requested(None) => return AttemptEnd::Cut { why, answer: None },
            opened = self.mcp.open(servers.keys(), purpose) => opened,
        };
        failpoint::point("tool.open.after");
        let profile = attempt.adapter.profile();
        let session = match opened {
            Ok(session) => session,
            Err(error) => {
                let error = AdapterError::new("mcp_server_unavailable", error.to_string());
                return AttemptEnd::Answered(Err(error));
            }
        };
        for (server, reason) in &session.missing {
            let data =
                json!({"kind": "mcp_server_unavailable", "server": server, "reason": reason});
            batcher.note("exec.progress", &data, attempt.clock.now());
        }
        request.tools.extend(session.tools().iter().cloned());
        request.tools.extend(external.tools());
        let toolbox = Toolbox { session, external };
        let rounds = Rounds {
            attempt,
            toolbox: &toolbox,
            most: self.config.max_tool_rounds,
            room: self.config.tool_limit_bytes,
            keeps_session: profile.is_some_and(|p| p.supports("session_resume")),
        };
        let end = rounds.run(request, batcher).await;
        match end {
            // Closed in the background: the attempt does not wait for it.
            AttemptEnd::Answered(_) => drop(self.tracker.spawn(toolbox.session.close())),
            AttemptEnd::Cut { .. } | AttemptEnd::Lost => {}
        }
        end
    }
}

struct Rounds<'a> {
    attempt: &'a Attempt<'a>,
    toolbox: &'a Toolbox,
    most: u32,
    /// Maximum bytes of all answers and tool results of the attempt: each call passes all of them again.
    room: usize,
    keeps_session: bool,
}

impl Rounds<'_> {
    async fn run(
        &self,
        mut request: Box<ExecutionRequest>,
        batcher: &mut EventBatcher,
    ) -> AttemptEnd {
        let budget = self.attempt.dispatch.budget.as_ref();
        let mut round = 0;
        let mut room = self.room;
        loop {
            let end = execute(self.attempt, encoded(&request), batcher).await;
            let AttemptEnd::Answered(Ok(bytes)) = end else {
                return end;
            };
            // `normalise` refuses an answer that is not a result.
            let Ok(result) = answer::parse(&bytes) else {
                return AttemptEnd::Answered(Ok(bytes));
            };
            match asked(&result, |name| self.toolbox.owns(name)) {
                Asked::Nothing => return AttemptEnd::Answered(Ok(bytes)),
                Asked::Mixed(ours) => {
                    let result = foreign(result, ours, |name| self.toolbox.owns(name));
                    return AttemptEnd::Answered(Ok(to_bytes(&result)));
                }
                Asked::Ours => {}
            }
            batcher.accumulator.conclude(&result);
            if batcher.accumulator.meter.exceeded(budget).is_some() {
                let why = StopReason::OverBudget;
                return AttemptEnd::Cut { why, answer: None };
            }
            if round == self.most {
                return AttemptEnd::Answered(Err(exceeded(self.most)));
            }
            let Some(rest) = room.checked_sub(bytes.len()) else {
                return AttemptEnd::Answered(Err(too_much(self.room)));
            };
            room = rest;
            let called = self.call_all(&result.tool_calls, &mut room, batcher).await;
            let tool_results = match called {
                Ok(results) => results,
                Err(Stopped::TooMuch) => return AttemptEnd::Answered(Err(too_much(self.room))),
                Err(Stopped::Cut(why)) => {
                    // The output is kept; the calls are dropped, since they will not be answered.
                    let said = ExecutionResult {
                        tool_calls: Vec::new(),
                        ..result
                    };
                    let answer = Some(to_bytes(&said));
                    return AttemptEnd::Cut { why, answer };
                }
                Err(Stopped::Lost) => return AttemptEnd::Lost,
            };
            batcher.accumulator.begin_round();
            if self.keeps_session && batcher.accumulator.session.is_some() {
                request.session_id.clone_from(&batcher.accumulator.session);
            }
            request.resume = false;
            request.tool_results.clone_from(&tool_results);
            request.turns.push(Turn {
                output: result.output,
                tool_calls: result.tool_calls,
                tool_results,
            });
            let left = self
                .attempt
                .deadline
                .saturating_duration_since(Instant::now());
            request.timeout_seconds = left.as_secs_f64();
            request.budget = batcher.accumulator.meter.left(budget);
            round += 1;
        }
    }

    /// Executes the calls one after another, in the order in which they were returned. Subtracts the size of each
    /// result from `room`; fails with `TooMuch` when it is used up.
    async fn call_all(
        &self,
        calls: &[ToolCall],
        room: &mut usize,
        batcher: &mut EventBatcher,
    ) -> Result<Vec<ToolResult>, Stopped> {
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            let ToolCall {
                tool_call_id,
                name,
                input,
            } = call;
            let id_and_name = json!({ "toolCallId": tool_call_id, "name": name });
            let mut invoked = id_and_name.clone();
            invoked["input"] = input.clone();
            self.note(kind::TOOL_INVOKED, &invoked, batcher).await?;
            failpoint::point("tool.call.before");
            let Answer { output, is_error } = tokio::select! {
                why = self.attempt.stop_requested(None) => return Err(Stopped::Cut(why)),
                answer = self.toolbox.call(name, input) => answer,
            };
            failpoint::point("tool.call.after");
            let mut completed = id_and_name;
            completed["output"] = output.clone();
            completed["isError"] = is_error.into();
            self.note(kind::TOOL_COMPLETED, &completed, batcher).await?;
            let result = ToolResult {
                tool_call_id: tool_call_id.clone(),
                name: name.clone(),
                output,
                is_error,
            };
            let rest = room.checked_sub(to_bytes(&result).len());
            *room = rest.ok_or(Stopped::TooMuch)?;
            results.push(result);
        }
        Ok(results)
    }

    async fn note(
        &self,
        kind: &'static str,
        data: &serde_json::Value,
        batcher: &mut EventBatcher,
    ) -> Result<(), Stopped> {
        batcher.note(kind, data, self.attempt.clock.now());
        let deadline = self.attempt.deadline;
        match self.attempt.write(batcher, deadline).await {
            // The next `stop_requested` returns the reason.
            WriteOutcome::Yes | WriteOutcome::Stopped => Ok(()),
            WriteOutcome::Lost => Err(Stopped::Lost),
            WriteOutcome::Late => Err(Stopped::Cut(StopReason::TimedOut)),
        }
    }
}

/// Reason why the calls of a round were not completed.
enum Stopped {
    Cut(StopReason),
    /// Another owner holds the dispatch.
    Lost,
    /// The results exceed the size limit.
    TooMuch,
}

fn asked(result: &ExecutionResult, owns: impl Fn(&str) -> bool) -> Asked {
    let over = result.status == Status::Error || result.input_request.is_some();
    let ours = result
        .tool_calls
        .iter()
        .filter(|call| owns(&call.name))
        .count();
    match ours {
        0 => Asked::Nothing,
        _ if over => Asked::Nothing,
        ours if ours == result.tool_calls.len() => Asked::Ours,
        ours => Asked::Mixed(ours),
    }
}

/// Reduces a result to the calls for the caller. Those for the bridge are not executed, since their results could
/// not be passed on.
fn foreign(result: ExecutionResult, ours: usize, owns: impl Fn(&str) -> bool) -> ExecutionResult {
    let mut calls = result.tool_calls;
    calls.retain(|call| !owns(&call.name));
    let error = format!(
        "the run returned {} tool calls to answer; {ours} calls of tools of the bridge beside them were not executed",
        calls.len()
    );
    ExecutionResult {
        status: Status::Error,
        error_code: Some("input_required".to_owned()),
        error: Some(error),
        tool_calls: calls,
        ..result
    }
}

pub(super) fn to_bytes(result: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(result).expect("a result has only text keys")
}

fn exceeded(most: u32) -> AdapterError {
    let text = format!("the run still calls tools after {most} rounds");
    AdapterError::new("tool_rounds_exceeded", text)
}

fn too_much(most: usize) -> AdapterError {
    let text = format!("the tool calls and their results exceed {most} bytes");
    AdapterError::new("tool_bytes_exceeded", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(calls: &[&str]) -> ExecutionResult {
        let call = |name: &&str| ToolCall {
            tool_call_id: format!("id-{name}"),
            name: (*name).to_owned(),
            input: json!({}),
        };
        ExecutionResult {
            tool_calls: calls.iter().map(call).collect(),
            ..ExecutionResult::ok("said")
        }
    }

    fn owns(name: &str) -> bool {
        name.starts_with("mcp__")
    }

    #[test]
    fn only_calls_that_are_all_ours_continue() {
        let failed = |calls| ExecutionResult {
            status: Status::Error,
            ..result(calls)
        };
        let asks = |calls| ExecutionResult {
            input_request: Some(json!({})),
            ..result(calls)
        };
        for (result, wanted) in [
            (result(&[]), Asked::Nothing),
            (result(&["a"]), Asked::Nothing),
            (result(&["mcp__a"]), Asked::Ours),
            (result(&["mcp__a", "mcp__b"]), Asked::Ours),
            (result(&["mcp__a", "b"]), Asked::Mixed(1)),
            (failed(&["mcp__a"]), Asked::Nothing),
            (asks(&["mcp__a"]), Asked::Nothing),
        ] {
            assert_eq!(asked(&result, owns), wanted, "{result:?}");
        }
    }

    #[test]
    fn a_mixture_hands_back_what_is_not_ours() {
        let handed = foreign(result(&["mcp__a", "b"]), 1, owns);
        let names: Vec<_> = handed
            .tool_calls
            .iter()
            .map(|call| call.name.as_str())
            .collect();
        assert_eq!(names, ["b"]);
        assert_eq!(handed.error_code.as_deref(), Some("input_required"));
        assert_eq!(handed.output.as_deref(), Some("said"));
    }
}
