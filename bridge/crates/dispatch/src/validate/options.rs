//! Reads `options`: settings of the model for one dispatch.

use forge_adapter_api::ModelOptions;
use forge_adapter_api::options::{Reasoning, ToolChoice};
use forge_adapter_api::request::Tool;

use super::fields::{Fields, describe};
use super::spelling;

/// Highest `maxOutputTokens`.
const MAX_OUTPUT_TOKENS: i64 = 10_000_000;
/// Largest absolute `seed`: integers up to it survive every JSON parser.
const MAX_SEED: i64 = 1 << 53;
/// Maximum number of texts of `stop`, and bytes of each.
const STOPS: usize = 16;
const STOP_BYTES: usize = 256;

/// Tools that `toolChoice` can mean.
pub(super) struct Offered<'a> {
    pub(super) tools: &'a [Tool],
    /// True if MCP servers add tools with names unknown here.
    pub(super) others: bool,
}

pub(super) fn read(fields: &Fields<'_>, offered: &Offered<'_>) -> ModelOptions {
    let Some(fields) = fields.object("options") else {
        return ModelOptions::default();
    };
    spelling::warn_about_all(&fields, spelling::OPTIONS);
    let reasoning = [
        Reasoning::Off,
        Reasoning::Low,
        Reasoning::Medium,
        Reasoning::High,
    ];
    let tokens = fields.integer("maxOutputTokens", 1, MAX_OUTPUT_TOKENS);
    let top_p = fields.number("topP", 0.0, 1.0);
    if top_p == Some(0.0) {
        fields.complain("topP", "must be above 0");
    }
    ModelOptions {
        temperature: fields.number("temperature", 0.0, 2.0),
        top_p,
        max_output_tokens: tokens.map(i64::unsigned_abs),
        reasoning: fields.choice(
            "reasoning",
            &reasoning.map(|effort| (effort.name(), effort)),
        ),
        tool_choice: read_tool_choice(&fields, offered),
        stop: read_stop(&fields),
        seed: fields.integer("seed", -MAX_SEED, MAX_SEED),
    }
}

fn read_stop(fields: &Fields<'_>) -> Vec<String> {
    let stop = fields.words("stop");
    if stop.len() > STOPS || stop.iter().any(|text| text.len() > STOP_BYTES) {
        let message = format!("must have at most {STOPS} texts of at most {STOP_BYTES} bytes");
        fields.complain("stop", message);
    }
    stop
}

fn read_tool_choice(fields: &Fields<'_>, offered: &Offered<'_>) -> Option<ToolChoice> {
    let value = fields.value("toolChoice")?;
    let choice = match (
        value.as_str(),
        value.get("tool").and_then(|tool| tool.as_str()),
    ) {
        (Some("auto"), _) => ToolChoice::Auto,
        (Some("none"), _) => ToolChoice::None,
        (Some("required"), _) => ToolChoice::Required,
        (_, Some(name)) => ToolChoice::Tool(name.to_owned()),
        (_, None) => {
            let given = match value.as_str() {
                Some(_) => "another text",
                None => describe(value),
            };
            let message =
                format!("must be auto, none, required or {{\"tool\": NAME}}, not {given}");
            fields.complain("toolChoice", message);
            return None;
        }
    };
    let is_there = match &choice {
        ToolChoice::Auto | ToolChoice::None => true,
        ToolChoice::Required => offered.others || !offered.tools.is_empty(),
        ToolChoice::Tool(name) => {
            offered.others || offered.tools.iter().any(|tool| tool.name == *name)
        }
    };
    if !is_there {
        fields.complain("toolChoice", "needs a tool that tools does not have");
    }
    Some(choice)
}
