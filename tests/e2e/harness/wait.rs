//! Waiting for a state, never for a time.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// So long a test waits for what has to come; a failure, never a measure.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks again and again until there is an answer; fails the test when none comes.
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
