//! Client and adapter for servers with OpenAI's Chat Completions API. [`Client`] sends requests and
//! [`Completion`] accumulates an answer, for adapters with a flow of their own. [`OpenAi`] is a complete
//! adapter: streaming, tools, structured output, conversations, usage, cost, health. A [`Dialect`]
//! describes the specifics of a provider.

mod adapter;
mod api_error;
mod ask;
mod attachments;
mod calls;
mod client;
mod completion;
mod follow;
mod names;
mod prices;
mod run;
mod sessions;
mod settings;
mod usage;

use forge_adapter_api::{AdapterError, CostTier, LatencyProfile};
use serde_json::Value;

pub use adapter::OpenAi;
pub use api_error::{read as read_refusal, refused, said_in as refusal_in};
pub use ask::{Structured, ask, assistant, format_for, offered, options_of, said, tool_answers};
pub use attachments::UserMessage;
pub use client::Client;
pub use completion::{Completion, News, reason};
pub use follow::{Follow, ended_early};
pub use names::Names;
pub use prices::{Price, Prices, cost};
pub use sessions::Sessions;
pub use usage::of as usage_of;

/// Specifics of a provider.
pub trait Dialect: Send + Sync + 'static {
    /// The provider id.
    const NAME: &'static str;
    /// The adapter's version.
    const VERSION: &'static str;
    /// Base URL, including `/v1`; `None` if the operator must set it.
    const BASE_URL: Option<&'static str> = None;
    /// Variables that can hold the base URL, in order of precedence; `base_url` of the table takes
    /// precedence over them.
    const URLS: &'static [&'static str] = &[];
    /// Variables that can hold the key, in order of precedence; `api_key` of the table takes precedence
    /// over them.
    const KEYS: &'static [&'static str];
    /// Variables passed to a child process that runs the adapter, besides those that begin with its name.
    const ENV: &'static [&'static str];
    /// Path below the base URL that the health check requests.
    const HEALTH_PATH: &'static str = "/models";
    /// True if the provider requires a key.
    const NEEDS_KEY: bool = true;
    /// True if `cost` returns the cost of a run.
    const TELLS_COST: bool = false;
    /// Cost relative to other runtimes.
    const COST: CostTier = CostTier::Low;
    /// Latency relative to other runtimes.
    const LATENCY: LatencyProfile = LatencyProfile::Variable;

    /// Headers of every request besides the key; those of the operator take precedence.
    fn headers() -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }

    /// Members of every request's body; those of the operator take precedence.
    fn extra() -> Value {
        Value::Null
    }

    /// Cost reported by the server in its `usage`, in US dollars.
    fn cost(_usage: &Value) -> Option<f64> {
        None
    }

    /// Provider that ran the model, from a member of the answer.
    fn model_provider(_answer: &Value) -> Option<String> {
        None
    }

    /// Parses errors specific to the provider; `None` for those in the common format.
    fn refusal(_error: &Value) -> Option<AdapterError> {
        None
    }
}
