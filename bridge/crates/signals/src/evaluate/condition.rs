//! Conditions of rules: comparison of the totals of a window, and of a record's own fields.

use forge_store::record::{SignalSource, SignalTotals};

use super::Subject;
use crate::rule::{NumberField, NumberTest, Order, Test, TextField, TextTest};

impl Test {
    /// True if the condition holds, or if a further cost would exceed its limit.
    pub(super) fn holds_with(
        &self,
        subject: &Subject<'_>,
        totals: &SignalTotals,
        cost: u64,
    ) -> bool {
        let exceeds = |limit: f64| totals.cost_micros.saturating_add(cost) as f64 > limit;
        match self {
            Test::Number(
                NumberField::CostUsd,
                NumberTest::Order(Order::Gt | Order::Gte, limit),
            ) if exceeds(*limit) => true,
            test => test.holds(subject, totals),
        }
    }

    pub(super) fn holds(&self, subject: &Subject<'_>, totals: &SignalTotals) -> bool {
        match self {
            Test::Number(field, test) => {
                number(*field, subject, totals).is_some_and(|number| match test {
                    NumberTest::Order(order, limit) => order.holds(number, *limit),
                    NumberTest::In(all) => all.contains(&number),
                    NumberTest::NotIn(all) => !all.contains(&number),
                })
            }
            Test::Text(field, test) => text(*field, subject).is_some_and(|text| match test {
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

impl NumberField {
    /// Sum of the window, money in micro-dollars; `None` for a number of the record.
    #[expect(
        clippy::cast_precision_loss,
        reason = "a sum above 2^53 is above every limit, too"
    )]
    pub(super) fn sum(self, totals: &SignalTotals) -> Option<f64> {
        let sum = match self {
            NumberField::CostUsd => totals.cost_micros,
            NumberField::TokensIn => totals.tokens_in,
            NumberField::TokensOut => totals.tokens_out,
            NumberField::Tokens => totals.tokens_in.saturating_add(totals.tokens_out),
            NumberField::Signals => totals.signals,
            NumberField::Errors => totals.errors,
            NumberField::LatencyMs | NumberField::DriftScore | NumberField::Confidence => {
                return None;
            }
        };
        Some(sum as f64)
    }
}

fn number(field: NumberField, subject: &Subject<'_>, totals: &SignalTotals) -> Option<f64> {
    match field {
        NumberField::LatencyMs => subject.record.latency_ms,
        NumberField::DriftScore => subject.record.drift_score,
        NumberField::Confidence => subject.record.confidence,
        sum => sum.sum(totals),
    }
}

fn text<'a>(field: TextField, subject: &Subject<'a>) -> Option<&'a str> {
    let record = subject.record;
    let kind = |is_type: bool| {
        let is_engine = subject.source == SignalSource::Engine;
        record.kind.as_deref().filter(|_| is_engine == is_type)
    };
    match field {
        TextField::Adapter => Some(subject.adapter),
        TextField::Model => record.model.as_deref(),
        TextField::Hook => kind(false),
        TextField::Type => kind(true),
        TextField::Tool => record.tool.as_deref(),
        TextField::ProjectId => record.project_id.as_deref(),
        TextField::UserId => record.user_id.as_deref(),
        TextField::ErrorCode => record.error_code.as_deref(),
    }
}
