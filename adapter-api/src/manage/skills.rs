//! Skills of the runtime, their status and their dependencies. The public description of Bridge names these
//! three areas; this project defines the methods and types.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Result;
use crate::json::{answer, arguments, unsupported};

/// Management of skills that can be edited through the bridge. Methods without an implementation answer
/// `unsupported_op`.
#[async_trait]
pub trait SkillManager: Send + Sync {
    /// `skills.list`.
    async fn list(&self) -> Result<Vec<Skill>>;
    /// `skills.get {skillKey}`: null when it does not exist.
    async fn get(&self, skill_key: &str) -> Result<Option<Skill>>;
    /// `skills.create {skill}`.
    async fn create(&self, _skill: Skill) -> Result<Skill> {
        Err(unsupported("skills.create"))
    }
    /// `skills.update {skill}`: replaces the skill.
    async fn update(&self, _skill: Skill) -> Result<Skill> {
        Err(unsupported("skills.update"))
    }
    /// `skills.remove {skillKey}`: false when it did not exist.
    async fn remove(&self, _skill_key: &str) -> Result<bool> {
        Err(unsupported("skills.remove"))
    }
    /// `skills.status {skillKey}`: reports if the runtime could use it now.
    async fn status(&self, _skill_key: &str) -> Result<SkillStatus> {
        Err(unsupported("skills.status"))
    }
    /// `skills.installDependencies {skillKey}`.
    async fn install_dependencies(&self, _skill_key: &str) -> Result<InstallReport> {
        Err(unsupported("skills.installDependencies"))
    }
}

/// A skill as stored by the runtime.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Skill {
    /// The skill's key in the runtime.
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
    /// Further members from the runtime.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Usability of a skill.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SkillStatus {
    /// True if the skill can be used now.
    pub ready: bool,
    /// Missing dependencies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// If not ready: the reason and the fix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Result of an installation of dependencies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstallReport {
    /// Newly installed dependencies.
    #[serde(default)]
    pub installed: Vec<String>,
    /// Dependencies that are still missing.
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
