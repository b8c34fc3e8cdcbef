//! The operator's settings: address of the server, choice of graph, and the mapping of a dispatch to an input and of a
//! state to an output.

use std::collections::BTreeMap;

use forge_adapter_api::{self as api, AdapterError, Config};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(crate) struct Settings {
    /// Address without a trailing slash; `None` if not configured.
    pub(crate) url: Option<String>,
    pub(crate) api_key: Option<SecretString>,
    pub(crate) table: Table,
}

/// The table `[adapters.langgraph]` without the server's address and key.
#[derive(Deserialize)]
#[serde(default)]
pub(crate) struct Table {
    /// A graph's name or an assistant's id, for agents that are not assistants; default: the agent's own id.
    pub(crate) assistant: Option<String>,
    /// Graph of assistants created through the bridge without `graphId`; default: the only graph.
    pub(crate) graph: Option<String>,
    pub(crate) shape: Shape,
    /// Shapes for single assistants, by graph name or assistant id.
    pub(crate) assistants: BTreeMap<String, Shape>,
    /// Sent with every run as `config.configurable`.
    pub(crate) configurable: Map<String, Value>,
    /// Key of `configurable` for the dispatch's model; `None`: not sent.
    pub(crate) model_key: Option<String>,
    /// Key of `configurable` for the output schema; `None`: not sent.
    pub(crate) schema_key: Option<String>,
    /// Key of `configurable` for the caller's tools, whose calls the graph leaves unanswered; `None`: not sent.
    pub(crate) tools_key: Option<String>,
    pub(crate) recursion_limit: Option<u32>,
    pub(crate) stream_modes: Vec<StreamMode>,
    /// Includes events of subgraphs; default false.
    pub(crate) stream_subgraphs: bool,
    pub(crate) on_cancel: OnCancel,
    pub(crate) busy: Busy,
    /// Upper bound of consecutive reconnects that yield no new event.
    pub(crate) reconnects: u32,
    pub(crate) max_concurrent: u32,
}

/// Mapping of a dispatch to a graph's input, and of the graph's state to a result.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Shape {
    /// Template of the input; the strings `$messages`, `$message`, `$system` and `$metadata` are replaced.
    pub(crate) input: Value,
    /// Dotted path of the text in the state; default: the last message of the model.
    pub(crate) output: Option<String>,
    /// Dotted path of the structured output in the state.
    pub(crate) structured: String,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            input: json!({"messages": "$messages"}),
            output: None,
            structured: "structured_response".to_owned(),
        }
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            assistant: None,
            graph: None,
            shape: Shape::default(),
            assistants: BTreeMap::new(),
            configurable: Map::new(),
            model_key: None,
            schema_key: None,
            tools_key: None,
            recursion_limit: None,
            stream_modes: vec![
                StreamMode::MessagesTuple,
                StreamMode::Updates,
                StreamMode::Custom,
            ],
            stream_subgraphs: false,
            on_cancel: OnCancel::Interrupt,
            busy: Busy::Reject,
            reconnects: 5,
            max_concurrent: 8,
        }
    }
}

/// Kind of events that the server streams for a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StreamMode {
    Values,
    Updates,
    MessagesTuple,
    Custom,
    Tasks,
    Checkpoints,
    Debug,
}

/// Effect of a cancel at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnCancel {
    /// Stops the run; its changes stay in the thread.
    Interrupt,
    /// Deletes the run and its changes.
    Rollback,
}

impl OnCancel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Rollback => "rollback",
        }
    }
}

/// Server's handling of a run for a thread that has an active one (`multitask_strategy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Busy {
    Reject,
    Enqueue,
    Interrupt,
    Rollback,
}

impl Settings {
    pub(crate) fn read(config: &Config) -> api::Result<Self> {
        let table: Table = config.parse()?;
        let url = config
            .string("url")
            .or_else(|| config.string("LANGGRAPH_URL"))
            .map(|url| url.trim_end_matches('/').to_owned());
        if let Some(url) = &url
            && !(url.starts_with("http://") || url.starts_with("https://"))
        {
            return Err(invalid(
                "url (LANGGRAPH_URL): an address that begins with http:// or https:// was expected",
            ));
        }
        if table.stream_modes.is_empty() {
            return Err(invalid(
                "stream_modes: at least one mode is required, such as \"updates\"",
            ));
        }
        Ok(Self {
            url,
            api_key: ["api_key", "LANGGRAPH_API_KEY", "LANGSMITH_API_KEY"]
                .into_iter()
                .find_map(|name| config.string(name))
                .map(SecretString::from),
            table,
        })
    }

    /// The shape for this graph name or assistant id.
    pub(crate) fn shape(&self, assistant: &str) -> &Shape {
        self.table
            .assistants
            .get(assistant)
            .unwrap_or(&self.table.shape)
    }
}

fn invalid(message: &str) -> AdapterError {
    AdapterError::new("invalid_config", format!("configuration: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> api::Result<Settings> {
        Settings::read(&Config::try_from(config).unwrap())
    }

    #[test]
    fn the_table_goes_before_the_variables() {
        let settings =
            read(json!({"url": "http://a/", "LANGGRAPH_URL": "http://b", "HOME": "/root"}))
                .unwrap();
        assert_eq!(settings.url.as_deref(), Some("http://a"));
        assert!(settings.api_key.is_none());
        assert!(
            read(json!({"LANGSMITH_API_KEY": "k"}))
                .unwrap()
                .api_key
                .is_some()
        );
    }

    #[test]
    fn an_assistant_may_have_a_shape_of_its_own() {
        let settings = read(json!({"assistants": {"shop": {"output": "reply.text"}}})).unwrap();
        assert_eq!(settings.shape("shop").output.as_deref(), Some("reply.text"));
        assert_eq!(settings.shape("agent").output, None);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (json!({"url": "localhost:2024"}), "LANGGRAPH_URL"),
            (json!({"stream_modes": []}), "stream_modes"),
            (json!({"stream_modes": ["loud"]}), "loud"),
            (json!({"on_cancel": "explode"}), "explode"),
            (json!({"shape": {"outptu": "x"}}), "outptu"),
        ];
        for (config, named) in cases {
            let Err(error) = read(config) else {
                panic!("{named} was taken")
            };
            assert_eq!(error.code, "invalid_config");
            assert!(error.message.contains(named), "{}", error.message);
        }
    }
}
