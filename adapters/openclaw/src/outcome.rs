//! The end of a run as a result. Pure.

use forge_adapter_api::foreign_json;
use forge_adapter_api::{AdapterError, ExecutionResult, Usage};
use serde_json::{Value, json};

use crate::frame::Failure;
use crate::health::list;
use crate::transcript::{Transcript, texts};

/// End of a run.
#[derive(Default)]
pub(crate) struct End {
    /// The last answer to the request that started it, or that of `agent.wait`, which has no usage.
    pub(crate) answer: Value,
    /// Messages of the model that the answer does not count: those of a run that continued without a connection, those
    /// of the agent's turns after the run, and those of subagents.
    pub(crate) messages: Vec<Value>,
    /// Text of the last turn after the run.
    pub(crate) text: Option<String>,
}

impl From<Value> for End {
    fn from(answer: Value) -> Self {
        Self {
            answer,
            ..Self::default()
        }
    }
}

/// The last answer for a run whose abort the gateway has not confirmed.
pub(crate) fn unconfirmed() -> End {
    json!({"stopReason": "rpc"}).into()
}

/// The messages of the model in these runs.
pub(crate) fn said(messages: &[Value], is_own: impl Fn(&str) -> bool) -> Vec<Value> {
    let own = messages.iter().filter(|message| {
        let run = message["__openclaw"]["runId"].as_str().unwrap_or_default();
        message["role"] == "assistant" && is_own(run)
    });
    own.cloned().collect()
}

/// The result of a run that ended.
pub(crate) fn result(end: &End, transcript: &Transcript) -> ExecutionResult {
    let answer = &end.answer;
    let result = ended(end, transcript);
    let status = answer["status"].as_str().unwrap_or_default();
    let error = match (status, answer["stopReason"].as_str()) {
        // An aborted run has the status of a timeout.
        (_, Some("rpc")) => AdapterError::cancelled(),
        ("ok", _) => return result,
        ("timeout", _) => AdapterError::new(
            "timeout",
            "the run did not end within its time at the gateway",
        ),
        _ => {
            let text = answer["error"].as_str().unwrap_or("the run failed");
            failed(
                transcript.failure.as_deref(),
                AdapterError::new("upstream_error", text),
            )
        }
    };
    ExecutionResult {
        output: result.output,
        usage: result.usage,
        cost_usd: result.cost_usd,
        model: result.model,
        model_provider: result.model_provider,
        ..error.into()
    }
}

/// The result of a run that the gateway ended with an error.
pub(crate) fn refused(failure: Failure, transcript: &Transcript) -> ExecutionResult {
    let error = failed(transcript.failure.as_deref(), failure.into());
    ExecutionResult {
        output: Some(transcript.text.clone()).filter(|text| !text.is_empty()),
        ..error.into()
    }
}

/// The error with the code that the provider's failure has; the gateway itself only says `UNAVAILABLE`.
fn failed(reason: Option<&str>, error: AdapterError) -> AdapterError {
    let text = &error.message;
    let (code, retryable) = match reason {
        Some("rate_limit") => ("rate_limited", true),
        Some("auth" | "auth_permanent" | "billing") => ("unauthenticated", false),
        Some("format" | "model_not_found" | "context_overflow") => ("invalid_request", false),
        Some("overloaded" | "server_error" | "timeout" | "empty_response") => {
            ("upstream_error", true)
        }
        _ if text.contains("after a provider auth/billing failure") => ("unauthenticated", false),
        _ if text.starts_with("Unknown model") => ("invalid_request", false),
        _ if text.to_lowercase().contains("sandbox") => ("sandbox_unavailable", false),
        _ => return error,
    };
    AdapterError {
        code: code.to_owned(),
        retryable,
        ..error
    }
}

/// Output, usage, cost and model of a run, whatever its end.
fn ended(end: &End, transcript: &Transcript) -> ExecutionResult {
    let (run, waited) = (&end.answer["result"], &end.answer["terminalReply"]["text"]);
    let meta = &run["meta"]["agentMeta"];
    let shown = list(&run["payloads"]).iter();
    let shown: Vec<Value> = shown
        .filter(|part| part["isError"] != true)
        .cloned()
        .collect();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let outputs = [
        end.text.clone(),
        Some(texts(&shown.into())),
        text(waited),
        Some(transcript.text.clone()),
    ];
    let usages = end.messages.iter().map(|message| &message["usage"]);
    let costs = usages.clone().map(|usage| &usage["cost"]["total"]);
    let cost: f64 = costs
        .chain([&meta["costUsd"]])
        .filter_map(foreign_json::amount)
        .sum();
    let effective = &end.answer["terminalReceipt"]["effective"];
    ExecutionResult {
        output: outputs.into_iter().flatten().find(|text| !text.is_empty()),
        usage: usage(usages.chain([&meta["usage"]])),
        cost_usd: (cost > 0.0).then_some(cost),
        model: text(&meta["model"]).or_else(|| text(&effective["model"])),
        model_provider: text(&meta["provider"]).or_else(|| text(&effective["provider"])),
        ..ExecutionResult::default()
    }
}

/// Sum of these usages. `input` of the gateway has no cached tokens in it.
fn usage<'a>(parts: impl IntoIterator<Item = &'a Value>) -> Usage {
    let mut total = Usage::default();
    for part in parts {
        let number = |name: &str| foreign_json::count(&part[name]);
        let (read, written) = (number("cacheRead"), number("cacheWrite"));
        total = total.plus(&Usage {
            input_tokens: number("input")
                .map(|fresh| fresh + read.unwrap_or(0) + written.unwrap_or(0)),
            output_tokens: number("output"),
            thinking_tokens: number("reasoningTokens"),
            total_tokens: None,
            cache_read_tokens: read,
            cache_write_tokens: written,
        });
    }
    let sum = total.input_tokens.zip(total.output_tokens);
    total.total_tokens = sum.map(|(input, output)| input + output);
    total
}
