//! Circuit breaker of one receiver: a sliding window of outcomes opens it, and after a wait a few probes
//! decide if it closes. Pure: the caller passes the time in, and changes are only returned.

use std::num::NonZeroU32;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use forge_base::time;

/// Number of slots that the window is divided into.
const SLOTS: usize = 10;
/// Time in half open after which a breaker is dropped: no deliveries are left for this receiver.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of the circuit breakers (`[callback.breaker]`).
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Length of the sliding window. At least the timeout of one attempt, or a receiver that hangs never has
    /// two failures in one window.
    #[serde(with = "forge_base::duration")]
    pub window: Duration,
    /// Minimum number of outcomes in the window before the breaker can open. Set it above the number of
    /// retries that a single delivery makes in one window.
    pub min_samples: NonZeroU32,
    /// Share of failed outcomes that opens the breaker: more than 0, at most 1. Below it, some requests still
    /// succeed.
    #[serde(deserialize_with = "ratio")]
    pub failure_ratio: f64,
    /// Time that the breaker stays open; doubled each time that the probes fail.
    #[serde(with = "forge_base::duration")]
    pub open: Duration,
    /// Upper bound of the doubled `open` time, and so the longest delay for a receiver that has recovered.
    #[serde(with = "forge_base::duration")]
    pub open_max: Duration,
    /// Number of concurrent attempts while half open, and number of successes that close the breaker.
    pub probes: NonZeroU32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(60),
            min_samples: NonZeroU32::new(10).expect("10 is not 0"),
            failure_ratio: 0.7,
            open: Duration::from_secs(30),
            open_max: Duration::from_secs(300),
            probes: NonZeroU32::new(3).expect("3 is not 0"),
        }
    }
}

fn ratio<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    let ratio = f64::deserialize(input)?;
    match ratio > 0.0 && ratio <= 1.0 {
        true => Ok(ratio),
        false => Err(D::Error::custom("a ratio must be in the range (0, 1]")),
    }
}

/// Health of a receiver as seen by one attempt, independent of the delivery's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The receiver answered, including a rejection of this callback.
    Up,
    /// Unreachable, no answer, or an answer that asks to retry later.
    Down,
}

impl Health {
    /// `Down` for 5xx (receiver failure) and 429 (rate limit); `Up` for any other status, which a working
    /// receiver sent.
    pub fn of_status(status: u16) -> Self {
        match status {
            429 | 500.. => Health::Down,
            _ => Health::Up,
        }
    }
}

/// Breaker state of one receiver.
#[derive(Clone, Debug)]
pub struct Breaker {
    phase: Phase,
    /// Phase counter. Outcomes of attempts that began in an earlier phase are ignored.
    turn: u64,
    window: Window,
    /// Length of the present wait, when it began.
    wait: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Closed,
    Open(Trip),
    /// The wait is over; holds the number of successful probes.
    HalfOpen(Trip, u32),
}

/// Record of an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trip {
    /// Time of the first opening; later openings without a close between them do not change it.
    pub opened_at: Timestamp,
    /// End of the open phase: no attempt starts before.
    pub until: Timestamp,
    /// Number of openings, starting at 1.
    pub times: u32,
}

/// Phase change caused by an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Opened(Trip),
    Closed,
}

impl Breaker {
    pub fn closed() -> Self {
        Self {
            phase: Phase::Closed,
            turn: 0,
            window: Window::default(),
            wait: Duration::ZERO,
        }
    }

    /// Open breaker as stored by an earlier process. It waits no longer than from its opening, in case the clock was set
    /// in between.
    pub fn restored(trip: Trip, now: Timestamp, config: &Config) -> Self {
        let wait = wait(trip.times, config);
        let until = time::at_most(trip.until, now, wait);
        Self {
            phase: Phase::Open(Trip { until, ..trip }),
            wait,
            ..Self::closed()
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Moves an open breaker to half open once its wait is over. A wait that became longer because the clock was set back
    /// begins again.
    pub fn pass(&mut self, now: Timestamp) {
        let Phase::Open(trip) = &mut self.phase else {
            return;
        };
        trip.until = time::at_most(trip.until, now, self.wait);
        if trip.until <= now {
            let trip = *trip;
            self.enter(Phase::HalfOpen(trip, 0));
        }
    }

    /// Moves an open breaker to half open before its wait is over. Returns false if it is not open.
    pub fn probe(&mut self, now: Timestamp) -> bool {
        let Phase::Open(trip) = self.phase else {
            return false;
        };
        let until = trip.until.min(now);
        self.enter(Phase::HalfOpen(Trip { until, ..trip }, 0));
        true
    }

    /// Closes the breaker without a successful probe.
    pub fn close(&mut self) {
        self.enter(Phase::Closed);
    }

    /// True if the state can be dropped without losing information.
    pub fn is_idle(&self, now: Timestamp, config: &Config) -> bool {
        match self.phase {
            Phase::Closed => self.window.totals(now, config.window).1 == 0,
            Phase::Open(_) => false,
            Phase::HalfOpen(trip, _) => time::after(trip.until, FORGOTTEN_AFTER) <= now,
        }
    }

    /// Number of attempts allowed at once; `most` is the limit of a closed breaker.
    pub fn room(&self, most: usize, config: &Config) -> usize {
        match self.phase {
            Phase::Closed => most,
            Phase::Open(_) => 0,
            Phase::HalfOpen(..) => most.min(config.probes.get() as usize),
        }
    }

    /// Records the outcome of an attempt that began in phase number `turn`. Outcomes of earlier phases are
    /// ignored.
    pub fn report(
        &mut self,
        sign: Health,
        turn: u64,
        now: Timestamp,
        config: &Config,
    ) -> Option<Change> {
        if turn != self.turn {
            return None;
        }
        match (self.phase, sign) {
            (Phase::Closed, sign) => {
                self.window.count(sign, now, config.window);
                let (up, down) = self.window.totals(now, config.window);
                let failed = f64::from(down) / f64::from((up + down).max(1));
                let is_down = sign == Health::Down
                    && up + down >= config.min_samples.get()
                    && failed >= config.failure_ratio;
                is_down.then(|| self.open(now, now, 1, config))
            }
            (Phase::HalfOpen(trip, _), Health::Down) => {
                Some(self.open(trip.opened_at, now, trip.times.saturating_add(1), config))
            }
            (Phase::HalfOpen(trip, successes), Health::Up) => {
                let successes = successes + 1;
                if successes < config.probes.get() {
                    self.phase = Phase::HalfOpen(trip, successes);
                    return None;
                }
                self.enter(Phase::Closed);
                Some(Change::Closed)
            }
            (Phase::Open(_), Health::Up | Health::Down) => None,
        }
    }

    fn open(
        &mut self,
        opened_at: Timestamp,
        now: Timestamp,
        times: u32,
        config: &Config,
    ) -> Change {
        self.wait = wait(times, config);
        let trip = Trip {
            opened_at,
            until: time::after(now, self.wait),
            times,
        };
        self.enter(Phase::Open(trip));
        Change::Opened(trip)
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.turn += 1;
        self.window = Window::default();
    }
}

/// Wait after this opening, counted from 1.
fn wait(times: u32, config: &Config) -> Duration {
    let doubled = 2_u32.saturating_pow(times.saturating_sub(1));
    config.open.saturating_mul(doubled).min(config.open_max)
}

/// Outcome counters, one slot per tenth of the window.
#[derive(Clone, Debug, Default)]
struct Window {
    slots: [Slot; SLOTS],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Slot number: tenths of the window since 1970.
    at: i128,
    up: u32,
    down: u32,
}

impl Window {
    fn count(&mut self, sign: Health, now: Timestamp, window: Duration) {
        let at = tenth(now, window);
        let place = usize::try_from(at.rem_euclid(SLOTS as i128)).expect("it is less than SLOTS");
        let slot = &mut self.slots[place];
        if slot.at != at {
            *slot = Slot {
                at,
                ..Slot::default()
            };
        }
        match sign {
            Health::Up => slot.up = slot.up.saturating_add(1),
            Health::Down => slot.down = slot.down.saturating_add(1),
        }
    }

    /// Number of up and down outcomes in the window.
    fn totals(&self, now: Timestamp, window: Duration) -> (u32, u32) {
        let last = tenth(now, window);
        let first = last - SLOTS as i128;
        let counted = self.slots.iter();
        counted
            .filter(|slot| slot.at > first && slot.at <= last)
            .fold((0, 0), |(up, down): (u32, u32), slot| {
                (up.saturating_add(slot.up), down.saturating_add(slot.down))
            })
    }
}

fn tenth(now: Timestamp, window: Duration) -> i128 {
    let length = (window.as_nanos() / SLOTS as u128).max(1);
    now.as_nanosecond()
        .div_euclid(i128::try_from(length).unwrap_or(i128::MAX))
}

#[cfg(test)]
mod tests;
