//! Sync and discovery of agents and skills, and administration of the gateway.

use std::time::Duration;

use forge_adapter_api::manage::{
    Agent, AgentManager, AgentSyncSpec, DiscoveredAgent, DiscoveredModel, DiscoveredSkill, Model,
    ReloadReport, RuntimeManager, SecurityFinding, SecurityPosture, SkillSyncSpec, SystemManager,
};
use forge_adapter_api::{Result, async_trait};
use serde_json::{Map, json};
use tokio::time::sleep;

use crate::OpenClaw;
use crate::agents::{checked, patch, refuse_unknown};
use crate::connection::lock;
use crate::frame::Failure;
use crate::gateway::Gateway;
use crate::health::{is_sandboxed, list};
use crate::skills;

/// Wait before the models are asked for again, and number of questions: 10 s.
const CATALOG_WAIT: Duration = Duration::from_millis(500);
const CATALOG_ASKS: usize = 20;

/// Models of the gateway. For a while after its start it says that its catalogue is not ready.
async fn models(gateway: &Gateway) -> Result<Vec<Model>> {
    let mut asked = 1;
    let answer = loop {
        match gateway.call("models.list", &json!({})).await {
            Err(Failure::Refused(refusal))
                if refusal.message.contains("not ready") && asked < CATALOG_ASKS =>
            {
                asked += 1;
                sleep(CATALOG_WAIT).await;
            }
            answer => break answer?,
        }
    };
    let models = list(&answer["models"]).iter().map(|model| {
        let text = |name: &str| model[name].as_str().map(str::to_owned);
        let (id, provider) = (text("id").unwrap_or_default(), text("provider"));
        let names = ["contextWindow", "reasoning", "available"];
        let extra = names.map(|name| (name.to_owned(), model[name].clone()));
        Model {
            model_id: provider
                .as_ref()
                .map_or(id.clone(), |provider| format!("{provider}/{id}")),
            name: text("name"),
            provider,
            extra: Map::from_iter(extra),
        }
    });
    Ok(models.collect())
}

#[async_trait]
impl RuntimeManager for OpenClaw {
    async fn push_agent(&self, spec: AgentSyncSpec) -> Result<()> {
        let gateway = self.gateway()?;
        checked(&spec.agent_id)?;
        refuse_unknown(&spec.extra, &[])?;
        let (id, skills) = (spec.agent_id.clone(), spec.skills.clone());
        let agent = Agent::from(spec);
        match AgentManager::get(self, &id).await? {
            Some(_) => AgentManager::update(self, agent).await?,
            None => AgentManager::create(self, agent).await?,
        };
        if skills.is_empty() {
            return Ok(());
        }
        let path = format!("agents.entries.{id}.skills");
        patch(
            gateway,
            &[&path],
            |_| json!({"agents": {"entries": {id.clone(): {"skills": skills}}}}),
        )
        .await
    }

    async fn remove_agent(&self, agent_id: &str) -> Result<()> {
        AgentManager::remove(self, agent_id).await.map(drop)
    }

    async fn discover_agents(&self) -> Result<Vec<DiscoveredAgent>> {
        let agents = AgentManager::list(self).await?;
        Ok(agents.into_iter().map(DiscoveredAgent::from).collect())
    }

    async fn push_file(&self, agent_id: &str, filename: &str, content: &str) -> Result<()> {
        self.write_file(agent_id, filename, content).await
    }

    async fn push_skill(&self, spec: SkillSyncSpec) -> Result<()> {
        skills::push(self.gateway()?, &spec).await
    }

    async fn remove_skill(&self, skill_key: &str) -> Result<()> {
        skills::disable(self.gateway()?, skill_key).await.map(drop)
    }

    async fn discover_skills(&self) -> Result<Vec<DiscoveredSkill>> {
        let all = skills::all(self.gateway()?).await?;
        let found = all.iter().map(skills::skill);
        Ok(found.map(DiscoveredSkill::from).collect())
    }

    async fn discover_models(&self) -> Result<Vec<DiscoveredModel>> {
        let models = models(self.gateway()?).await?;
        Ok(models.into_iter().map(DiscoveredModel::from).collect())
    }
}

#[async_trait]
impl SystemManager for OpenClaw {
    /// The gateway reads its settings again by itself: this reports what that left to do.
    async fn reload_config(&self) -> Result<ReloadReport> {
        let config = self.gateway()?.call("config.get", &json!({})).await?;
        let hash = config["hash"].as_str().unwrap_or_default().to_owned();
        let earlier = lock(&self.config_hash).replace(hash.clone());
        let mut notes = Vec::new();
        if config["configRevisionHash"] != config["appliedConfigHash"] {
            notes.push("changed settings wait for a restart of the gateway".to_owned());
        }
        let issues = list(&config["issues"]).iter();
        notes.extend(issues.map(|issue| format!("{}: {}", issue["path"], issue["message"])));
        Ok(ReloadReport {
            changed: earlier.is_some_and(|earlier| earlier != hash),
            notes,
        })
    }

    async fn list_models(&self) -> Result<Vec<Model>> {
        models(self.gateway()?).await
    }

    async fn security_posture(&self) -> Result<SecurityPosture> {
        let gateway = self.gateway()?;
        let approvals = gateway.call("exec.approvals.get", &json!({})).await?;
        let config = gateway.call("config.get", &json!({})).await?;
        let defaults = &approvals["resolvedDefaults"];
        let sandboxed = is_sandboxed(&config);
        let mut findings = Vec::new();
        let mut add = |message: String| {
            findings.push(SecurityFinding {
                severity: "warning".to_owned(),
                message,
            });
        };
        if defaults["security"] == "full" && defaults["ask"] == "off" {
            let text =
                "commands run without approval: set `ask` or `security` of the execution approvals";
            add(text.to_owned());
        }
        if !sandboxed {
            let mode = &config["config"]["agents"]["defaults"]["sandbox"]["mode"];
            let mode = mode.as_str().unwrap_or("off");
            add(format!(
                "agents.defaults.sandbox.mode is `{mode}`, or an agent has its own: tools work on the host; set `all`"
            ));
        }
        Ok(SecurityPosture {
            sandboxed: Some(sandboxed),
            findings,
        })
    }
}
