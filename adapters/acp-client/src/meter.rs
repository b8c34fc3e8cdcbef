//! Usage of a run. Agents count differently: the last model call, the turn, or everything since the session began. A
//! count of uncertain scope is not reported.

use forge_adapter_api::foreign_json;
use std::collections::{HashMap, VecDeque};

use forge_adapter_api::Usage;
use serde_json::Value;

use crate::config::UsageScope;

/// Upper bound of remembered sessions; the oldest is evicted.
const MOST_SESSIONS: usize = 10_000;

/// Cumulative counts of each session at the end of its last run.
#[derive(Default)]
pub(crate) struct Marks {
    by_session: HashMap<String, Mark>,
    order: VecDeque<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Mark {
    pub(crate) cost_usd: Option<f64>,
    pub(crate) usage: Usage,
}

impl Marks {
    pub(crate) fn get(&self, session: &str) -> Mark {
        self.by_session.get(session).copied().unwrap_or_default()
    }

    pub(crate) fn set(&mut self, session: &str, mark: Mark) {
        if self.by_session.insert(session.to_owned(), mark).is_none() {
            self.order.push_back(session.to_owned());
            if self.order.len() > MOST_SESSIONS
                && let Some(oldest) = self.order.pop_front()
            {
                self.by_session.remove(&oldest);
            }
        }
    }
}

/// Counts of one run, which is one turn of one process.
#[derive(Debug)]
pub(crate) struct Meter {
    begin: Begin,
    /// Cumulative cost of the session before the turn, in US dollars.
    cost_before: Option<f64>,
    cost_now: Option<f64>,
    /// Counts that the agent reported at the end of the turn.
    told: Option<Usage>,
}

#[derive(Debug)]
enum Begin {
    NewSession,
    Resumed(Mark),
}

impl Meter {
    pub(crate) fn of_new_session() -> Self {
        Self {
            begin: Begin::NewSession,
            cost_before: Some(0.0),
            cost_now: None,
            told: None,
        }
    }

    pub(crate) fn of_resumed_session(mark: Mark) -> Self {
        Self {
            begin: Begin::Resumed(mark),
            cost_before: mark.cost_usd,
            cost_now: None,
            told: None,
        }
    }

    /// Records a `usage_update` sent while the session is loaded, which covers earlier turns.
    pub(crate) fn before_the_turn(&mut self, update: &Value) {
        if let (Some(cost), Begin::Resumed(_)) = (cost(update), &self.begin) {
            self.cost_before = Some(cost);
        }
    }

    /// Records a `usage_update` of the turn; returns true if the cost changed.
    pub(crate) fn in_the_turn(&mut self, update: &Value) -> bool {
        let cost = cost(update);
        let changes = cost.is_some() && cost != self.cost_now;
        self.cost_now = cost.or(self.cost_now);
        changes
    }

    /// Records the counts of the turn's end, from `usage`, or from `_meta.quota` as Gemini CLI reports them.
    pub(crate) fn turn_ends(&mut self, answer: &Value) {
        let quota = || quota(&answer["_meta"]["quota"]["token_count"]);
        self.told = counts(&answer["usage"]).or_else(quota);
    }

    /// Cost of this run in US dollars; `None` until the agent has reported it.
    pub(crate) fn cost_usd(&self) -> Option<f64> {
        Some((self.cost_now? - self.cost_before?).max(0.0))
    }

    /// Usage of this run; fields are `None` if they cannot be derived from the agent's counts.
    pub(crate) fn usage(&self, scope: UsageScope, tool_calls: usize) -> Usage {
        let Some(told) = self.told else {
            return Usage::default();
        };
        let is_new = matches!(self.begin, Begin::NewSession);
        let known = match scope {
            UsageScope::Turn | UsageScope::Process => Some(told),
            UsageScope::LastCall => (tool_calls == 0).then_some(told),
            UsageScope::Session => match &self.begin {
                Begin::NewSession => Some(told),
                Begin::Resumed(mark) => Some(difference(&told, &mark.usage)),
            },
            UsageScope::Auto => (is_new && tool_calls == 0).then_some(told),
            UsageScope::None => None,
        };
        known.unwrap_or_default()
    }

    /// Cumulative counts to remember for the session.
    pub(crate) fn mark(&self) -> Mark {
        Mark {
            cost_usd: self.cost_now.or(self.cost_before),
            usage: self.told.unwrap_or_default(),
        }
    }
}

/// Cost in US dollars; `None` for other currencies.
fn cost(update: &Value) -> Option<f64> {
    let cost = &update["cost"];
    (cost["currency"] == "USD").then(|| foreign_json::amount(&cost["amount"]))?
}

/// Normalises the agent's counts: input includes cached tokens, output includes reasoning tokens. The agent's total
/// shows which of them its own counts include.
fn counts(usage: &Value) -> Option<Usage> {
    let count = |name: &str| foreign_json::count(&usage[name]);
    let (input, output, total) = (
        count("inputTokens")?,
        count("outputTokens")?,
        count("totalTokens"),
    );
    // Agents report a turn that was cut off as zero.
    if (input, output) == (0, 0) {
        return None;
    }
    let (read, thought) = (count("cachedReadTokens"), count("thoughtTokens"));
    let write = count("cachedWriteTokens").or_else(|| count("cacheWriteTokens"));
    let cached = read.unwrap_or(0).saturating_add(write.unwrap_or(0));
    let thoughts = thought.unwrap_or(0);
    let readings = [
        (input, output),
        (input.saturating_add(cached), output),
        (
            input.saturating_add(cached),
            output.saturating_add(thoughts),
        ),
        (input, output.saturating_add(thoughts)),
    ];
    let fitting = readings
        .into_iter()
        .find(|(input, output)| total == Some(input.saturating_add(*output)));
    let (input, output) = match fitting {
        Some((input, output)) => (Some(input), Some(output)),
        None => (
            (cached == 0).then_some(input),
            (thoughts == 0).then_some(output),
        ),
    };
    Some(Usage {
        input_tokens: input,
        output_tokens: output,
        thinking_tokens: thought,
        total_tokens: total.or_else(|| Some(input?.saturating_add(output?))),
        cache_read_tokens: read,
        cache_write_tokens: write,
    })
}

/// Counts of Gemini CLI: input includes cached tokens; thoughts are in no count.
fn quota(counts: &Value) -> Option<Usage> {
    let (input, output) = (
        foreign_json::count(&counts["input_tokens"])?,
        foreign_json::count(&counts["output_tokens"])?,
    );
    (input > 0 || output > 0).then(|| Usage {
        input_tokens: Some(input),
        output_tokens: Some(output),
        total_tokens: Some(input.saturating_add(output)),
        ..Usage::default()
    })
}

/// Difference of each count; `None` if either is unknown.
fn difference(now: &Usage, before: &Usage) -> Usage {
    let since = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
    Usage {
        input_tokens: since(now.input_tokens, before.input_tokens),
        output_tokens: since(now.output_tokens, before.output_tokens),
        thinking_tokens: since(now.thinking_tokens, before.thinking_tokens),
        total_tokens: since(now.total_tokens, before.total_tokens),
        cache_read_tokens: since(now.cache_read_tokens, before.cache_read_tokens),
        cache_write_tokens: since(now.cache_write_tokens, before.cache_write_tokens),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told() -> Value {
        json!({"inputTokens": 31, "outputTokens": 9, "totalTokens": 40})
    }

    #[test]
    fn input_holds_the_cached_tokens_and_output_the_thoughts_however_the_agent_counts() {
        let recorded = [
            // Hermes, claude-agent-acp, OpenCode.
            (
                json!({"cachedReadTokens": 5, "inputTokens": 31, "outputTokens": 9, "thoughtTokens": 2, "totalTokens": 40}),
                (Some(31), Some(9), Some(40)),
            ),
            (
                json!({"inputTokens": 25, "outputTokens": 12, "cachedReadTokens": 7, "cachedWriteTokens": 3, "totalTokens": 47}),
                (Some(35), Some(12), Some(47)),
            ),
            (
                json!({"inputTokens": 26, "outputTokens": 7, "totalTokens": 40, "thoughtTokens": 2, "cachedReadTokens": 5}),
                (Some(31), Some(9), Some(40)),
            ),
            // Without a total it is unknown if the input includes the cached tokens.
            (
                json!({"inputTokens": 26, "outputTokens": 7, "cachedReadTokens": 5}),
                (None, Some(7), None),
            ),
            (
                json!({"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}),
                (None, None, None),
            ),
            (
                json!({"inputTokens": -3, "outputTokens": "x"}),
                (None, None, None),
            ),
        ];
        for (usage, expected) in recorded {
            let counted = counts(&usage).unwrap_or_default();
            let found = (
                counted.input_tokens,
                counted.output_tokens,
                counted.total_tokens,
            );
            assert_eq!(found, expected, "{usage}");
        }
    }

    #[test]
    fn only_what_has_one_meaning_is_reported() {
        use UsageScope::{Auto, LastCall, None as Never, Process, Session, Turn};
        // New session without and with tools; resumed without and with tools.
        let cases = [
            (Turn, [true, true, true, true]),
            (Process, [true, true, true, true]),
            (Session, [true, true, false, false]),
            (LastCall, [true, false, true, false]),
            (Auto, [true, false, false, false]),
            (Never, [false, false, false, false]),
        ];
        for (scope, known) in cases {
            let mut found = Vec::new();
            for begin in [Meter::of_new_session as fn() -> Meter, || {
                Meter::of_resumed_session(Mark::default())
            }] {
                for tool_calls in [0, 1] {
                    let mut meter = begin();
                    meter.turn_ends(&json!({"usage": told()}));
                    found.push(meter.usage(scope, tool_calls).input_tokens == Some(31));
                }
            }
            assert_eq!(found, known, "{scope:?}");
        }
    }

    #[test]
    fn cumulative_counts_are_reported_as_what_came_since_the_mark() {
        let mut first = Meter::of_new_session();
        assert!(first.in_the_turn(&json!({"cost": {"amount": 0.5, "currency": "USD"}})));
        first.turn_ends(&json!({"usage": told()}));
        assert_eq!(first.cost_usd(), Some(0.5));

        let mut marks = Marks::default();
        marks.set("s", first.mark());
        let mut second = Meter::of_resumed_session(marks.get("s"));
        second.in_the_turn(&json!({"cost": {"amount": 0.75, "currency": "USD"}}));
        let usage = json!({"inputTokens": 41, "outputTokens": 19, "totalTokens": 60});
        second.turn_ends(&json!({ "usage": usage }));
        assert_eq!(second.cost_usd(), Some(0.25));
        let usage = second.usage(UsageScope::Session, 1);
        assert_eq!(
            (usage.input_tokens, usage.total_tokens),
            (Some(10), Some(20))
        );
    }

    #[test]
    fn the_cost_of_a_session_without_a_mark_is_not_known_unless_the_agent_tells_it_before() {
        let update =
            |amount: f64, currency: &str| json!({"cost": {"amount": amount, "currency": currency}});
        let mut meter = Meter::of_resumed_session(Mark::default());
        meter.in_the_turn(&update(0.75, "USD"));
        assert_eq!(meter.cost_usd(), None);
        meter.before_the_turn(&update(0.5, "USD"));
        assert_eq!(meter.cost_usd(), Some(0.25));
        let mut meter = Meter::of_new_session();
        assert!(!meter.in_the_turn(&update(3.0, "EUR")));
        assert_eq!(meter.cost_usd(), None);
    }

    #[test]
    fn marks_are_bounded() {
        let mut marks = Marks::default();
        for n in 0..=MOST_SESSIONS {
            let mark = Mark {
                cost_usd: Some(1.0),
                ..Mark::default()
            };
            marks.set(&n.to_string(), mark);
        }
        assert_eq!(marks.by_session.len(), MOST_SESSIONS);
        assert_eq!(marks.get("0"), Mark::default());
    }
}
