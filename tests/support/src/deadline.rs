//! Waits for a condition, with a deadline.

use std::panic::Location;
use std::time::Duration;

use tokio::time::{Instant, sleep};

const LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(5);

/// Waits until the condition holds; panics after 20 s.
#[track_caller]
pub fn until(condition: impl Fn() -> bool) -> impl Future<Output = ()> {
    until_within(LIMIT, condition)
}

/// Waits until the condition holds; panics after `limit`.
#[track_caller]
pub fn until_within(limit: Duration, condition: impl Fn() -> bool) -> impl Future<Output = ()> {
    let place = Location::caller();
    async move {
        let end = Instant::now() + limit;
        while !condition() {
            assert!(Instant::now() < end, "not within {limit:?}: {place}");
            sleep(POLL).await;
        }
    }
}

/// Waits until the condition has a value, and returns it; panics after 20 s.
pub async fn until_some<T>(what: &str, condition: impl AsyncFn() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < end, "never came: {what}");
        sleep(POLL).await;
    }
}
