//! Sync and discovery of profiles, skills and models.

use forge_adapter_api::manage::{
    AgentSyncSpec, DiscoveredAgent, DiscoveredModel, DiscoveredSkill, RuntimeManager, SkillSyncSpec,
};
use forge_adapter_api::{Result, async_trait};

use crate::agents::WantedAgent;
use crate::profiles::DEFAULT;
use crate::skills::WantedSkill;
use crate::{HermesAgent, agents, profiles, skills, system};

#[async_trait]
impl RuntimeManager for HermesAgent {
    async fn push_agent(&self, spec: AgentSyncSpec) -> Result<()> {
        let skills = spec.skills.clone();
        let mut wanted = WantedAgent::of(spec.into())?;
        wanted.skills = skills;
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
            _ => {
                let agents = agents::list(&self.management).await?;
                Ok(agents.into_iter().map(DiscoveredAgent::from).collect())
            }
        }
    }

    async fn push_file(&self, agent_id: &str, filename: &str, content: &str) -> Result<()> {
        agents::write(&self.management, agent_id, filename, content).await
    }

    async fn push_skill(&self, spec: SkillSyncSpec) -> Result<()> {
        let wanted = WantedSkill::of(spec.into())?;
        skills::push(&self.management, wanted).await
    }

    async fn remove_skill(&self, skill_key: &str) -> Result<()> {
        skills::disable(&self.management, skill_key).await.map(drop)
    }

    async fn discover_skills(&self) -> Result<Vec<DiscoveredSkill>> {
        let skills = skills::list(&self.management, DEFAULT).await?;
        Ok(skills.into_iter().map(DiscoveredSkill::from).collect())
    }

    async fn discover_models(&self) -> Result<Vec<DiscoveredModel>> {
        let models = system::models(&self.management).await?;
        Ok(models.into_iter().map(DiscoveredModel::from).collect())
    }
}
