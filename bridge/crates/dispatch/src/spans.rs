//! Trace spans of a dispatch's stages, after OpenTelemetry's conventions for agents and tools, and the log span of
//! its log lines. Never contain a prompt, an output, an argument or the text of an error.

use forge_adapter_api::Usage;
use jiff::Timestamp;

use forge_base::id::DispatchId;
use forge_base::trace::{self, Kind, Span, Spans, Stage, TraceContext};
use forge_store::record;

use super::normalise::Account;
use super::request::DispatchRequest;
use super::tool_calls::ToolRun;
use super::trace::Trace;

/// Log span of a dispatch. Enabled at every log level.
pub(super) fn log_span(id: DispatchId, trace: &str) -> tracing::Span {
    tracing::error_span!("dispatch", dispatch.id = %id, trace.id = trace)
}

/// Adds the ids of the dispatch to the log span of the current request.
pub(super) fn log_under(id: DispatchId, trace: &str) {
    let span = tracing::Span::current();
    span.record("dispatch.id", tracing::field::display(id));
    span.record("trace.id", trace);
}

/// Emits the span from the request's arrival to its record on disk.
pub(super) fn accepted(
    spans: &Spans,
    (id, trace): (DispatchId, &Trace),
    provider: &str,
    (from, to): (Timestamp, Timestamp),
) {
    if let Some(context) = spans.wanted(|| trace.context()) {
        let own = context.with_span(trace::random_id());
        let span = Span::new(own, Some(context.span), "accept", from, to)
            .text("forge.dispatch.id", id.to_string())
            .text("forge.provider", provider);
        spans.put(span);
    }
}

/// A dispatch whose trace is sampled.
#[derive(Clone, Copy)]
pub(super) struct DispatchSpans<'a> {
    spans: &'a Spans,
    context: TraceContext,
    id: DispatchId,
    request: &'a DispatchRequest,
}

/// Attributes of an attempt that has ended.
pub(super) struct ExecutedAttempt<'a> {
    pub(super) attempt: u32,
    pub(super) provider: &'a str,
    pub(super) session: Option<&'a str>,
    pub(super) account: Option<&'a Account>,
    pub(super) error_code: Option<&'a str>,
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
}

impl<'a> DispatchSpans<'a> {
    /// `None` if the trace is not sampled or no spans are exported.
    pub(super) fn of(
        spans: &'a Spans,
        id: DispatchId,
        request: &'a DispatchRequest,
    ) -> Option<Self> {
        let context = spans.wanted(|| request.trace.context())?;
        Some(Self {
            spans,
            context,
            id,
            request,
        })
    }

    /// Emits the span of the time in the queue.
    pub(super) fn queued(&self, from: Timestamp, to: Timestamp) {
        let own = self.context.with_span(trace::random_id());
        let span = Span::new(own, Some(self.context.span), "queue", from, to);
        self.spans
            .put(span.text("forge.dispatch.id", self.id.to_string()));
    }

    /// Emits the span of one attempt, after the conventions for agents.
    pub(super) fn executed(&self, ran: &ExecutedAttempt<'_>) {
        let request = self.request;
        let account = ran.account;
        let context = self.context.stage(Stage::Execute(ran.attempt));
        let name = format!("invoke_agent {}", cut(&request.agent_id));
        let maker = account.and_then(|account| account.model_provider.as_deref());
        let model = account.and_then(|account| account.model.as_deref());
        let Usage {
            input_tokens,
            output_tokens,
            thinking_tokens,
            total_tokens: _,
            cache_read_tokens,
            cache_write_tokens,
        } = account.map_or_else(Usage::default, |account| account.usage);
        let span = Span::new(context, Some(self.context.span), name, ran.from, ran.to)
            .kind(Kind::Client)
            .text("gen_ai.operation.name", "invoke_agent")
            .text("gen_ai.provider.name", maker.unwrap_or(ran.provider))
            .text("gen_ai.agent.id", &request.agent_id)
            .maybe_text("gen_ai.request.model", request.model.as_deref())
            .maybe_text("gen_ai.response.model", model)
            .maybe_text("gen_ai.conversation.id", ran.session)
            .whole("gen_ai.usage.input_tokens", input_tokens)
            .whole("gen_ai.usage.output_tokens", output_tokens)
            .whole("gen_ai.usage.reasoning.output_tokens", thinking_tokens)
            .whole("gen_ai.usage.cache_read.input_tokens", cache_read_tokens)
            .whole(
                "gen_ai.usage.cache_creation.input_tokens",
                cache_write_tokens,
            )
            .real(
                "forge.cost.usd",
                account.and_then(|account| account.cost_usd),
            )
            .text("forge.provider", ran.provider)
            .text("forge.dispatch.id", self.id.to_string())
            .whole("forge.attempt", Some(ran.attempt.into()))
            .failed(ran.error_code);
        self.spans.put(span);
    }

    /// Emits a span for each tool call of an attempt. Calls without an end last until `ended`.
    pub(super) fn tools_called(&self, attempt: u32, runs: Vec<ToolRun>, ended: Timestamp) {
        let parent = self.context.stage(Stage::Execute(attempt));
        for run in runs {
            let context = parent.with_span(trace::random_id());
            let name = format!("execute_tool {}", run.name);
            let end = run.end.unwrap_or(ended);
            let error = match (run.end, run.failed) {
                (None, _) => Some("unfinished"),
                (Some(_), true) => Some("tool_error"),
                (Some(_), false) => None,
            };
            let span = Span::new(context, Some(parent.span), name, run.start, end)
                .text("gen_ai.operation.name", "execute_tool")
                .text("gen_ai.tool.name", &run.name)
                .text("gen_ai.tool.call.id", &run.id)
                .failed(error);
            self.spans.put(span);
        }
    }

    /// Emits the span of the whole dispatch, from acceptance to result.
    pub(super) fn finished(
        &self,
        record: &record::DispatchRecord,
        error_code: Option<&str>,
        at: Timestamp,
    ) {
        let request = self.request;
        let parent = request.trace.parent();
        let span = Span::new(self.context, parent, "dispatch", record.accepted_at, at)
            .kind(Kind::Server)
            .text("forge.dispatch.id", self.id.to_string())
            .text("forge.task.id", &request.task_id)
            .text("forge.agent.id", &request.agent_id)
            .maybe_text("forge.run.id", request.run_id.as_deref())
            .maybe_text("forge.step.id", request.step_id.as_deref())
            .text("forge.provider", &record.provider)
            .whole("forge.attempts", Some(record.attempts.into()))
            .failed(error_code);
        self.spans.put(span);
    }
}

/// Cuts a text for use in a span's name: at most 100 bytes.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(100)]
}
