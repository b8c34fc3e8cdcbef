//! One attempt from the durable mark to the durable end: begin, assemble, execute, normalise, finish.

use forge_adapter_api::{AdapterError, OutputStrategy};
use serde_json::json;

use crate::event::{NewEvent, kind};
use crate::id::DispatchId;
use crate::plugin::Adapter;
use crate::store;
use crate::store::record::{Begun, Claim, Requeue};

use super::Inner;
use super::assemble::{self, assemble};
use super::budget::Meter;
use super::capture;
use super::execute::{Attempt, Cut, End, execute};
use super::finish::Ending;
use super::request::{Dispatch, Recovery};
use super::running::Stop;

impl Inner {
    /// Runs one attempt of a queued dispatch. An error is the store's; the dispatch is then still
    /// queued, or running under an epoch that the next start finds.
    pub(super) async fn attempt(
        &self,
        id: DispatchId,
        adapter: &Adapter,
        stop: &Stop,
    ) -> Result<(), store::Error> {
        let finisher = &self.finisher;
        let provider = adapter.provider();
        let started = json!({ "provider": provider });
        let started = NewEvent::new(kind::STARTED, finisher.clock.now(), Some(started));
        let begun = match finisher.store.begin(id, provider, started).await {
            Ok(begun) => begun,
            // Cancelled or finished since it was picked.
            Err(store::Error::Stale(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let request = Dispatch::from_record(&begun.request);
        let (ending, again) = self.ending(&begun, &request, adapter, stop).await;
        let claim = Claim::Attempt(begun.lease.clone());
        let outcome = match (ending, again) {
            (None, _) => return Ok(()),
            (Some(_), Some(requeue)) => finisher.requeue(claim, requeue).await,
            (Some(ending), None) => {
                finisher.finish(claim, &begun.dispatch, &request, ending).await
            }
        };
        self.deliverer.wake();
        match outcome {
            Err(store::Error::Stale(_)) => {
                tracing::error!(dispatch.id = %id, "a late result of {id} was refused");
                Ok(())
            }
            outcome => outcome,
        }
    }
}
