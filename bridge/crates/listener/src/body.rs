//! Reads request bodies: whole, within a size limit, a timeout and a memory budget shared by all requests.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::BoxError;

/// Size up to which a body takes no permit: every connection can have one.
pub const SMALL_BYTES: u64 = 16 * 1024;

/// Reader of request bodies; one for all requests of a listener, because they share the budget.
#[derive(Clone, Debug)]
pub struct BodyReader {
    pub limit_bytes: usize,
    /// Time for a complete body.
    pub timeout: Duration,
    /// Memory budget for bodies that are still arriving.
    pub budget: Budget,
}

/// Memory budget in KiB. Clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    kib: usize,
    free: Arc<Semaphore>,
}

/// Share of a budget, returned on drop; `None` for a small body.
pub type MemoryPermit = Option<OwnedSemaphorePermit>;

/// Reason why a body was not read; the rest of it is still on the wire.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body was not complete after {} seconds", .0.as_secs())]
    TimedOut(Duration),
    #[error("the body could not be read: {0}")]
    Broken(BoxError),
}

impl Budget {
    pub fn of_kib(kib: usize) -> Self {
        Self {
            kib,
            free: Arc::new(Semaphore::new(kib)),
        }
    }

    /// Waits for memory for a body of this size. One above the whole budget takes all of it and is handled alone.
    pub async fn take(&self, bytes: u64) -> MemoryPermit {
        if bytes <= SMALL_BYTES {
            return None;
        }
        let kib = bytes.div_ceil(1024).min(self.kib as u64);
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        Arc::clone(&self.free).acquire_many_owned(kib).await.ok()
    }
}

impl BodyReader {
    /// Reads the whole body; returns its bytes with their memory permits. Memory is taken from the share of the
    /// caller first, if there is one, so that its slow bodies do not hold up those of others.
    pub async fn read<B>(
        &self,
        body: B,
        share: Option<&Budget>,
    ) -> Result<(Bytes, [MemoryPermit; 2]), BodyError>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let limit = self.limit_bytes;
        let hint = body.size_hint();
        if hint.lower() > limit as u64 {
            return Err(BodyError::TooLarge(limit));
        }
        let most = hint.upper().unwrap_or(limit as u64).min(limit as u64);
        let reading = async {
            let shared = match share {
                Some(share) => share.take(most).await,
                None => None,
            };
            let permits = [shared, self.budget.take(most).await];
            let mut body = pin!(Limited::new(body, limit));
            // One buffer: many small chunks would each take more memory than the bytes in them. Of a body of a known
            // length it is never copied.
            let known = hint.exact().and_then(|bytes| usize::try_from(bytes).ok());
            let mut whole = Vec::with_capacity(known.unwrap_or(0));
            while let Some(frame) = body.frame().await {
                if let Ok(piece) = frame?.into_data() {
                    whole.extend_from_slice(&piece);
                }
            }
            Ok::<_, BoxError>((Bytes::from(whole), permits))
        };
        match tokio::time::timeout(self.timeout, reading).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(limit)),
            Ok(Err(error)) => Err(BodyError::Broken(error)),
            Err(_) => Err(BodyError::TimedOut(self.timeout)),
        }
    }
}
