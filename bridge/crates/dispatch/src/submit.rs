//! Submission of a request: validate, route, accept. Accepting checks the idempotency key in the same transaction;
//! an accepted dispatch always gets a result.

use std::collections::BTreeMap;

use forge_adapter_api::HealthStatus;
use jiff::Timestamp;
use secrecy::ExposeSecret;
use serde_json::Value;

use forge_base::digest::Digest;
use forge_base::event::{NewEvent, kind};
use forge_base::failpoint;
use forge_base::id::DispatchId;
use forge_base::time;
use forge_external::Identity;
use forge_plugin_host::Adapter;
use forge_store::record::{
    self, Acceptance, DispatchState, IdempotencyKey, KeyOwner, KeyVerdict, NewDispatch, Replay,
};
use forge_store::{self as store, sealed};

use super::idempotency::Recorded;
use super::request::{DispatchRequest, Secrets};
use super::route::{Candidate, Policy, RouteError, Routed, route};
use super::spans;
use super::validate::{Envelope, Limits, Validated, validate};
use super::{At, Dispatcher, Error, Inner, external, idempotency, nodes};

/// Headers of a request that matter to a dispatch.
#[derive(Clone, Debug, Default)]
pub struct SubmitHeaders {
    pub idempotency_key: Option<String>,
    /// Caller whose keys and task ids are its own.
    pub key_owner: KeyOwner,
    pub traceparent: Option<String>,
    /// Identity for external services; without one, anonymous.
    pub caller: Option<Identity>,
    /// User of a dispatch that names none.
    pub submitter: Option<String>,
    /// The dispatch is a step of a run, in one of its checkouts.
    pub is_step: bool,
}

impl SubmitHeaders {
    fn key(&self, dispatch: &DispatchRequest) -> IdempotencyKey {
        idempotency::key(dispatch, self.key_owner, self.idempotency_key.as_deref())
    }
}

/// Body of the 202 response.
#[derive(Clone, Debug)]
pub struct Answer {
    pub task_id: String,
    pub dispatch_id: DispatchId,
    pub provider: String,
    /// True if the request was accepted before.
    pub duplicate: bool,
    pub warnings: Vec<String>,
}

/// True if a body can name external services, so that the identity of its submitter is needed.
pub fn uses_external(body: &Value) -> bool {
    let tools = body.get("tools").and_then(Value::as_array);
    body.get("provider").and_then(Value::as_str) == Some(external::PROVIDER)
        || tools.is_some_and(|tools| tools.iter().any(Value::is_string))
}

impl Answer {
    fn of_record(dispatch: &record::DispatchRecord) -> Self {
        Self {
            task_id: dispatch.task_id.clone(),
            dispatch_id: dispatch.id,
            provider: dispatch.provider.clone(),
            duplicate: true,
            warnings: Vec::new(),
        }
    }

    fn warning(mut self, more: Vec<String>) -> Self {
        self.warnings.extend(more);
        self
    }
}

impl From<RouteError> for Error {
    fn from(error: RouteError) -> Self {
        let text = error.to_string();
        match error {
            RouteError::UnknownProvider { .. } => Error::UnknownProvider(text),
            RouteError::NoCapableAdapter { .. } => Error::NoCapableAdapter(text),
            RouteError::AdapterUnavailable { .. } => Error::AdapterUnavailable(text),
        }
    }
}

impl Dispatcher {
    /// Accepts a dispatch. The record is on disk when this returns an answer.
    pub async fn submit(&self, body: Value, headers: &SubmitHeaders) -> Result<Answer, Error> {
        let inner = &*self.inner;
        let now = inner.finisher.clock.now();
        let Validated {
            dispatch,
            attachments,
            secrets,
            warnings,
        } = inner.validated(&body, headers)?;
        // Its attachments are decoded, and not kept twice.
        drop(body);
        let key = headers.key(&dispatch);
        let record = idempotency::record(&dispatch);
        let routed = inner.routed(&dispatch, now).await;
        let checked = routed.and_then(|routed| Ok((routed, inner.check_call(&dispatch)?)));
        let (routed, is_held) = match checked {
            Ok(checked) => checked,
            // A known key gets its answer even if no adapter can execute the request now.
            Err(refused) => {
                let known = inner.lookup_key(&key, &record.fingerprint, now).await?;
                return known.map(|answer| answer.warning(warnings)).ok_or(refused);
            }
        };
        // Boxed, so that moving it between futures does not copy it.
        let dispatch = Box::new(dispatch);
        let mut new = Box::new(inner.record(&dispatch, record, &secrets, key, &routed, now));
        new.attachments = attachments;
        if is_held {
            new.hold();
        }
        let (dispatch_id, task_id) = (new.id, new.task_id.clone());
        let trace = dispatch.trace.clone();
        failpoint::point("accept.before");
        let acceptance = self.accept(new, dispatch).await?;
        failpoint::point("accept.after");
        match acceptance {
            Acceptance::Accepted { .. } => {
                spans::log_under(dispatch_id, &trace.trace_id);
                inner
                    .finisher
                    .record_accepted(dispatch_id, &trace, &routed.provider, now);
                let answer = Answer {
                    task_id,
                    dispatch_id,
                    provider: routed.provider,
                    duplicate: false,
                    warnings: routed.warnings,
                };
                Ok(answer.warning(warnings))
            }
            Acceptance::Duplicate(known) => {
                spans::log_under(known.id, &known.trace_id);
                inner.deliverer.wake();
                Ok(Answer::of_record(&known).warning(warnings))
            }
            Acceptance::Conflict(id) => Err(Error::Conflict(id)),
            Acceptance::QueueFull => Err(Error::QueueFull),
        }
    }
}

impl Dispatcher {
    /// Looks up a request by its idempotency key without accepting it, for times when no new dispatch is accepted.
    pub async fn recall(
        &self,
        body: &Value,
        headers: &SubmitHeaders,
    ) -> Result<Option<Answer>, Error> {
        let inner = &*self.inner;
        let valid = inner.validated(body, headers)?;
        let key = headers.key(&valid.dispatch);
        let fingerprint = idempotency::record(&valid.dispatch).fingerprint;
        let now = inner.finisher.clock.now();
        let known = inner.lookup_key(&key, &fingerprint, now).await?;
        Ok(known.map(|answer| answer.warning(valid.warnings)))
    }
}

impl Inner {
    fn validated(&self, body: &Value, headers: &SubmitHeaders) -> Result<Validated, Error> {
        let envelope = Envelope {
            idempotency_key: headers.idempotency_key.as_deref(),
            traceparent: headers.traceparent.as_deref(),
        };
        let limits = Limits {
            config: &self.config,
            is_step: headers.is_step,
            mcp_servers: &self.mcp_names,
            external: &|name| self.external.resolve(name),
            callback: &|url| {
                self.client
                    .guard()
                    .check_url(url)
                    .map_err(|refused| refused.to_string())
            },
        };
        let mut valid = validate(body, &envelope, &limits).map_err(Error::Invalid)?;
        let trace = valid.dispatch.trace.clone().sampled(&self.finisher.spans);
        valid.dispatch.trace = trace;
        valid.dispatch.submitter.clone_from(&headers.submitter);
        if external::is_used(&valid.dispatch) {
            valid.dispatch.caller = Some(headers.caller.clone().unwrap_or(Identity::Anonymous));
        }
        Ok(valid)
    }

    /// Answer for a known key; `None` if the key is free or can be taken over.
    async fn lookup_key(
        &self,
        key: &IdempotencyKey,
        fingerprint: &Digest,
        now: Timestamp,
    ) -> Result<Option<Answer>, Error> {
        let Some(known) = self.finisher.store.accept.recall(key).await? else {
            return Ok(None);
        };
        match known.verdict(key.space, fingerprint) {
            KeyVerdict::Same => Ok(Some(self.redeliver_duplicate(&known.dispatch, now).await?)),
            KeyVerdict::Conflict => Err(Error::Conflict(known.dispatch.id)),
            KeyVerdict::TakeOver => Ok(None),
        }
    }

    /// Answers a duplicate request with its record. If the dispatch has finished, its delivery becomes due again.
    async fn redeliver_duplicate(
        &self,
        known: &record::DispatchRecord,
        now: Timestamp,
    ) -> Result<Answer, store::Error> {
        if matches!(known.state, DispatchState::Finished { .. }) {
            let deliveries = self.finisher.store.outbox.deliveries_of(known.id).await?;
            if let Some(last) = deliveries.last() {
                self.finisher
                    .store
                    .outbox
                    .replay(Replay::One(last.id), now)
                    .await?;
                self.deliverer.wake();
            }
        }
        Ok(Answer::of_record(known))
    }

    /// Routes a dispatch by the current state of the adapters.
    pub(super) async fn routed(
        &self,
        dispatch: &DispatchRequest,
        now: Timestamp,
    ) -> Result<Routed, Error> {
        let named = dispatch.provider.as_deref();
        let only = named.filter(|named| *named == external::PROVIDER);
        let only = only.and_then(|named| self.registry.get(named));
        let adapters = match &only {
            Some(adapter) => std::slice::from_ref(adapter),
            None => self.registry.routable(),
        };
        let queued: BTreeMap<String, u64> = match adapters.len() {
            // With one adapter the load is not compared.
            0 | 1 => BTreeMap::new(),
            _ => self
                .finisher
                .store
                .queue
                .queues()
                .await?
                .into_iter()
                .collect(),
        };
        let seen = adapters.iter().map(|a| (a.profile(), a.health()));
        let seen: Vec<_> = seen.collect();
        let mut candidates: Vec<_> = adapters
            .iter()
            .zip(&seen)
            .map(|(adapter, (profile, report))| {
                let queued = queued.get(adapter.provider()).copied().unwrap_or(0);
                Candidate {
                    provider: adapter.provider(),
                    profile: profile.as_deref(),
                    health: report.status,
                    message: report.message.as_deref(),
                    paused: adapter.paused().is_some(),
                    running: adapter.running(),
                    queued: usize::try_from(queued).unwrap_or(usize::MAX),
                    max_concurrent: adapter.max_concurrent(),
                    has_agent: adapter.has_agent(&dispatch.agent_id),
                    away_for: match report.status {
                        HealthStatus::Offline => {
                            away_since(adapter).map(|since| time::wall_age(since, now))
                        }
                        HealthStatus::Healthy | HealthStatus::Degraded => None,
                    },
                }
            })
            .collect();
        let offers = self.offers.get();
        if only.is_none() {
            nodes::join(&mut candidates, &offers, now);
        }
        let policy = Policy {
            default_provider: self.registry.default_provider(),
            offline_grace: self.config.offline_grace,
        };
        Ok(route(dispatch, &candidates, &policy)?)
    }

    fn record(
        &self,
        dispatch: &DispatchRequest,
        recorded: Recorded,
        secrets: &Secrets,
        key: IdempotencyKey,
        routed: &Routed,
        now: Timestamp,
    ) -> NewDispatch {
        let id = DispatchId::new();
        let context = sealed::of_dispatch(id);
        let seal =
            |plain: secrecy::SecretSlice<u8>| self.vault.seal(&context, plain.expose_secret());
        let provider = &*routed.provider;
        NewDispatch {
            id,
            key,
            task_id: dispatch.task_id.clone(),
            agent_id: dispatch.agent_id.clone(),
            run_id: dispatch.run_id.clone(),
            trace_id: dispatch.trace.trace_id.clone(),
            provider: routed.provider.clone(),
            pinned: routed.pinned,
            routing: routed.decision.stored(),
            fingerprint: recorded.fingerprint,
            request: recorded.request,
            attachments: Vec::new(),
            secrets: secrets.to_seal().map(seal),
            retry_of: dispatch.retry_of,
            session: dispatch
                .session_id
                .clone()
                .filter(|_| routed.session_honoured),
            priority: dispatch.priority,
            accepted_at: now,
            not_before: dispatch.not_before,
            is_held: false,
            is_bound: dispatch.workspace_dir().is_some() && !self.config.shared_workspaces,
            start_by: dispatch.start_by(now),
            callback: dispatch.callback.as_ref().map(|callback| record::Callback {
                url: callback.url.clone(),
                origin: callback.origin.clone(),
            }),
            events: vec![
                NewEvent::new(kind::ACCEPTED, now).with(&At { provider }),
                NewEvent::new(kind::QUEUED, now),
            ],
            start: None,
            queue_limit: self.config.queue_limit,
        }
    }
}

/// Time since an adapter is offline; `None` if it is not, or was never loaded.
pub(super) fn away_since(adapter: &Adapter) -> Option<Timestamp> {
    adapter.profile()?;
    let history = adapter.history();
    let away = history
        .iter()
        .rev()
        .take_while(|report| report.status == HealthStatus::Offline);
    away.last().map(|since| since.checked_at)
}
