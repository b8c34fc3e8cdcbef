//! A deadline that may be absent.

use tokio::time::{Instant, sleep_until};

/// Waits until `deadline`; forever without one.
pub async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
