//! Delays between attempts to write while the store is unavailable.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff;

/// Upper bound of a delay.
pub const LONGEST: Duration = Duration::from_secs(2);

/// Delays that double from 50 ms up to [`LONGEST`], each up to half as long or as short again.
pub struct RetryDelays(ExponentialBackoff);

impl Default for RetryDelays {
    fn default() -> Self {
        Self(ExponentialBackoff {
            initial_interval: Duration::from_millis(50),
            current_interval: Duration::from_millis(50),
            multiplier: 2.0,
            max_interval: LONGEST,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        })
    }
}

impl RetryDelays {
    /// Delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        self.0.next_backoff().unwrap_or(LONGEST)
    }
}
