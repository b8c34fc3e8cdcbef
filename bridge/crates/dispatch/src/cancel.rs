//! Durable cancellation. An answer of `true` means that the request is on disk and the result will be
//! `cancelled`, even after a crash.

use forge_base::failpoint;
use forge_base::id::DispatchId;
use forge_store as store;
use forge_store::record::CancelRequest;

use super::normalise::Ending;
use super::{Dispatcher, Error};

impl Dispatcher {
    /// Cancels a dispatch. `Some(true)`: it will end as `cancelled`. `Some(false)`: it had already ended. `None`:
    /// unknown id. Runs to completion even if the caller drops the future, since a recorded request must be acted on.
    pub async fn cancel(&self, id: DispatchId) -> Result<Option<bool>, Error> {
        let this = self.clone();
        let cancel = self
            .inner
            .tracker
            .spawn(async move { this.cancel_now(id).await });
        cancel.await.unwrap_or_else(|_| {
            let text = "recording the cancellation did not complete; send it again".to_owned();
            Err(Error::Store(store::Error::Unavailable(text)))
        })
    }

    async fn cancel_now(&self, id: DispatchId) -> Result<Option<bool>, Error> {
        let inner = &self.inner;
        let now = inner.finisher.clock.now();
        let requested = inner
            .finisher
            .store
            .executions
            .request_cancel(id, now)
            .await?;
        failpoint::point("cancel.recorded");
        match requested {
            CancelRequest::Queued => {
                let ending = Ending::Cancelled { answer: None };
                inner.finisher.end_queued(id, ending).await?;
                inner.deliverer.wake();
                // The next dispatch of its session, or of its adapter's queue, might start now.
                self.wake();
                Ok(Some(true))
            }
            CancelRequest::Running { attempt } => {
                inner.running.cancel(id, attempt);
                Ok(Some(true))
            }
            CancelRequest::Finished => Ok(Some(false)),
            CancelRequest::Unknown => Ok(None),
        }
    }
}
