//! Signals of the engine API: ten types with fields of their own, and the shape with `adapter` and `metadata`.

use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::FieldProblem;
use crate::record::{Reader, Usage};

/// Kind of a field of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// `adapter_id`, which other types need not have.
    Adapter,
    Id,
    /// Text of any length about the user's goal, stored only where the settings say so.
    Goal,
    OptionalGoal,
    /// Number from 0.
    Number,
    /// Whole number from 0.
    Count,
    /// Number from 0 to 1.
    Share,
    PauseReason,
}

const PAUSE_REASONS: [&str; 3] = ["idle", "explicit", "window_blur"];

/// Types with the fields that they have besides `type`, `ts` and `session_id`.
const TYPES: [(&str, &[(&str, Field)]); 10] = [
    (
        "session-start",
        &[
            ("adapter_id", Field::Adapter),
            ("goal_declared", Field::OptionalGoal),
        ],
    ),
    (
        "session-end",
        &[
            ("duration_ms", Field::Number),
            ("tasks_completed", Field::Count),
        ],
    ),
    (
        "session-pause",
        &[
            ("pause_reason", Field::PauseReason),
            ("context_snapshot_id", Field::Id),
        ],
    ),
    (
        "goal-drift",
        &[
            ("drift_score", Field::Share),
            ("original_goal", Field::Goal),
            ("current_trajectory", Field::Goal),
        ],
    ),
    (
        "context-switch",
        &[("from_tool", Field::Id), ("to_tool", Field::Id)],
    ),
    (
        "tool-switch",
        &[("tool", Field::Id), ("previous_tool", Field::Id)],
    ),
    (
        "token-milestone",
        &[("tokens_used", Field::Count), ("milestone", Field::Count)],
    ),
    (
        "refocus-ack",
        &[
            ("intervention_id", Field::Id),
            ("ack_delay_ms", Field::Number),
        ],
    ),
    (
        "completion-verified",
        &[("goal_id", Field::Id), ("confidence", Field::Share)],
    ),
    (
        "adapter-heartbeat",
        &[
            ("adapter_id", Field::Adapter),
            ("latency_ms", Field::Number),
        ],
    ),
];
/// Types that only the shape with `adapter` has.
const MORE_TYPES: [&str; 7] = [
    "user-prompt",
    "post-tool",
    "pre-compact",
    "stop",
    "hesitation",
    "deletion",
    "correction",
];
/// Maximum length of a stored goal, in characters.
const GOAL_CHARS: usize = 256;

/// Largest delay of an acknowledgement that is kept.
const MAX_DELAY_MS: f64 = 9_007_199_254_740_992.0;

/// Effect of a signal on its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Ends,
    Pauses,
    /// Proof of life of the adapter, for all its sessions.
    Beats,
}

/// Signal that was read and has no problem.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Signal {
    pub(super) name: String,
    /// False for a type that is in neither list: only its name is kept.
    pub(super) is_known: bool,
    /// True for the shape with `adapter` and `metadata`, whose answer has more members.
    pub(super) has_metadata: bool,
    pub(super) adapter: Option<String>,
    pub(super) session_id: Option<String>,
    pub(super) ts: Option<Timestamp>,
    pub(super) call_id: Option<String>,
    pub(super) model: Option<String>,
    pub(super) tool: Option<String>,
    pub(super) usage: Usage,
    pub(super) latency_ms: Option<f64>,
    pub(super) drift_score: Option<f64>,
    pub(super) confidence: Option<f64>,
    /// Intervention that the user acknowledged, and the delay in milliseconds.
    pub(super) acknowledgement: Option<(String, u64)>,
    /// Other fields of the type.
    pub(super) details: Map<String, Value>,
    /// The same of goals.
    pub(super) goals: Map<String, Value>,
}

impl Signal {
    pub(super) fn read(tree: &Value) -> Result<Self, Vec<FieldProblem>> {
        let Some(members) = tree.as_object() else {
            return Err(FieldProblem::whole("must be a JSON object"));
        };
        let mut reader = Reader::new(members);
        reader.require("type");
        let has_metadata =
            reader.value("adapter").is_some() && reader.value("adapter_id").is_none();
        let mut signal = Self {
            name: reader.id("type").unwrap_or_default(),
            has_metadata,
            adapter: reader.id(if has_metadata {
                "adapter"
            } else {
                "adapter_id"
            }),
            session_id: reader.id("session_id"),
            ts: reader.time(),
            call_id: reader.id("call_id"),
            ..Self::default()
        };
        let known = TYPES.iter().find(|(name, _)| *name == signal.name);
        let fields = known.map(|(_, fields)| *fields);
        signal.is_known =
            fields.is_some() || (has_metadata && MORE_TYPES.contains(&signal.name.as_str()));
        match (has_metadata && signal.is_known, fields) {
            (true, _) => signal.read_metadata(&mut reader),
            (false, Some(fields)) => {
                for (name, field) in fields {
                    signal.read_field(&mut reader, name, *field);
                }
            }
            (false, None) => {}
        }
        reader.end(signal)
    }

    pub(super) fn effect(&self) -> Effect {
        match self.name.as_str() {
            "session-end" => Effect::Ends,
            "session-pause" => Effect::Pauses,
            "adapter-heartbeat" => Effect::Beats,
            _ => Effect::None,
        }
    }

    pub(super) fn is_milestone(&self) -> bool {
        self.name == "token-milestone"
    }

    fn read_field(&mut self, reader: &mut Reader<'_>, name: &str, field: Field) {
        if field != Field::OptionalGoal {
            reader.require(name);
        }
        let value = reader.value(name).cloned();
        let is_right = match field {
            Field::Adapter => return,
            Field::Id => reader.id(name).is_some(),
            Field::Number => reader.number(name, f64::MAX).is_some(),
            Field::Count => reader.tokens(name).is_some(),
            Field::Share => reader.number(name, 1.0).is_some(),
            Field::Goal | Field::OptionalGoal => is_text(reader, name),
            Field::PauseReason => is_pause_reason(reader, name),
        };
        let Some(value) = value.filter(|_| is_right) else {
            return;
        };
        match name {
            "drift_score" => self.drift_score = value.as_f64(),
            "confidence" => self.confidence = value.as_f64(),
            "latency_ms" => self.latency_ms = value.as_f64(),
            "tool" => self.tool = value.as_str().map(str::to_owned),
            "intervention_id" => {
                let id = value.as_str().map(str::to_owned);
                self.acknowledgement = id.map(|id| (id, delay_ms(reader)));
                self.details.insert(name.to_owned(), value);
            }
            _ if matches!(field, Field::Goal | Field::OptionalGoal) => {
                let text = value.as_str().unwrap_or_default();
                let start: String = text.chars().take(GOAL_CHARS).collect();
                self.goals.insert(name.to_owned(), start.into());
            }
            _ => {
                self.details.insert(name.to_owned(), value);
            }
        }
    }

    /// Usage of the shape with `metadata`. Other members of it are not read.
    fn read_metadata(&mut self, reader: &mut Reader<'_>) {
        let Some(value) = reader.value("metadata") else {
            return;
        };
        let Some(members) = value.as_object() else {
            return reader
                .complain::<()>("metadata", "must be an object")
                .unwrap_or_default();
        };
        // Content in it was refused with the rest of the body.
        let mut inner = Reader {
            members,
            problems: Vec::new(),
        };
        self.model = inner.id("model");
        self.tool = inner.id("tool");
        self.usage = Usage {
            tokens_in: inner.tokens("tokens_in"),
            tokens_out: inner.tokens("tokens_out"),
            cost_micros: inner.cost(),
            ..Usage::default()
        };
        let problems = inner.problems.into_iter();
        reader.problems.extend(problems.map(|one| FieldProblem {
            field: format!("metadata.{}", one.field),
            ..one
        }));
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number was checked to be from 0, and is cut to 2^53"
)]
fn delay_ms(reader: &Reader<'_>) -> u64 {
    let value = reader.value("ack_delay_ms").and_then(Value::as_f64);
    value.unwrap_or_default().min(MAX_DELAY_MS) as u64
}

fn is_text(reader: &mut Reader<'_>, name: &str) -> bool {
    match reader.value(name) {
        None => false,
        Some(Value::String(_)) => true,
        Some(_) => reader.complain(name, "must be a text").unwrap_or(false),
    }
}

fn is_pause_reason(reader: &mut Reader<'_>, name: &str) -> bool {
    let Some(value) = reader.value(name) else {
        return false;
    };
    let is_known = PAUSE_REASONS.iter().any(|reason| value == reason);
    if !is_known {
        let message = format!("must be one of {}", PAUSE_REASONS.join(", "));
        reader.complain::<()>(name, &message);
    }
    is_known
}
