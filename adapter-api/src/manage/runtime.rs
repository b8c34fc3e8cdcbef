//! Agent sync, skill sync and discovery. The public description of Bridge defines the eight methods; this
//! project defines the members of their types.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Result;
use crate::json::{answer, arguments, done, unsupported};

/// Sync and discovery for runtimes that store agents and skills: pushes those of the caller and lists those
/// of the runtime.
#[async_trait]
pub trait RuntimeManager: Send + Sync {
    /// `runtime.pushAgent {spec}`: creates the agent or updates it to the spec.
    async fn push_agent(&self, spec: AgentSyncSpec) -> Result<()>;
    /// `runtime.removeAgent {agentId}`: succeeds if the agent does not exist.
    async fn remove_agent(&self, agent_id: &str) -> Result<()>;
    /// `runtime.discoverAgents`.
    async fn discover_agents(&self) -> Result<Vec<DiscoveredAgent>>;
    /// `runtime.pushFile {agentId, filename, content}`: replaces a workspace file.
    async fn push_file(&self, agent_id: &str, filename: &str, content: &str) -> Result<()>;
    /// `runtime.pushSkill {spec}`: creates the skill or updates it to the spec.
    async fn push_skill(&self, spec: SkillSyncSpec) -> Result<()>;
    /// `runtime.removeSkill {skillKey}`: succeeds if the skill does not exist.
    async fn remove_skill(&self, skill_key: &str) -> Result<()>;
    /// `runtime.discoverSkills`.
    async fn discover_skills(&self) -> Result<Vec<DiscoveredSkill>>;
    /// `runtime.discoverModels`.
    async fn discover_models(&self) -> Result<Vec<DiscoveredModel>>;
}

/// Desired state of an agent. Unknown members are passed on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSyncSpec {
    /// The agent's id, the same in both systems.
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
    /// Keys of its skills.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
    /// Further members of the request.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Desired state of a skill. Unknown members are passed on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillSyncSpec {
    /// The skill's key, the same in both systems.
    pub skill_key: String,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Purpose of the skill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Further members of the request.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// An agent that the runtime has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredAgent {
    /// The agent's id in the runtime.
    pub agent_id: String,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The model it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Further members from the runtime.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A skill that the runtime has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredSkill {
    /// The skill's key in the runtime.
    pub skill_key: String,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Purpose of the skill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Further members from the runtime.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A model that the runtime offers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredModel {
    /// The value of a request's `model` that selects it.
    pub model_id: String,
    /// Display name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Maker of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Further members from the runtime.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

#[derive(Deserialize)]
struct Spec<T> {
    spec: T,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfAgent {
    agent_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfSkill {
    skill_key: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PushFile {
    agent_id: String,
    filename: String,
    content: String,
}

pub(super) async fn call(
    manager: &dyn RuntimeManager,
    op: &str,
    payload: &[u8],
) -> Result<Vec<u8>> {
    match op {
        "runtime.pushAgent" => {
            let Spec { spec } = arguments(op, payload)?;
            manager.push_agent(spec).await?;
            Ok(done())
        }
        "runtime.removeAgent" => {
            let OfAgent { agent_id } = arguments(op, payload)?;
            manager.remove_agent(&agent_id).await?;
            Ok(done())
        }
        "runtime.discoverAgents" => answer(op, &manager.discover_agents().await?),
        "runtime.pushFile" => {
            let file: PushFile = arguments(op, payload)?;
            manager
                .push_file(&file.agent_id, &file.filename, &file.content)
                .await?;
            Ok(done())
        }
        "runtime.pushSkill" => {
            let Spec { spec } = arguments(op, payload)?;
            manager.push_skill(spec).await?;
            Ok(done())
        }
        "runtime.removeSkill" => {
            let OfSkill { skill_key } = arguments(op, payload)?;
            manager.remove_skill(&skill_key).await?;
            Ok(done())
        }
        "runtime.discoverSkills" => answer(op, &manager.discover_skills().await?),
        "runtime.discoverModels" => answer(op, &manager.discover_models().await?),
        _ => Err(unsupported(op)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;

    /// Records the calls it receives.
    #[derive(Default)]
    struct Book(Mutex<Vec<String>>);

    impl Book {
        fn note(&self, line: String) {
            self.0.lock().unwrap().push(line);
        }
    }

    #[async_trait]
    impl RuntimeManager for Book {
        async fn push_agent(&self, spec: AgentSyncSpec) -> Result<()> {
            self.note(format!("push_agent {} {:?}", spec.agent_id, spec.extra));
            Ok(())
        }
        async fn remove_agent(&self, agent_id: &str) -> Result<()> {
            self.note(format!("remove_agent {agent_id}"));
            Ok(())
        }
        async fn discover_agents(&self) -> Result<Vec<DiscoveredAgent>> {
            Ok(Vec::new())
        }
        async fn push_file(&self, agent_id: &str, filename: &str, content: &str) -> Result<()> {
            self.note(format!("push_file {agent_id} {filename} {content}"));
            Ok(())
        }
        async fn push_skill(&self, spec: SkillSyncSpec) -> Result<()> {
            self.note(format!("push_skill {}", spec.skill_key));
            Ok(())
        }
        async fn remove_skill(&self, skill_key: &str) -> Result<()> {
            self.note(format!("remove_skill {skill_key}"));
            Ok(())
        }
        async fn discover_skills(&self) -> Result<Vec<DiscoveredSkill>> {
            Ok(Vec::new())
        }
        async fn discover_models(&self) -> Result<Vec<DiscoveredModel>> {
            Ok(vec![DiscoveredModel {
                model_id: "m-1".to_owned(),
                ..DiscoveredModel::default()
            }])
        }
    }

    #[tokio::test]
    async fn each_op_reaches_its_method_with_its_arguments() {
        let table = [
            (
                "runtime.pushAgent",
                json!({"spec": {"agentId": "a", "colour": 1}}),
                "push_agent a {\"colour\": Number(1)}",
                json!({}),
            ),
            (
                "runtime.removeAgent",
                json!({"agentId": "a"}),
                "remove_agent a",
                json!({}),
            ),
            ("runtime.discoverAgents", json!({}), "", json!([])),
            (
                "runtime.pushFile",
                json!({"agentId": "a", "filename": "f", "content": "c"}),
                "push_file a f c",
                json!({}),
            ),
            (
                "runtime.pushSkill",
                json!({"spec": {"skillKey": "s"}}),
                "push_skill s",
                json!({}),
            ),
            (
                "runtime.removeSkill",
                json!({"skillKey": "s"}),
                "remove_skill s",
                json!({}),
            ),
            ("runtime.discoverSkills", json!({}), "", json!([])),
            (
                "runtime.discoverModels",
                json!({}),
                "",
                json!([{"modelId": "m-1"}]),
            ),
        ];
        for (op, arguments, noted, expected) in table {
            let book = Book::default();
            let answer = call(&book, op, arguments.to_string().as_bytes())
                .await
                .unwrap();
            assert_eq!(book.0.lock().unwrap().join(""), noted, "{op}");
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(answer, expected, "{op}");
        }
    }

    #[tokio::test]
    async fn what_is_missing_is_named() {
        let error = call(&Book::default(), "runtime.removeAgent", b"{}")
            .await
            .unwrap_err();
        assert_eq!(error.code, "invalid_request");
        assert!(error.message.contains("agentId"), "{}", error.message);
        let error = call(&Book::default(), "runtime.dance", b"{}")
            .await
            .unwrap_err();
        assert_eq!(error.code, "unsupported_op");
    }
}
