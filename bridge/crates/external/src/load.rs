//! Load of one service: its calls in progress and its circuit breaker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use forge_base::time;
use forge_net::breaker::{self, Breaker, Health, Phase};

use crate::probe::Checked;

/// Time after which a caller without a place is told to try again.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Shared by all calls of a service. It outlives a reload that leaves the service's address unchanged.
#[derive(Debug)]
pub(crate) struct Load {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    breaker: Breaker,
    running: usize,
    /// Last health check.
    checked: Option<Checked>,
}

/// Place of one call; dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    load: Arc<Load>,
    turn: u64,
}

impl Load {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            breaker: Breaker::closed(),
            running: 0,
            checked: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place, or returns the time to wait and the reason.
    pub(crate) fn enter(
        self: &Arc<Self>,
        config: &breaker::Config,
        calls: usize,
    ) -> Result<Place, (Duration, &'static str)> {
        let now = Timestamp::now();
        let mut state = self.state();
        state.breaker.pass(now);
        if state.running < state.breaker.room(calls, config) {
            state.running += 1;
            return Ok(Place {
                load: Arc::clone(self),
                turn: state.breaker.turn(),
            });
        }
        Err(match state.breaker.phase() {
            Phase::Open(trip) => {
                let wait = time::left(now, trip.until).max(BUSY_WAIT);
                (wait, "failed repeatedly and is not called for now")
            }
            Phase::Closed | Phase::HalfOpen(..) => (
                BUSY_WAIT,
                "has no place for another call (external.max_calls)",
            ),
        })
    }

    pub(crate) fn checked(&self, checked: Checked) {
        self.state().checked = Some(checked);
    }

    pub(crate) fn health(&self) -> Option<Checked> {
        self.state().checked.clone()
    }

    pub(crate) fn running(&self) -> usize {
        self.state().running
    }

    pub(crate) fn phase(&self) -> Phase {
        let mut state = self.state();
        state.breaker.pass(Timestamp::now());
        state.breaker.phase()
    }
}

impl Place {
    pub(crate) fn report(&self, health: Health, config: &breaker::Config) {
        let change = self
            .load
            .state()
            .breaker
            .report(health, self.turn, Timestamp::now(), config);
        if let Some(change) = change {
            tracing::warn!("circuit breaker of an external service: {change:?}");
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.load.state().running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_given_back_and_an_open_breaker_has_none() {
        let config = breaker::Config::default();
        let load = Load::new();
        let first = load.enter(&config, 1).unwrap();
        let (wait, reason) = load.enter(&config, 1).unwrap_err();
        assert_eq!(wait, BUSY_WAIT);
        assert!(reason.contains("external.max_calls"), "{reason}");
        drop(first);
        for _ in 0..config.min_samples.get() {
            load.enter(&config, 1)
                .unwrap()
                .report(Health::Down, &config);
        }
        let (wait, reason) = load.enter(&config, 1).unwrap_err();
        assert!(wait > BUSY_WAIT && wait <= config.open, "{wait:?}");
        assert!(reason.contains("repeatedly"), "{reason}");
        assert_eq!(load.running(), 0);
    }
}
