//! Reads of signals: sessions with their records, totals, interventions, and rules with their fullest windows.

use std::cmp::Reverse;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use serde_json::{Map, Number, Value, json};

use super::auth::Reader;
use super::error::{Code, Failure};
use super::query::{NoQuery, Query, page_cursor};
use forge_base::id::DispatchId;
use forge_base::time;
use forge_signals::agent::Agent;
use forge_signals::evaluate::report::{RuleReport, WindowReport};
use forge_signals::money::dollars;
use forge_store::Store;
use forge_store::record::{
    Intervention, InterventionFilter, SignalProperty, SignalRecord, SignalSession,
    SignalSessionFilter, SignalSource, SignalSums, SignalTotals,
};

const PROPERTIES: [(&str, SignalProperty); 4] = [
    ("user", SignalProperty::User),
    ("project", SignalProperty::Project),
    ("adapter", SignalProperty::Adapter),
    ("model", SignalProperty::Model),
];
const MAX_LISTED: u64 = 200;
/// Records shown of a session.
const RECORDS: usize = 100;
/// Live sessions, the newest, whose windows are reported even if they have not been counted since the start.
const REPORTED_SESSIONS: usize = 100;

pub(super) async fn sessions(
    _: Reader,
    State(store): State<Arc<dyn Store>>,
    mut query: Query,
) -> Result<Json<Value>, Failure> {
    let filter = SignalSessionFilter {
        adapter: query.text("adapter"),
        user: query.text("user"),
        project: query.text("project"),
        active: query.choice("active", &[("true", true), ("false", false)]),
        before: query.page(),
        limit: query.number("limit", 1..=MAX_LISTED).unwrap_or(50) as usize,
    };
    query.finish()?;
    let page = store.signal_sessions(filter).await?;
    let sessions: Vec<_> = page.items.iter().map(session).collect();
    Ok(Json(
        json!({ "sessions": sessions, "nextCursor": page_cursor(page.next) }),
    ))
}

pub(super) async fn show(
    _: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    let Some((found, records)) = store.signal_session(&id, RECORDS).await? else {
        let message = format!("there is no session {id:?}, or its retention is over");
        return Err(Failure::new(Code::NotFound, message));
    };
    let records = records.iter().map(|one| record(one, found.source));
    let records: Vec<_> = records.collect();
    let mut view = session(&found);
    view["records"] = records.into();
    Ok(Json(view))
}

/// Totals by the values of a property, the most expensive first.
pub(super) async fn totals(
    _: Reader,
    State(store): State<Arc<dyn Store>>,
    mut query: Query,
) -> Result<Json<Value>, Failure> {
    let named = PROPERTIES.map(|(name, by)| (name, (name, by)));
    let (name, by) = query.choice("by", &named).unwrap_or(PROPERTIES[0]);
    let since = query.time("since").unwrap_or(Timestamp::UNIX_EPOCH);
    query.finish()?;
    let sums = store.signal_sums(by, since).await?;
    Ok(Json(totals_of(name, "signalCount", sums)))
}

/// Sums by the values of this property, the most expensive first. `count` names the number of records.
pub(super) fn totals_of(property: &str, count: &str, sums: SignalSums) -> Value {
    let mut values: Vec<_> = sums.values.into_iter().collect();
    values.sort_by_key(|(_, sum)| Reverse((sum.cost_micros, sum.tokens_in, sum.tokens_out)));
    let totals = values.into_iter().map(|(value, sum)| {
        let mut totals = amounts(&sum, count);
        totals.insert(property.to_owned(), value.into());
        totals.insert("errorCount".to_owned(), sum.errors.into());
        Value::Object(totals)
    });
    let totals: Vec<_> = totals.collect();
    json!({ "totals": totals, "leftOutUntil": sums.left_out.map(time::format) })
}

pub(super) async fn interventions(
    _: Reader,
    State(store): State<Arc<dyn Store>>,
    mut query: Query,
) -> Result<Json<Value>, Failure> {
    let filter = InterventionFilter {
        session: query.text("session"),
        before: query.page(),
        limit: query.number("limit", 1..=MAX_LISTED).unwrap_or(50) as usize,
    };
    query.finish()?;
    let page = store.interventions(filter).await?;
    let interventions: Vec<_> = page.items.iter().map(intervention).collect();
    Ok(Json(
        json!({ "interventions": interventions, "nextCursor": page_cursor(page.next) }),
    ))
}

/// Rules and budgets in force, as in the file.
pub(super) async fn rules(
    _: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    State(agent): State<Agent>,
) -> Result<Json<Value>, Failure> {
    let live = SignalSessionFilter {
        active: Some(true),
        limit: REPORTED_SESSIONS,
        ..SignalSessionFilter::default()
    };
    let live = store.signal_sessions(live).await?;
    let report = agent.ledger().report(&live.items).await;
    let rules: Vec<_> = report.into_iter().map(rule).collect();
    Ok(Json(json!({ "rules": rules })))
}

fn session(session: &SignalSession) -> Value {
    let (source, dispatch) = match session.source {
        SignalSource::Agent => ("agent", None),
        SignalSource::Engine => ("engine", None),
        SignalSource::Execution => ("execution", dispatch_of(&session.id)),
    };
    let view = json!({
        "sessionId": session.id, "source": source, "adapter": session.adapter,
        "userId": session.user_id, "projectId": session.project_id,
        "startedAt": time::format(session.started_at), "lastAt": time::format(session.last_at),
        "endedAt": session.ended_at.map(time::format), "pausedAt": session.paused_at.map(time::format),
    });
    let Value::Object(mut view) = view else {
        unreachable!("it is an object");
    };
    view.append(&mut amounts(&session.totals, "signalCount"));
    if let Some(dispatch) = dispatch {
        view.insert("dispatchId".to_owned(), dispatch.to_string().into());
    }
    Value::Object(view)
}

/// Dispatch whose session this is.
fn dispatch_of(session_id: &str) -> Option<DispatchId> {
    let id = session_id.strip_prefix("sess_")?;
    format!("dsp_{id}").parse().ok()
}

fn amounts(totals: &SignalTotals, count: &str) -> Map<String, Value> {
    [
        (count, totals.signals.into()),
        ("totalTokensIn", totals.tokens_in.into()),
        ("totalTokensOut", totals.tokens_out.into()),
        ("totalCostUsd", dollars(totals.cost_micros).into()),
        ("unpricedCount", totals.unpriced.into()),
    ]
    .into_iter()
    .map(|(name, amount)| (name.to_owned(), amount))
    .collect()
}

fn record(record: &SignalRecord, source: SignalSource) -> Value {
    let kind = match source {
        SignalSource::Engine => "type",
        SignalSource::Agent | SignalSource::Execution => "hook",
    };
    json!({
        "at": time::format(record.at), "ts": time::format(record.ts), kind: record.kind, "model": record.model,
        "tokensIn": record.tokens_in, "tokensOut": record.tokens_out,
        "costUsd": record.cost_micros.map(dollars), "errorCode": record.error_code, "blocked": record.blocked,
    })
}

fn intervention(one: &Intervention) -> Value {
    json!({
        "interventionId": one.id, "ruleId": one.rule_id, "severity": one.severity, "message": one.message,
        "sessionId": one.session_id, "at": time::format(one.at),
        "acknowledgedAt": one.acknowledged.map(|one| time::format(one.at)),
        "ackDelayMs": one.acknowledged.map(|one| one.delay_ms),
    })
}

fn rule(report: RuleReport) -> Value {
    let windows: Vec<_> = report.windows.iter().map(window).collect();
    let mut rule = report.file;
    rule["field"] = json!(report.field);
    rule["windows"] = windows.into();
    rule["counting"] = report.is_counting.into();
    rule
}

fn window(window: &WindowReport) -> Value {
    json!({
        "scopeValue": window.scope_value, "used": number(window.used), "limit": number(window.limit),
        "left": number(window.left), "since": window.since.map(time::format),
        "until": window.until.map(time::format),
    })
}

/// Whole numbers are written without a fraction.
fn number(number: f64) -> Value {
    const LARGEST: f64 = 9_007_199_254_740_992.0;
    match number.fract() == 0.0 && (0.0..=LARGEST).contains(&number) {
        true => (number as u64).into(),
        false => Number::from_f64(number).map_or(Value::Null, Value::Number),
    }
}
