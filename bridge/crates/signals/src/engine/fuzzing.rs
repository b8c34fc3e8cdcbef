//! Access for `tests/fuzz` to the reading of a signal, which is private to the engine.

use serde_json::{Map, Value};

use super::signal::Signal;
use crate::FieldProblem;
use crate::record::Usage;

/// Parts of a signal that the engine stores or looks sessions up by.
#[derive(Debug)]
pub struct Kept {
    /// Names and ids, `type` first.
    pub texts: Vec<String>,
    pub usage: Usage,
    pub latency_ms: Option<f64>,
    /// `drift_score` and `confidence`.
    pub shares: Vec<f64>,
    /// Delay of an acknowledgement.
    pub delay_ms: Option<u64>,
    pub details: Map<String, Value>,
    pub goals: Map<String, Value>,
}

/// Reads the body of a signal.
pub fn read(tree: &Value) -> Result<Kept, Vec<FieldProblem>> {
    let signal = Signal::read(tree)?;
    let (acknowledged, delay_ms) = signal.acknowledgement.unzip();
    let optional = [
        signal.adapter,
        signal.session_id,
        signal.call_id,
        signal.model,
        signal.tool,
        acknowledged,
    ];
    let texts = [signal.name].into_iter();
    let shares = [signal.drift_score, signal.confidence];
    Ok(Kept {
        texts: texts.chain(optional.into_iter().flatten()).collect(),
        usage: signal.usage,
        latency_ms: signal.latency_ms,
        shares: shares.into_iter().flatten().collect(),
        delay_ms,
        details: signal.details,
        goals: signal.goals,
    })
}
