//! Sync and discovery of profiles, skills and models.

use forge_adapter_api::manage::{
    AgentSyncSpec, DiscoveredAgent, DiscoveredModel, DiscoveredSkill, RuntimeManager, SkillSyncSpec,
};
use forge_adapter_api::{AdapterError, Result, async_trait};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::agents::WantedAgent;
use crate::profiles::DEFAULT;
use crate::skills::WantedSkill;
use crate::{HermesAgent, agents, profiles, skills, system};

/// Converts between types of the interfaces that have the same members.
fn converted<T: DeserializeOwned>(from: &impl Serialize) -> Result<T> {
    let value = serde_json::to_value(from).and_then(serde_json::from_value);
    value.map_err(|error| AdapterError::new("internal", error.to_string()))
}

#[async_trait]
impl RuntimeManager for HermesAgent {
    async fn push_agent(&self, spec: AgentSyncSpec) -> Result<()> {
        let wanted = WantedAgent::of(converted(&spec)?)?;
        match agents::find(&self.management, &wanted.id).await? {
            Some(_) => agents::apply(&self.management, &wanted).await,
            None => agents::create(&self.management, &wanted).await,
        }
    }

    async fn remove_agent(&self, agent_id: &str) -> Result<()> {
        agents::remove(&self.management, agent_id).await.map(drop)
    }

    /// Reads the folders of the profiles unless the operator names a server: the bridge asks every minute, which must
    /// not start one.
    async fn discover_agents(&self) -> Result<Vec<DiscoveredAgent>> {
        match &self.profiles {
            Some(folder) if !self.management.is_configured() => {
                let agent = |agent_id| DiscoveredAgent {
                    agent_id,
                    ..DiscoveredAgent::default()
                };
                Ok(profiles::names(folder)?.into_iter().map(agent).collect())
            }
            _ => converted(&agents::list(&self.management).await?),
        }
    }

    async fn push_file(&self, agent_id: &str, filename: &str, content: &str) -> Result<()> {
        agents::write(&self.management, agent_id, filename, content).await
    }

    async fn push_skill(&self, spec: SkillSyncSpec) -> Result<()> {
        let wanted = WantedSkill::of(converted(&spec)?)?;
        skills::push(&self.management, wanted).await
    }

    async fn remove_skill(&self, skill_key: &str) -> Result<()> {
        skills::disable(&self.management, skill_key).await.map(drop)
    }

    async fn discover_skills(&self) -> Result<Vec<DiscoveredSkill>> {
        converted(&skills::list(&self.management, DEFAULT).await?)
    }

    async fn discover_models(&self) -> Result<Vec<DiscoveredModel>> {
        converted(&system::models(&self.management).await?)
    }
}
