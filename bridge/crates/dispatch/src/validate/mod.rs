//! Validates the body of a dispatch, already parsed with bounds, into a [`DispatchRequest`] that needs no further
//! checks. Reports all complaints at once. Independent of adapters: `route` checks their capabilities.

mod attachments;
mod callback;
pub mod fields;
mod options;
#[cfg(test)]
mod rows;
pub(crate) mod spelling;
mod tools;
pub(crate) mod workspace;

use std::collections::BTreeSet;

use forge_adapter_api::request::Budget;
use forge_adapter_api::{CostTier, LatencyProfile, OutputStrategy};
use serde_json::Value;

pub(crate) use self::attachments::read_media_type;
pub use self::callback::Guard;
pub use self::fields::FieldError;
pub use self::tools::Entries;

use self::fields::{Complaints, Fields, Name};
use self::workspace::Roots;
use super::Config;
use super::request::{DispatchRequest, Preferences, Recovery, Secrets};
use super::trace::Trace;
use crate::mcp;
use forge_base::id::DispatchId;
use forge_base::schema;

const TIMEOUT: Name = Name {
    camel: "timeout",
    others: &["timeoutSeconds"],
};

/// Headers of the request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envelope<'a> {
    pub idempotency_key: Option<&'a str>,
    pub traceparent: Option<&'a str>,
}

/// Limits and names of this bridge's configuration.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    pub config: &'a Config,
    /// The dispatch is a step of a run.
    pub is_step: bool,
    /// Names of configured MCP servers.
    pub mcp_servers: &'a BTreeSet<String>,
    /// Finds the entry of an external service; `Err` says what is wrong with its name.
    pub external: tools::Entries<'a>,
    /// Check of the callback's address.
    pub callback: Guard<'a>,
}

/// Valid request, apart from its secrets.
#[derive(Debug)]
pub struct Validated {
    pub dispatch: DispatchRequest,
    /// Contents of the attachments by position; empty for those that did not come in the body.
    pub attachments: Vec<Vec<u8>>,
    pub secrets: Secrets,
    /// Misspelt fields, which are ignored.
    pub warnings: Vec<String>,
}

/// Validates every field of the schema `DispatchRequest` of `openapi.json`. The error is the list of all complaints.
pub fn validate(
    body: &Value,
    envelope: &Envelope<'_>,
    limits: &Limits<'_>,
) -> Result<Validated, Vec<FieldError>> {
    let complaints = Complaints::default();
    check_idempotency_key(envelope, &complaints);
    let read = Fields::read(body, "", &complaints)
        .and_then(|fields| read_dispatch(&fields, envelope, limits));
    let (complaints, warnings) = complaints.into_parts();
    match read {
        Some((dispatch, attachments, secrets)) if complaints.is_empty() => Ok(Validated {
            dispatch,
            attachments,
            secrets,
            warnings,
        }),
        Some(_) | None => Err(complaints),
    }
}

/// Reads all members; `None` only after a complaint.
fn read_dispatch(
    fields: &Fields<'_>,
    envelope: &Envelope<'_>,
    limits: &Limits<'_>,
) -> Option<(DispatchRequest, Vec<Vec<u8>>, Secrets)> {
    let config = limits.config;
    spelling::warn(fields, spelling::DISPATCH);
    let task_id = read_task_id(fields);
    let agent_id = fields.required_id("agentId");
    let message = fields.required_text("message").map(str::to_owned);
    let (callback, secrets) = callback::read(fields, limits.callback);
    let (not_before, deadline) = (fields.time("notBefore"), fields.time("deadline"));
    if not_before.zip(deadline).is_some_and(|(n, d)| d <= n) {
        fields.complain("deadline", "must be later than notBefore");
    }
    let (workspace, workspace_id) = workspace::read(fields, &Roots::new(config, limits.is_step));
    let output_strategy = read_output_strategy(fields);
    let dir_given = fields
        .value("workspace")
        .is_some_and(|workspace| workspace.get("dir").is_some_and(|dir| !dir.is_null()));
    if output_strategy == Some(OutputStrategy::File) && !dir_given {
        let message = "the file strategy needs workspace.dir, where the output file is written";
        fields.complain("outputStrategy", message);
    }
    let (tools, external_tools) = tools::read(fields, limits.external);
    let mcp_servers = read_mcp_servers(fields, limits.mcp_servers);
    let offered = options::Offered {
        tools: &tools,
        others: !mcp_servers.is_empty() || !external_tools.is_empty(),
    };
    let options = options::read(fields, &offered);
    let (attachments, contents) = attachments::read(fields, limits.callback, dir_given);
    let timeout = fields.seconds(TIMEOUT, config.max_timeout);
    let queue_timeout = fields.seconds("queueTimeoutSeconds", config.max_queue_timeout);
    let dispatch = DispatchRequest {
        attachments,
        callback,
        provider: fields.id("provider"),
        system_prompt: fields.text("systemPrompt").map(str::to_owned),
        model: fields.id("model"),
        options,
        timeout: timeout.unwrap_or(config.default_timeout),
        idle_timeout: fields.seconds("idleTimeoutSeconds", config.max_timeout),
        queue_timeout: queue_timeout.unwrap_or(config.queue_timeout),
        not_before,
        deadline,
        tools,
        tool_results: tools::read_results(fields),
        mcp_servers,
        external_tools,
        caller: None,
        workspace,
        workspace_id,
        output_strategy,
        output_schema: read_output_schema(fields, config.schema_limit_bytes),
        output_file: workspace::read_output_file(fields),
        session_id: fields.id("sessionId"),
        requires: fields.words("requires"),
        preferences: read_preferences(fields),
        priority: read_priority(fields),
        recovery: read_recovery(fields),
        budget: read_budget(fields),
        user_id: fields.id("userId"),
        project_id: fields.id("projectId"),
        submitter: None,
        is_step: limits.is_step,
        run_id: fields.id("runId"),
        step_id: fields.id("stepId"),
        gateway_id: fields.id("gatewayId"),
        retry_of: read_retry_of(fields),
        metadata: fields.map("metadata").cloned(),
        trace: Trace::from_header(envelope.traceparent),
        // Last, so that all other members are read even if one of these is missing.
        task_id: task_id?,
        agent_id: agent_id?,
        message: message?,
    };
    check_tool_names(fields, &dispatch);
    Some((dispatch, contents, secrets))
}

/// Refuses tools with the name prefix of an MCP server, so that a call names exactly one tool.
fn check_tool_names(fields: &Fields<'_>, dispatch: &DispatchRequest) {
    for tool in &dispatch.tools {
        let mut servers = dispatch.mcp_servers.iter();
        if let Some(server) = servers.find(|name| tool.name.starts_with(&mcp::prefix(name))) {
            let message = format!(
                "{:?} has the name prefix of the tools of MCP server {server:?}",
                tool.name
            );
            fields.complain("tools", message);
        }
    }
}

fn check_idempotency_key(envelope: &Envelope<'_>, complaints: &Complaints) {
    let visible = |key: &str| {
        (1..=256).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if envelope.idempotency_key.is_some_and(|key| !visible(key)) {
        let message = "the header must be 1 to 256 visible ASCII characters";
        complaints.add("Idempotency-Key", message);
    }
}

fn read_task_id(fields: &Fields<'_>) -> Option<String> {
    let id = fields.required_id("taskId")?;
    if id.starts_with("dsp_") {
        fields.complain(
            "taskId",
            "must not begin with dsp_, which is reserved for ids of the bridge",
        );
        return None;
    }
    Some(id)
}

fn read_retry_of(fields: &Fields<'_>) -> Option<DispatchId> {
    let id = fields.text("retryOf")?.parse().ok();
    if id.is_none() {
        fields.complain("retryOf", "must be the id of a dispatch, dsp_…");
    }
    id
}

fn read_mcp_servers(fields: &Fields<'_>, configured: &BTreeSet<String>) -> Vec<String> {
    let names = fields.words("mcpServers");
    for name in names.iter().filter(|name| !configured.contains(*name)) {
        let known: Vec<&str> = configured.iter().map(String::as_str).collect();
        let known = match known.as_slice() {
            [] => "configured servers: none".to_owned(),
            known => format!("configured servers: {}", known.join(", ")),
        };
        let message = format!("no MCP server {name:?} is configured; {known}");
        fields.complain("mcpServers", message);
    }
    names
}

fn read_output_strategy(fields: &Fields<'_>) -> Option<OutputStrategy> {
    let choices = [
        ("file", OutputStrategy::File),
        ("stream", OutputStrategy::Stream),
        ("structured", OutputStrategy::Structured),
    ];
    fields.choice("outputStrategy", &choices)
}

fn read_output_schema(fields: &Fields<'_>, limit: usize) -> Option<Value> {
    fields.map("outputSchema")?;
    let schema = fields.value("outputSchema")?;
    if schema.to_string().len() > limit {
        fields.complain("outputSchema", format!("must have at most {limit} bytes"));
        return None;
    }
    if let Err(complaint) = schema::compile(schema) {
        fields.complain("outputSchema", complaint);
        return None;
    }
    Some(schema.clone())
}

fn read_preferences(fields: &Fields<'_>) -> Preferences {
    let Some(fields) = fields.object("preferences") else {
        return Preferences::default();
    };
    spelling::warn(&fields, spelling::PREFERENCES);
    let tiers = [
        ("low", CostTier::Low),
        ("medium", CostTier::Medium),
        ("high", CostTier::High),
    ];
    let latencies = [
        ("fast", LatencyProfile::Fast),
        ("moderate", LatencyProfile::Moderate),
        ("variable", LatencyProfile::Variable),
    ];
    Preferences {
        cost_tier: fields.choice("costTier", &tiers),
        latency_profile: fields.choice("latencyProfile", &latencies),
        providers: fields.words("providers"),
    }
}

fn read_priority(fields: &Fields<'_>) -> i8 {
    let priority = fields.integer("priority", -10, 10).unwrap_or(0);
    i8::try_from(priority).expect("it is between -10 and 10")
}

fn read_recovery(fields: &Fields<'_>) -> Recovery {
    let choices = [
        ("fail", Recovery::Fail),
        ("retry", Recovery::Retry),
        ("resume", Recovery::Resume),
    ];
    fields.choice("recovery", &choices).unwrap_or_default()
}

/// Reads the budget; one without limits counts as absent.
pub fn read_budget(fields: &Fields<'_>) -> Option<Budget> {
    let fields = fields.object("budget")?;
    spelling::warn(&fields, spelling::BUDGET);
    let tokens = fields.integer("maxTokens", 1, 1 << 53);
    let budget = Budget {
        max_cost_usd: fields.positive("maxCostUsd"),
        max_tokens: tokens.map(i64::unsigned_abs),
    };
    (budget != Budget::default()).then_some(budget)
}
