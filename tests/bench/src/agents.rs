//! Cost of the directory of agents: the same load, in turn, on a bridge without an adapter that manages agents and on one
//! with an adapter that has many. Needs the adapter of `tests/fixtures/managing` beside the bridge.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::load::{self, Measured};
use super::loaded::{Caller, PATIENCE};
use super::report::{median, say};
use super::target::{Kind, Target};

#[derive(clap::Args)]
pub(crate) struct Plan {
    /// Agents in the directory.
    #[arg(long, default_value_t = 10_000)]
    agents: usize,
    /// Number of measurements of each bridge.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 3.0, value_parser = load::positive)]
    seconds: f64,
    /// Dispatches in flight.
    #[arg(short, long, default_value_t = 64)]
    concurrency: usize,
}

pub(crate) fn run(plan: &Plan, here: &Path, bridge: &Path, folder: &Path) -> anyhow::Result<()> {
    let managing = [
        ("BRIDGE_ADAPTERS", "echo,manager".to_owned()),
        ("MANAGER_AGENTS", plan.agents.to_string()),
    ];
    let start = |settings: &[_]| Target::start_with(Kind::Bridge, here, bridge, folder, settings);
    let targets = [start(&[])?, start(&managing)?];
    listed(&targets[1], plan.agents)?;
    let mut samples: [Vec<Measured>; 2] = Default::default();
    for round in 0..plan.rounds {
        // Reverse the order in every second round, so that no bridge always follows the other.
        for place in 0..targets.len() {
            let which = (round + place) % targets.len();
            let load = load::Plan {
                concurrency: plan.concurrency,
                duration: Duration::from_secs_f64(plan.seconds),
            };
            samples[which].push(load::run(&load, &[&targets[which]])?);
        }
        let cpu = |which: usize| samples[which][round].cpu_us;
        say(&format!(
            "round {round}: processor time of a dispatch {:.1} and {:.1} µs ({:.3}), others {:.0} and {:.0} %",
            cpu(0),
            cpu(1),
            cpu(1) / cpu(0),
            samples[0][round].others * 100.0,
            samples[1][round].others * 100.0,
        ));
    }
    let mut lines = format!(
        "\n| figure (median) | no agents | {} agents | ratio |\n|---|---|---|---|\n",
        plan.agents
    );
    type Figure = fn(&Measured) -> f64;
    let figures: [(&str, Figure); 3] = [
        ("processor time of a dispatch, µs", |m| m.cpu_us),
        ("dispatches per second", |m| m.per_second),
        ("202, p50 µs", |m| m.ack.p50_us),
    ];
    for (name, figure) in figures {
        let [without, with] = samples.each_ref().map(|all| median(all.iter().map(figure)));
        lines += &format!(
            "| {name} | {without:.1} | {with:.1} | {:.3} |\n",
            with / without
        );
    }
    say(&lines);
    Ok(())
}

/// Waits until the directory has this number of agents.
fn listed(target: &Target, agents: usize) -> anyhow::Result<()> {
    let known = format!(r#""count":{agents},"#);
    let begun = Instant::now();
    loop {
        let (_, adapter) = Caller::connect(target)?.call("GET", "/api/v2/adapters/manager", "")?;
        if adapter.contains(&known) {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "the directory has other agents: {adapter}"
        );
        thread::sleep(Duration::from_millis(50));
    }
}
