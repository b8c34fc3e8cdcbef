//! Storing of a signal with the changes of its session.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::timeout;

use forge_base::digest::Digest;
use forge_base::event::kind;
use forge_base::failpoint;
use forge_store::record::{
    NewSignal, SignalRecord, SignalRecorded, SignalSession, SignalSource, SignalTotals,
    SignalVerdict,
};

use super::sessions::{Chain, Newest, Plan, Steps};
use super::{Emitted, Inner};
use crate::evaluate::Subject;
use crate::meters::Outcome;
use crate::record::Record;
use crate::session::{STORE_TIMEOUT, new_id, session_event};

/// Signal to store.
#[derive(Clone, Copy)]
struct Signal<'a> {
    record: &'a Record,
    repeat_key: Option<Digest>,
}

impl Inner {
    /// Stores a signal under the key of its chain. A change of sessions excludes other signals of the chain.
    pub(super) async fn store_signal(
        &self,
        chain: &Arc<Chain>,
        record: &Record,
        repeat_key: Option<Digest>,
        now: Timestamp,
    ) -> Emitted {
        let plan = || chain.plan(record.hook, now, self.config.session_timeout);
        let reading = chain.gate.read().await;
        if plan() == Plan::Store(Steps::default()) {
            let signal = Signal { record, repeat_key };
            return self.write(chain, signal, now, Steps::default()).await;
        }
        drop(reading);
        let _writing = chain.gate.write().await;
        match plan() {
            Plan::Ignore => {
                self.meters.count(Outcome::Ignored);
                Emitted {
                    session_id: chain.session_id(),
                    verdict: SignalVerdict::default(),
                    is_logged: false,
                }
            }
            Plan::Store(steps) => {
                let signal = Signal { record, repeat_key };
                self.write(chain, signal, now, steps).await
            }
        }
    }

    async fn write(
        &self,
        chain: &Arc<Chain>,
        signal: Signal<'_>,
        now: Timestamp,
        steps: Steps,
    ) -> Emitted {
        let Steps { opens, ends } = steps;
        let (former, is_stored) = chain.session();
        let mut events = Vec::new();
        let mut ended = None;
        let mut session = former.clone();
        let succeeds = opens && is_stored;
        if succeeds {
            if former.ended_at.is_none() {
                ended = Some((former.id.clone(), former.last_at));
                let event = session_event(kind::SIGNAL_SESSION_ENDED, &former, former.last_at);
                events.push(event);
            }
            session = SignalSession {
                id: new_id(),
                started_at: now,
                last_at: now,
                ended_at: None,
                totals: SignalTotals::default(),
                ..former
            };
        }
        // An execution has events of its own.
        let is_execution = session.source == SignalSource::Execution;
        if opens && !is_execution {
            events.push(session_event(kind::SIGNAL_SESSION_STARTED, &session, now));
        }
        let opened = opens.then(|| session.clone());
        let stored = self.stored(signal.record, chain, now);
        let before = session.clone();
        let subject = Subject::new(&before, &stored);
        self.ledger.prepare(&subject).await;
        session.count(&stored);
        if ends {
            session.ended_at = Some(now);
            events.push(session_event(kind::SIGNAL_SESSION_ENDED, &session, now));
        }
        failpoint::point("signal.record.before");
        let written = self.store.record_signal(NewSignal {
            session_id: session.id.clone(),
            record: stored.clone(),
            repeat_key: signal.repeat_key,
            opens: opened,
            ends: ended.or_else(|| ends.then(|| (session.id.clone(), now))),
            paused_at: None,
            events,
            judge: Some(Arc::new(self.ledger.clone())),
        });
        let written = timeout(STORE_TIMEOUT, written).await;
        failpoint::point("signal.record.after");
        let (is_stored, verdict) = match written {
            Ok(Ok(SignalRecorded::Repeat(session_id, verdict))) => {
                self.meters.count(Outcome::Repeated);
                return Emitted {
                    session_id,
                    verdict,
                    is_logged: true,
                };
            }
            Ok(Ok(SignalRecorded::New(verdict))) => (true, verdict),
            // An earlier attempt that was not waited for has opened it.
            Ok(Err(forge_store::Error::InvalidState(_))) if opens && !is_stored => {
                chain.newest().is_stored = true;
                let steps = Steps { opens: false, ends };
                return Box::pin(self.write(chain, signal, now, steps)).await;
            }
            failed => {
                match failed {
                    Ok(Err(error)) => tracing::warn!("a signal is not stored: {error}"),
                    _ => tracing::warn!("a signal is not stored within {STORE_TIMEOUT:?}"),
                }
                (false, self.ledger.judge_unstored(&subject))
            }
        };
        if is_execution && verdict.blocked {
            let told = verdict.intervention.as_ref();
            let message = told.map_or("", |told| told.message.as_str());
            self.ledger.note_blocked(&session.id, message);
        }
        let emitted = Emitted {
            session_id: session.id.clone(),
            verdict,
            is_logged: is_stored,
        };
        self.meters.count(match is_stored {
            true => Outcome::Stored,
            false => Outcome::Lost,
        });
        let mut newest = chain.newest();
        if is_execution {
            newest.is_stored |= is_stored;
        } else if opens || ends {
            *newest = Newest::of(&session, is_stored);
            drop(newest);
            self.sessions.insert(session);
        } else {
            newest.count(&stored);
        }
        emitted
    }

    fn stored(&self, record: &Record, chain: &Chain, now: Timestamp) -> SignalRecord {
        let user = record.user_id.as_deref().or(chain.user_id.as_deref());
        let user = user.or(self.config.user.as_deref()).map(str::to_owned);
        let mut stored = record.stored(user, now);
        if chain.is_execution() {
            // The usage of the execution itself counts.
            stored.clear_usage();
            return stored;
        }
        if stored.cost_micros.is_none() {
            stored.cost_micros = self.ledger.cost(record.model.as_deref(), &record.usage);
        }
        stored
    }
}
