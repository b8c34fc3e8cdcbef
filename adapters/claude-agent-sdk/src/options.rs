//! Options of one dispatch for this adapter, in `metadata.claude-agent-sdk`. They can only narrow what the operator
//! allows.

use forge_adapter_api::options::Reasoning;
use forge_adapter_api::{AdapterError, ExecutionRequest, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::config::Table;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(crate) struct Options {
    /// Continues a copy of the session.
    pub(crate) fork_session: bool,
    /// Upper bound of turns; the lower of this and the operator's applies.
    pub(crate) max_turns: Option<u64>,
    /// Permission mode, at most the operator's.
    pub(crate) permission_mode: Option<Mode>,
    /// The program's tools that are available, out of the operator's.
    pub(crate) allowed_tools: Option<Vec<String>>,
    pub(crate) effort: Option<Effort>,
}

/// Permission modes, those that allow less first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Mode {
    Plan,
    DontAsk,
    #[serde(alias = "manual")]
    Default,
    AcceptEdits,
    Auto,
    BypassPermissions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Effort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl Options {
    /// Reads and checks the options; errors are `invalid_request`.
    pub(crate) fn read(request: &ExecutionRequest, table: &Table) -> Result<Self> {
        let given = request
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.get("claude-agent-sdk"));
        let options: Self = match given {
            None | Some(Value::Null) => Self::default(),
            Some(given) => Self::deserialize(given).map_err(|error| refused(&error.to_string()))?,
        };
        options.check(table).map_err(|text| refused(&text))?;
        Ok(options)
    }

    fn check(&self, table: &Table) -> std::result::Result<(), String> {
        // A mode of a later program is taken for one that asks.
        let configured = table.permission_mode.clone().map(Value::from);
        let limit = configured
            .and_then(|mode| serde_json::from_value(mode).ok())
            .unwrap_or(Mode::Default);
        if let Some(mode) = self.permission_mode.filter(|mode| *mode > limit) {
            return Err(format!(
                "permissionMode: {:?} allows more than the adapter's permission_mode, {:?}",
                mode.name(),
                limit.name()
            ));
        }
        for tool in self.allowed_tools.iter().flatten() {
            let is_name = tool.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if tool.is_empty() || !is_name {
                return Err(format!("allowedTools: {tool:?} is not the name of a tool"));
            }
            if table.tools.as_ref().is_some_and(|all| !all.contains(tool)) {
                let text = format!("allowedTools: {tool:?} is not one of the adapter's tools");
                return Err(text);
            }
        }
        Ok(())
    }

    /// Arguments that set the effort of thinking, from these options or the dispatch's `options.reasoning`.
    pub(crate) fn effort(
        &self,
        reasoning: Option<Reasoning>,
    ) -> Option<(&'static str, &'static str)> {
        match (self.effort, reasoning) {
            (Some(effort), _) => Some(("effort", effort.name())),
            (None, Some(Reasoning::Off)) => Some(("thinking", "disabled")),
            (None, Some(reasoning)) => Some(("effort", reasoning.name())),
            (None, None) => None,
        }
    }
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plan => "plan",
            Self::DontAsk => "dontAsk",
            Self::Default => "default",
            Self::AcceptEdits => "acceptEdits",
            Self::Auto => "auto",
            Self::BypassPermissions => "bypassPermissions",
        }
    }
}

impl Effort {
    fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }
}

fn refused(text: &str) -> AdapterError {
    AdapterError::new(
        "invalid_request",
        format!("metadata.claude-agent-sdk: {text}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_dispatch_narrows_what_the_operator_allows_and_never_widens_it() {
        let cases = [
            (json!({}), json!({"permissionMode": "plan"}), None),
            (
                json!({}),
                json!({"permissionMode": "acceptEdits"}),
                Some("acceptEdits"),
            ),
            (
                json!({"permission_mode": "acceptEdits"}),
                json!({"permissionMode": "acceptEdits"}),
                None,
            ),
            (
                json!({"permission_mode": "acceptEdits"}),
                json!({"permissionMode": "bypassPermissions"}),
                Some("bypassPermissions"),
            ),
            (json!({}), json!({"permissionMode": "none"}), Some("none")),
            (json!({}), json!({"allowedTools": ["Read"]}), None),
            (
                json!({"tools": ["Read"]}),
                json!({"allowedTools": ["Read", "Bash"]}),
                Some("Bash"),
            ),
            (
                json!({}),
                json!({"allowedTools": ["Bash(rm:*)"]}),
                Some("Bash(rm:*)"),
            ),
            (json!({}), json!({"effort": "much"}), Some("much")),
            (
                json!({}),
                json!({"permisionMode": "plan"}),
                Some("permisionMode"),
            ),
            (json!({}), Value::Null, None),
        ];
        for (table, given, wrong) in cases {
            let request = ExecutionRequest {
                metadata: Some(json!({ "claude-agent-sdk": given })),
                ..ExecutionRequest::sample("x")
            };
            let table: Table = serde_json::from_value(table).unwrap();
            let error = Options::read(&request, &table).err();
            let told = error.as_ref().map(|error| error.message.as_str());
            match wrong {
                None => assert_eq!(told, None, "{given}"),
                Some(part) => assert!(told.is_some_and(|text| text.contains(part)), "{told:?}"),
            }
        }
    }
}
