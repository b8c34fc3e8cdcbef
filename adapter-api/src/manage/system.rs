//! The runtime's configuration, model catalogue and security posture. The contract names these three
//! areas; the methods and types are this project's.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Result;
use crate::json::{answer, unsupported};

/// For runtimes that can be administered through the bridge. What an implementation leaves out
/// answers `unsupported_op`.
#[async_trait]
pub trait SystemManager: Send + Sync {
    /// `system.reloadConfig`: the runtime reads its configuration again.
    async fn reload_config(&self) -> Result<ReloadReport> {
        Err(unsupported("system.reloadConfig"))
    }
    /// `system.listModels`: the model catalogue.
    async fn list_models(&self) -> Result<Vec<Model>> {
        Err(unsupported("system.listModels"))
    }
    /// `system.securityPosture`.
    async fn security_posture(&self) -> Result<SecurityPosture> {
        Err(unsupported("system.securityPosture"))
    }
}

/// What reading the configuration again did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReloadReport {
    /// Something is different now.
    pub changed: bool,
    /// What a human should know, such as settings that need a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A model of the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// What a request's `model` says to select it.
    pub model_id: String,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who makes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Whatever else the runtime says.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// How safe the runtime's set-up is, by its own account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecurityPosture {
    /// Executions are isolated from the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxed: Option<bool>,
    /// What the runtime thinks worth knowing.
    #[serde(default)]
    pub findings: Vec<SecurityFinding>,
}

/// One thing worth knowing about the set-up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecurityFinding {
    /// As the runtime grades it.
    pub severity: String,
    /// What was found and what to do.
    pub message: String,
}

pub(super) async fn call(manager: &dyn SystemManager, op: &str) -> Result<Vec<u8>> {
    match op {
        "system.reloadConfig" => answer(op, &manager.reload_config().await?),
        "system.listModels" => answer(op, &manager.list_models().await?),
        "system.securityPosture" => answer(op, &manager.security_posture().await?),
        _ => Err(unsupported(op)),
    }
}
