//! The platform's public list of models with prices, cached for an hour and bounded. A missing list or price makes the
//! cost unknown but never fails a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{Result, Usage};
use forge_adapter_transport::http::Http;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Upper bound of models kept.
const MOST_MODELS: usize = 2_000;
const GOOD_FOR: Duration = Duration::from_secs(3600);
/// Pause after a failed read of the list.
const PAUSE: Duration = Duration::from_secs(60);

pub(crate) struct Prices {
    http: Http,
    url: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    models: Arc<Models>,
    read_again_at: Option<Instant>,
}

/// Models by id.
pub(crate) type Models = BTreeMap<String, Model>;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Model {
    id: String,
    pub(crate) name: Option<String>,
    pub(crate) family: Option<String>,
    #[serde(default)]
    pricing: Option<Pricing>,
}

#[derive(Clone, Debug, Deserialize)]
struct Pricing {
    input: Option<Rate>,
    output: Option<Rate>,
    cache_read: Option<Rate>,
}

#[derive(Clone, Debug, Deserialize)]
struct Rate {
    /// Price in US dollars, as a number or its text.
    rate_per_1m_tokens: Value,
}

impl Rate {
    /// Cost of this number of tokens; `None` if the price is missing or negative.
    fn of(rate: Option<&Self>, tokens: u64) -> Option<f64> {
        if tokens == 0 {
            return Some(0.0);
        }
        let rate = match &rate?.rate_per_1m_tokens {
            Value::String(text) => text.trim().parse().ok()?,
            number => number.as_f64()?,
        };
        #[expect(
            clippy::cast_precision_loss,
            reason = "counts of tokens are far below 2^53"
        )]
        let millions = tokens as f64 / 1e6;
        (rate >= 0.0).then_some(rate * millions)
    }
}

impl Prices {
    pub(crate) fn new(http: Http, url: String) -> Self {
        Self {
            http,
            url,
            state: Mutex::default(),
        }
    }

    /// The cached list, re-read if it is too old. Concurrent callers wait for a single read; if it fails, the old list
    /// is kept.
    pub(crate) async fn models(&self) -> Arc<Models> {
        let mut state = self.state.lock().await;
        if state.read_again_at.is_none_or(|at| at <= Instant::now()) {
            match self.read().await {
                Ok(models) => {
                    state.models = Arc::new(models);
                    state.read_again_at = Some(Instant::now() + GOOD_FOR);
                }
                Err(error) => {
                    tracing::warn!(%error, "the prices of {} could not be read", self.url);
                    state.read_again_at = Some(Instant::now() + PAUSE);
                }
            }
        }
        Arc::clone(&state.models)
    }

    /// The cached list; empty while another task reads it.
    pub(crate) fn known(&self) -> Arc<Models> {
        let state = self.state.try_lock();
        state.map_or_else(|_| Arc::default(), |state| Arc::clone(&state.models))
    }

    /// Checks that the list is reachable, without reading its content.
    pub(crate) async fn probe(&self) -> Result<()> {
        self.http.head_of(self.http.get(&self.url)).await?;
        Ok(())
    }

    /// Reads the list.
    pub(crate) async fn read(&self) -> Result<Models> {
        let mut answer = self.http.json(self.http.get(&self.url)).await?;
        let Value::Array(entries) = answer["data"].take() else {
            return Ok(Models::new());
        };
        Ok(entries
            .into_iter()
            .take(MOST_MODELS)
            // An entry of unknown format is skipped.
            .filter_map(|entry| serde_json::from_value::<Model>(entry).ok())
            .map(|model| (model.id.clone(), model))
            .collect())
    }
}

/// Cost of a run in US dollars. The input includes cached tokens; if the platform reports none, none were cached.
pub(crate) fn cost(models: &Models, model: &str, usage: &Usage) -> Option<f64> {
    let pricing = models.get(model)?.pricing.as_ref()?;
    let cached = usage.cache_read_tokens.unwrap_or(0);
    let uncached = usage.input_tokens?.checked_sub(cached)?;
    Some(
        Rate::of(pricing.input.as_ref(), uncached)?
            + Rate::of(pricing.cache_read.as_ref(), cached)?
            + Rate::of(pricing.output.as_ref(), usage.output_tokens?)?,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cost_is_known_when_all_its_prices_are() {
        let rate = |rate: Value| json!({"rate_per_1m_tokens": rate});
        let (input, output) = (rate(json!(2)), rate(json!("10.0")));
        let usage = |input, cached, output| Usage {
            input_tokens: input,
            cache_read_tokens: cached,
            output_tokens: output,
            ..Usage::default()
        };
        let million = Some(1_000_000);
        for (pricing, usage, expected) in [
            (
                json!({"input": input, "output": output}),
                usage(million, None, million),
                Some(12.0),
            ),
            (
                json!({"input": input, "output": output}),
                usage(million, Some(0), Some(0)),
                Some(2.0),
            ),
            (
                json!({"input": input, "output": output}),
                usage(million, Some(1), million),
                None,
            ),
            (
                json!({"input": input, "output": output, "cache_read": rate(json!(0.5))}),
                usage(million, Some(500_000), Some(0)),
                Some(1.25),
            ),
            (json!({"input": input}), usage(million, None, million), None),
            (
                json!({"input": input, "output": output}),
                usage(None, None, million),
                None,
            ),
            (
                json!({"input": input, "output": output}),
                usage(million, None, None),
                None,
            ),
            (
                json!({"input": input, "output": output}),
                usage(Some(1), Some(2), Some(1)),
                None,
            ),
            (
                json!({"input": rate(json!("much")), "output": output}),
                usage(million, None, million),
                None,
            ),
            (
                json!({"input": rate(json!(-1)), "output": output}),
                usage(million, None, million),
                None,
            ),
            (json!(null), usage(million, None, million), None),
        ] {
            let model = serde_json::from_value(json!({"id": "m", "pricing": pricing})).unwrap();
            let models = Models::from([("m".to_owned(), model)]);
            assert_eq!(cost(&models, "m", &usage), expected, "{pricing} {usage:?}");
            assert_eq!(cost(&models, "other", &usage), None);
        }
    }
}
