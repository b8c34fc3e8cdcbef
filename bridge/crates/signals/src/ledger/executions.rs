//! Executions of the bridge under the rules: admission, the cost that running ones may still have, and what they used.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use forge_base::digest::hex;
use forge_base::id::DispatchId;
use forge_store::record::{Charge, SignalRecord, SignalSession, SignalSource, SignalTotals};

use super::{Ledger, lock};
use crate::evaluate::{Held, Subject};
use crate::money::{MICROS, micros};
use crate::record::Usage;
use crate::rule::Action;

/// Time that a start waits for totals that are being counted. Then the rules over them do not hold it up.
const COUNT_TIMEOUT: Duration = Duration::from_secs(30);

/// Dispatch, and the fields that scopes and conditions read.
#[derive(Clone, Copy, Debug)]
pub struct Execution<'a> {
    pub id: DispatchId,
    pub adapter: &'a str,
    pub user_id: Option<&'a str>,
    pub project_id: Option<&'a str>,
    pub model: Option<&'a str>,
    /// Cost in dollars that the dispatch may have.
    pub max_cost_usd: Option<f64>,
}

/// Executions that run, by their session.
pub(super) type Executions = HashMap<String, Arc<Running>>;

#[derive(Debug)]
pub(super) struct Running {
    session: SignalSession,
    /// Record without usage, which has the fields that scopes and conditions read.
    record: SignalRecord,
    /// Cost in micro-dollars that the execution may have.
    reserved: u64,
    /// Part of it that is charged.
    charged: AtomicU64,
    blocked: OnceLock<String>,
    stop: CancellationToken,
}

/// Place of an execution in the ledger, given back when this is dropped.
#[derive(Debug)]
pub struct Admission {
    ledger: Ledger,
    running: Arc<Running>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut executions = lock(&self.ledger.inner.executions);
        executions.remove(&self.running.session.id);
    }
}

impl Admission {
    /// Session of the execution.
    pub fn session(&self) -> &SignalSession {
        &self.running.session
    }

    /// Cancelled when a rule stops the execution.
    pub fn stopped(&self) -> &CancellationToken {
        &self.running.stop
    }

    /// Message of the rule that blocked a signal of the execution, or that stopped it.
    pub fn blocked(&self) -> Option<&str> {
        self.running.blocked.get().map(String::as_str)
    }
}

impl Running {
    fn subject(&self) -> Subject<'_> {
        Subject::new(&self.session, &self.record)
    }

    fn left(&self) -> u64 {
        let charged = self.charged.load(Ordering::Relaxed);
        self.reserved.saturating_sub(charged)
    }

    fn block(&self, message: &str) {
        // The first message stays.
        let _ = self.blocked.set(message.to_owned());
    }
}

impl Execution<'_> {
    /// Id of the session of a dispatch.
    pub fn session_id(id: DispatchId) -> String {
        format!("sess_{}", hex(id.as_bytes()))
    }

    /// Usage of a dispatch as the ledger counts it.
    pub fn usage(
        tokens: [Option<u64>; 2],
        cache: [Option<u64>; 2],
        cost_usd: Option<f64>,
    ) -> Usage {
        let [tokens_in, tokens_out] = tokens;
        let [cache_read_tokens, cache_write_tokens] = cache;
        Usage {
            tokens_in,
            tokens_out,
            cost_micros: cost_usd.map(micros),
            cache_read_tokens,
            cache_write_tokens,
        }
    }

    fn session(&self, at: Timestamp) -> SignalSession {
        let id = Self::session_id(self.id);
        SignalSession {
            key_id: id.clone(),
            id,
            source: SignalSource::Execution,
            adapter: self.adapter.to_owned(),
            user_id: self.user_id.map(str::to_owned),
            project_id: self.project_id.map(str::to_owned),
            client_session_id: None,
            owner: None,
            started_at: at,
            last_at: at,
            paused_at: None,
            ended_at: None,
            totals: SignalTotals::default(),
        }
    }

    fn record(&self, usage: &Usage, at: Timestamp) -> SignalRecord {
        SignalRecord {
            at,
            ts: at,
            model: self.model.map(str::to_owned),
            user_id: self.user_id.map(str::to_owned),
            project_id: self.project_id.map(str::to_owned),
            tokens_in: usage.tokens_in,
            tokens_out: usage.tokens_out,
            cost_micros: usage.cost_micros,
            cache_read_tokens: usage.cache_read_tokens,
            cache_write_tokens: usage.cache_write_tokens,
            ..SignalRecord::default()
        }
    }
}

impl Ledger {
    /// Lets an execution start, or returns the message of the rule that blocks it. Its permitted cost counts as spent in
    /// every budget that covers it, until it is charged or the admission is dropped.
    pub async fn admit(&self, execution: &Execution<'_>) -> Result<Admission, String> {
        let now = self.inner.clock.now();
        let most = execution.max_cost_usd.unwrap_or_default() * MICROS;
        let running = Arc::new(Running {
            session: execution.session(now),
            record: execution.record(&Usage::default(), now),
            // A cost beyond the numbers stays at their end.
            reserved: most.ceil() as u64,
            charged: AtomicU64::new(0),
            blocked: OnceLock::new(),
            stop: CancellationToken::new(),
        });
        self.prepare_within(&running.subject(), COUNT_TIMEOUT).await;
        // Decided and registered under one lock, so that two starts do not take the same rest of a budget.
        let mut executions = lock(&self.inner.executions);
        let evaluator = self.evaluator();
        let reserved = |scope, value: &str| {
            let all = executions.values();
            let concerned = all.filter(|other| evaluator.concerns(&other.subject(), scope, value));
            concerned.map(|other| other.left()).sum()
        };
        let refused = evaluator.refuses(&running.subject(), now, running.reserved, reserved);
        if let Some(rule) = refused {
            return Err(rule.message.clone());
        }
        drop(evaluator);
        executions.insert(running.session.id.clone(), Arc::clone(&running));
        drop(executions);
        Ok(Admission {
            ledger: self.clone(),
            running,
        })
    }

    /// Charge of an execution for its whole usage so far. `None` without rules: then nothing is counted.
    pub fn charge(&self, execution: &Execution<'_>, mut usage: Usage) -> Option<Charge> {
        if self.rules() == 0 {
            return None;
        }
        let at = self.inner.clock.now();
        let cost = || self.cost(execution.model, &usage);
        usage.cost_micros = usage.cost_micros.or_else(cost);
        Some(Charge {
            session: execution.session(at),
            record: execution.record(&usage, at),
            judge: Arc::new(self.clone()),
        })
    }

    /// Notes that a signal of an execution was answered with a block.
    pub(crate) fn note_blocked(&self, session_id: &str, message: &str) {
        if let Some(running) = lock(&self.inner.executions).get(session_id) {
            running.block(message);
        }
    }

    /// Takes over what a record changes for running executions: their charges, and rules that stop them.
    pub(super) fn follow(&self, subject: &Subject<'_>, begun: &[Held]) {
        let executions = lock(&self.inner.executions);
        if let Some(own) = executions.get(subject.session_id) {
            let mut charged = subject.former;
            charged.add(subject.record);
            own.charged.store(charged.cost_micros, Ordering::Relaxed);
        }
        let stops = |held: &&Held| held.rule.cancel_running && held.rule.action == Action::Block;
        for held in begun.iter().filter(stops) {
            let evaluator = self.evaluator();
            for running in executions.values() {
                if evaluator.concerns(&running.subject(), held.rule.scope, &held.scope_value) {
                    running.block(&held.rule.message);
                    running.stop.cancel();
                }
            }
        }
    }
}
