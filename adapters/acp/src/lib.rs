//! The adapter `acp`: runs tasks on any agent program that speaks the Agent Client Protocol on stdio, which the operator
//! names. `forge-adapter-acp-client` implements it.

use forge_adapter_acp_client::{AcpClient, Preset};
use forge_adapter_api::{
    Config, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health, Host, Profile,
    Result, async_trait,
};

/// The adapter.
pub struct Acp(AcpClient);

#[async_trait]
impl ExecutionAdapter for Acp {
    const NAME: &'static str = "acp";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        AcpClient::new(host, &config, Preset::default()).map(Self)
    }

    async fn shutdown(&self) -> Result<()> {
        self.0.shutdown().await;
        Ok(())
    }

    async fn stop_event_relay(&self) -> Result<()> {
        self.0.stop_event_relay().await;
        Ok(())
    }

    async fn check_health(&self) -> Health {
        self.0.check_health()
    }

    fn capabilities(&self) -> Profile {
        self.0.capabilities()
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        self.0.execute(&request, &[], &events).await
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.0.cancel(task_handle))
    }
}

forge_adapter_api::export_adapter!(Acp);
