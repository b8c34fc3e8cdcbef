//! Assistants managed as agents: a graph with a configuration and a name. The server reports no files, skills, bindings
//! or models for them.

use std::collections::BTreeSet;

use forge_adapter_api::manage::{
    Agent, AgentManager, AgentSyncSpec, DiscoveredAgent, DiscoveredModel, DiscoveredSkill,
    RuntimeManager, SkillSyncSpec,
};
use forge_adapter_api::{AdapterError, Result, async_trait};
use forge_adapter_transport::http::Failure;
use serde_json::{Map, Value, json};

use crate::LangGraph;
use crate::server::Server;
use crate::settings::Settings;
use crate::thread::{list, members, named};

/// Metadata key that holds the bridge's agent id on an assistant.
const AGENT: &str = "forge_agent_id";
const PAGE: usize = 100;
/// Upper bound of assistants listed.
const MOST: usize = 2_000;

pub(crate) struct Assistants<'a> {
    pub(crate) server: &'a Server,
    pub(crate) settings: &'a Settings,
}

impl Assistants<'_> {
    /// Returns the assistant of an agent: the one created for it, else the configured one, else the graph with the
    /// agent's name.
    pub(crate) async fn of_agent(&self, agent_id: &str) -> Result<String> {
        if let Some(found) = self.get(agent_id).await? {
            return Ok(text(&found, "assistant_id"));
        }
        let chosen = self.settings.table.assistant.clone();
        Ok(chosen.unwrap_or_else(|| agent_id.to_owned()))
    }

    async fn get(&self, agent_id: &str) -> Result<Option<Value>, Failure> {
        match self.server.get(&path(agent_id)).await {
            Ok(found) => Ok(Some(found)),
            Err(failure) if is_missing(&failure) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn list(&self) -> Result<Vec<Value>, Failure> {
        let mut all = Vec::new();
        while all.len() < MOST {
            let page = json!({"limit": PAGE, "offset": all.len()});
            let found = self.server.post("/assistants/search", &page).await?;
            let found = list(&found);
            all.extend_from_slice(found);
            if found.len() < PAGE {
                break;
            }
        }
        Ok(all)
    }

    async fn create(&self, agent: &Agent) -> Result<Value> {
        let mut body = self.body(agent);
        body["assistant_id"] = named(&agent.agent_id).to_string().into();
        body["if_exists"] = "raise".into();
        if body["graph_id"].is_null() {
            body["graph_id"] = self.default_graph().await?.into();
        }
        match self.server.post("/assistants", &body).await {
            Err(Failure::Refused { status, .. }) if status.as_u16() == 409 => {
                Err(AdapterError::new(
                    "invalid_request",
                    format!("the agent {:?} already exists", agent.agent_id),
                ))
            }
            made => Ok(made?),
        }
    }

    async fn update(&self, agent: &Agent) -> Result<Value> {
        match self
            .server
            .patch(&path(&agent.agent_id), &self.body(agent))
            .await
        {
            Err(failure) if is_missing(&failure) => Err(AdapterError::new(
                "not_found",
                format!("there is no agent {:?}", agent.agent_id),
            )),
            changed => Ok(changed?),
        }
    }

    async fn remove(&self, agent_id: &str) -> Result<bool> {
        match self.server.delete(&path(agent_id)).await {
            Ok(()) => Ok(true),
            Err(failure) if is_missing(&failure) => Ok(false),
            Err(failure) => Err(failure.into()),
        }
    }

    /// Request body for an agent. Members of LangGraph's own (`graphId`, `config`, `context`, `metadata`,
    /// `description`) are copied to their places; the model and the system prompt become `configurable` entries, since
    /// graphs read nothing else.
    fn body(&self, agent: &Agent) -> Value {
        let extra = |name: &str| agent.extra.get(name).filter(|value| !value.is_null());
        let mut metadata = members(extra("metadata").unwrap_or(&Value::Null));
        metadata.insert(AGENT.to_owned(), agent.agent_id.as_str().into());
        let mut config = members(extra("config").unwrap_or(&Value::Null));
        let mut configurable = members(config.get("configurable").unwrap_or(&Value::Null));
        for (key, value) in [
            (self.settings.table.model_key.as_deref(), &agent.model),
            (Some("system_prompt"), &agent.system_prompt),
        ] {
            if let (Some(key), Some(value)) = (key, value) {
                configurable.insert(key.to_owned(), value.as_str().into());
            }
        }
        if !configurable.is_empty() {
            config.insert("configurable".to_owned(), configurable.into());
        }
        let mut body = json!({
            "name": agent.name.as_deref().unwrap_or(&agent.agent_id), "metadata": metadata,
            "config": config,
        });
        for (name, key) in [("graphId", "graph_id"), ("description", "description")] {
            if let Some(value) = extra(name) {
                body[key] = value.clone();
            }
        }
        body
    }

    /// The configured graph, or the only one.
    async fn default_graph(&self) -> Result<String> {
        if let Some(graph) = &self.settings.table.graph {
            return Ok(graph.clone());
        }
        let all = self.list().await?;
        let graphs: BTreeSet<String> = all.iter().map(|one| text(one, "graph_id")).collect();
        match graphs.into_iter().collect::<Vec<_>>().as_slice() {
            [one] => Ok(one.clone()),
            several => Err(AdapterError::new(
                "invalid_request",
                format!(
                    "graphId is missing, and there is more than one graph: name one of {}, or set graph of \
                     [adapters.langgraph]",
                    several.join(", ")
                ),
            )),
        }
    }

    /// Converts an assistant to an agent. An assistant not created by the bridge is listed under its own id.
    fn agent(&self, assistant: &Value) -> Agent {
        let own = assistant["metadata"][AGENT].as_str();
        let agent_id = own.map_or_else(|| text(assistant, "assistant_id"), str::to_owned);
        let configurable = &assistant["config"]["configurable"];
        let configured = |key: Option<&str>| {
            let value = key.and_then(|key| configurable[key].as_str());
            value.map(str::to_owned)
        };
        let mut extra = Map::new();
        for (name, key) in [
            ("assistantId", "assistant_id"),
            ("graphId", "graph_id"),
            ("description", "description"),
            ("config", "config"),
            ("metadata", "metadata"),
            ("version", "version"),
        ] {
            if !assistant[key].is_null() {
                extra.insert(name.to_owned(), assistant[key].clone());
            }
        }
        Agent {
            agent_id,
            name: assistant["name"].as_str().map(str::to_owned),
            model: configured(self.settings.table.model_key.as_deref()),
            system_prompt: configured(Some("system_prompt")),
            extra,
        }
    }
}

fn path(agent_id: &str) -> String {
    format!("/assistants/{}", named(agent_id))
}

fn text(assistant: &Value, name: &str) -> String {
    assistant[name].as_str().unwrap_or_default().to_owned()
}

fn is_missing(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused { status, .. } if status.as_u16() == 404)
}

fn unsupported(what: &str) -> AdapterError {
    AdapterError::new(
        "unsupported_op",
        format!("LangGraph's assistants have no {what}"),
    )
}

#[async_trait]
impl AgentManager for LangGraph {
    async fn list(&self) -> Result<Vec<Agent>> {
        let assistants = self.assistants()?;
        let found = assistants.list().await?;
        Ok(found.iter().map(|one| assistants.agent(one)).collect())
    }

    async fn get(&self, agent_id: &str) -> Result<Option<Agent>> {
        let assistants = self.assistants()?;
        let found = assistants.get(agent_id).await?;
        Ok(found.map(|found| assistants.agent(&found)))
    }

    async fn create(&self, agent: Agent) -> Result<Agent> {
        let assistants = self.assistants()?;
        let made = assistants.create(&agent).await?;
        Ok(assistants.agent(&made))
    }

    async fn update(&self, agent: Agent) -> Result<Agent> {
        let assistants = self.assistants()?;
        let changed = assistants.update(&agent).await?;
        Ok(assistants.agent(&changed))
    }

    async fn remove(&self, agent_id: &str) -> Result<bool> {
        self.assistants()?.remove(agent_id).await
    }
}

#[async_trait]
impl RuntimeManager for LangGraph {
    async fn push_agent(&self, spec: AgentSyncSpec) -> Result<()> {
        let assistants = self.assistants()?;
        let agent = Agent::from(spec);
        match assistants.get(&agent.agent_id).await? {
            Some(_) => assistants.update(&agent).await.map(drop),
            None => assistants.create(&agent).await.map(drop),
        }
    }

    async fn remove_agent(&self, agent_id: &str) -> Result<()> {
        self.assistants()?.remove(agent_id).await.map(drop)
    }

    async fn discover_agents(&self) -> Result<Vec<DiscoveredAgent>> {
        let agents = AgentManager::list(self).await?;
        Ok(agents.into_iter().map(DiscoveredAgent::from).collect())
    }

    async fn push_file(&self, _: &str, _: &str, _: &str) -> Result<()> {
        Err(unsupported("files"))
    }

    async fn push_skill(&self, _: SkillSyncSpec) -> Result<()> {
        Err(unsupported("skills"))
    }

    async fn remove_skill(&self, _: &str) -> Result<()> {
        Err(unsupported("skills"))
    }

    async fn discover_skills(&self) -> Result<Vec<DiscoveredSkill>> {
        Ok(Vec::new())
    }

    async fn discover_models(&self) -> Result<Vec<DiscoveredModel>> {
        Ok(Vec::new())
    }
}
