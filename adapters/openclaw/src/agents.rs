//! Agents of the gateway: their settings, files and bindings.

use std::time::Duration;

use forge_adapter_api::manage::{Agent, AgentManager, ChannelBinding, WorkspaceFile};
use forge_adapter_api::{AdapterError, Result, async_trait};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use crate::OpenClaw;
use crate::frame::Failure;
use crate::gateway::Gateway;
use crate::health::list;
use crate::settings::{AGENT_IDS, is_agent_id};

/// The file with an agent's standing instructions.
const INSTRUCTIONS: &str = "AGENTS.md";
/// Time for a changed agent to be seen, and the wait between two looks.
const LOOKS: u32 = 100;
const LOOK: Duration = Duration::from_millis(100);
/// Further members of an agent that the adapter reports and does not change.
const READ_ONLY: [&str; 1] = ["workspace"];

/// The error for an id that the gateway would change.
pub(crate) fn checked(id: &str) -> Result<&str> {
    match is_agent_id(id) {
        true => Ok(id),
        false => Err(invalid(format!("agentId: {id:?}: {AGENT_IDS}"))),
    }
}

/// Refuses members that the gateway has no place for.
pub(crate) fn refuse_unknown(extra: &Map<String, Value>, known: &[&str]) -> Result<()> {
    match extra.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(invalid(format!("{name}: the gateway has no such member"))),
        None => Ok(()),
    }
}

pub(crate) fn invalid(message: String) -> AdapterError {
    AdapterError::new("invalid_request", message)
}

/// Result of a request about an agent; `None` if the gateway has no such agent.
fn existing(answer: Result<Value, Failure>) -> Result<Option<Value>> {
    match answer {
        Err(Failure::Refused(refusal)) if refusal.is_unknown_agent() => Ok(None),
        answer => Ok(Some(answer?)),
    }
}

fn absent(agent_id: &str) -> AdapterError {
    AdapterError::new("not_found", format!("there is no agent {agent_id:?}"))
}

async fn listed(gateway: &Gateway) -> Result<Vec<Agent>> {
    let answer = gateway.call("agents.list", &json!({})).await?;
    let agents = list(&answer["agents"]).iter().map(|found| Agent {
        agent_id: found["id"].as_str().unwrap_or_default().to_owned(),
        name: found["name"].as_str().map(str::to_owned),
        model: found["model"]["primary"].as_str().map(str::to_owned),
        system_prompt: None,
        extra: READ_ONLY
            .iter()
            .map(|name| ((*name).to_owned(), found[*name].clone()))
            .collect(),
    });
    Ok(agents.collect())
}

async fn file(gateway: &Gateway, agent_id: &str, name: &str) -> Result<Option<Value>> {
    let params = json!({"agentId": agent_id, "name": name});
    let found = existing(gateway.call("agents.files.get", &params).await)?;
    Ok(found
        .map(|found| found["file"].clone())
        .filter(|file| file["missing"] != true))
}

/// Replaces a file as it is now; a change by another client in between is the error `conflict`.
async fn write(gateway: &Gateway, agent_id: &str, name: &str, content: &str) -> Result<()> {
    let mut params = json!({"agentId": agent_id, "name": name, "content": content});
    if let Some(file) = file(gateway, agent_id, name).await? {
        if file["content"] == content {
            return Ok(());
        }
        params["expectedHash"] = file["hash"].clone();
    }
    let written = existing(gateway.call("agents.files.set", &params).await)?;
    written.map(drop).ok_or_else(|| absent(agent_id))
}

/// Sets the members that the agent has; an empty name is the id again. The gateway keeps a name's words with one space
/// between them. The agent must exist.
async fn set(gateway: &Gateway, agent: &Agent) -> Result<()> {
    let id = &agent.agent_id;
    let mut params = json!({ "agentId": id });
    if let Some(name) = &agent.name {
        let name: Vec<&str> = name.split_whitespace().collect();
        params["name"] = match name.as_slice() {
            [] => id.as_str().into(),
            words => words.join(" ").into(),
        };
    }
    if let Some(model) = &agent.model {
        params["model"] = model.as_str().into();
    }
    if agent.name.is_some() || agent.model.is_some() {
        let changed = existing(gateway.call("agents.update", &params).await)?;
        changed.ok_or_else(|| absent(id))?;
        // The list has names of models for their aliases.
        let model = agent.model.as_deref().filter(|model| model.contains('/'));
        let name = params["name"].as_str();
        listed_as(gateway, id, |found| {
            found.is_some_and(|found| {
                name.is_none_or(|name| found.name.as_deref() == Some(name))
                    && model.is_none_or(|model| found.model.as_deref() == Some(model))
            })
        })
        .await?;
    }
    if let Some(instructions) = &agent.system_prompt {
        write(gateway, id, INSTRUCTIONS, instructions).await?;
    }
    Ok(())
}

/// Refuses an agent that the gateway cannot keep.
fn refuse_unusable(agent: &Agent) -> Result<()> {
    refuse_unknown(&agent.extra, &READ_ONLY)?;
    match agent.model.as_deref() {
        Some("") => Err(invalid(
            "model: the gateway clears no model; name another one, or leave it out".to_owned(),
        )),
        Some(_) | None => Ok(()),
    }
}

/// Waits until the gateway lists the agent as it is wanted: it answers a change before it is made. False if it never does.
async fn listed_as(
    gateway: &Gateway,
    agent_id: &str,
    is_wanted: impl Fn(Option<&Agent>) -> bool,
) -> Result<bool> {
    for _ in 0..LOOKS {
        let agents = listed(gateway).await?;
        if is_wanted(agents.iter().find(|agent| agent.agent_id == agent_id)) {
            return Ok(true);
        }
        sleep(LOOK).await;
    }
    Ok(false)
}

/// Waits until the gateway lists an agent, or does not any more.
async fn seen(gateway: &Gateway, agent_id: &str, is_there: bool) -> Result<()> {
    if listed_as(gateway, agent_id, |found| found.is_some() == is_there).await? {
        return Ok(());
    }
    let text = format!("the gateway did not apply the change of the agent {agent_id:?} in time");
    Err(AdapterError::new("upstream_error", text).retryable())
}

#[async_trait]
impl AgentManager for OpenClaw {
    async fn list(&self) -> Result<Vec<Agent>> {
        listed(self.gateway()?).await
    }

    async fn get(&self, agent_id: &str) -> Result<Option<Agent>> {
        let gateway = self.gateway()?;
        let agents = listed(gateway).await?;
        let Some(mut agent) = agents.into_iter().find(|agent| agent.agent_id == agent_id) else {
            return Ok(None);
        };
        let instructions = file(gateway, agent_id, INSTRUCTIONS).await?;
        agent.system_prompt =
            instructions.and_then(|file| file["content"].as_str().map(str::to_owned));
        Ok(Some(agent))
    }

    async fn create(&self, agent: Agent) -> Result<Agent> {
        let gateway = self.gateway()?;
        let id = checked(&agent.agent_id)?;
        refuse_unusable(&agent)?;
        let mut params = json!({ "name": id });
        let workspace = agent.extra.get("workspace");
        if let Some(workspace) = workspace.filter(|workspace| !workspace.is_null()) {
            params["workspace"] = workspace.clone();
        }
        let made = gateway.call("agents.create", &params).await?;
        let made = made["agentId"].as_str().unwrap_or_default();
        let set = async {
            if made != id {
                return Err(invalid(format!(
                    "agentId: the gateway made {made:?} of {id:?}"
                )));
            }
            seen(gateway, id, true).await?;
            set(gateway, &agent).await
        };
        if let Err(error) = set.await {
            // Nothing is left of an agent that is not the wanted one.
            seen(gateway, made, true).await?;
            let params = json!({"agentId": made, "deleteFiles": true});
            gateway.call("agents.delete", &params).await?;
            return Err(error);
        }
        self.get(id).await?.ok_or_else(|| absent(id))
    }

    async fn update(&self, agent: Agent) -> Result<Agent> {
        let gateway = self.gateway()?;
        let id = checked(&agent.agent_id)?;
        refuse_unusable(&agent)?;
        let known = self.get(id).await?.ok_or_else(|| absent(id))?;
        if let Some((name, _)) = agent
            .extra
            .iter()
            .find(|(name, value)| known.extra.get(*name) != Some(value))
        {
            return Err(invalid(format!("{name}: the gateway does not change it")));
        }
        set(gateway, &agent).await?;
        self.get(id).await?.ok_or_else(|| absent(id))
    }

    async fn remove(&self, agent_id: &str) -> Result<bool> {
        let gateway = self.gateway()?;
        if !is_agent_id(agent_id) {
            return Ok(false);
        }
        let params = json!({"agentId": agent_id, "deleteFiles": true});
        let removed = existing(gateway.call("agents.delete", &params).await)?;
        if removed.is_some() {
            seen(gateway, agent_id, false).await?;
        }
        Ok(removed.is_some())
    }

    async fn list_files(&self, agent_id: &str) -> Result<Vec<WorkspaceFile>> {
        let params = json!({ "agentId": agent_id });
        let found = existing(self.gateway()?.call("agents.files.list", &params).await)?;
        let found = found.ok_or_else(|| absent(agent_id))?;
        let files = list(&found["files"])
            .iter()
            .filter(|file| file["missing"] != true);
        Ok(files.map(|file| workspace_file(file, None)).collect())
    }

    async fn read_file(&self, agent_id: &str, path: &str) -> Result<Option<WorkspaceFile>> {
        let found = file(self.gateway()?, agent_id, path).await?;
        Ok(found.map(|file| workspace_file(&file, file["content"].as_str())))
    }

    async fn write_file(&self, agent_id: &str, path: &str, content: &str) -> Result<()> {
        write(self.gateway()?, agent_id, path, content).await
    }

    async fn list_bindings(&self, agent_id: &str) -> Result<Vec<ChannelBinding>> {
        let config = self.gateway()?.call("config.get", &json!({})).await?;
        let bindings = list(&config["config"]["bindings"]).iter();
        let own = bindings.filter(|binding| binding["agentId"] == agent_id);
        Ok(own
            .map(|binding| {
                let mut extra = binding["match"].as_object().cloned().unwrap_or_default();
                let channel = extra.remove("channel").unwrap_or_default();
                ChannelBinding {
                    channel: channel.as_str().unwrap_or_default().to_owned(),
                    extra,
                }
            })
            .collect())
    }

    async fn set_bindings(&self, agent_id: &str, bindings: Vec<ChannelBinding>) -> Result<()> {
        let gateway = self.gateway()?;
        if self.get(agent_id).await?.is_none() {
            return Err(absent(agent_id));
        }
        let own = bindings.into_iter().map(|binding| {
            let mut rule = binding.extra;
            rule.insert("channel".to_owned(), binding.channel.into());
            json!({"agentId": agent_id, "match": rule})
        });
        let own: Vec<Value> = own.collect();
        patch(gateway, &["bindings"], |config| {
            let others = list(&config["bindings"]).iter();
            let others = others.filter(|binding| binding["agentId"] != agent_id);
            json!({"bindings": others.chain(&own).collect::<Vec<_>>()})
        })
        .await
    }
}

fn workspace_file(file: &Value, content: Option<&str>) -> WorkspaceFile {
    WorkspaceFile {
        path: file["name"].as_str().unwrap_or_default().to_owned(),
        size_bytes: file["size"].as_u64(),
        content: content.map(str::to_owned),
    }
}

/// Changes the gateway's settings by a merge patch made of those of now; once more if they changed meanwhile.
pub(crate) async fn patch(
    gateway: &Gateway,
    replaced: &[&str],
    change: impl Fn(&Value) -> Value,
) -> Result<()> {
    let mut is_second = false;
    loop {
        let config = gateway.call("config.get", &json!({})).await?;
        let params = json!({
            "raw": change(&config["config"]).to_string(), "baseHash": config["hash"], "note": "forge-bridge",
            "replacePaths": replaced,
        });
        let patched = gateway
            .call("config.patch", &params)
            .await
            .map_err(AdapterError::from);
        match patched {
            Err(error) if error.code == "conflict" && !is_second => is_second = true,
            patched => return patched.map(drop),
        }
    }
}
