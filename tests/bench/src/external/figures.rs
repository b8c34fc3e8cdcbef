//! Output: one line per sample, and a table of medians with ratios.

use std::fmt;

use super::calls::Measured;
use crate::report::median;

/// Subject of a measurement, over HTTP with its calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measurement {
    Direct(usize),
    PassThrough(usize),
    Bridge(usize),
    /// Program under the supervisor, started here.
    Supervised,
    /// The same program, called through the bridge.
    Program,
}

impl Measurement {
    pub(crate) fn concurrency(self) -> usize {
        match self {
            Self::Direct(count) | Self::PassThrough(count) | Self::Bridge(count) => count,
            Self::Supervised | Self::Program => 1,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Direct(_) => "direct",
            Self::PassThrough(_) => "pass-through",
            Self::Bridge(_) => "bridge",
            Self::Supervised => "exec",
            Self::Program => "bridge, stdio",
        }
    }
}

pub(crate) struct Sample {
    pub(crate) measurement: Measurement,
    pub(crate) measured: Measured,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured {
            per_second,
            latency,
            cpu_us,
            others,
        } = &self.measured;
        write!(
            f,
            "{:13} c={:<3} {per_second:8.0}/s  {:6.0} / {:7.0} µs  cpu {cpu_us:7.1} µs  others {:.0} %",
            self.measurement.name(),
            self.measurement.concurrency(),
            latency.p50_us,
            latency.p99_us,
            others * 100.0,
        )
    }
}

type Figure = fn(&Measured) -> f64;

const FIGURES: [(&str, Figure); 4] = [
    ("p50 µs", |m| m.latency.p50_us),
    ("p99 µs", |m| m.latency.p99_us),
    ("calls per second", |m| m.per_second),
    ("CPU time of a call, µs", |m| m.cpu_us),
];

/// Tables of the medians over the rounds.
pub(crate) fn table(samples: &[Sample]) -> String {
    let of = |measurement, figure: Figure| {
        let wanted = samples.iter().filter(|s| s.measurement == measurement);
        median(wanted.map(|s| figure(&s.measured)))
    };
    let mut text = String::from(
        "| in flight | figure (median) | direct | pass-through | bridge | to the pass-through |\n\
         |---|---|---|---|---|---|\n",
    );
    let mut counts: Vec<usize> = samples
        .iter()
        .filter(|s| matches!(s.measurement, Measurement::Bridge(_)))
        .map(|s| s.measurement.concurrency())
        .collect();
    counts.sort_unstable();
    counts.dedup();
    for count in counts {
        for (name, figure) in FIGURES {
            let direct = of(Measurement::Direct(count), figure);
            let passed = of(Measurement::PassThrough(count), figure);
            let bridge = of(Measurement::Bridge(count), figure);
            let ratio = bridge / passed;
            text += &format!(
                "| {count} | {name} | {direct:.0} | {passed:.0} | {bridge:.0} | {ratio:.3} |\n"
            );
        }
    }
    text += "\n| figure (median) | program under `forge-bridge exec` | through the bridge | ratio |\n\
             |---|---|---|---|\n";
    for (name, figure) in FIGURES {
        let alone = of(Measurement::Supervised, figure);
        let bridge = of(Measurement::Program, figure);
        let ratio = bridge / alone;
        text += &format!("| {name} | {alone:.0} | {bridge:.0} | {ratio:.3} |\n");
    }
    text
}
