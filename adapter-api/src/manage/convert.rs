//! Conversions between what a runtime stores, what it is pushed and what is discovered of it.

use super::{
    Agent, AgentSyncSpec, DiscoveredAgent, DiscoveredModel, DiscoveredSkill, Model, Skill,
    SkillSyncSpec,
};

/// The agent without its skills, for which `Agent` has no member.
impl From<AgentSyncSpec> for Agent {
    fn from(spec: AgentSyncSpec) -> Self {
        Self {
            agent_id: spec.agent_id,
            name: spec.name,
            model: spec.model,
            system_prompt: spec.system_prompt,
            extra: spec.extra,
        }
    }
}

impl From<SkillSyncSpec> for Skill {
    fn from(spec: SkillSyncSpec) -> Self {
        Self {
            skill_key: spec.skill_key,
            name: spec.name,
            description: spec.description,
            content: spec.content,
            extra: spec.extra,
        }
    }
}

/// The agent without its instructions.
impl From<Agent> for DiscoveredAgent {
    fn from(agent: Agent) -> Self {
        Self {
            agent_id: agent.agent_id,
            name: agent.name,
            model: agent.model,
            extra: agent.extra,
        }
    }
}

/// The skill without its text.
impl From<Skill> for DiscoveredSkill {
    fn from(skill: Skill) -> Self {
        Self {
            skill_key: skill.skill_key,
            name: skill.name,
            description: skill.description,
            extra: skill.extra,
        }
    }
}

impl From<Model> for DiscoveredModel {
    fn from(model: Model) -> Self {
        Self {
            model_id: model.model_id,
            name: model.name,
            provider: model.provider,
            extra: model.extra,
        }
    }
}
