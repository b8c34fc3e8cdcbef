//! Delivery metrics, labelled by network and answer class, never by address.

use std::net::IpAddr;
use std::time::Duration;

use forge_base::metrics::{Counter, Histogram};

use super::verdict::{Outcome, Verdict};

/// Network of a receiver, derived from the host in its URL.
pub const PLACES: [&str; 3] = ["loopback", "private", "public"];
/// Answer of an attempt: the status class, or no answer.
pub const ANSWERS: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "none"];
/// Name suffixes that do not resolve in public DNS.
const PRIVATE_SUFFIXES: [&str; 5] = [".local", ".internal", ".lan", ".home.arpa", ".svc"];

#[derive(Debug)]
pub struct Meters {
    /// By `PLACES`, then `ANSWERS`.
    attempts: [[Counter; ANSWERS.len()]; PLACES.len()],
    /// Duration of one attempt.
    pub attempt: Histogram,
    /// Time from the finish of the dispatch, or from the replay, to the successful delivery.
    pub delay: Histogram,
    pub delivered: Counter,
    pub dead: Counter,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            attempts: Default::default(),
            attempt: Histogram::of_times(),
            delay: Histogram::of_times(),
            delivered: Counter::default(),
            dead: Counter::default(),
        }
    }
}

impl Meters {
    /// Counts one attempt to an origin such as `https://example.com:443`.
    pub(super) fn attempted(&self, origin: &str, outcome: &Outcome, took: Duration) {
        let answer = match outcome {
            Outcome::Answered { status, .. } => match status {
                0..=299 => 0,
                300..=399 => 1,
                400..=499 => 2,
                500.. => 3,
            },
            Outcome::Failed => 4,
        };
        self.attempts[place(origin)][answer].inc();
        self.attempt.time(took);
    }

    /// Counts a delivery whose verdict has been written.
    pub(super) fn settled(&self, verdict: &Verdict, since: Duration) {
        match verdict {
            Verdict::Delivered => {
                self.delivered.inc();
                self.delay.time(since);
            }
            Verdict::Dead { .. } => self.dead.inc(),
            Verdict::Retry { .. } => {}
        }
    }

    /// Network, answer and count of attempts.
    pub fn attempts(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let places = PLACES.into_iter().zip(&self.attempts);
        places.flat_map(|(place, row)| {
            let answers = ANSWERS.into_iter().zip(row);
            answers.map(move |(answer, counter)| (place, answer, counter.get()))
        })
    }
}

/// Index into `PLACES`. Names are not resolved: one without a dot or in a private zone is private.
fn place(origin: &str) -> usize {
    let host = origin.split("://").last().unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) if address.to_canonical().is_loopback() => 0,
        Ok(address) if is_private(address.to_canonical()) => 1,
        Ok(_) => 2,
        Err(_) if host == "localhost" || host.ends_with(".localhost") => 0,
        Err(_) if !host.contains('.') => 1,
        Err(_) if PRIVATE_SUFFIXES.iter().any(|zone| host.ends_with(zone)) => 1,
        Err(_) => 2,
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
            v4.is_private() || v4.is_link_local() || shared
        }
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_somewhere() {
        for (origin, expected) in [
            ("http://127.0.0.1:80", "loopback"),
            ("http://[::1]:80", "loopback"),
            ("http://[::ffff:127.0.0.1]:80", "loopback"),
            ("https://localhost:443", "loopback"),
            ("http://10.1.2.3:80", "private"),
            ("http://100.64.0.1:80", "private"),
            ("http://[fd00::1]:80", "private"),
            ("http://control-plane:8080", "private"),
            ("http://api.prod.svc:80", "private"),
            ("https://example.com:443", "public"),
            ("http://93.184.216.34:80", "public"),
            ("", "private"),
        ] {
            assert_eq!(PLACES[place(origin)], expected, "{origin}");
        }
    }
}
