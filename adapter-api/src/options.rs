//! Options of the model for one dispatch. An adapter declares the names that it honours in
//! [`Profile::options`](crate::Profile::options) and ignores the others, about which the bridge warns the caller.

use serde::{Deserialize, Serialize};

/// Options of the model. An absent one is the runtime's own choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelOptions {
    /// Sampling temperature, 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus sampling, above 0 and at most 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Maximum tokens of one answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Effort of thinking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
    /// Use of `tools`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Texts at which the answer ends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// Seed of the sampling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
}

/// Names of all options.
pub const ALL: [&str; 7] = [
    "temperature",
    "topP",
    "maxOutputTokens",
    "reasoning",
    "toolChoice",
    "stop",
    "seed",
];

/// Effort of thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reasoning {
    /// No thinking, or the least that the model allows.
    Off,
    /// Little.
    Low,
    /// Moderate.
    Medium,
    /// Much.
    High,
}

impl Reasoning {
    /// The name, as on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// Use of `tools`: `"auto"`, `"none"`, `"required"`, or `{"tool": NAME}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// No tool is called.
    None,
    /// At least one tool is called.
    Required,
    /// This tool is called.
    Tool(String),
}

impl ModelOptions {
    /// True if nothing is set.
    pub fn is_empty(&self) -> bool {
        self == &Self::default()
    }

    /// Names of the options that are set.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        let set = [
            self.temperature.is_some(),
            self.top_p.is_some(),
            self.max_output_tokens.is_some(),
            self.reasoning.is_some(),
            self.tool_choice.is_some(),
            !self.stop.is_empty(),
            self.seed.is_some(),
        ];
        let names = ALL.into_iter().zip(set);
        names.filter_map(|(name, set)| set.then_some(name))
    }
}
