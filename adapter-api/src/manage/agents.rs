//! Agents of the runtime, their workspace files and their channel bindings. The public description of
//! Bridge names these three areas; this project defines the methods and types.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Result;
use crate::json::{answer, arguments, done, unsupported};

/// Management of agents that can be edited through the bridge. Methods without an implementation answer
/// `unsupported_op`.
#[async_trait]
pub trait AgentManager: Send + Sync {
    /// `agents.list`.
    async fn list(&self) -> Result<Vec<Agent>>;
    /// `agents.get {agentId}`: null when it does not exist.
    async fn get(&self, agent_id: &str) -> Result<Option<Agent>>;
    /// `agents.create {agent}`.
    async fn create(&self, _agent: Agent) -> Result<Agent> {
        Err(unsupported("agents.create"))
    }
    /// `agents.update {agent}`: replaces the agent.
    async fn update(&self, _agent: Agent) -> Result<Agent> {
        Err(unsupported("agents.update"))
    }
    /// `agents.remove {agentId}`: false when it did not exist.
    async fn remove(&self, _agent_id: &str) -> Result<bool> {
        Err(unsupported("agents.remove"))
    }
    /// `agents.listFiles {agentId}`: names and sizes, no content.
    async fn list_files(&self, _agent_id: &str) -> Result<Vec<WorkspaceFile>> {
        Err(unsupported("agents.listFiles"))
    }
    /// `agents.readFile {agentId, path}`: null when it does not exist.
    async fn read_file(&self, _agent_id: &str, _path: &str) -> Result<Option<WorkspaceFile>> {
        Err(unsupported("agents.readFile"))
    }
    /// `agents.writeFile {agentId, path, content}`.
    async fn write_file(&self, _agent_id: &str, _path: &str, _content: &str) -> Result<()> {
        Err(unsupported("agents.writeFile"))
    }
    /// `agents.removeFile {agentId, path}`: false when it did not exist.
    async fn remove_file(&self, _agent_id: &str, _path: &str) -> Result<bool> {
        Err(unsupported("agents.removeFile"))
    }
    /// `agents.listBindings {agentId}`.
    async fn list_bindings(&self, _agent_id: &str) -> Result<Vec<ChannelBinding>> {
        Err(unsupported("agents.listBindings"))
    }
    /// `agents.setBindings {agentId, bindings}`: replaces all bindings.
    async fn set_bindings(&self, _agent_id: &str, _bindings: Vec<ChannelBinding>) -> Result<()> {
        Err(unsupported("agents.setBindings"))
    }
}

/// An agent as stored by the runtime.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    /// The agent's id in the runtime.
    pub agent_id: String,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The model it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Its standing instructions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// Further members from the runtime.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A file of an agent's workspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceFile {
    /// Relative to the workspace.
    pub path: String,
    /// Size in bytes, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Its text; absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// Binding of an agent to a channel on which it answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChannelBinding {
    /// The runtime's name of the channel.
    pub channel: String,
    /// Further members from the runtime.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

#[derive(Deserialize)]
struct Whole {
    agent: Agent,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Of {
    agent_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfFile {
    agent_id: String,
    path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WriteFile {
    agent_id: String,
    path: String,
    content: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SetBindings {
    agent_id: String,
    bindings: Vec<ChannelBinding>,
}

pub(super) async fn call(manager: &dyn AgentManager, op: &str, payload: &[u8]) -> Result<Vec<u8>> {
    match op {
        "agents.list" => answer(op, &manager.list().await?),
        "agents.get" => {
            let Of { agent_id } = arguments(op, payload)?;
            answer(op, &manager.get(&agent_id).await?)
        }
        "agents.create" => {
            let Whole { agent } = arguments(op, payload)?;
            answer(op, &manager.create(agent).await?)
        }
        "agents.update" => {
            let Whole { agent } = arguments(op, payload)?;
            answer(op, &manager.update(agent).await?)
        }
        "agents.remove" => {
            let Of { agent_id } = arguments(op, payload)?;
            answer(op, &manager.remove(&agent_id).await?)
        }
        "agents.listFiles" => {
            let Of { agent_id } = arguments(op, payload)?;
            answer(op, &manager.list_files(&agent_id).await?)
        }
        "agents.readFile" => {
            let OfFile { agent_id, path } = arguments(op, payload)?;
            answer(op, &manager.read_file(&agent_id, &path).await?)
        }
        "agents.writeFile" => {
            let file: WriteFile = arguments(op, payload)?;
            manager
                .write_file(&file.agent_id, &file.path, &file.content)
                .await?;
            Ok(done())
        }
        "agents.removeFile" => {
            let OfFile { agent_id, path } = arguments(op, payload)?;
            answer(op, &manager.remove_file(&agent_id, &path).await?)
        }
        "agents.listBindings" => {
            let Of { agent_id } = arguments(op, payload)?;
            answer(op, &manager.list_bindings(&agent_id).await?)
        }
        "agents.setBindings" => {
            let SetBindings { agent_id, bindings } = arguments(op, payload)?;
            manager.set_bindings(&agent_id, bindings).await?;
            Ok(done())
        }
        _ => Err(unsupported(op)),
    }
}
