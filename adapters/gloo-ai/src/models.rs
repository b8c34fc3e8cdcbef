//! Lists the platform's models. The platform has no agents and no skills.

use forge_adapter_api::manage::{
    AgentSyncSpec, DiscoveredAgent, DiscoveredModel, DiscoveredSkill, RuntimeManager, SkillSyncSpec,
};
use forge_adapter_api::{AdapterError, Result, async_trait};

use crate::GlooAi;

#[async_trait]
impl RuntimeManager for GlooAi {
    async fn push_agent(&self, _spec: AgentSyncSpec) -> Result<()> {
        Err(keeps_none("agents"))
    }

    async fn remove_agent(&self, _agent_id: &str) -> Result<()> {
        Err(keeps_none("agents"))
    }

    async fn discover_agents(&self) -> Result<Vec<DiscoveredAgent>> {
        Ok(Vec::new())
    }

    async fn push_file(&self, _agent_id: &str, _filename: &str, _content: &str) -> Result<()> {
        Err(keeps_none("agents"))
    }

    async fn push_skill(&self, _spec: SkillSyncSpec) -> Result<()> {
        Err(keeps_none("skills"))
    }

    async fn remove_skill(&self, _skill_key: &str) -> Result<()> {
        Err(keeps_none("skills"))
    }

    async fn discover_skills(&self) -> Result<Vec<DiscoveredSkill>> {
        Ok(Vec::new())
    }

    async fn discover_models(&self) -> Result<Vec<DiscoveredModel>> {
        let models = self.prices.read().await?;
        Ok(models
            .into_iter()
            .map(|(model_id, model)| DiscoveredModel {
                model_id,
                name: model.name,
                provider: model.family,
                ..DiscoveredModel::default()
            })
            .collect())
    }
}

fn keeps_none(what: &str) -> AdapterError {
    let text = format!("Gloo AI has no {what}");
    AdapterError::new("unsupported_op", text)
}
