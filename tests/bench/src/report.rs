//! Output: one line per sample, and a table of medians with ratios.

use std::fmt;

use super::load::Measured;
use super::target::Kind;

pub(crate) struct Sample {
    pub(crate) kind: Kind,
    pub(crate) concurrency: usize,
    pub(crate) measured: Measured,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured {
            per_second,
            ack,
            whole,
            cpu_us,
            rss_mib,
            lost,
            others,
        } = &self.measured;
        write!(
            f,
            "{:6} c={:<3} {per_second:8.0}/s  ack {:6.0} / {:7.0} µs  callback {:6.0} / {:7.0} µs  \
             cpu {cpu_us:6.1} µs  rss {:.0} -> {:.0} MiB  lost {lost}  others {:.0} %",
            self.kind,
            self.concurrency,
            ack.p50_us,
            ack.p99_us,
            whole.p50_us,
            whole.p99_us,
            rss_mib.0,
            rss_mib.1,
            others * 100.0,
        )
    }
}

/// Table of the medians over the rounds.
pub(crate) fn table(samples: &[Sample]) -> String {
    let mut concurrencies: Vec<usize> = samples.iter().map(|s| s.concurrency).collect();
    concurrencies.sort_unstable();
    concurrencies.dedup();
    let mut text = String::from(
        "| in flight | figure (median) | floor | SQLite alone | bridge | to the floor | to SQLite |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for concurrency in concurrencies {
        for (name, figure) in FIGURES {
            let of = |kind| {
                let wanted = |s: &&Sample| s.kind == kind && s.concurrency == concurrency;
                median(samples.iter().filter(wanted).map(|s| figure(&s.measured)))
            };
            let (floor, sqlite, bridge) = (of(Kind::Floor), of(Kind::Sqlite), of(Kind::Bridge));
            text += &format!(
                "| {concurrency} | {name} | {floor:.0} | {sqlite:.0} | {bridge:.0} | {:.3} | {:.3} |\n",
                bridge / floor,
                bridge / sqlite,
            );
        }
    }
    text
}

type Figure = fn(&Measured) -> f64;

const FIGURES: [(&str, Figure); 7] = [
    ("dispatches per second", |m| m.per_second),
    ("202, p50 µs", |m| m.ack.p50_us),
    ("202, p99 µs", |m| m.ack.p99_us),
    ("callback, p50 µs", |m| m.whole.p50_us),
    ("callback, p99 µs", |m| m.whole.p99_us),
    ("processor time of a dispatch, µs", |m| m.cpu_us),
    ("memory under load, MiB", |m| m.rss_mib.1),
];

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}
