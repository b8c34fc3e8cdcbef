//! From a request to a record: validate, recall, route, accept. After this a result is owed.

use jiff::Timestamp;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::event::{NewEvent, kind};
use crate::id::DispatchId;
use crate::net::Guard;
use crate::store::record::{
    self, Acceptance, IdempotencyKey, KeySpace, KeyVerdict, NewDispatch, Replay, State,
};

use super::request::{Dispatch, Secrets};
use super::route::Routed;
use super::validate::{Envelope, Limits, validate};
use super::{Dispatcher, Error, fingerprint};

/// What the headers of a request say.
#[derive(Clone, Debug, Default)]
pub struct SubmitHeaders {
    pub idempotency_key: Option<String>,
    pub traceparent: Option<String>,
}

/// The body of the 202.
#[derive(Clone, Debug)]
pub struct Answer {
    pub task_id: String,
    pub dispatch_id: DispatchId,
    pub provider: String,
    /// The request was known already.
    pub duplicate: bool,
    pub warnings: Vec<String>,
}

impl Answer {
    fn known(dispatch: &record::Dispatch) -> Self {
        Self {
            task_id: dispatch.task_id.clone(),
            dispatch_id: dispatch.id,
            provider: dispatch.provider.clone(),
            duplicate: true,
            warnings: Vec::new(),
        }
    }
}

impl Dispatcher {
    /// Accepts a dispatch: when this returns an answer, the record is on disk.
    pub async fn submit(&self, body: &Value, headers: &SubmitHeaders) -> Result<Answer, Error> {
        let now = self.clock.now();
        let (dispatch, secrets) = self.validated(body, headers, now)?;
        let key = match &headers.idempotency_key {
            Some(value) => IdempotencyKey { space: KeySpace::Header, value: value.clone() },
            None => IdempotencyKey { space: KeySpace::Task, value: dispatch.task_id.clone() },
        };
        let fingerprint = fingerprint::of(&dispatch, &self.vault);
        if let Some(known) = self.store.recall(&key).await? {
            match known.verdict(key.space, &fingerprint) {
                KeyVerdict::Same => return self.again(&known.dispatch, now).await,
                KeyVerdict::Conflict => return Err(Error::Conflict(known.dispatch.id)),
                KeyVerdict::TakeOver => {}
            }
        }
        let routed = self.routed(&dispatch)?;
        let new = self.record(&dispatch, &secrets, key, fingerprint, &routed, now);
        let id = new.id;
        let starts = [dispatch.not_before, Some(new.start_by)];
        match self.store.accept(new).await? {
            Acceptance::Accepted { .. } => {
                self.schedule_at(starts.into_iter().flatten());
                self.wake();
                Ok(Answer {
                    task_id: dispatch.task_id,
                    dispatch_id: id,
                    provider: routed.provider,
                    duplicate: false,
                    warnings: routed.warnings,
                })
            }
            Acceptance::Duplicate(known) => {
                self.deliverer.wake();
                Ok(Answer::known(&known))
            }
            Acceptance::Conflict(id) => Err(Error::Conflict(id)),
            Acceptance::QueueFull => Err(Error::QueueFull),
        }
    }
}
