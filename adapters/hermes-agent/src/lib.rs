//! The adapter `hermes-agent`: runs tasks on Hermes Agent by the Agent Client Protocol, which
//! `forge-adapter-acp-client` implements, and manages profiles, skills and settings by `hermes serve`.

mod agents;
mod management;
mod process;
mod profiles;
mod runtime;
mod settings;
mod skill_text;
mod skills;
mod system;

use std::path::PathBuf;
use std::sync::Arc;

use forge_adapter_acp_client::AcpClient;
use forge_adapter_api::manage::{
    AgentManager, Interface, RuntimeManager, SkillManager, SystemManager,
};
use forge_adapter_api::{
    Config, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health, HealthStatus,
    Host, Profile, Result, async_trait,
};

use crate::management::Management;
use crate::settings::{PRESET, Settings};

/// The adapter.
pub struct HermesAgent {
    client: Arc<AcpClient>,
    management: Management,
    /// Folder of the profiles.
    profiles: Option<PathBuf>,
    /// Profile for agent ids that name none.
    fallback: String,
}

#[async_trait]
impl ExecutionAdapter for HermesAgent {
    const NAME: &'static str = "hermes-agent";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const ENV: &'static [&'static str] = &["HERMES_HOME"];
    const INTERFACES: &'static [Interface] = &Interface::ALL;

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        let settings = Settings::read(&config)?;
        let client = Arc::new(AcpClient::new(host.clone(), &config, PRESET)?);
        Ok(Self {
            profiles: profiles::folder(&host, &client.program()?.env),
            fallback: settings.agent.clone(),
            management: Management::new(host, settings, Arc::clone(&client))?,
            client,
        })
    }

    async fn shutdown(&self) -> Result<()> {
        tokio::join!(self.management.stop(), self.client.shutdown());
        Ok(())
    }

    async fn stop_event_relay(&self) -> Result<()> {
        tokio::join!(self.management.stop(), self.client.stop_event_relay());
        Ok(())
    }

    async fn check_health(&self) -> Health {
        let mut health = self.client.check_health();
        // Executions do not need the management server.
        if health.status == HealthStatus::Healthy && self.management.is_lost() {
            let text = "`hermes serve` did not answer the last management call";
            health.message = Some(text.to_owned());
        }
        health
    }

    fn capabilities(&self) -> Profile {
        let mut profile = self.client.capabilities();
        profile.capabilities.push("management".to_owned());
        profile
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let profile =
            profiles::of_agent(&request.agent_id, self.profiles.as_deref(), &self.fallback)?;
        let options = ["-p".to_owned(), profile];
        self.client.execute(&request, &options, &events).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.client.cancel(task_handle))
    }

    fn runtime(&self) -> Option<&dyn RuntimeManager> {
        Some(self)
    }

    fn agents(&self) -> Option<&dyn AgentManager> {
        Some(self)
    }

    fn skills(&self) -> Option<&dyn SkillManager> {
        Some(self)
    }

    fn system(&self) -> Option<&dyn SystemManager> {
        Some(self)
    }
}

forge_adapter_api::export_adapter!(HermesAgent);
