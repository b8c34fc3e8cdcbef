//! Sync and discovery of profiles, skills and models.

use forge_adapter_api::manage::{
    Agent, AgentSyncSpec, DiscoveredAgent, DiscoveredModel, DiscoveredSkill, RuntimeManager, Skill,
    SkillSyncSpec,
};
use forge_adapter_api::{Result, async_trait};

use crate::agents::WantedAgent;
use crate::skills::WantedSkill;
use crate::{HermesAgent, agents, skills, system};

#[async_trait]
impl RuntimeManager for HermesAgent {
    async fn push_agent(&self, spec: AgentSyncSpec) -> Result<()> {
        let agent = Agent {
            agent_id: spec.agent_id,
            name: spec.name,
            model: spec.model,
            system_prompt: spec.system_prompt,
            extra: spec.extra,
        };
        let wanted = WantedAgent::of(agent, spec.skills)?;
        match agents::find(&self.management, &wanted.id).await? {
            Some(_) => agents::apply(&self.management, &wanted).await,
            None => agents::create(&self.management, &wanted).await,
        }
    }

    async fn remove_agent(&self, agent_id: &str) -> Result<()> {
        agents::remove(&self.management, agent_id).await.map(drop)
    }

    async fn discover_agents(&self) -> Result<Vec<DiscoveredAgent>> {
        let agents = agents::list(&self.management).await?.into_iter();
        let discovered = agents.map(|agent| DiscoveredAgent {
            agent_id: agent.agent_id,
            name: agent.name,
            model: agent.model,
            extra: agent.extra,
        });
        Ok(discovered.collect())
    }

    async fn push_file(&self, agent_id: &str, filename: &str, content: &str) -> Result<()> {
        agents::write(&self.management, agent_id, filename, content).await
    }

    async fn push_skill(&self, spec: SkillSyncSpec) -> Result<()> {
        let wanted = WantedSkill::of(Skill {
            skill_key: spec.skill_key,
            name: spec.name,
            description: spec.description,
            content: spec.content,
            extra: spec.extra,
        })?;
        skills::push(&self.management, wanted).await
    }

    async fn remove_skill(&self, skill_key: &str) -> Result<()> {
        skills::disable(&self.management, skill_key).await.map(drop)
    }

    async fn discover_skills(&self) -> Result<Vec<DiscoveredSkill>> {
        let skills = skills::list(&self.management, None).await?.into_iter();
        let discovered = skills.map(|skill| DiscoveredSkill {
            skill_key: skill.skill_key,
            name: skill.name,
            description: skill.description,
            extra: skill.extra,
        });
        Ok(discovered.collect())
    }

    async fn discover_models(&self) -> Result<Vec<DiscoveredModel>> {
        let models = system::models(&self.management).await?.into_iter();
        let discovered = models.map(|model| DiscoveredModel {
            model_id: model.model_id,
            name: model.name,
            provider: model.provider,
            extra: model.extra,
        });
        Ok(discovered.collect())
    }
}
