//! Evaluation: a record is added to the windows of its scopes, and the most restrictive rule that holds then decides.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;

use crate::record::{Hook, Record};
use crate::rule::{
    Action, NumberField, NumberTest, Order, Rule, Rules, Scope, Test, TextField, TextTest,
};
use crate::window::{Span, Totals, Window};

/// Teams of each user.
pub type Teams = BTreeMap<String, Vec<String>>;

/// Rules with the windows that they look at.
#[derive(Debug)]
pub struct Evaluator {
    rules: Rules,
    teams: Teams,
    /// Scopes and spans that some rule looks at.
    watched: Vec<(Scope, Span)>,
    windows: HashMap<(Scope, Span, String), Window>,
    /// Rules that hold, by the index of the rule and the scope value; with the period in which they began to.
    holding: HashMap<(usize, String), i64>,
}

/// Judgement of one record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict<'a> {
    /// The rule that decides; `None` if none holds.
    pub decided: Option<Held<'a>>,
    /// Rules that hold since this record, in the order of the file.
    pub begun: Vec<Held<'a>>,
}

/// Rule that holds for one scope value.
#[derive(Clone, Debug, PartialEq)]
pub struct Held<'a> {
    pub rule: &'a Rule,
    pub scope_value: String,
}

impl Verdict<'_> {
    pub fn is_blocked(&self) -> bool {
        let decided = self.decided.as_ref();
        decided.is_some_and(|held| held.rule.action == Action::Block)
    }
}

impl Evaluator {
    pub fn new(rules: Rules, teams: Teams) -> Self {
        let mut seen = HashSet::new();
        let pairs = rules.rules.iter().map(|rule| (rule.scope, rule.window));
        Self {
            watched: pairs.filter(|pair| seen.insert(*pair)).collect(),
            windows: HashMap::new(),
            holding: HashMap::new(),
            teams,
            rules,
        }
    }

    /// Adds a record that arrived at `at` in this session, and judges it. The record is in the totals.
    pub fn judge(&mut self, record: &Record, session: &str, at: Timestamp) -> Verdict<'_> {
        let amounts = Totals::of(record);
        let mut totals: HashMap<(Scope, Span, String), Totals> = HashMap::new();
        for (scope, span) in self.watched.clone() {
            for value in self.scope_values(scope, record, session) {
                let key = (scope, span, window_value(span, &value, session));
                let window = self.windows.entry(key).or_insert_with(|| Window::new(span));
                window.add(at, &amounts);
                totals.insert((scope, span, value), window.totals(at));
            }
        }
        let mut verdict = Verdict::default();
        for (index, rule) in self.rules.rules.iter().enumerate() {
            for scope_value in self.scope_values(rule.scope, record, session) {
                let key = (rule.scope, rule.window, scope_value);
                let holds = rule
                    .tests
                    .iter()
                    .all(|test| test.holds(record, &totals[&key]));
                let (_, _, scope_value) = key;
                let held_key = (index, scope_value.clone());
                if !holds {
                    self.holding.remove(&held_key);
                    continue;
                }
                let held = Held { rule, scope_value };
                let period = rule.window.period(at);
                if self.holding.insert(held_key, period) != Some(period) {
                    verdict.begun.push(held.clone());
                }
                let decided = verdict.decided.as_ref();
                if decided.is_none_or(|other| rule.action > other.rule.action) {
                    verdict.decided = Some(held);
                }
            }
        }
        verdict
    }

    /// Values of a scope that a record counts for.
    fn scope_values(&self, scope: Scope, record: &Record, session: &str) -> Vec<String> {
        let one = |value: &Option<String>| value.iter().cloned().collect();
        match scope {
            Scope::Org => vec![String::new()],
            Scope::Team => {
                let user = record.user_id.as_ref();
                let teams = user.and_then(|user| self.teams.get(user));
                teams.cloned().unwrap_or_default()
            }
            Scope::Project => one(&record.project_id),
            Scope::User => one(&record.user_id),
            Scope::Session => vec![session.to_owned()],
        }
    }
}

/// Key of a window: one of a session is separate for each session, whatever the scope.
fn window_value(span: Span, value: &str, session: &str) -> String {
    match span {
        Span::Session => format!("{value}\0{session}"),
        Span::Hour | Span::Day | Span::Week | Span::Month | Span::AllTime => value.to_owned(),
    }
}

impl Test {
    fn holds(&self, record: &Record, totals: &Totals) -> bool {
        match self {
            Test::Number(field, test) => {
                number(*field, record, totals).is_some_and(|number| match test {
                    NumberTest::Order(order, limit) => order.holds(number, *limit),
                    NumberTest::In(all) => all.contains(&number),
                    NumberTest::NotIn(all) => !all.contains(&number),
                })
            }
            Test::Text(field, test) => text(*field, record).is_some_and(|text| match test {
                TextTest::In(all) => all.iter().any(|one| one == text),
                TextTest::NotIn(all) => all.iter().all(|one| one != text),
            }),
        }
    }
}

impl Order {
    #[expect(
        clippy::float_cmp,
        reason = "counts and micro-dollars are whole numbers"
    )]
    fn holds(self, number: f64, limit: f64) -> bool {
        match self {
            Order::Gt => number > limit,
            Order::Gte => number >= limit,
            Order::Lt => number < limit,
            Order::Lte => number <= limit,
            Order::Eq => number == limit,
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a sum above 2^53 is above every limit, too"
)]
fn number(field: NumberField, record: &Record, totals: &Totals) -> Option<f64> {
    let total = match field {
        NumberField::CostUsd => totals.cost_micros,
        NumberField::TokensIn => totals.tokens_in,
        NumberField::TokensOut => totals.tokens_out,
        NumberField::Tokens => totals.tokens_in.saturating_add(totals.tokens_out),
        NumberField::Signals => totals.signals,
        NumberField::Errors => totals.errors,
        NumberField::LatencyMs => return record.latency_ms,
        // Of behavioural signals.
        NumberField::DriftScore | NumberField::Confidence => return None,
    };
    Some(total as f64)
}

fn text(field: TextField, record: &Record) -> Option<&str> {
    match field {
        TextField::Adapter => Some(&record.adapter),
        TextField::Model => record.model.as_deref(),
        TextField::Hook => record.hook.map(Hook::as_str),
        TextField::Tool => record.tool.as_deref(),
        TextField::ProjectId => record.project_id.as_deref(),
        TextField::UserId => record.user_id.as_deref(),
        TextField::ErrorCode => record.error_code.as_deref(),
        // Of behavioural signals.
        TextField::Type => None,
    }
}

#[cfg(test)]
mod tests;
