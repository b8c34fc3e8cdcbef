//! Benchmark command behind the figures in `README.md` beside this package: measures bridge and floor alternately
//! over several rounds, and reports medians and ratios. Absolute values depend on the machine; compare ratios and
//! CPU time per dispatch.

mod agents;
mod conditions;
mod database;
mod external;
mod fairness;
mod flat_out;
mod fleet;
mod floor;
mod load;
mod loaded;
mod machine;
mod readers;
mod records;
mod report;
mod rounds;
mod runs;
mod signals;
mod soak;
mod target;

fn main() -> anyhow::Result<()> {
    rounds::run()
}
