//! Normalises the end of an attempt into the result that is stored and delivered. Pure. New fields of the callback
//! are added here.

pub(super) mod answer;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod causes;
mod failure;
mod output;
pub(super) mod structured;

use std::time::Duration;

use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{AdapterError, ExecutionResult, OutputStrategy, Status, Usage};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use forge_base::id::DispatchId;
use forge_signals::money::micros;
use forge_store::record::Spending;

use self::failure::{Failure, adapter_code, failure_of, or_silent};
use self::output::{Fitted, Truncated};
use super::Config;
use super::accumulator::Accumulator;
use super::capture::Captured;
use super::model_usage::ModelUsage;
use super::output_files::{Collected, Described};
use super::request::DispatchRequest;

/// End of an attempt, or the reason why there was none.
#[derive(Clone, Debug)]
pub enum Ending {
    /// The adapter answered with these bytes.
    Answered(Vec<u8>),
    /// The adapter failed, or the plugin host did on its behalf.
    Failed(AdapterError),
    /// The timeout or the deadline passed.
    TimedOut,
    /// No event came within the idle timeout.
    Stalled,
    /// A client cancelled; `answer` is the one that the adapter still returned.
    Cancelled { answer: Option<Vec<u8>> },
    /// A rule over signals stopped the run, or blocked a signal of it; the text is the rule's message.
    Blocked {
        message: String,
        answer: Option<Vec<u8>>,
    },
    /// The bridge stopped, crashed or failed; the text is the reason.
    Interrupted(String),
    /// The budget was exceeded; the text names the limit and the usage.
    OverBudget(String),
    /// The dispatch was not started in time.
    QueueTimeout,
    /// The adapter could not be used; the text is the reason.
    Unavailable(String),
    /// The stored request cannot be read; the text is the reason.
    Unreadable(String),
}

/// Error code of an output above a limit.
const TOO_LARGE: &str = "output_too_large";

/// Everything that an execution produced.
#[derive(Clone, Debug)]
pub struct Raw {
    pub ending: Ending,
    /// Outcome of `capture::read`, with the `file` strategy.
    pub file: Option<Captured>,
    pub output_files: Vec<Collected>,
    pub accumulator: Accumulator,
}

/// Dispatch and attempt that the result belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub id: DispatchId,
    pub dispatch: &'a DispatchRequest,
    pub provider: &'a str,
    /// Number of the last attempt; 0 if there was none.
    pub attempt: u32,
    pub retry_of: Option<DispatchId>,
    /// Output strategy requested from the adapter.
    pub strategy: OutputStrategy,
    /// The session that the adapter was given.
    pub session: Option<&'a str>,
    /// Start of the first attempt; `None` if there was none.
    pub started_at: Option<Timestamp>,
    pub completed_at: Timestamp,
    /// Duration of the last attempt, by the bridge's clock.
    pub elapsed: Duration,
}

/// A terminal result.
#[derive(Debug)]
pub struct Outcome {
    /// `None` if the status is `ok`.
    pub error_code: Option<String>,
    /// Error text for humans; `None` without an error code.
    pub error: Option<String>,
    /// The schema `Result` of `openapi.json`, without `events`.
    pub result: Box<RawValue>,
    /// The whole output, if the result contains only its beginning.
    pub output: Option<String>,
    pub account: Account,
}

/// Model and usage of a dispatch, over all attempts.
#[derive(Debug, Default)]
pub struct Account {
    /// Model as named by the adapter.
    pub model: Option<String>,
    pub model_provider: Option<String>,
    pub usage: Usage,
    pub cost_usd: Option<f64>,
}

/// Largest number of tokens, and of micro-dollars, that is kept of a dispatch: stores keep 63 bits, and add up a million.
const MOST_SPENT: u64 = 1_000_000_000_000;

impl Account {
    /// Usage as it is kept, if anything is known of it.
    pub(super) fn spending(&self, asked_model: Option<&str>) -> Option<Spending> {
        let Usage {
            input_tokens,
            output_tokens,
            ..
        } = self.usage;
        let bounded = |number: u64| number.min(MOST_SPENT);
        let cost_micros = self.cost_usd.map(micros);
        let is_known = input_tokens.is_some() || output_tokens.is_some() || cost_micros.is_some();
        is_known.then(|| Spending {
            model: self.model.clone().or(asked_model.map(str::to_owned)),
            tokens_in: input_tokens.map(bounded),
            tokens_out: output_tokens.map(bounded),
            cost_micros: cost_micros.map(bounded),
        })
    }
}

/// Builds the result: the schema `Result` of `openapi.json`.
pub fn normalise(raw: &Raw, subject: &Subject<'_>, config: &Config) -> Outcome {
    let mut draft = Draft::read(raw, subject);
    draft.take_file(raw.file.as_ref(), subject);
    draft.check_handed_back();
    draft.check_schema(subject.dispatch);
    let (spent, by_model) = {
        let mut meter = raw.accumulator.meter.clone();
        meter.conclude(&draft.result);
        let budget = subject.dispatch.budget.as_ref();
        if let Some(exceeded) = meter.exceeded(budget) {
            draft.fail("budget_exceeded", exceeded);
        }
        (meter.spent(), meter.by_model())
    };
    draft.check_size(config);
    let output = draft.result.output.take().map(output::clean);
    let fitted = output.map(|text| output::fit(text, subject.id, config));
    let (output, truncated, whole) = match fitted {
        None => (None, None, None),
        Some(Fitted::Whole(text)) => (Some(text), None, None),
        Some(Fitted::Cut {
            beginning,
            truncated,
            whole,
        }) => (Some(beginning), Some(truncated), Some(whole)),
        Some(Fitted::TooLarge { beginning, bytes }) => {
            let limit = config.output_limit_bytes;
            draft.fail(
                TOO_LARGE,
                format!("the output has at least {bytes} bytes, {limit} are allowed"),
            );
            (Some(beginning), None, None)
        }
    };
    let Draft {
        failure, result, ..
    } = draft;
    let dispatch = subject.dispatch;
    let session = result.session_id.as_deref();
    let body = Body {
        task_id: &dispatch.task_id,
        agent_id: &dispatch.agent_id,
        dispatch_id: subject.id,
        provider: subject.provider,
        status: match failure {
            None => Status::Ok,
            Some(_) => Status::Error,
        },
        output: output.as_deref(),
        structured_output: result.structured_output.as_ref(),
        error: failure.as_ref().map(|failure| failure.text.as_str()),
        error_code: failure.as_ref().map(|failure| failure.code.as_str()),
        duration_ms: u64::try_from(subject.elapsed.as_millis()).unwrap_or(u64::MAX),
        usage: UsageBody {
            total: spent.usage,
            by_model,
        },
        model: result.model.as_deref().or(dispatch.model.as_deref()),
        model_provider: result.model_provider.as_deref(),
        cost_usd: spent.cost_usd,
        session_id: session
            .or(raw.accumulator.session.as_deref())
            .or(subject.session),
        attempt: subject.attempt,
        tool_calls: &result.tool_calls,
        input_request: result.input_request.as_ref(),
        output_files: raw
            .output_files
            .iter()
            .map(|file| file.describe(subject.id))
            .collect(),
        output_truncated: truncated.as_ref(),
        retryable: failure.as_ref().and_then(|failure| failure.retryable),
        retry_after_ms: failure.as_ref().and_then(|failure| failure.retry_after_ms),
        details: failure
            .as_ref()
            .and_then(|failure| failure.details.as_ref()),
        started_at: subject.started_at,
        completed_at: subject.completed_at,
        trace_id: &dispatch.trace.trace_id,
        user_id: dispatch.user_id(),
        project_id: dispatch.project_id.as_deref(),
        run_id: dispatch.run_id.as_deref(),
        step_id: dispatch.step_id.as_deref(),
        gateway_id: dispatch.gateway_id.as_deref(),
        retry_of: subject.retry_of,
        metadata: dispatch.metadata.as_ref(),
    };
    Outcome {
        result: to_raw_value(&body).expect("a result has only text keys"),
        error_code: failure.as_ref().map(|failure| failure.code.clone()),
        error: failure.map(|failure| failure.text),
        output: whole,
        account: Account {
            usage: spent.usage,
            cost_usd: spent.cost_usd,
            model: result.model,
            model_provider: result.model_provider,
        },
    }
}

/// Body of the callback without `events`, which the store adds.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    task_id: &'a str,
    agent_id: &'a str,
    dispatch_id: DispatchId,
    provider: &'a str,
    status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    structured_output: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'a str>,
    duration_ms: u64,
    usage: UsageBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model_provider: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    attempt: u32,
    #[serde(skip_serializing_if = "<[ToolCall]>::is_empty")]
    tool_calls: &'a [ToolCall],
    #[serde(skip_serializing_if = "Option::is_none")]
    input_request: Option<&'a Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    output_files: Vec<Described<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_truncated: Option<&'a Truncated>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retryable: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Value>,
    #[serde(serialize_with = "forge_base::time::millis_option")]
    started_at: Option<Timestamp>,
    #[serde(serialize_with = "forge_base::time::millis")]
    completed_at: Timestamp,
    trace_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    project_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_of: Option<DispatchId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a Map<String, Value>>,
}

/// Usage over all attempts.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UsageBody {
    #[serde(flatten)]
    total: Usage,
    /// Empty if only one model was asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    by_model: Vec<ModelUsage>,
}

/// A result in progress. The first failure is kept, and the output of the run beside it.
struct Draft {
    failure: Option<Failure>,
    result: ExecutionResult,
    /// Bytes of the whole output, if it is streamed text of which only the beginning was kept.
    overflowed: Option<usize>,
}

impl Draft {
    fn read(raw: &Raw, subject: &Subject<'_>) -> Self {
        let refusal = raw.accumulator.refusal.as_ref();
        let (failure, answered) = match &raw.ending {
            Ending::Answered(bytes) => match answer::parse(bytes) {
                Ok(result) => (failure_of(&result, subject), Some(result)),
                Err(reason) => {
                    let text = format!("the adapter's answer is not a valid result: {reason}");
                    (Some(Failure::new("protocol_violation", text)), None)
                }
            },
            Ending::Failed(error) => {
                let code = adapter_code(Some(&error.code), subject);
                let text = or_silent(Some(&error.message));
                let failure = Failure::new(&code, text);
                let failure = failure.hinted(Some(error.retryable), error.retry_after_ms);
                let details = error.details.clone();
                let details = details.filter(|_| error.code != TOO_LARGE);
                (Some(failure.with_details(details)), kept(error))
            }
            Ending::Cancelled { answer } => {
                // An answer that cannot be parsed is ignored: the result is `cancelled` anyway.
                let late = answer.as_deref().and_then(|a| answer::parse(a).ok());
                let failure = Failure::new("cancelled", "cancelled by request");
                (Some(failure.after(refusal)), late)
            }
            Ending::Blocked { message, answer } => {
                let kept = answer.as_deref().and_then(|a| answer::parse(a).ok());
                (Some(Failure::new("blocked_by_policy", message)), kept)
            }
            Ending::TimedOut => {
                let seconds = subject.elapsed.as_secs_f64();
                let text = format!("not finished after {seconds:.3} s");
                (Some(Failure::new("timeout", text).after(refusal)), None)
            }
            Ending::Stalled => {
                let idle = subject.dispatch.idle_timeout.unwrap_or_default();
                let text = format!("no event for {} s", idle.as_secs_f64());
                (Some(Failure::new("stalled", text).after(refusal)), None)
            }
            Ending::QueueTimeout => {
                let text = "not started within its queue timeout or before its deadline";
                (Some(Failure::new("queue_timeout", text)), None)
            }
            Ending::Interrupted(text) => (Some(Failure::new("interrupted", text)), None),
            Ending::OverBudget(text) => (Some(Failure::new("budget_exceeded", text)), None),
            Ending::Unavailable(text) => (Some(Failure::new("adapter_unavailable", text)), None),
            Ending::Unreadable(text) => (Some(Failure::new("record_unreadable", text)), None),
        };
        let mut result = answered.unwrap_or_default();
        let mut overflowed = None;
        let Accumulator {
            text, text_bytes, ..
        } = &raw.accumulator;
        if result.output.is_none() && !text.is_empty() {
            // Streamed text is the output if the answer has none.
            result.output = Some(text.clone());
            overflowed = (*text_bytes > text.len()).then_some(*text_bytes);
        }
        Self {
            failure,
            result,
            overflowed,
        }
    }

    /// Sets the failure unless there is one already.
    fn fail(&mut self, code: &str, text: impl Into<String>) {
        self.failure.get_or_insert_with(|| Failure::new(code, text));
    }

    /// Takes the file that the run wrote as the output, with the `file` strategy.
    fn take_file(&mut self, file: Option<&Captured>, subject: &Subject<'_>) {
        if subject.strategy != OutputStrategy::File {
            return;
        }
        match file {
            Some(Captured::Read(bytes)) => {
                self.result.output = Some(String::from_utf8_lossy(bytes).into_owned());
                self.overflowed = None;
            }
            Some(Captured::Missing(reason)) => self.fail("output_missing", reason.clone()),
            None => self.fail("output_missing", "the output file was not read"),
        }
    }

    /// Fails a run that asks for input or returns tool calls, so that no workflow continues as if it had finished.
    fn check_handed_back(&mut self) {
        if self.result.input_request.is_some() {
            self.fail("input_required", "the run asks for input");
        } else if !self.result.tool_calls.is_empty() {
            self.fail("input_required", "the run returned tool calls to answer");
        }
    }

    fn check_schema(&mut self, dispatch: &DispatchRequest) {
        let Some(schema) = dispatch.output_schema.as_ref() else {
            return;
        };
        if self.failure.is_some() {
            return;
        }
        let text = self.result.output.as_deref();
        let structured = self.result.structured_output.as_ref();
        match structured::check(schema, structured, text) {
            Ok(value) => self.result.structured_output = Some(value),
            Err(reason) => {
                self.fail("output_invalid", reason);
                // Keeps the output although it does not match.
                let raw = self.result.structured_output.take();
                let output = self.result.output.take();
                self.result.output = output.or(raw.map(|value| value.to_string()));
            }
        }
    }

    /// Applies the output limit to the parts beside the output as well.
    fn check_size(&mut self, config: &Config) {
        let limit = config.output_limit_bytes;
        let result = &mut self.result;
        let beside = [
            result.structured_output.as_ref().map(to_raw_value),
            result.input_request.as_ref().map(to_raw_value),
            Some(to_raw_value(&result.tool_calls)),
        ];
        let bytes: usize = beside
            .iter()
            .flatten()
            .flatten()
            .map(|j| j.get().len())
            .sum();
        if bytes > limit {
            result.structured_output = None;
            result.tool_calls = Vec::new();
            result.input_request = None;
            let text = format!("the structured output has {bytes} bytes, {limit} are allowed");
            self.fail(TOO_LARGE, text);
        }
        if let Some(bytes) = self.overflowed {
            let output = self.result.output.iter_mut();
            output.for_each(|text| {
                text.truncate(text.floor_char_boundary(config.output_inline_bytes));
            });
            let text = format!("the output has {bytes} bytes, {limit} are allowed");
            self.fail(TOO_LARGE, text);
        }
    }
}

/// The beginning of an output that was too large to be accepted.
fn kept(error: &AdapterError) -> Option<ExecutionResult> {
    let details = error.details.as_ref();
    let output = details.filter(|_| error.code == TOO_LARGE)?["output"].as_str()?;
    Some(ExecutionResult::ok(output))
}
