//! Circuit breakers by receiver. Bounded: a receiver without an entry counts as closed. Tracks changes for
//! the worker to store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use forge_base::time;
use forge_net::breaker::{Breaker, Change, Config, Health, Phase, Trip};
use forge_store::destination::{MAX_BREAKERS, OpenBreaker};

/// Time until eviction is tried again after all entries were found to be open or half open.
const FULL_FOR: Duration = Duration::from_secs(1);
/// Maximum length of a stored reason, in bytes.
const REASON_BYTES: usize = 200;

pub(super) struct Destinations {
    config: Config,
    known: HashMap<String, Breaker>,
    /// Origins whose breaker is open or half open, with the reason of the last opening.
    tripped: BTreeMap<String, String>,
    /// Origins whose stored state is out of date.
    changed: BTreeSet<String>,
    /// Origins whose deliveries might be past their deadline.
    overdue: BTreeSet<String>,
    /// Earliest probe time of the open breakers.
    next_probe: Option<Timestamp>,
    /// Time until which no new entry is added, since the table is full.
    full_until: Timestamp,
}

/// Receiver whose breaker is open or half open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Destination {
    pub origin: String,
    pub state: State,
    #[serde(serialize_with = "forge_base::time::millis")]
    pub opened_at: Timestamp,
    /// Time of the next probe; in the past if half open.
    #[serde(serialize_with = "forge_base::time::millis")]
    pub probe_at: Timestamp,
    /// Number of openings without a close between them, the first one included.
    pub openings: u32,
    /// Reason of the last opening.
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No attempts are made.
    Open,
    /// A few probes are allowed.
    HalfOpen,
}

impl Destinations {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            known: HashMap::new(),
            tripped: BTreeMap::new(),
            changed: BTreeSet::new(),
            overdue: BTreeSet::new(),
            next_probe: None,
            full_until: Timestamp::MIN,
        }
    }

    /// Loads the breakers stored by an earlier process.
    pub(super) fn restore(&mut self, stored: Vec<OpenBreaker>, now: Timestamp) {
        for OpenBreaker {
            origin,
            opened_at,
            until,
            times,
            reason,
        } in stored
        {
            if self.tripped.contains_key(&origin) {
                continue;
            }
            let trip = Trip {
                opened_at,
                until,
                times,
            };
            let breaker = Breaker::restored(trip, now, &self.config);
            self.known.insert(origin.clone(), breaker);
            self.overdue.insert(origin.clone());
            self.tripped.insert(origin, reason);
        }
        self.next_probe = self.first_probe();
    }

    /// Has every breaker compare its wait with a clock that was set.
    pub(super) fn follow_clock(&mut self, now: Timestamp) {
        self.full_until = Timestamp::MIN;
        self.next_probe = self.next_probe.map(|_| now);
        self.pass(now);
    }

    /// Moves breakers whose wait is over to half open.
    pub(super) fn pass(&mut self, now: Timestamp) {
        if self.next_probe.is_none_or(|next| now < next) {
            return;
        }
        for origin in self.tripped.keys() {
            if let Some(breaker) = self.known.get_mut(origin) {
                breaker.pass(now);
            }
        }
        self.next_probe = self.first_probe();
    }

    /// Lets an open breaker try its receiver now.
    pub(super) fn probe(&mut self, origin: &str, now: Timestamp) {
        let breaker = self.known.get_mut(origin);
        if breaker.is_some_and(|breaker| breaker.probe(now)) {
            self.changed.insert(origin.to_owned());
            self.next_probe = self.first_probe();
        }
    }

    /// Closes an open or half-open breaker; returns false if there is none.
    pub(super) fn close(&mut self, origin: &str) -> bool {
        if self.tripped.remove(origin).is_none() {
            return false;
        }
        if let Some(breaker) = self.known.get_mut(origin) {
            breaker.close();
        }
        self.overdue.remove(origin);
        self.changed.insert(origin.to_owned());
        self.next_probe = self.first_probe();
        true
    }

    /// Drops breakers that have been half open for a day.
    pub(super) fn forget_idle(&mut self, now: Timestamp) {
        let Self { config, known, .. } = self;
        let idle = |origin: &str| known.get(origin).is_none_or(|b| b.is_idle(now, config));
        let idle: Vec<String> = self.tripped.keys().filter(|o| idle(o)).cloned().collect();
        for origin in idle {
            self.known.remove(&origin);
            self.tripped.remove(&origin);
            self.changed.insert(origin);
        }
    }

    /// Number of attempts to this origin allowed at once.
    pub(super) fn room(&self, origin: &str, most: usize) -> usize {
        let breaker = self.known.get(origin);
        breaker.map_or(most, |breaker| breaker.room(most, &self.config))
    }

    /// Phase number of the origin's breaker, which an attempt that begins now passes to `report`.
    pub(super) fn turn(&self, origin: &str) -> u64 {
        self.known.get(origin).map_or(0, Breaker::turn)
    }

    pub(super) fn is_open(&self, origin: &str) -> bool {
        self.tripped.contains_key(origin) && self.room(origin, 1) == 0
    }

    /// Origins whose breaker is open.
    pub(super) fn open(&self) -> impl Iterator<Item = &String> {
        self.tripped.keys().filter(|origin| self.is_open(origin))
    }

    /// Earliest probe time of the open breakers.
    pub(super) fn next_probe(&self) -> Option<Timestamp> {
        self.next_probe
    }

    fn first_probe(&self) -> Option<Timestamp> {
        let tripped = self.tripped.keys().filter_map(|o| self.known.get(o));
        tripped
            .filter_map(|breaker| match breaker.phase() {
                Phase::Open(trip) => Some(trip.until),
                Phase::Closed | Phase::HalfOpen(..) => None,
            })
            .min()
    }

    /// Records an outcome; returns the breaker's change if it opened or closed.
    pub(super) fn report(
        &mut self,
        origin: &str,
        turn: u64,
        sign: Health,
        reason: &str,
        now: Timestamp,
    ) -> Option<Change> {
        if !self.known.contains_key(origin) {
            if !self.has_room(now) {
                return None;
            }
            self.known.insert(origin.to_owned(), Breaker::closed());
        }
        let breaker = self.known.get_mut(origin)?;
        let change = breaker.report(sign, turn, now, &self.config)?;
        match change {
            Change::Opened(trip) => {
                self.next_probe = self.next_probe.into_iter().chain([trip.until]).min();
                let end = reason.floor_char_boundary(REASON_BYTES);
                self.tripped
                    .insert(origin.to_owned(), reason[..end].to_owned());
                self.overdue.insert(origin.to_owned());
            }
            Change::Closed => {
                self.tripped.remove(origin);
                self.overdue.remove(origin);
            }
        }
        self.changed.insert(origin.to_owned());
        Some(change)
    }

    /// Makes room for one more entry: evicts idle closed breakers first, then all closed ones. Open and
    /// half-open breakers are never evicted.
    fn has_room(&mut self, now: Timestamp) -> bool {
        if now < self.full_until {
            return false;
        }
        let Self {
            config,
            known,
            tripped,
            ..
        } = self;
        if known.len() >= MAX_BREAKERS {
            known.retain(|origin, b| tripped.contains_key(origin) || !b.is_idle(now, config));
        }
        if known.len() >= MAX_BREAKERS {
            known.retain(|origin, _| tripped.contains_key(origin));
        }
        let has_room = known.len() < MAX_BREAKERS;
        if !has_room {
            self.full_until = time::after(now, FULL_FOR);
        }
        has_room
    }

    /// Takes the changes to store: the breakers that are open or half open, and the origins whose breaker has
    /// closed.
    pub(super) fn take_changed(&mut self) -> (Vec<OpenBreaker>, Vec<String>) {
        let changed = std::mem::take(&mut self.changed);
        let (mut open, mut closed) = (Vec::new(), Vec::new());
        for origin in changed {
            match self.describe(&origin) {
                Some(destination) => open.push(destination.into()),
                None => closed.push(origin),
            }
        }
        (open, closed)
    }

    /// Puts back changes that could not be stored.
    pub(super) fn still_changed(&mut self, origins: impl Iterator<Item = String>) {
        self.changed.extend(origins);
    }

    /// Takes the origins to check for deliveries past their deadline.
    pub(super) fn take_overdue(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.overdue)
    }

    pub(super) fn look_again(&mut self, origin: String) {
        self.overdue.insert(origin);
    }

    pub(super) fn snapshot(&self) -> Vec<Destination> {
        let tripped = self.tripped.keys();
        tripped.filter_map(|origin| self.describe(origin)).collect()
    }

    /// Breaker of this origin, if it is open or half open.
    pub(super) fn describe(&self, origin: &str) -> Option<Destination> {
        let (trip, state) = match self.known.get(origin)?.phase() {
            Phase::Closed => return None,
            Phase::Open(trip) => (trip, State::Open),
            Phase::HalfOpen(trip, _) => (trip, State::HalfOpen),
        };
        Some(Destination {
            origin: origin.to_owned(),
            state,
            opened_at: trip.opened_at,
            probe_at: trip.until,
            openings: trip.times,
            reason: self.tripped.get(origin).cloned().unwrap_or_default(),
        })
    }
}

impl From<Destination> for OpenBreaker {
    fn from(destination: Destination) -> Self {
        Self {
            origin: destination.origin,
            opened_at: destination.opened_at,
            until: destination.probe_at,
            times: destination.openings,
            reason: destination.reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn origin(number: usize) -> String {
        format!("https://{number}.example:443")
    }

    fn trip(all: &mut Destinations, origin: &str) {
        for _ in 0..10 {
            all.report(origin, 0, Health::Down, "answered 503", NOW);
        }
    }

    #[test]
    fn the_number_of_receivers_is_bounded_and_those_that_are_down_are_kept() {
        let mut all = Destinations::new(Config::default());
        for number in 0..100 {
            trip(&mut all, &origin(number));
        }
        for number in 100..2 * MAX_BREAKERS {
            let sign = if number % 2 == 0 {
                Health::Up
            } else {
                Health::Down
            };
            all.report(&origin(number), 0, sign, "", NOW);
            assert!(all.known.len() <= MAX_BREAKERS);
        }
        assert_eq!(all.snapshot().len(), 100);
        for number in 0..MAX_BREAKERS + 100 {
            trip(&mut all, &origin(number));
        }
        assert_eq!(all.snapshot().len(), MAX_BREAKERS);
        assert_eq!(all.room(&origin(MAX_BREAKERS), 32), 32, "it is called");
    }

    #[test]
    fn what_opens_and_closes_is_to_be_stored_once() {
        let mut all = Destinations::new(Config::default());
        let one = origin(1);
        trip(&mut all, &one);
        let (open, closed) = all.take_changed();
        assert_eq!((open.len(), closed.len()), (1, 0));
        assert_eq!(
            (open[0].times, open[0].reason.as_str()),
            (1, "answered 503")
        );
        assert_eq!(all.take_changed(), (vec![], vec![]));
        assert_eq!(all.next_probe(), Some(open[0].until));

        // A later process restores the state.
        let mut all = Destinations::new(Config::default());
        all.restore(open.clone(), NOW);
        assert!(all.is_open(&one));
        all.pass(open[0].until);
        assert!(!all.is_open(&one));
        assert_eq!(all.snapshot()[0].state, State::HalfOpen);
        let turn = all.turn(&one);
        for _ in 0..3 {
            all.report(&one, turn, Health::Up, "", open[0].until);
        }
        assert_eq!(all.take_changed(), (vec![], vec![one]));
        assert!(all.snapshot().is_empty());
    }

    #[test]
    fn a_receiver_that_nothing_is_sent_to_any_more_is_forgotten() {
        let mut all = Destinations::new(Config::default());
        trip(&mut all, &origin(1));
        all.take_changed();
        let days = |count: u64| time::after(NOW, Duration::from_secs(count * 24 * 60 * 60));
        all.pass(days(1));
        all.forget_idle(days(1));
        assert_eq!(all.snapshot().len(), 1);
        all.forget_idle(days(2));
        assert!(all.snapshot().is_empty());
        assert_eq!(all.take_changed(), (vec![], vec![origin(1)]));
    }
}
