//! Rate limits: requests of a token, and invalid tokens from an address. Times are passed in as durations since a
//! fixed moment; every table is bounded.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Maximum addresses kept; a further one replaces the one seen least recently.
const MOST_PEERS: usize = 4096;

/// Rate per minute: a burst of the whole count, then one more each `every`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    every: Duration,
    window: Duration,
}

impl Rate {
    /// Rate of `count` per minute; `None`, no limit, for 0.
    pub(super) fn per_minute(count: u32) -> Option<Self> {
        let window = Duration::from_secs(60);
        let every = window.checked_div(count)?;
        Some(Self { every, window })
    }

    /// Takes one at `now`, where `spent` is the time until which the rate is spent. Returns the new `spent`, or the
    /// time to wait.
    fn take(self, spent: Duration, now: Duration) -> Result<Duration, Duration> {
        let after = spent.max(now) + self.every;
        // A minute divided and multiplied again can be a few nanoseconds short.
        match after.checked_sub(now + self.window) {
            None | Some(Duration::ZERO) => Ok(after),
            Some(wait) => Err(wait),
        }
    }
}

/// Spent part of one caller's rate.
#[derive(Debug, Default)]
pub(super) struct Meter(AtomicU64);

impl Meter {
    /// Counts one, or returns the time to wait.
    pub(super) fn take(&self, rate: Rate, now: Duration) -> Result<(), Duration> {
        let mut wait = None;
        // 64 bits of nanoseconds last 584 years.
        let next = |spent| match rate.take(Duration::from_nanos(spent), now) {
            Ok(spent) => Some(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX)),
            Err(too_early) => {
                wait = Some(too_early);
                None
            }
        };
        let order = Ordering::Relaxed;
        let taken = self.0.fetch_update(order, order, next);
        taken
            .map(drop)
            .map_err(|_| wait.unwrap_or(Duration::from_secs(1)))
    }
}

pub(super) type Hash = [u8; 32];

/// Address of a caller; an IPv6 /64 network counts as one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer(IpAddr);

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Invalid attempts of each address.
#[derive(Debug, Default)]
pub(super) struct Peers {
    table: Mutex<HashMap<Peer, Record>>,
}

#[derive(Debug, Default)]
struct Record {
    seen: Duration,
    /// Spent part of the rate of failures.
    spent: Duration,
}

/// Effect of an invalid token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// Below the limit.
    Counted,
    /// Limit reached: further invalid tokens from this address are above it.
    Last,
}

impl Peers {
    /// Counts an invalid token from this address; the error is the time to wait if there were too many. Valid tokens
    /// are not looked up here, so that no other client behind the address can shut them out.
    pub(super) fn failed(&self, peer: Peer, rate: Rate, now: Duration) -> Result<Failed, Duration> {
        let mut table = self.table();
        let record = record(&mut table, peer, now);
        record.spent = rate.take(record.spent, now)?;
        match rate.take(record.spent, now) {
            Ok(_) => Ok(Failed::Counted),
            Err(_) => Ok(Failed::Last),
        }
    }

    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<Peer, Record>> {
        self.table
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

fn record(table: &mut HashMap<Peer, Record>, peer: Peer, now: Duration) -> &mut Record {
    if table.len() >= MOST_PEERS && !table.contains_key(&peer) {
        let quietest = table.iter().min_by_key(|(_, record)| record.seen);
        let quietest = quietest.map(|(peer, _)| *peer);
        if let Some(quietest) = quietest {
            table.remove(&quietest);
        }
    }
    let record = table.entry(peer).or_default();
    record.seen = now;
    record
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn peer(address: &str) -> Peer {
        address.parse::<IpAddr>().unwrap().into()
    }

    #[test]
    fn a_minutes_worth_may_come_at_once_and_then_one_by_one() {
        let rate = Rate::per_minute(60).unwrap();
        let meter = Meter::default();
        let start = 1000 * SECOND;
        assert!((0..60).all(|_| meter.take(rate, start).is_ok()));
        assert_eq!(meter.take(rate, start), Err(SECOND));
        assert_eq!(meter.take(rate, start + SECOND / 2), Err(SECOND / 2));
        assert_eq!(meter.take(rate, start + SECOND), Ok(()));
        assert_eq!(meter.take(rate, start + SECOND), Err(SECOND));
        assert!((0..60).all(|_| meter.take(rate, start + 61 * SECOND).is_ok()));
        assert!(Rate::per_minute(0).is_none());
    }

    proptest! {
        #[test]
        fn no_minute_has_more_than_twice_the_rate(
            count in 1_u32..500,
            gaps in prop::collection::vec(0_u64..2_000, 1..600),
        ) {
            let rate = Rate::per_minute(count).unwrap();
            let (meter, mut now, mut taken) = (Meter::default(), 60 * SECOND, Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                match meter.take(rate, now) {
                    Ok(()) => taken.push(now),
                    Err(wait) => {
                        prop_assert!(wait > Duration::ZERO && wait <= rate.window);
                        prop_assert!(meter.take(rate, now).is_err());
                    }
                }
            }
            for (first, from) in taken.iter().enumerate() {
                let within = taken[first..].iter().filter(|at| **at < *from + rate.window);
                prop_assert!(within.count() <= 2 * count as usize);
            }
        }
    }

    #[test]
    fn an_address_that_guesses_has_to_wait_and_others_do_not() {
        let (peers, rate) = (Peers::default(), Rate::per_minute(3).unwrap());
        let (guesser, other) = (peer("203.0.113.1"), peer("203.0.113.2"));
        let now = 500 * SECOND;
        for expected in [Failed::Counted, Failed::Counted, Failed::Last] {
            assert_eq!(peers.failed(guesser, rate, now), Ok(expected));
        }
        assert_eq!(peers.failed(guesser, rate, now), Err(20 * SECOND));
        assert_eq!(peers.failed(other, rate, now), Ok(Failed::Counted));
        let later = now + 20 * SECOND;
        assert_eq!(peers.failed(guesser, rate, later), Ok(Failed::Last));
    }

    #[test]
    fn a_network_of_ipv6_is_one_caller() {
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:192.0.2.1"), peer("192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
    }

    #[test]
    fn more_addresses_than_are_remembered_push_the_quiet_ones_out() {
        let (peers, rate) = (Peers::default(), Rate::per_minute(1).unwrap());
        let address = |number: u32| Peer::from(IpAddr::from(number.to_be_bytes()));
        let total = u32::try_from(MOST_PEERS).unwrap() + 10;
        for number in 0..total {
            let failed = peers.failed(address(number), rate, number * SECOND / 1000);
            assert_eq!(failed, Ok(Failed::Last));
        }
        assert_eq!(peers.table().len(), MOST_PEERS);
        let now = total * SECOND / 1000;
        assert!(peers.failed(address(10), rate, now).is_err());
        assert!(peers.failed(address(9), rate, now).is_ok());
    }
}
