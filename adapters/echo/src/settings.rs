//! Settings of `[adapters.echo]`.

use std::path::PathBuf;

use forge_adapter_api::{CostTier, Health, HealthStatus, LatencyProfile, OutputStrategy, Profile};
use serde::Deserialize;

use crate::order::Side;

/// The reported profile and health. Unknown members are ignored: they are environment variables.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    capabilities: Vec<String>,
    native_tools: Vec<String>,
    max_concurrent: u32,
    output_strategies: Vec<OutputStrategy>,
    options: Vec<String>,
    cost_tier: CostTier,
    latency_profile: LatencyProfile,
    /// Status returned by the health check.
    health: HealthStatus,
    health_message: Option<String>,
    /// Side of conflicts that an agent of model `run` keeps if its message has no instructions.
    pub(crate) settle: Option<Side>,
    /// File that receives a line for each execution when it begins.
    pub(crate) journal: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        let capabilities = [
            "streaming",
            "session_resume",
            "file_io",
            "cost_tracking",
            "structured_output",
            "attachments",
        ];
        Self {
            capabilities: capabilities.map(str::to_owned).to_vec(),
            native_tools: Vec::new(),
            // No runtime can be overloaded; a table can set a lower value.
            max_concurrent: 256,
            output_strategies: vec![
                OutputStrategy::File,
                OutputStrategy::Stream,
                OutputStrategy::Structured,
            ],
            options: Vec::new(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
            health: HealthStatus::Healthy,
            health_message: None,
            settle: None,
            journal: None,
        }
    }
}

impl Settings {
    pub(crate) fn health(&self) -> Health {
        let reason = || Some("as configured in [adapters.echo]".to_owned());
        Health {
            status: self.health,
            message: match self.health {
                HealthStatus::Healthy => self.health_message.clone(),
                HealthStatus::Degraded | HealthStatus::Offline => {
                    self.health_message.clone().or_else(reason)
                }
            },
            details: None,
        }
    }

    pub(crate) fn profile(&self) -> Profile {
        Profile {
            capabilities: self.capabilities.clone(),
            native_tools: self.native_tools.clone(),
            max_concurrent: self.max_concurrent,
            output_strategies: self.output_strategies.clone(),
            options: self.options.clone(),
            cost_tier: self.cost_tier,
            latency_profile: self.latency_profile,
        }
    }
}
