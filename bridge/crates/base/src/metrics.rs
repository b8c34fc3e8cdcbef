//! Counters, gauges, histograms, and tables of them with a bounded number of labels. An update is a few atomic
//! operations: it never waits, and allocates only for a new label. `http/metrics` renders them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Label of the row that is shared when a table is full.
pub const OTHER: &str = "other";

/// Bounds for waits and runs, in nanoseconds: from a millisecond to an hour.
const TIMES: [u64; 17] = [
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    600_000_000_000,
    3_600_000_000_000,
];
/// Bounds for disk operations, in nanoseconds: from a tenth of a millisecond.
const SHORT_TIMES: [u64; 13] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
    5_000_000_000,
];
const NUMBERS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const NANOS: f64 = 1e9;

/// Metric that only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Metric that can rise and fall.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Replaces one of the parts that the value is the sum of.
    pub fn change(&self, before: u64, after: u64) {
        // Wraps around, and so subtracts if it is less.
        let difference = after.wrapping_sub(before);
        self.0.fetch_add(difference, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Distribution of durations or numbers.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// Counted units per unit shown.
    scale: f64,
    /// One per bound, and one for values above the last bound.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// Snapshot of a histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    pub sum: f64,
    pub count: u64,
    /// Upper bound, and number of values in the bucket (not cumulative); the last one has no bound.
    pub buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// Histogram of durations, shown in seconds.
    pub fn of_times() -> Self {
        Self::new(&TIMES, NANOS)
    }

    /// Histogram of short durations, shown in seconds.
    pub fn of_short_times() -> Self {
        Self::new(&SHORT_TIMES, NANOS)
    }

    /// Histogram of numbers.
    pub fn of_numbers() -> Self {
        Self::new(&NUMBERS, 1.0)
    }

    fn new(bounds: &'static [u64], scale: f64) -> Self {
        Self {
            bounds,
            scale,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    pub fn time(&self, took: Duration) {
        self.number(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub fn number(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    pub fn read(&self) -> Distribution {
        let bounds = self.bounds.iter().map(|bound| *bound as f64 / self.scale);
        let buckets: Vec<_> = bounds
            .chain([f64::INFINITY])
            .zip(
                self.counts
                    .iter()
                    .map(|count| count.load(Ordering::Relaxed)),
            )
            .collect();
        Distribution {
            sum: self.sum.load(Ordering::Relaxed) as f64 / self.scale,
            count: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
        }
    }
}

/// Empty until its label is used for the first time.
type Row<T> = OnceLock<(Box<str>, T)>;

/// Metrics by label. The first labels get a row each; when all rows are taken, the others share one, so that input
/// from outside cannot make the table grow.
#[derive(Debug)]
pub struct Table<T> {
    rows: Box<[Row<T>]>,
    other: T,
    is_full: AtomicBool,
}

impl<T: Default> Table<T> {
    /// Table with a row each for up to `room` labels.
    pub fn new(room: usize) -> Self {
        Self {
            rows: (0..room).map(|_| OnceLock::new()).collect(),
            other: T::default(),
            is_full: AtomicBool::new(false),
        }
    }

    pub fn row(&self, label: &str) -> &T {
        for row in &self.rows {
            let (known, value) = row.get_or_init(|| (label.into(), T::default()));
            if **known == *label {
                return value;
            }
        }
        self.is_full.store(true, Ordering::Relaxed);
        &self.other
    }
}

impl<T> Table<T> {
    /// Used rows in the order of their first use; the shared one last, if it has been used.
    pub fn rows(&self) -> impl Iterator<Item = (&str, &T)> {
        let rows = self.rows.iter().map_while(OnceLock::get);
        let other = self.is_full.load(Ordering::Relaxed);
        rows.map(|(label, value)| (&**label, value))
            .chain(other.then_some((OTHER, &self.other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_bound_is_below_it() {
        let times = Histogram::of_times();
        for millis in [1, 2, 10, 7_200_000] {
            times.time(Duration::from_millis(millis));
        }
        let read = times.read();
        let filled: Vec<_> = read
            .buckets
            .iter()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(
            filled,
            [&(0.001, 1), &(0.0025, 1), &(0.01, 1), &(f64::INFINITY, 1)]
        );
        assert_eq!((read.count, read.sum), (4, 7200.013));
    }

    #[test]
    fn labels_beyond_the_room_share_a_row() {
        let table: Table<Counter> = Table::new(2);
        for label in ["a", "b", "a", "c", "d"] {
            table.row(label).inc();
        }
        let rows: Vec<_> = table
            .rows()
            .map(|(label, counter)| (label, counter.get()))
            .collect();
        assert_eq!(rows, [("a", 2), ("b", 1), (OTHER, 2)]);
    }

    #[test]
    fn many_threads_that_bring_new_labels_agree_on_their_rows() {
        let table: Table<Counter> = Table::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..8).for_each(|n| table.row(&n.to_string()).inc()));
            }
        });
        let rows: Vec<_> = table.rows().map(|(_, counter)| counter.get()).collect();
        assert_eq!(rows, [8; 8]);
    }
}
