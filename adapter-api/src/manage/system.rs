//! The runtime's configuration, model catalogue and security posture. The public description of Bridge names
//! these three areas; this project defines the methods and types.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Result;
use crate::json::{answer, unsupported};

/// Administration of a runtime through the bridge. Methods without an implementation answer
/// `unsupported_op`.
#[async_trait]
pub trait SystemManager: Send + Sync {
    /// `system.reloadConfig`: reloads the runtime's configuration.
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

/// Result of a reload of the runtime's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReloadReport {
    /// True if the reload changed anything.
    pub changed: bool,
    /// Notes for humans, such as settings that need a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A model of the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Model {
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

/// Security of the runtime's setup, as reported by the runtime.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecurityPosture {
    /// True if executions are isolated from the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxed: Option<bool>,
    /// Findings reported by the runtime.
    #[serde(default)]
    pub findings: Vec<SecurityFinding>,
}

/// A security finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecurityFinding {
    /// Severity in the runtime's own terms.
    pub severity: String,
    /// The finding and its fix.
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
