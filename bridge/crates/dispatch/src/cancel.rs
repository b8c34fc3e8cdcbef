//! A durable wish to cancel. When it is answered `true` it is on disk, and the result will say
//! `cancelled`, whatever comes between.

use forge_base::failpoint;
use forge_base::id::DispatchId;
use forge_store as store;
use forge_store::record::CancelRequest;

use super::normalise::Ending;
use super::{Dispatcher, Error};

impl Dispatcher {
    /// `Some(true)`: it will end as `cancelled`. `Some(false)`: it had ended. `None`: never heard of.
    /// Goes on when nobody waits for the answer any more: what is on disk has to be acted on.
    pub async fn cancel(&self, id: DispatchId) -> Result<Option<bool>, Error> {
        let this = self.clone();
        let cancel = self
            .inner
            .tracker
            .spawn(async move { this.cancel_now(id).await });
        cancel.await.unwrap_or_else(|_| {
            let text = "the cancel was not recorded to its end; send it again".to_owned();
            Err(Error::Store(store::Error::Unavailable(text)))
        })
    }

    async fn cancel_now(&self, id: DispatchId) -> Result<Option<bool>, Error> {
        let inner = &self.inner;
        let now = inner.finisher.clock.now();
        let requested = inner.finisher.store.request_cancel(id, now).await?;
        failpoint::point("cancel.recorded");
        match requested {
            CancelRequest::Queued => {
                let ending = Ending::Cancelled { answer: None };
                inner.finisher.end_queued(id, ending).await?;
                inner.deliverer.wake();
                // Another of its session may start, or it gives its place back unused.
                self.wake();
                Ok(Some(true))
            }
            CancelRequest::Running { .. } => {
                inner.running.cancel(id);
                Ok(Some(true))
            }
            CancelRequest::Finished => Ok(Some(false)),
            CancelRequest::Unknown => Ok(None),
        }
    }
}
