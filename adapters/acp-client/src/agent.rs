//! Capabilities reported by the agent, and known behaviour of some agents beyond the protocol.

use serde_json::{Value, json};

use crate::config::{Permission, UsageScope};

/// Protocol version of the adapter.
pub(crate) const PROTOCOL: u64 = 1;

/// The agent's answer to `initialize`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agent {
    pub(crate) name: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) loads_sessions: bool,
    pub(crate) takes_http_servers: bool,
    pub(crate) takes_sse_servers: bool,
    pub(crate) prompt: PromptContent,
    /// Login methods, as described by the agent.
    pub(crate) logins: Vec<String>,
    kind: Kind,
}

/// Content that a prompt may have besides text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PromptContent {
    pub(crate) images: bool,
    /// Files of any type.
    pub(crate) files: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    ClaudeAgentAcp,
    GeminiCli,
    Hermes,
    OpenCode,
    #[default]
    Other,
}

impl Agent {
    /// Parses the answer to `initialize`; `Err` if the agent speaks another version of the protocol.
    pub(crate) fn read(answer: &Value) -> Result<Self, String> {
        let version = &answer["protocolVersion"];
        if *version != PROTOCOL {
            return Err(format!(
                "the agent speaks version {version} of the protocol, and the adapter version {PROTOCOL}"
            ));
        }
        let capabilities = &answer["agentCapabilities"];
        let has = |value: &Value| *value == true;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let name = text(&answer["agentInfo"]["name"]);
        let logins = answer["authMethods"].as_array().into_iter().flatten();
        Ok(Self {
            kind: match name.as_deref() {
                Some("gemini-cli") => Kind::GeminiCli,
                Some("hermes-agent") => Kind::Hermes,
                Some("OpenCode") => Kind::OpenCode,
                Some("@agentclientprotocol/claude-agent-acp") => Kind::ClaudeAgentAcp,
                Some(_) | None => Kind::Other,
            },
            name,
            version: text(&answer["agentInfo"]["version"]),
            loads_sessions: has(&capabilities["loadSession"]),
            takes_http_servers: has(&capabilities["mcpCapabilities"]["http"]),
            takes_sse_servers: has(&capabilities["mcpCapabilities"]["sse"]),
            prompt: PromptContent {
                images: has(&capabilities["promptCapabilities"]["image"]),
                files: has(&capabilities["promptCapabilities"]["embeddedContext"]),
            },
            logins: logins
                .filter_map(|login| text(&login["description"]).or_else(|| text(&login["name"])))
                .collect(),
        })
    }

    /// Scope of the agent's token counts; `Auto` if unknown.
    pub(crate) fn usage_scope(&self) -> UsageScope {
        match self.kind {
            Kind::ClaudeAgentAcp | Kind::GeminiCli => UsageScope::Turn,
            Kind::Hermes => UsageScope::Process,
            Kind::OpenCode => UsageScope::LastCall,
            Kind::Other => UsageScope::Auto,
        }
    }

    /// Returns true if the agent reports failures of its model as the text of a successful turn, without counts.
    pub(crate) fn says_failures_as_text(&self) -> bool {
        match self.kind {
            Kind::Hermes => true,
            Kind::ClaudeAgentAcp | Kind::GeminiCli | Kind::OpenCode | Kind::Other => false,
        }
    }

    /// Returns true if the agent's cost includes the calls of a cancelled turn.
    pub(crate) fn bills_cancelled_turns(&self) -> bool {
        self.kind == Kind::ClaudeAgentAcp
    }

    /// `_meta` of a new or loaded session under `permission`. claude-agent-acp would run the hooks of the working
    /// directory's settings without asking.
    pub(crate) fn session_meta(&self, permission: Permission) -> Option<Value> {
        let reads_hooks = self.kind == Kind::ClaudeAgentAcp && permission == Permission::Deny;
        reads_hooks.then(|| json!({"claudeCode": {"options": {"settingSources": ["user"]}}}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_of_another_version_is_refused() {
        for version in [json!(2), json!("1"), Value::Null] {
            let answer = json!({"protocolVersion": version});
            assert!(Agent::read(&answer).is_err(), "{version}");
        }
    }

    #[test]
    fn what_an_agent_does_not_say_it_cannot_do() {
        let agent = Agent::read(&json!({"protocolVersion": 1})).unwrap();
        assert!(!agent.loads_sessions && !agent.takes_http_servers && !agent.takes_sse_servers);
        assert_eq!(agent.usage_scope(), UsageScope::Auto);
    }
}
