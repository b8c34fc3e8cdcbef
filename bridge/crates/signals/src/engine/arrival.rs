//! Way of a signal into the store: its session, the write, and the answer.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use forge_base::digest::{Digest, hex, sha256};
use forge_base::event::kind;
use forge_store::record::{
    NewSignal, SignalRecord, SignalRecorded, SignalSession, SignalSource, SignalTotals,
};

use super::sessions::{Change, Newest, Place, Plan, key_of};
use super::signal::{Acknowledgement, Effect, Signal};
use super::{Action, Answer, Inner, ReceiveError};
use crate::agent::{STORE_TIMEOUT, new_id, session_event};
use crate::meters::Outcome;

/// Adapter of a session whose signals have named none.
const UNKNOWN_ADAPTER: &str = "unknown";

/// Signal on its way into the store.
pub(super) struct Arrival<'a> {
    pub(super) signal: &'a Signal,
    pub(super) user: Option<&'a str>,
    pub(super) repeat_key: Option<Digest>,
    pub(super) at: Timestamp,
    pub(super) deadline: Instant,
}

impl Inner {
    /// Places that a signal is stored in, the one that is answered first: that of its session id, or a new one; for a
    /// heartbeat those of the live sessions of its adapter.
    pub(super) fn places(
        &self,
        owner: &Digest,
        arrival: &Arrival<'_>,
    ) -> Result<Vec<Arc<Place>>, ReceiveError> {
        let (signal, now) = (arrival.signal, arrival.at);
        let (timeout, most) = (self.config.session_timeout, self.config.max_sessions);
        let adapter = signal.adapter.as_deref().unwrap_or(UNKNOWN_ADAPTER);
        if signal.effect() == Effect::Beats && signal.session_id.is_none() {
            let beating = self.sessions.beating(owner, adapter, now, timeout);
            if !beating.is_empty() {
                return Ok(beating);
            }
        }
        let id = new_id();
        let key_id = key_of(owner, signal.session_id.as_ref().unwrap_or(&id));
        let open = || {
            let session = SignalSession {
                id: id.clone(),
                key_id: key_id.clone(),
                source: SignalSource::Engine,
                adapter: adapter.to_owned(),
                user_id: arrival.user.map(str::to_owned),
                project_id: None,
                client_session_id: signal.session_id.clone(),
                owner: Some(*owner),
                started_at: now,
                last_at: now,
                paused_at: None,
                ended_at: None,
                totals: SignalTotals::default(),
            };
            (session, *owner)
        };
        let entered = self.sessions.enter(&key_id, most, open).or_else(|| {
            self.sessions.retain(|newest| newest.is_live(now, timeout));
            self.sessions.enter(&key_id, most, open)
        });
        Ok(vec![entered.ok_or(ReceiveError::Full(most))?])
    }

    /// Stores a signal in a session. A change of sessions excludes other signals of the place.
    pub(super) async fn store(&self, place: &Place, arrival: &Arrival<'_>) -> Outcome {
        let plan = || {
            let timeout = self.config.session_timeout;
            let newest = place.newest();
            let plan = newest.plan(arrival.signal.effect(), arrival.at, timeout);
            match plan {
                Plan::Store(change) if newest.keeps(change) => (plan, true),
                plan => (plan, false),
            }
        };
        let Ok(reading) = timeout_at(arrival.deadline, place.gate.read()).await else {
            return Outcome::Lost;
        };
        if let (Plan::Store(change), true) = plan() {
            return self.write(place, arrival, change).await;
        }
        drop(reading);
        let Ok(_writing) = timeout_at(arrival.deadline, place.gate.write()).await else {
            return Outcome::Lost;
        };
        match plan() {
            (Plan::Ignore, _) => Outcome::Ignored,
            (Plan::Store(change), _) => self.write(place, arrival, change).await,
        }
    }

    /// Writes a signal and its effect on its session, in one transaction.
    async fn write(&self, place: &Place, arrival: &Arrival<'_>, change: Change) -> Outcome {
        let now = arrival.at;
        let Newest {
            session: former,
            is_stored,
            ..
        } = place.newest().clone();
        let (mut events, mut ends, mut session) = (Vec::new(), None, former.clone());
        if change.opens && is_stored {
            if former.ended_at.is_none() {
                let event = session_event(kind::SIGNAL_SESSION_ENDED, &former, former.last_at);
                events.push(event);
                ends = Some((former.id.clone(), former.last_at));
            }
            session = SignalSession {
                id: new_id(),
                client_session_id: Some(place.id.clone()),
                user_id: arrival.user.map(str::to_owned),
                started_at: now,
                last_at: now,
                paused_at: None,
                ended_at: None,
                totals: SignalTotals::default(),
                ..former
            };
        }
        if change.opens {
            events.push(session_event(kind::SIGNAL_SESSION_STARTED, &session, now));
        }
        // On disk a session counts what is on disk.
        let mut opened = change.opens.then(|| SignalSession {
            totals: SignalTotals::default(),
            ..session.clone()
        });
        let record = self.record(arrival);
        session.count(&record);
        if change.paused_at == Some(now) {
            events.push(session_event(kind::SIGNAL_SESSION_PAUSED, &session, now));
        }
        session.paused_at = change.paused_at;
        if change.ends {
            session.ended_at = Some(now);
            events.push(session_event(kind::SIGNAL_SESSION_ENDED, &session, now));
            match &mut opened {
                Some(opened) => opened.ended_at = Some(now),
                None => ends = Some((session.id.clone(), now)),
            }
        }
        let written = self.store.record_signal(NewSignal {
            session_id: session.id.clone(),
            record: record.clone(),
            repeat_key: arrival.repeat_key,
            opens: opened,
            ends,
            paused_at: change.paused_at,
            events,
            judge: None,
        });
        let outcome = match timeout_at(arrival.deadline, written).await {
            Ok(Ok(SignalRecorded::New(_))) => Outcome::Stored,
            Ok(Ok(SignalRecorded::Repeat(..))) => return Outcome::Repeated,
            // An earlier attempt that was not waited for has opened it.
            Ok(Err(forge_store::Error::InvalidState(_))) if change.opens && !is_stored => {
                place.newest().is_stored = true;
                let change = Change {
                    opens: false,
                    ..change
                };
                return Box::pin(self.write(place, arrival, change)).await;
            }
            Ok(Err(error)) => {
                tracing::warn!("a signal is not stored: {error}");
                Outcome::Lost
            }
            Err(_) => {
                tracing::warn!("a signal is not stored within {STORE_TIMEOUT:?}");
                Outcome::Lost
            }
        };
        let mut newest = place.newest();
        let changes = !newest.keeps(change);
        match outcome {
            Outcome::Stored if changes => {
                (newest.session, newest.is_stored) = (session, true);
            }
            // The end or the pause can be sent again.
            Outcome::Lost if change.opens => {
                session.ended_at = None;
                (newest.session, newest.is_stored) = (session, false);
            }
            _ => newest.session.count(&record),
        }
        if arrival.signal.effect() == Effect::Beats {
            newest.beat_at = Some(now);
        }
        outcome
    }

    fn record(&self, arrival: &Arrival<'_>) -> SignalRecord {
        let signal = arrival.signal;
        let goals = signal.goals.iter().filter(|_| self.config.store_goals);
        let details = signal.details.iter().chain(goals);
        let details: Map<String, Value> = details
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        SignalRecord {
            at: arrival.at,
            ts: signal.ts.unwrap_or(arrival.at),
            kind: Some(signal.name.clone()),
            model: signal.model.clone(),
            tool: signal.tool.clone(),
            user_id: arrival.user.map(str::to_owned),
            project_id: None,
            error_code: None,
            tokens_in: signal.usage.tokens_in,
            tokens_out: signal.usage.tokens_out,
            cost_micros: signal.usage.cost_micros,
            cache_read_tokens: None,
            cache_write_tokens: None,
            latency_ms: signal.latency_ms,
            drift_score: signal.drift_score,
            confidence: signal.confidence,
            details: (!details.is_empty()).then(|| Value::Object(details).to_string()),
            blocked: false,
            intervention_id: None,
        }
    }

    /// Turns the outcome into the answer of the protocol.
    pub(super) fn answer(&self, place: &Place, arrival: &Arrival<'_>, outcome: Outcome) -> Answer {
        let signal = arrival.signal;
        let is_unknown_ack = signal
            .acknowledgement
            .as_ref()
            .is_some_and(|acknowledgement| !self.acknowledge(acknowledgement));
        let is_log = !signal.is_known || signal.is_milestone() || is_unknown_ack;
        Answer {
            action: if is_log { Action::Log } else { Action::Noop },
            session_id: place.id.clone(),
            logged: matches!(outcome, Outcome::Stored | Outcome::Repeated),
            signal_id: signal.has_metadata.then(|| signal_id(place, arrival)),
        }
    }

    /// Records the first acknowledgement of an intervention; false if there is none of this id. No rule judges
    /// signals yet, so there is none.
    fn acknowledge(&self, acknowledgement: &Acknowledgement) -> bool {
        tracing::debug!(
            intervention.id = acknowledgement.intervention_id,
            "an intervention that is not known was acknowledged after {} ms",
            acknowledgement.delay_ms
        );
        false
    }
}

/// The same for each repeat of a signal.
fn signal_id(place: &Place, arrival: &Arrival<'_>) -> String {
    let id = match arrival.repeat_key {
        Some(key) => hex(&sha256([&place.owner, &key, place.id.as_bytes()].concat())[..16]),
        None => Uuid::now_v7().simple().to_string(),
    };
    format!("sig_{id}")
}
