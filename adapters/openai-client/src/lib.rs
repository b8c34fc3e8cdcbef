//! Servers that speak OpenAI's Chat Completions. [`Client`] asks one and [`Heard`] is what it answered; with
//! them another adapter goes its own way. [`OpenAi`] is a whole adapter: streaming, tools, structured output,
//! conversations, usage, cost, health. What a provider has of its own it says in a [`Dialect`].

mod adapter;
mod api_error;
mod ask;
mod client;
mod completion;
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
pub use ask::{Structured, ask, assistant, format_for, offered, said, tool_answers};
pub use client::Client;
pub use completion::{Completion, News, failed};
pub use names::Names;
pub use prices::{Price, Prices, cost};
pub use sessions::Sessions;
pub use usage::of as usage_of;

/// What a provider has of its own.
pub trait Dialect: Send + Sync + 'static {
    /// The provider id.
    const NAME: &'static str;
    /// The adapter's version.
    const VERSION: &'static str;
    /// Up to and with `/v1`; `None`: the operator has to say.
    const BASE_URL: Option<&'static str> = None;
    /// Variables that may hold the address; the table's `base_url` goes before them.
    const URLS: &'static [&'static str] = &[];
    /// Variables that may hold the key, the first goes first; the table's `api_key` goes before them.
    const KEYS: &'static [&'static str];
    /// All of the variables above, for a child process.
    const ENV: &'static [&'static str];
    /// What is asked for to see whether the server is well, below the address.
    const HEALTH_PATH: &'static str = "/models";
    /// Whether nobody is let in without a key.
    const NEEDS_KEY: bool = true;
    /// Whether `cost` knows what a run costs.
    const TELLS_COST: bool = false;
    /// Compared with other runtimes.
    const COST: CostTier = CostTier::Low;
    /// Compared with other runtimes.
    const LATENCY: LatencyProfile = LatencyProfile::Variable;

    /// Headers of every request besides the key; the operator's go before them.
    fn headers() -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }

    /// Members of every request's body; the operator's go before them.
    fn extra() -> Value {
        Value::Null
    }

    /// What the server itself says of the cost in its `usage`, in US dollars.
    fn cost(_usage: &Value) -> Option<f64> {
        None
    }

    /// Who ran the model, from a member of the answer.
    fn model_provider(_answer: &Value) -> Option<String> {
        None
    }

    /// An error of this provider's own kind, where the common reading of `error` would be wrong.
    fn refusal(_error: &Value) -> Option<AdapterError> {
        None
    }
}
