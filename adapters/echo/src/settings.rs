//! What `[adapters.echo]` may say.

use std::path::PathBuf;

use forge_adapter_api::{CostTier, Health, HealthStatus, LatencyProfile, OutputStrategy, Profile};
use serde::Deserialize;

/// The profile and the health it shows. Unknown members are the rest of the environment.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    capabilities: Vec<String>,
    native_tools: Vec<String>,
    max_concurrent: u32,
    output_strategies: Vec<OutputStrategy>,
    cost_tier: CostTier,
    latency_profile: LatencyProfile,
    /// What the health check answers.
    health: HealthStatus,
    health_message: Option<String>,
    /// A file that gets a line for each execution as it begins.
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
        ];
        Self {
            capabilities: capabilities.map(str::to_owned).to_vec(),
            native_tools: Vec::new(),
            // It has no runtime that could be overrun; a table may lower it.
            max_concurrent: 256,
            output_strategies: vec![
                OutputStrategy::File,
                OutputStrategy::Stream,
                OutputStrategy::Structured,
            ],
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
            health: HealthStatus::Healthy,
            health_message: None,
            journal: None,
        }
    }
}

impl Settings {
    pub(crate) fn health(&self) -> Health {
        let reason = || Some("as [adapters.echo] says".to_owned());
        Health {
            status: self.health,
            message: match self.health {
                HealthStatus::Healthy => self.health_message.clone(),
                HealthStatus::Degraded | HealthStatus::Offline => {
                    self.health_message.clone().or_else(reason)
                }
            },
        }
    }

    pub(crate) fn profile(&self) -> Profile {
        Profile {
            capabilities: self.capabilities.clone(),
            native_tools: self.native_tools.clone(),
            max_concurrent: self.max_concurrent,
            output_strategies: self.output_strategies.clone(),
            cost_tier: self.cost_tier,
            latency_profile: self.latency_profile,
        }
    }
}
