//! The end of a run as a result. Pure.

use forge_adapter_api::{AdapterError, ExecutionResult, Usage};
use serde_json::{Value, json};

use crate::frame::Failure;
use crate::transcript::{Transcript, texts};

/// End of a run.
pub(crate) enum End {
    /// The last answer to the request that started it.
    Answered(Value),
    /// Answer of `agent.wait` and the session's messages, for a run that continued without a connection, and the run
    /// that continued it after a restart of the gateway.
    Waited {
        end: Value,
        history: Value,
        other: Option<String>,
    },
}

/// The last answer for a run whose abort the gateway has not confirmed.
pub(crate) fn unconfirmed() -> Value {
    json!({"stopReason": "rpc"})
}

/// The result of a run that ended.
pub(crate) fn result(run: &str, end: &End, transcript: &Transcript) -> ExecutionResult {
    let (answer, mut result) = match end {
        End::Answered(answer) => (answer, answered(&answer["result"])),
        End::Waited {
            end,
            history,
            other,
        } => (end, waited([Some(run), other.as_deref()], end, history)),
    };
    if result.output.is_none() && !transcript.text.is_empty() {
        result.output = Some(transcript.text.clone());
    }
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
        output: result
            .output
            .or_else(|| Some(transcript.text.clone()).filter(|text| !text.is_empty())),
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

fn answered(run: &Value) -> ExecutionResult {
    let meta = &run["meta"]["agentMeta"];
    let shown = run["payloads"].as_array().into_iter().flatten();
    let shown: Vec<Value> = shown
        .filter(|part| part["isError"] != true)
        .cloned()
        .collect();
    let text = |name: &str| meta[name].as_str().map(str::to_owned);
    ExecutionResult {
        output: Some(texts(&shown.into())).filter(|text| !text.is_empty()),
        usage: usage([&meta["usage"]]),
        cost_usd: meta["costUsd"].as_f64(),
        model: text("model"),
        model_provider: text("provider"),
        ..ExecutionResult::default()
    }
}

fn waited(runs: [Option<&str>; 2], end: &Value, history: &Value) -> ExecutionResult {
    let effective = &end["terminalReceipt"]["effective"];
    let messages = history["messages"].as_array().into_iter().flatten();
    let own: Vec<&Value> = messages
        .filter(|message| {
            let run = message["__openclaw"]["runId"].as_str();
            message["role"] == "assistant" && run.is_some() && runs.contains(&run)
        })
        .map(|message| &message["usage"])
        .collect();
    let cost: f64 = own
        .iter()
        .filter_map(|usage| usage["cost"]["total"].as_f64())
        .sum();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    ExecutionResult {
        output: text(&end["terminalReply"]["text"]),
        usage: usage(own),
        cost_usd: (cost > 0.0).then_some(cost),
        model: text(&effective["model"]),
        model_provider: text(&effective["provider"]),
        ..ExecutionResult::default()
    }
}

/// Sum of these usages. `input` of the gateway has no cached tokens in it.
fn usage<'a>(parts: impl IntoIterator<Item = &'a Value>) -> Usage {
    let mut total = Usage::default();
    for part in parts {
        let number = |name: &str| part[name].as_u64();
        let add = |sum: &mut Option<u64>, more: Option<u64>| {
            if let Some(more) = more {
                *sum = Some(sum.unwrap_or(0) + more);
            }
        };
        let (read, written) = (number("cacheRead"), number("cacheWrite"));
        let input = number("input").map(|fresh| fresh + read.unwrap_or(0) + written.unwrap_or(0));
        add(&mut total.input_tokens, input);
        add(&mut total.output_tokens, number("output"));
        add(&mut total.cache_read_tokens, read);
        add(&mut total.cache_write_tokens, written);
        add(&mut total.thinking_tokens, number("reasoningTokens"));
    }
    let sum = total.input_tokens.zip(total.output_tokens);
    total.total_tokens = sum.map(|(input, output)| input + output);
    total
}
