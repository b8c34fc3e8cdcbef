//! Rules and budgets with their fullest windows, for people who look at them.

use jiff::Timestamp;
use serde_json::Value;

use forge_store::record::{SignalSession, SignalTotals};

use super::Evaluator;
use crate::money::MICROS;
use crate::rule::{Entry, NumberField, NumberTest, Order, Rule, Test};
use crate::window::Span;

/// Maximum number of windows in the report of a rule.
const MOST_WINDOWS: usize = 20;

/// Rule or budget of the file.
#[derive(Clone, Debug)]
pub struct RuleReport {
    /// As in the file.
    pub file: Value,
    /// Sum that is compared with the limit; `None` for a rule without an upper limit of a sum, which has no windows.
    pub field: Option<NumberField>,
    /// The fullest, in falling order.
    pub windows: Vec<WindowReport>,
    /// True if values of its scope are being counted: their windows are missing.
    pub is_counting: bool,
}

/// Window of one value. Amounts of money are in dollars.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowReport {
    /// User, project, team or session; empty for all together.
    pub scope_value: String,
    pub used: f64,
    pub limit: f64,
    pub left: f64,
    /// Earliest arrival that counts; `None` for all time.
    pub since: Option<Timestamp>,
    /// End of a calendar month.
    pub until: Option<Timestamp>,
}

impl Evaluator {
    /// Reports all rules and budgets. Windows over the life of a session are those of the given sessions.
    pub fn report(&self, sessions: &[SignalSession], at: Timestamp) -> Vec<RuleReport> {
        let entries = self.entries.iter();
        entries
            .map(|entry| self.report_one(entry, sessions, at))
            .collect()
    }

    fn report_one(&self, entry: &Entry, sessions: &[SignalSession], at: Timestamp) -> RuleReport {
        let limit = entry.rule.as_ref().and_then(Rule::limit);
        let mut windows = match (&entry.rule, limit) {
            (Some(rule), Some((field, limit))) => {
                let window = |value: &str, totals: &SignalTotals, since, until| WindowReport {
                    scope_value: value.to_owned(),
                    since,
                    until,
                    ..amounts(field, limit, totals)
                };
                match rule.window {
                    Span::Session => sessions
                        .iter()
                        .map(|one| window(&one.id, &one.totals, Some(one.started_at), None))
                        .collect(),
                    span => {
                        let since = (span != Span::AllTime).then(|| span.since(at));
                        let totals = self.totals(rule, at).into_iter();
                        totals
                            .map(|(value, totals)| window(value, &totals, since, span.until(at)))
                            .collect()
                    }
                }
            }
            (None, _) | (_, None) => Vec::new(),
        };
        windows.sort_by(|one: &WindowReport, other| {
            let fuller = other.used.total_cmp(&one.used);
            fuller.then_with(|| one.scope_value.cmp(&other.scope_value))
        });
        windows.truncate(MOST_WINDOWS);
        let rule = entry.rule.as_ref();
        RuleReport {
            file: entry.file.clone(),
            field: limit.map(|(field, _)| field),
            windows,
            is_counting: rule.is_some_and(|rule| self.is_counting(rule)),
        }
    }
}

impl Rule {
    /// Upper limit of a sum, the first in the condition.
    fn limit(&self) -> Option<(NumberField, f64)> {
        let mut limits = self.tests.iter().filter_map(|test| match test {
            Test::Number(field, NumberTest::Order(Order::Gt | Order::Gte, limit)) => {
                let is_sum = field.sum(&SignalTotals::default()).is_some();
                is_sum.then_some((*field, *limit))
            }
            Test::Number(..) | Test::Text(..) => None,
        });
        limits.next()
    }
}

/// Amounts of a window without its value and times.
fn amounts(field: NumberField, limit: f64, totals: &SignalTotals) -> WindowReport {
    let unit = match field {
        NumberField::CostUsd => MICROS,
        _ => 1.0,
    };
    let used = field.sum(totals).unwrap_or_default();
    WindowReport {
        scope_value: String::new(),
        used: used / unit,
        limit: limit / unit,
        left: (limit - used).max(0.0) / unit,
        since: None,
        until: None,
    }
}
