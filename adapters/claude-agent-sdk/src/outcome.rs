//! Converts the end of a run to the bridge's result.

use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{ExecutionResult, Status};
use serde_json::Value;

use crate::transcript::{ResultLine, Transcript};

/// Reason for the end of a run.
pub(crate) enum End {
    /// The program wrote a result.
    Result,
    Cancelled,
    /// Calls of the caller's tools, to be handed back.
    HandedOver(Vec<ToolCall>),
    /// A question to a human.
    Asked(Value),
    /// An MCP server of the dispatch is not available.
    NoServer(String),
    /// The program ended without a result; holds the reason.
    Lost(String),
}

pub(crate) enum Wanted {
    Text,
    Structured,
}

pub(crate) fn outcome(transcript: Transcript, end: End, wanted: &Wanted) -> ExecutionResult {
    let (usage, cost_usd) = (transcript.meter.usage(), transcript.meter.cost_usd());
    let text = text(&transcript);
    let mut outcome = match end {
        End::Cancelled => ExecutionResult::error("cancelled", "cancelled"),
        // The bridge decides how handed-back calls end the run.
        End::HandedOver(tool_calls) => ExecutionResult {
            tool_calls,
            ..ExecutionResult::default()
        },
        End::Asked(question) => ExecutionResult {
            input_request: Some(question),
            ..ExecutionResult::error("input_required", "the agent asks a question")
        },
        End::NoServer(reason) => ExecutionResult::error("mcp_server_unavailable", reason),
        End::Lost(reason) => ExecutionResult {
            retryable: Some(true),
            ..ExecutionResult::error("adapter_crashed", reason)
        },
        End::Result => match &transcript.result {
            Some(result) => of_result(result, transcript.structured_output.is_some(), wanted),
            None => ExecutionResult::error("adapter_crashed", "the program ended without a result"),
        },
    };
    // The text of a failed model call is the error, not an answer.
    let is_answer = outcome.error.as_deref() != Some(text.as_str());
    outcome.output = Some(text).filter(|text| is_answer && !text.is_empty());
    if let (Status::Ok, Wanted::Structured) = (outcome.status, wanted) {
        outcome.structured_output = transcript.structured_output;
    }
    ExecutionResult {
        usage,
        cost_usd,
        model: transcript.model,
        model_provider: Some("anthropic".to_owned()),
        session_id: transcript.session_id,
        ..outcome
    }
}

fn text(transcript: &Transcript) -> String {
    transcript
        .result
        .as_ref()
        .and_then(|result| result.result.clone())
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| transcript.last_text.clone())
}

fn of_result(result: &ResultLine, has_structured_output: bool, wanted: &Wanted) -> ExecutionResult {
    let said = || {
        result
            .errors
            .first()
            .or(result.result.as_ref())
            .cloned()
            .unwrap_or_else(|| format!("the program reported {}", result.subtype))
    };
    match (result.subtype.as_str(), result.is_error) {
        ("success", false) => match (wanted, has_structured_output) {
            (Wanted::Structured, false) => ExecutionResult::error(
                "output_invalid",
                "the run ended without the structured output that was asked for",
            ),
            (Wanted::Structured, true) | (Wanted::Text, _) => ExecutionResult::default(),
        },
        ("error_max_turns", _) => ExecutionResult::error("max_turns", said()),
        ("error_max_budget_usd", _) => ExecutionResult::error("budget_exceeded", said()),
        ("error_max_structured_output_retries", _) => {
            ExecutionResult::error("output_invalid", said())
        }
        (_, _) => of_api_error(result, said()),
    }
}

fn of_api_error(result: &ResultLine, message: String) -> ExecutionResult {
    let (code, retryable) = match result.api_error_status {
        Some(401 | 403) => ("unauthenticated", false),
        Some(429) => ("rate_limited", true),
        Some(400..=499) => ("invalid_request", false),
        Some(_) => ("upstream_error", true),
        // The model was not reached.
        None if result.terminal_reason.as_deref() == Some("api_error") => ("upstream_error", true),
        None if message.contains("No conversation found") => ("session_not_found", false),
        None => ("adapter_error", false),
    };
    ExecutionResult {
        retryable: Some(retryable),
        ..ExecutionResult::error(code, message)
    }
}
