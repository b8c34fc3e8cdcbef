//! A durable wish to cancel. When it is answered `true` it is on disk, and the result will say
//! `cancelled`, whatever comes between.

use crate::id::DispatchId;
use crate::store::record::CancelRequest;

use super::normalise::Ending;
use super::{Dispatcher, Error};

impl Dispatcher {
    /// `Some(true)`: it will end as `cancelled`. `Some(false)`: it had ended. `None`: never heard of.
    pub async fn cancel(&self, id: DispatchId) -> Result<Option<bool>, Error> {
        let inner = &self.inner;
        let now = inner.finisher.clock.now();
        match inner.finisher.store.request_cancel(id, now).await? {
            CancelRequest::Queued => {
                let ending = Ending::Cancelled { answer: None };
                inner.finisher.end_queued(id, ending).await?;
                inner.deliverer.wake();
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
