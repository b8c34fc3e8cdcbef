//! The adapter `openrouter`: models of many providers behind one key. The service reports the cost of a
//! run.

use forge_adapter_api::AdapterError;
use forge_adapter_api::foreign_json;
use forge_adapter_openai_client::{Dialect, OpenAi};
use serde_json::{Value, json};

/// Specifics of OpenRouter.
pub struct OpenRouter;

impl Dialect for OpenRouter {
    const NAME: &'static str = "openrouter";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const BASE_URL: Option<&'static str> = Some("https://openrouter.ai/api/v1");
    const URLS: &'static [&'static str] = &["OPENROUTER_BASE_URL"];
    const KEYS: &'static [&'static str] = &["OPENROUTER_API_KEY"];
    const ENV: &'static [&'static str] = &[];
    /// The key's own endpoint: the list of models is public and does not test the key.
    const HEALTH_PATH: &'static str = "/key";
    const TELLS_COST: bool = true;

    fn headers() -> Vec<(&'static str, &'static str)> {
        vec![("X-Title", "forge-bridge")]
    }

    fn extra() -> Value {
        json!({"usage": {"include": true}})
    }

    fn cost(usage: &Value) -> Option<f64> {
        foreign_json::amount(&usage["cost"])
    }

    fn model_provider(answer: &Value) -> Option<String> {
        answer["provider"].as_str().map(str::to_owned)
    }

    /// Parses errors of moderation (403 with `reasons`), and of the provider behind OpenRouter, whose own
    /// text is in `metadata`.
    fn refusal(error: &Value) -> Option<AdapterError> {
        let (message, metadata) = (error["message"].as_str()?, &error["metadata"]);
        if metadata["reasons"].is_array() {
            let text = format!("{message} ({})", metadata["reasons"]);
            return Some(AdapterError::new("blocked_by_policy", text));
        }
        let provider = metadata["provider_name"].as_str()?;
        let said = metadata["raw"].as_str().unwrap_or_default();
        let text = format!("{provider}: {message} {said}");
        let mut refusal = forge_adapter_openai_client::read_refusal(error);
        refusal.message = text.trim().to_owned();
        Some(refusal)
    }
}

forge_adapter_api::export_adapter!(OpenAi<OpenRouter>);
