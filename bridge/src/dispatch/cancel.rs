//! A durable wish to cancel. When it is answered `true` it is on disk, and the result will say
//! `cancelled`, whatever comes between.

use crate::id::DispatchId;
use crate::store::record::CancelRequest;

use super::finish::Ending;
use super::{Dispatcher, Error};

impl Dispatcher {
    /// `Some(true)`: it will end as `cancelled`. `Some(false)`: it had ended. `None`: never heard of.
    pub async fn cancel(&self, id: DispatchId) -> Result<Option<bool>, Error> {
        match self.store.request_cancel(id, self.clock.now()).await? {
            CancelRequest::Queued => {
                self.end_queued(id, Ending::cancelled()).await?;
                Ok(Some(true))
            }
            CancelRequest::Running { .. } => {
                self.running.cancel(id);
                Ok(Some(true))
            }
            CancelRequest::Finished => Ok(Some(false)),
            CancelRequest::Unknown => Ok(None),
        }
    }
}
