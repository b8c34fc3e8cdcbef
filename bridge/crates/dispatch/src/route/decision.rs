//! Routing decision. Stored in short form: the candidates, and each dropped one with its layer and reason. Expanded
//! layer by layer when a client reads it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::model_usage::ModelUsage;

/// Layers of the routing rules, in the order in which they are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    Pinned,
    Capabilities,
    Wishes,
    Cost,
    Latency,
    Providers,
    Deployments,
    Health,
    Paused,
    Healthier,
    Load,
    /// Models that the adapter turned away from while it executed; part of no stored decision.
    Models,
}

/// All layers with their numbers, as in `ARCHITECTURE.md`, "Routing layers".
const LAYERS: [(u8, Layer); 11] = [
    (0, Layer::Pinned),
    (1, Layer::Capabilities),
    (1, Layer::Wishes),
    (2, Layer::Cost),
    (2, Layer::Latency),
    (2, Layer::Providers),
    (3, Layer::Deployments),
    (4, Layer::Health),
    (4, Layer::Paused),
    (4, Layer::Healthier),
    (4, Layer::Load),
];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub(super) among: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) dropped: Vec<Dropped>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    pub(super) by: Layer,
    pub(super) provider: String,
    pub(super) reason: String,
}

/// Effect of one layer.
#[derive(Debug, Serialize)]
pub(super) struct Step<'a> {
    layer: u8,
    name: Layer,
    pub(super) kept: Vec<&'a str>,
    dropped: Vec<Why<'a>>,
}

#[derive(Debug, Serialize)]
struct Why<'a> {
    provider: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    reason: Cow<'a, str>,
}

/// Part of a result that names the models.
#[derive(Default, Deserialize)]
struct Asked {
    usage: AskedUsage,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AskedUsage {
    by_model: Vec<ModelUsage>,
}

impl Decision {
    pub fn stored(&self) -> Box<RawValue> {
        to_raw_value(self).expect("a decision has only text keys")
    }

    pub(super) fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        let mut left: Vec<&str> = self.among.iter().map(String::as_str).collect();
        LAYERS.into_iter().map(move |(layer, name)| {
            let by_it = self.dropped.iter().filter(|one| one.by == name);
            let dropped: Vec<_> = by_it
                .map(|one| Why {
                    provider: &one.provider,
                    model: None,
                    reason: one.reason.as_str().into(),
                })
                .collect();
            left.retain(|provider| dropped.iter().all(|why| why.provider != *provider));
            Step {
                layer,
                name,
                kept: left.clone(),
                dropped,
            }
        })
    }
}

/// Expands a stored decision for the HTTP interface; returns one that cannot be parsed unchanged. The models that the
/// adapter of the dispatch asked, if there were several, are the last step; they are known from the `result`.
pub fn told(stored: Box<RawValue>, provider: &str, result: Option<&RawValue>) -> Box<RawValue> {
    match serde_json::from_str::<Decision>(stored.get()) {
        Ok(decision) => {
            let asked = result.map(asked).unwrap_or_default();
            let mut steps: Vec<_> = decision.steps().collect();
            steps.extend(of_models(&asked.usage.by_model, provider));
            to_raw_value(&steps).expect("steps have only text keys")
        }
        Err(_) => stored,
    }
}

fn asked(result: &RawValue) -> Asked {
    // Few results name models, and parsing one takes longer the longer its output is.
    let named = Some(result.get()).filter(|result| result.contains("\"byModel\""));
    let parsed = named.and_then(|result| serde_json::from_str(result).ok());
    parsed.unwrap_or_default()
}

fn of_models<'a>(models: &'a [ModelUsage], provider: &'a str) -> Option<Step<'a>> {
    let (answered, others) = models.split_last()?;
    let left = others.iter().filter_map(|one| {
        let reason = one.reason.as_deref()?;
        Some(Why {
            provider,
            model: Some(&one.model),
            reason: match &one.error {
                Some(error) => format!("{reason}: {error}").into(),
                None => reason.into(),
            },
        })
    });
    Some(Step {
        layer: 5,
        name: Layer::Models,
        kept: vec![&answered.model],
        dropped: left.collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn models_are_the_last_step_of_a_result_that_names_several() {
        let decision = Decision {
            among: vec!["p".to_owned()],
            dropped: Vec::new(),
        };
        let steps = |result: &Value| -> Vec<Value> {
            let result = to_raw_value(result).unwrap();
            let told = told(decision.stored(), "p", Some(&result));
            serde_json::from_str(told.get()).unwrap()
        };
        let counts = json!({"inputTokens": 1, "outputTokens": null});
        for plain in [
            json!({"usage": counts}),
            json!({"output": "\"byModel\"", "usage": null}),
        ] {
            assert_eq!(steps(&plain).len(), LAYERS.len(), "{plain}");
        }
        let models = json!([
            {"model": "a", "inputTokens": 1, "reason": "overloaded", "error": "no room"},
            {"model": "b", "inputTokens": 2, "reason": "rate_limited"},
            {"model": "c", "inputTokens": 3},
        ]);
        let all = steps(&json!({"usage": {"inputTokens": 6, "byModel": models}}));
        let expected = json!({"layer": 5, "name": "models", "kept": ["c"], "dropped": [
            {"provider": "p", "model": "a", "reason": "overloaded: no room"},
            {"provider": "p", "model": "b", "reason": "rate_limited"},
        ]});
        assert_eq!(all.last(), Some(&expected));
    }
}
