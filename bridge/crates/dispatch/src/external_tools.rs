//! Tools of one attempt that the bridge runs: those of MCP servers, and entries of external services.

use std::collections::BTreeMap;

use forge_adapter_api::request::Tool;
use forge_adapter_api::{AdapterError, ExecutionRequest};
use serde_json::Value;

use crate::mcp::{Answer, Session};
use forge_base::trace::TraceContext;
use forge_external::{Call, EntryName, External, Identity, Outcome, Repeat};

use super::request::DispatchRequest;

/// All tools of the bridge.
pub(super) struct Toolbox {
    pub(super) session: Session,
    pub(super) external: ExternalTools,
}

impl Toolbox {
    /// True if the bridge runs this tool.
    pub(super) fn owns(&self, tool: &str) -> bool {
        self.session.owns(tool) || self.external.runs(tool)
    }

    /// Calls one tool. Every failure is an answer, so that the model can continue.
    pub(super) async fn call(&self, tool: &str, input: &Value) -> Answer {
        match self.external.entries.get(tool) {
            Some((name, _)) => self.external.call(name, input).await,
            None => self.session.call(tool, input).await,
        }
    }
}

/// Entries of external services that are tools of an attempt, called with the identity of the submitter.
pub(super) struct ExternalTools {
    external: External,
    caller: Identity,
    /// Span of the attempt.
    trace: Option<TraceContext>,
    /// By the name of the tool.
    entries: BTreeMap<String, (EntryName, Tool)>,
}

impl ExternalTools {
    /// The entries as they are now; fails if one is gone.
    pub(super) fn of(
        external: &External,
        dispatch: &DispatchRequest,
        request: &ExecutionRequest,
    ) -> Result<Self, AdapterError> {
        let unknown = |message| AdapterError::new("external_entry_unknown", message);
        let mut entries = BTreeMap::new();
        for named in &dispatch.external_tools {
            let name = external.resolve(named).map_err(unknown)?;
            let gone = || unknown(format!("no external service has the entry {named:?}"));
            let tool = external.tool(&name).ok_or_else(gone)?;
            let tool = Tool {
                name: tool.name,
                description: tool.description,
                input_schema: tool.input_schema,
            };
            entries.insert(tool.name.clone(), (name, tool));
        }
        let trace = request.meta.traceparent.as_deref();
        let trace = trace.and_then(TraceContext::parse);
        Ok(Self {
            external: external.clone(),
            caller: dispatch.caller.clone().unwrap_or(Identity::Anonymous),
            trace,
            entries,
        })
    }

    pub(super) fn tools(&self) -> impl Iterator<Item = Tool> {
        self.entries.values().map(|(_, tool)| tool.clone())
    }

    /// True for an entry, unless its calls wait for an approval: they are handed back to the caller.
    fn runs(&self, tool: &str) -> bool {
        let found = self.entries.get(tool);
        found.is_some_and(|(name, _)| !self.external.is_held(name))
    }

    async fn call(&self, name: &EntryName, input: &Value) -> Answer {
        let args = match input {
            Value::Null => Value::Object(serde_json::Map::new()),
            input => input.clone(),
        };
        let trace = self
            .external
            .span_of_call(self.trace, TraceContext::start());
        let parent = self.trace.map(|attempt| attempt.span);
        let call = Call::new(name, args, &self.caller, (trace, parent));
        let answered = match self.external.prepare(&call) {
            Ok(prepared) => prepared.send(Repeat::Briefly).await,
            Err(answered) => answered,
        };
        let last = answered.diagnostics.last();
        let text = |key| last.and_then(|last| last[key].as_str()).unwrap_or_default();
        match answered.outcome {
            Outcome::Done => Answer {
                output: answered.result.unwrap_or_default(),
                is_error: false,
            },
            Outcome::Denied
            | Outcome::Refused
            | Outcome::Failed
            | Outcome::TimedOut
            | Outcome::Unavailable(_) => Answer {
                output: format!("{}: {}", text("code"), text("message")).into(),
                is_error: true,
            },
        }
    }
}
