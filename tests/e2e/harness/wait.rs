//! Waiting for a condition instead of a duration.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Time after which a condition that is never met fails the test.
const PATIENCE: Duration = Duration::from_secs(120);

/// Polls until there is a value; fails the test if none appears within [`PATIENCE`].
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut ask: impl FnMut() -> F,
) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(Duration::from_millis(10)).await;
    }
}
