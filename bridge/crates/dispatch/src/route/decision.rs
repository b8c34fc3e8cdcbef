//! Routing decision. Stored in short form: the candidates, and each dropped one with its layer and reason. Expanded
//! layer by layer when a client reads it.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

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
    reason: &'a str,
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
                    reason: &one.reason,
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

/// Expands a stored decision for the HTTP interface; returns one that cannot be parsed unchanged.
pub fn told(stored: Box<RawValue>) -> Box<RawValue> {
    match serde_json::from_str::<Decision>(stored.get()) {
        Ok(decision) => {
            let steps: Vec<_> = decision.steps().collect();
            to_raw_value(&steps).expect("steps have only text keys")
        }
        Err(_) => stored,
    }
}
