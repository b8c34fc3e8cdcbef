//! One command that measures the bridge as the README tells it: bridge and floor in turn, several
//! rounds, medians and ratios. What is absolute here depends on the machine; ratios and processor time
//! for each dispatch are to be compared.

mod fairness;
mod flat_out;
mod floor;
mod load;
mod loaded;
mod machine;
mod readers;
mod records;
mod report;
mod rounds;
mod soak;
mod target;

fn main() -> anyhow::Result<()> {
    rounds::run()
}
