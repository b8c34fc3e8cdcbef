//! `outputSchema` for adapters without structured output: the bridge adds the schema to the instructions, and where the
//! answer does not follow it and the adapter keeps sessions, asks once more in the same session.
//!
//! The repair turn belongs to the attempt: it shares deadline, budget and end with the first turn, and a crash in it is a
//! crash of the attempt, to which the recovery policy applies.

use forge_adapter_api::{ExecutionRequest, ExecutionResult, OutputStrategy, Status, Usage};
use forge_plugin_host::Permit;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Inner;
use super::attempt::CRASHED;
use super::event_batcher::EventBatcher;
use super::execute::{Attempt, AttemptEnd};
use super::normalise::{answer, structured};
use super::request::DispatchRequest;
use super::tool_loop::to_bytes;

/// Maximum bytes of the mismatch that the model is told.
const REASON_BYTES: usize = 2 * 1024;

/// Instruction for a run whose adapter is not given the schema itself; `None` where there is nothing to add.
pub(super) fn instruction(dispatch: &DispatchRequest, strategy: OutputStrategy) -> Option<String> {
    let schema = dispatch.output_schema.as_ref()?;
    let text = || {
        format!(
            "Answer with one JSON value only, without any other text and without a code fence. It must follow this JSON \
             Schema:\n{schema}"
        )
    };
    (strategy == OutputStrategy::Stream).then(text)
}

/// The parts of a repair turn that are known before the first turn.
pub(super) struct Repair<'a> {
    schema: &'a Value,
    instruction: String,
    /// The request of the first turn without its own parts.
    again: Box<ExecutionRequest>,
}

impl<'a> Repair<'a> {
    /// `None` if the adapter checks the output itself or keeps no sessions.
    pub(super) fn of(
        dispatch: &'a DispatchRequest,
        first: &ExecutionRequest,
        adapter: &Permit,
    ) -> Option<Self> {
        let instruction = instruction(dispatch, first.output_strategy)?;
        let profile = adapter.profile()?;
        profile.supports("session_resume").then(|| Self {
            schema: dispatch
                .output_schema
                .as_ref()
                .expect("there is an instruction"),
            instruction,
            again: Box::new(ExecutionRequest {
                message: String::new(),
                attachments: Vec::new(),
                tool_results: Vec::new(),
                ..first.clone()
            }),
        })
    }

    /// Reason for which a complete answer needs a repair.
    fn mismatch(&self, result: &ExecutionResult, batcher: &EventBatcher) -> Option<String> {
        let is_complete = result.status == Status::Ok
            && result.tool_calls.is_empty()
            && result.input_request.is_none();
        let text = result
            .output
            .as_deref()
            .unwrap_or(&batcher.accumulator.text);
        let checked =
            || structured::check(self.schema, result.structured_output.as_ref(), Some(text));
        let mut reason = is_complete.then(checked)?.err()?;
        reason.truncate(reason.floor_char_boundary(REASON_BYTES));
        Some(reason)
    }
}

impl Inner {
    /// Executes an attempt; asks once more if the output does not follow the schema. If that turn fails, the attempt ends
    /// with the first answer.
    pub(super) async fn repaired(
        &self,
        attempt: &Attempt<'_>,
        request: Box<ExecutionRequest>,
        repair: Repair<'_>,
        batcher: &mut EventBatcher,
    ) -> AttemptEnd {
        let end = self.rounds(attempt, request, batcher).await;
        let AttemptEnd::Answered(Ok(bytes)) = &end else {
            return end;
        };
        // `normalise` refuses an answer that is not a result.
        let Ok(first) = answer::parse(bytes) else {
            return end;
        };
        let Some(reason) = repair.mismatch(&first, batcher) else {
            return end;
        };
        let Repair {
            instruction,
            mut again,
            ..
        } = repair;
        // Harmless if the attempt ends with this answer: totals are raised to a value, not by it.
        let accumulator = &mut batcher.accumulator;
        accumulator.conclude(&first);
        let session = accumulator.session.clone();
        again.session_id = session.or_else(|| again.session_id.take());
        if again.session_id.is_none()
            || accumulator
                .meter
                .exceeded(attempt.dispatch.budget.as_ref())
                .is_some()
        {
            return end;
        }
        let first = ExecutionResult {
            output: first.output.or_else(|| Some(accumulator.text.clone())),
            // Counted from here on.
            usage: Usage::default(),
            cost_usd: None,
            ..first
        };
        accumulator.begin_round();
        again.message = format!("Your answer is not valid: {reason}.\n\n{instruction}");
        again.resume = false;
        let left = attempt.deadline.saturating_duration_since(Instant::now());
        again.timeout_seconds = left.as_secs_f64();
        again.budget = accumulator.meter.left(attempt.dispatch.budget.as_ref());
        let data = json!({"kind": "output_repair", "reason": reason});
        batcher.note("exec.progress", &data, attempt.clock.now());
        match self.rounds(attempt, again, batcher).await {
            AttemptEnd::Answered(Ok(bytes)) => {
                let second = answer::parse(&bytes).ok();
                if second
                    .as_ref()
                    .is_some_and(|second| second.status == Status::Ok)
                {
                    return AttemptEnd::Answered(Ok(bytes));
                }
                if let Some(failed) = second {
                    batcher.accumulator.meter.conclude(&failed);
                }
                AttemptEnd::Answered(Ok(to_bytes(&first)))
            }
            AttemptEnd::Answered(Err(error)) if error.code != CRASHED => {
                AttemptEnd::Answered(Ok(to_bytes(&first)))
            }
            AttemptEnd::Cut { why, answer } => AttemptEnd::Cut {
                why,
                answer: answer.or_else(|| Some(to_bytes(&first))),
            },
            end @ (AttemptEnd::Answered(Err(_)) | AttemptEnd::Lost) => end,
        }
    }
}
