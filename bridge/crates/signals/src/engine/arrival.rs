//! Way of a signal into the store: its session, the write, and the answer.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use forge_base::digest::{Digest, hex, sha256};
use forge_base::event::{NewEvent, kind};
use forge_base::failpoint;
use forge_store::record::{
    Acknowledged, Acknowledgement, Intervention, NewSignal, Severity, SignalRecord, SignalRecorded,
    SignalSession, SignalSource, SignalTotals, SignalVerdict,
};

use super::sessions::{Change, Newest, Place, Plan, key_of};
use super::signal::{Effect, Signal};
use super::{Action, Answer, Inner, ReceiveError};
use crate::evaluate::Subject;
use crate::meters::Outcome;
use crate::session::{STORE_TIMEOUT, new_id, session_event};

/// Adapter of a session whose signals have named none.
const UNKNOWN_ADAPTER: &str = "unknown";

/// Signal that was stored, or not, and its verdict.
pub(super) struct Judged {
    pub(super) outcome: Outcome,
    verdict: SignalVerdict,
}

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
    pub(super) async fn store(&self, place: &Place, arrival: &Arrival<'_>) -> Judged {
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
            return self.judge_lost(place, arrival);
        };
        if let (Plan::Store(change), true) = plan() {
            return self.write(place, arrival, change).await;
        }
        drop(reading);
        let Ok(_writing) = timeout_at(arrival.deadline, place.gate.write()).await else {
            return self.judge_lost(place, arrival);
        };
        match plan() {
            (Plan::Ignore, _) => {
                let ended_by = place.newest().ended_by;
                let is_repeat = ended_by.is_some() && ended_by == arrival.repeat_key;
                Judged {
                    outcome: match is_repeat {
                        true => Outcome::Repeated,
                        false => Outcome::Ignored,
                    },
                    verdict: SignalVerdict::default(),
                }
            }
            (Plan::Store(change), _) => self.write(place, arrival, change).await,
        }
    }

    /// Judges a signal that waited too long for others of its place.
    fn judge_lost(&self, place: &Place, arrival: &Arrival<'_>) -> Judged {
        let session = place.newest().session.clone();
        let record = self.record(arrival);
        let subject = Subject::new(&session, &record);
        Judged {
            outcome: Outcome::Lost,
            verdict: self.ledger.judge_unstored(&subject),
        }
    }

    /// Writes a signal and its effect on its session, in one transaction.
    async fn write(&self, place: &Place, arrival: &Arrival<'_>, change: Change) -> Judged {
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
        let before = session.clone();
        let subject = Subject::new(&before, &record);
        // What is not counted by then does not judge.
        let _ = timeout_at(arrival.deadline, self.ledger.prepare(&subject)).await;
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
        failpoint::point("signal.engine.before");
        let written = self.store.record_signal(NewSignal {
            session_id: session.id.clone(),
            record: record.clone(),
            repeat_key: arrival.repeat_key,
            opens: opened,
            ends,
            paused_at: change.paused_at,
            events,
            judge: Some(Arc::new(self.ledger.clone())),
        });
        let written = timeout_at(arrival.deadline, written).await;
        failpoint::point("signal.engine.after");
        let stored = match written {
            Ok(Ok(SignalRecorded::New(verdict))) => Some(verdict),
            Ok(Ok(SignalRecorded::Repeat(_, verdict))) => {
                return Judged {
                    outcome: Outcome::Repeated,
                    verdict,
                };
            }
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
                None
            }
            Err(_) => {
                tracing::warn!("a signal is not stored within {STORE_TIMEOUT:?}");
                None
            }
        };
        let mut newest = place.newest();
        let changes = !newest.keeps(change);
        match stored {
            Some(_) if changes => {
                (newest.session, newest.is_stored) = (session, true);
                newest.ended_by = arrival.repeat_key.filter(|_| change.ends);
            }
            // The end or the pause can be sent again.
            None if change.opens => {
                session.ended_at = None;
                (newest.session, newest.is_stored) = (session, false);
            }
            Some(_) | None => newest.session.count(&record),
        }
        if arrival.signal.effect() == Effect::Beats {
            newest.beat_at = Some(now);
        }
        drop(newest);
        match stored {
            Some(verdict) => Judged {
                outcome: Outcome::Stored,
                verdict,
            },
            None => Judged {
                outcome: Outcome::Lost,
                verdict: self.ledger.judge_unstored(&subject),
            },
        }
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
            cost_micros: signal
                .usage
                .cost_micros
                .or_else(|| self.ledger.cost(signal.model.as_deref(), &signal.usage)),
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
    pub(super) async fn answer(
        &self,
        place: &Place,
        arrival: &Arrival<'_>,
        judged: Judged,
    ) -> Answer {
        let (signal, verdict) = (arrival.signal, judged.verdict);
        let is_unknown_ack = match &signal.acknowledgement {
            Some(_) => {
                let told = verdict.intervention.as_ref();
                self.acknowledge(place, arrival, told).await == Acknowledged::Unknown
            }
            None => false,
        };
        let is_log =
            verdict.is_noted || !signal.is_known || signal.is_milestone() || is_unknown_ack;
        let action = match verdict.intervention {
            Some(intervention) => Action::Intervention {
                severity: match verdict.blocked {
                    true => Severity::Critical,
                    false => intervention.severity,
                },
                id: intervention.id,
                message: intervention.message,
            },
            None if is_log => Action::Log,
            None => Action::Noop,
        };
        Answer {
            action,
            session_id: place.id.clone(),
            logged: matches!(judged.outcome, Outcome::Stored | Outcome::Repeated),
            signal_id: signal.has_metadata.then(|| signal_id(place, arrival)),
        }
    }

    /// Records the first acknowledgement of an intervention that began in a session of this token, or that the answer
    /// carries: a rule over a user, a project or all can begin one in a session of another. One that the store cannot
    /// take is unknown.
    async fn acknowledge(
        &self,
        place: &Place,
        arrival: &Arrival<'_>,
        told: Option<&Intervention>,
    ) -> Acknowledged {
        let Some((id, delay_ms)) = &arrival.signal.acknowledgement else {
            return Acknowledged::Unknown;
        };
        let (session_id, at) = (place.newest().session.id.clone(), arrival.at);
        let data = json!({
            "interventionId": id, "sessionId": session_id, "delayMs": delay_ms,
        });
        let event = NewEvent::new(kind::SIGNAL_ACKNOWLEDGED, at).with(&data);
        let acknowledgement = Acknowledgement {
            at,
            delay_ms: *delay_ms,
        };
        let is_told = told.is_some_and(|told| told.id == *id);
        let owner = (!is_told).then_some(place.owner);
        let noted = self
            .store
            .acknowledge_intervention(id, owner, acknowledgement, vec![event]);
        match timeout_at(arrival.deadline, noted).await {
            Ok(Ok(acknowledged)) => acknowledged,
            Ok(Err(error)) => {
                tracing::warn!("an acknowledgement is not stored: {error}");
                Acknowledged::Unknown
            }
            Err(_) => Acknowledged::Unknown,
        }
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
