//! The adapter guide's Acme AI: a complete adapter, as a third party would write it.
#![forbid(unsafe_code)]

mod acme;

use forge_adapter_api::{
    AdapterError, AdapterEvent, Config, CostTier, Events, ExecutionAdapter, ExecutionRequest,
    ExecutionResult, Health, Host, LatencyProfile, OutputStrategy, Profile, Result, Running, Usage,
    async_trait, tracing,
};

forge_adapter_api::export_adapter!(AcmeAi);

/// The adapter.
pub struct AcmeAi {
    client: acme::Client,
    running: Running,
}

#[async_trait]
impl ExecutionAdapter for AcmeAi {
    const NAME: &'static str = "acme-ai";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn initialize(_host: Host, config: Config) -> Result<Self> {
        let api_key = config.string("ACME_AI_API_KEY").map(str::to_owned);
        if api_key.is_none() {
            tracing::warn!("ACME_AI_API_KEY is not set: requests will fail");
        }
        Ok(Self {
            client: acme::Client::new(api_key),
            running: Running::default(),
        })
    }

    async fn shutdown(&self) -> Result<()> {
        self.running.cancel_all();
        Ok(())
    }

    async fn check_health(&self) -> Health {
        if self.client.has_key() {
            Health::healthy()
        } else {
            Health::degraded("ACME_AI_API_KEY is not set: set it and restart")
        }
    }

    fn capabilities(&self) -> Profile {
        Profile {
            capabilities: vec!["streaming".to_owned(), "cost_tracking".to_owned()],
            native_tools: Vec::new(),
            max_concurrent: 20,
            output_strategies: vec![OutputStrategy::Stream],
            options: Vec::new(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
        }
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let run = self.running.start(&request.task_id);
        tokio::select! {
            result = self.generate(&request, &events) => result,
            () = run.cancelled() => Err(AdapterError::cancelled()),
        }
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }
}

impl AcmeAi {
    async fn generate(
        &self,
        request: &ExecutionRequest,
        events: &Events,
    ) -> Result<ExecutionResult> {
        let model = request.model.as_deref().unwrap_or("acme-1");
        let system = request.system_prompt.as_deref().unwrap_or_default();
        let mut generation = self
            .client
            .generate(model, system, &request.message)
            .map_err(refused)?;
        let mut output = String::new();
        while let Some(delta) = generation.next().await {
            output.push_str(&delta);
            events.send(AdapterEvent::text(delta)).await;
        }
        Ok(ExecutionResult {
            usage: Usage {
                input_tokens: Some(generation.input_tokens),
                output_tokens: Some(generation.output_tokens),
                total_tokens: Some(generation.input_tokens + generation.output_tokens),
                ..Usage::default()
            },
            model: Some(model.to_owned()),
            model_provider: Some("acme".to_owned()),
            ..ExecutionResult::ok(output)
        })
    }
}

/// Translates Acme's errors into adapter errors.
fn refused(error: acme::Error) -> AdapterError {
    match error {
        acme::Error::Unauthenticated => {
            AdapterError::new("unauthenticated", "Acme AI: ACME_AI_API_KEY is not set")
        }
        acme::Error::UnknownModel(model) => AdapterError::new(
            "invalid_request",
            format!("Acme AI has no model {model:?}: use acme-1 or acme-1-slow"),
        ),
    }
}
