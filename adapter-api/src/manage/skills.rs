//! Skills of the runtime, their status and their dependencies. The contract names these three areas;
//! the methods and types are this project's.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Result;
use crate::json::{answer, arguments, unsupported};

/// For runtimes whose skills can be edited through the bridge. What an implementation leaves out
/// answers `unsupported_op`.
#[async_trait]
pub trait SkillManager: Send + Sync {
    /// `skills.list`.
    async fn list(&self) -> Result<Vec<Skill>>;
    /// `skills.get {skillKey}`: null when there is none.
    async fn get(&self, skill_key: &str) -> Result<Option<Skill>>;
    /// `skills.create {skill}`.
    async fn create(&self, _skill: Skill) -> Result<Skill> {
        Err(unsupported("skills.create"))
    }
    /// `skills.update {skill}`: the skill becomes what is given.
    async fn update(&self, _skill: Skill) -> Result<Skill> {
        Err(unsupported("skills.update"))
    }
    /// `skills.remove {skillKey}`: false when there was none.
    async fn remove(&self, _skill_key: &str) -> Result<bool> {
        Err(unsupported("skills.remove"))
    }
    /// `skills.status {skillKey}`: whether the runtime could use it now.
    async fn status(&self, _skill_key: &str) -> Result<SkillStatus> {
        Err(unsupported("skills.status"))
    }
    /// `skills.installDependencies {skillKey}`.
    async fn install_dependencies(&self, _skill_key: &str) -> Result<InstallReport> {
        Err(unsupported("skills.installDependencies"))
    }
}

/// A skill as the runtime keeps it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Skill {
    /// The skill's key in the runtime.
    pub skill_key: String,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Its text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Whatever else the runtime keeps.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Whether a skill can be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillStatus {
    /// It can be used now.
    pub ready: bool,
    /// Dependencies that are not there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// The reason and the cure, where it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What an installation did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstallReport {
    /// Now there and not before.
    #[serde(default)]
    pub installed: Vec<String>,
    /// Still not there.
    #[serde(default)]
    pub failed: Vec<String>,
}

#[derive(Deserialize)]
struct Whole {
    skill: Skill,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Of {
    skill_key: String,
}

pub(super) async fn call(manager: &dyn SkillManager, op: &str, payload: &[u8]) -> Result<Vec<u8>> {
    match op {
        "skills.list" => answer(op, &manager.list().await?),
        "skills.get" => {
            let Of { skill_key } = arguments(op, payload)?;
            answer(op, &manager.get(&skill_key).await?)
        }
        "skills.create" => {
            let Whole { skill } = arguments(op, payload)?;
            answer(op, &manager.create(skill).await?)
        }
        "skills.update" => {
            let Whole { skill } = arguments(op, payload)?;
            answer(op, &manager.update(skill).await?)
        }
        "skills.remove" => {
            let Of { skill_key } = arguments(op, payload)?;
            answer(op, &manager.remove(&skill_key).await?)
        }
        "skills.status" => {
            let Of { skill_key } = arguments(op, payload)?;
            answer(op, &manager.status(&skill_key).await?)
        }
        "skills.installDependencies" => {
            let Of { skill_key } = arguments(op, payload)?;
            answer(op, &manager.install_dependencies(&skill_key).await?)
        }
        _ => Err(unsupported(op)),
    }
}
