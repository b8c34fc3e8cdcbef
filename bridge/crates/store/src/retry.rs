//! Delays between attempts to write while the store is unavailable.

use std::time::Duration;

use backoff::backoff::Backoff;
use backoff::{ExponentialBackoff, ExponentialBackoffBuilder};

/// Upper bound of a delay.
pub const LONGEST: Duration = Duration::from_secs(2);

/// Delays that double from 50 ms up to [`LONGEST`], each up to half as long or as short again.
pub struct RetryDelays(ExponentialBackoff);

impl Default for RetryDelays {
    fn default() -> Self {
        let delays = ExponentialBackoffBuilder::new()
            .with_initial_interval(Duration::from_millis(50))
            .with_multiplier(2.0)
            .with_max_interval(LONGEST)
            .with_max_elapsed_time(None)
            .build();
        Self(delays)
    }
}

impl RetryDelays {
    /// Delay before the next attempt.
    pub fn next_delay(&mut self) -> Duration {
        self.0.next_backoff().unwrap_or(LONGEST)
    }
}
