//! The operator's settings of this adapter beside those of the client.

use std::fmt::Display;

use forge_adapter_acp_client::Preset;
use forge_adapter_api::{AdapterError, Config, Result};
use secrecy::SecretString;
use serde::Deserialize;

use crate::profiles::{self, DEFAULT};

/// Properties of Hermes Agent for the client.
pub(crate) const PRESET: Preset = Preset {
    prefix: "HERMES_AGENT",
    program: Some("hermes"),
    args: &["acp"],
    native_tools: NATIVE_TOOLS,
    forward: &["HERMES_HOME"],
    settings: &["agent", "management_url", "management_token"],
    install: "install Hermes Agent, for example with `pip install 'hermes-agent[acp,mcp]'`",
};

/// Tools of the toolset that Hermes Agent 0.19.0 offers over the protocol; those of the browser need one on the machine.
const NATIVE_TOOLS: &str = "browser_back browser_click browser_console browser_get_images browser_navigate \
                            browser_press browser_scroll browser_snapshot browser_type browser_vision delegate_task \
                            execute_code memory patch process read_file search_files session_search skill_manage \
                            skill_view skills_list terminal todo vision_analyze write_file";

/// The part of the table `[adapters.<id>]` that the client does not read.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    /// Profile for agent ids that name none; empty: such dispatches are refused.
    pub(crate) agent: String,
    /// Address of a `hermes serve` that runs already; default: the adapter starts one.
    pub(crate) management_url: Option<String>,
    /// Its session token.
    pub(crate) management_token: Option<SecretString>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            agent: DEFAULT.to_owned(),
            management_url: None,
            management_token: None,
        }
    }
}

impl Settings {
    pub(crate) fn read(config: &Config) -> Result<Self> {
        let mut settings: Self = config.parse()?;
        if !settings.agent.is_empty() && !profiles::is_name(&settings.agent) {
            return Err(invalid(format!("agent: {}", profiles::FORM)));
        }
        if let Some(url) = &mut settings.management_url {
            if !(url.starts_with("http://") || url.starts_with("https://")) {
                return Err(invalid(
                    "management_url: an address that begins with http:// or https:// was expected",
                ));
            }
            url.truncate(url.trim_end_matches('/').len());
        }
        if settings.management_url.is_some() != settings.management_token.is_some() {
            return Err(invalid(
                "management_url and management_token belong together: set both, with the \
                 HERMES_DASHBOARD_SESSION_TOKEN of that `hermes serve`, or none",
            ));
        }
        Ok(settings)
    }
}

fn invalid(message: impl Display) -> AdapterError {
    AdapterError::new("invalid_config", format!("configuration: {message}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(config: Value) -> Result<Settings> {
        Settings::read(&Config::try_from(config).unwrap())
    }

    #[test]
    fn an_address_comes_with_its_token() {
        let settings =
            read(json!({"management_url": "http://h:9119/", "management_token": "t"})).unwrap();
        assert_eq!(settings.management_url.as_deref(), Some("http://h:9119"));
        assert_eq!(read(json!({})).unwrap().agent, "default");
        for (config, named) in [
            (json!({"management_url": "http://h"}), "management_token"),
            (json!({"management_token": "t"}), "management_url"),
            (
                json!({"management_url": "h:9119", "management_token": "t"}),
                "http://",
            ),
            (json!({"agent": "Ada Lovelace"}), "agent"),
        ] {
            let error = read(config).err().expect("it is refused");
            assert_eq!(error.code, "invalid_config");
            assert!(error.message.contains(named), "{}", error.message);
        }
    }
}
