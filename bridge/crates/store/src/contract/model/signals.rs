//! Signals in the model test: few sessions, keys and times, so that they meet.

use proptest::prelude::*;

use std::sync::Arc;

use crate::Store;
use crate::contract::judgement::Strict;
use crate::contract::sample::{at, event};
use crate::contract::signals::{record, session};
use crate::record::{
    Acknowledgement, InterventionFilter, NewSignal, SignalEntry, SignalGroup, SignalProperty,
    SignalRecord, SignalSession, SignalSessionFilter, SignalSource,
};

use super::{Pair, both, both_pages};

const SESSIONS: u8 = 6;

/// Change of sessions, which are named by a number.
#[derive(Clone, Debug)]
pub(super) enum SignalStep {
    Open(u8),
    Record {
        session: u8,
        repeat_key: Option<u8>,
        opens: Option<u8>,
        ends: Option<u8>,
        tokens: Option<u64>,
        cost: Option<u64>,
        fails: bool,
        pauses: bool,
    },
    End(Vec<u8>),
    /// Acknowledges an intervention of a session, by the numbers of both, as this owner.
    Acknowledge(u8, u8, Option<u8>),
    /// Keeps the position of this entry, counted from 1, or that of the newest record.
    Forward(usize),
    Sweep {
        age: u8,
        limit: usize,
    },
}

pub(super) fn signal_step() -> impl Strategy<Value = SignalStep> {
    let one = || 0..SESSIONS;
    let record = (
        (one(), prop::option::of(0..3u8)),
        (
            prop::option::weighted(0.3, one()),
            prop::option::weighted(0.2, one()),
        ),
        (
            prop::option::of(prop_oneof![0..3u64, Just(1 << 53)]),
            prop::option::of(0..9u64),
        ),
        any::<[bool; 2]>(),
    );
    prop_oneof![
        3 => one().prop_map(SignalStep::Open),
        8 => record.prop_map(|((session, repeat_key), (opens, ends), (tokens, cost), [fails, pauses])| {
            SignalStep::Record { session, repeat_key, opens, ends, tokens, cost, fails, pauses }
        }),
        1 => prop::collection::vec(one(), 0..3).prop_map(SignalStep::End),
        1 => (one(), 0..4u8, prop::option::of(3..SESSIONS)).prop_map(|(session, number, owner)| {
            SignalStep::Acknowledge(session, number, owner)
        }),
        1 => (0..4usize).prop_map(SignalStep::Forward),
        1 => (0..20u8, 1..3usize).prop_map(|(age, limit)| SignalStep::Sweep { age, limit }),
    ]
}

fn intervention(session: u8, number: u8) -> String {
    format!("int {} {number}", name(session))
}

fn name(number: u8) -> String {
    format!("session-{number}")
}

impl Pair {
    /// Session of this number, opened now. Two of them have one key.
    fn session(&self, number: u8) -> SignalSession {
        SignalSession {
            key_id: name(number / 2),
            adapter: format!("adapter-{}", number % 3),
            source: match number % 2 {
                0 => SignalSource::Agent,
                _ => SignalSource::Engine,
            },
            owner: (number > 3).then_some([number; 32]),
            user_id: (number > 1).then(|| (number % 2).to_string()),
            started_at: at(self.now),
            last_at: at(self.now),
            ..session(&name(number))
        }
    }

    pub(super) async fn make_signal(&mut self, step: SignalStep) {
        let now = self.now;
        let events = || vec![event("signal.session.started", now); 2];
        match step {
            SignalStep::Open(number) => {
                let new = self.session(number);
                let _ = both!(self, store => store.open_signal_session(new.clone(), events()));
            }
            SignalStep::Record {
                session,
                repeat_key,
                opens,
                ends,
                tokens,
                cost,
                fails,
                pauses,
            } => {
                let new = NewSignal {
                    session_id: name(session),
                    record: SignalRecord {
                        tokens_in: tokens,
                        tokens_out: cost.map(|cost| cost + 3),
                        cost_micros: cost.filter(|_| now % 2 == 0),
                        error_code: fails.then(|| "timeout".to_owned()),
                        user_id: (now % 5 != 0).then(|| (now % 2).to_string()),
                        project_id: (now % 3 == 0).then(|| "p".to_owned()),
                        blocked: now % 3 == 0,
                        ..record(now)
                    },
                    repeat_key: repeat_key.map(|key| [key; 32]),
                    opens: opens.map(|number| self.session(number)),
                    ends: ends.map(|number| (name(number), at(now - 1))),
                    paused_at: pauses.then(|| at(now)),
                    events: events(),
                    judge: (now % 4 != 0).then(|| {
                        let ends = vec![intervention(session, 0)];
                        let ends = ends.into_iter().filter(|_| now % 3 == 0).collect();
                        Arc::new(Strict {
                            ends,
                            ..Strict::default()
                        }) as _
                    }),
                };
                let _ = both!(self, store => store.record_signal(new.clone()));
            }
            SignalStep::End(numbers) => {
                let ends: Vec<_> = numbers.into_iter().map(|n| (name(n), at(now))).collect();
                both!(self, store => store.end_signal_sessions(ends.clone(), events())).unwrap();
            }
            SignalStep::Acknowledge(session, number, owner) => {
                let acknowledged = Acknowledgement {
                    at: at(now),
                    delay_ms: 7,
                };
                let id = intervention(session, number);
                let owner = owner.map(|owner| [owner; 32]);
                both!(self, store => {
                    store.acknowledge_intervention(&id, owner, acknowledged, events())
                })
                .unwrap();
            }
            SignalStep::Forward(number) => {
                both!(self, store => async {
                    let entries = store.signals_to_forward(number).await.unwrap();
                    let position = match entries.unwrap_or_default().last() {
                        Some(last) => last.position,
                        None => newest(store).await,
                    };
                    store.keep_forwarded(position).await.unwrap();
                });
            }
            SignalStep::Sweep { age, limit } => {
                both!(self, store => sweep_all(store, now - i64::from(age), limit));
            }
        }
    }

    pub(super) async fn look_at_signals(&self) {
        let now = self.now;
        for number in 0..SESSIONS {
            both!(self, store => store.signal_session(&name(number), 3)).unwrap();
        }
        let after = Some(name(1)).filter(|_| now % 2 == 0);
        for source in [SignalSource::Agent, SignalSource::Engine] {
            let recent = both!(self, store => {
                store.recent_signal_sessions(source, at(now - 10), after.clone(), 3)
            });
            recent.unwrap();
        }
        both!(self, store => store.open_interventions(3)).unwrap();
        both!(self, store => entries(store, 3));
        for session in [None, Some(name(1))] {
            let filter = |before| InterventionFilter {
                session: session.clone(),
                before,
                limit: 2,
            };
            both_pages!(self, store, before => store.interventions(filter(before)));
        }
        for group in [
            SignalGroup::All,
            SignalGroup::Users(vec!["0".to_owned(), "1".to_owned()]),
            SignalGroup::Project("p".to_owned()),
            SignalGroup::Session(name(1)),
        ] {
            // All but the newest record.
            both!(self, store => async {
                let last = newest(store).await;
                store.signal_amounts(group.clone(), at(now - 100), last.saturating_sub(1)).await.unwrap()
            });
        }
        for by in [
            SignalProperty::User,
            SignalProperty::Project,
            SignalProperty::Adapter,
            SignalProperty::Model,
        ] {
            both!(self, store => store.signal_sums(by, at(now - 20))).unwrap();
        }
        for active in [None, Some(true), Some(false)] {
            let filter = |before| SignalSessionFilter {
                adapter: (now % 3 == 0).then(|| "adapter-1".to_owned()),
                user: (now % 4 == 0).then(|| "1".to_owned()),
                active,
                before,
                limit: 2,
                ..SignalSessionFilter::default()
            };
            both_pages!(self, store, before => store.signal_sessions(filter(before)));
        }
    }
}

/// Repeats the sweep until nothing is left; returns the numbers of signals and of sessions that were removed.
async fn sweep_all(store: &dyn Store, before: i64, limit: usize) -> (u64, u64) {
    let (mut signals, mut sessions) = (0, 0);
    loop {
        let swept = store.sweep_signals(at(before), limit).await.unwrap();
        signals += swept.signals;
        sessions += swept.sessions;
        if !swept.more {
            return (signals, sessions);
        }
    }
}

/// Position of the newest record; each store has its own.
async fn newest(store: &dyn Store) -> u64 {
    store.mark_signals(Arc::new(|| {})).await.unwrap()
}

/// Records to forward, without their positions.
async fn entries(store: &dyn Store, limit: usize) -> Option<Vec<SignalEntry>> {
    let mut entries = store.signals_to_forward(limit).await.unwrap();
    let all = entries.iter_mut().flatten();
    all.for_each(|entry| entry.position = 0);
    entries
}
