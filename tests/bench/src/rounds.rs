//! Command line, and the measurement rounds.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use super::report::Sample;
use super::target::{Kind, Target};
use super::{
    agents, external, fairness, fleet, floor, load, loaded, machine, report, runs, signals, soak,
};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Number of measurements of each pair of server and concurrency.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 3.0, value_parser = load::positive)]
    seconds: f64,
    /// Dispatches in flight; repeatable.
    #[arg(short, long = "concurrency", default_values_t = [1, 64])]
    concurrencies: Vec<usize>,
    /// Path of the bridge; default: beside this program.
    #[arg(long)]
    bridge: Option<PathBuf>,
    /// Measure bridges on this PostgreSQL server: databases are created beside this one, and dropped.
    #[arg(long)]
    store: Option<String>,
    /// Number of bridges that share such a database and its load; repeatable.
    #[arg(long, default_values_t = [1], requires = "store")]
    nodes: Vec<usize>,
    /// Also measure a bridge in whose tables so many dispatches wait for an adapter that is away.
    #[arg(long, requires = "store")]
    waiting: Option<usize>,
    /// Also measure a bridge whose server answers later by so many milliseconds.
    #[arg(long, requires = "store", value_parser = load::positive)]
    delay_ms: Option<f64>,
    /// Measure a bridge four times in a row instead, while one snapshot of its database is open.
    #[arg(long, requires = "store")]
    snapshot: bool,
    /// Folder for the stores, on the disk to measure.
    #[arg(long, default_value = "target")]
    folder: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Run the floor server until it is killed.
    Floor(floor::Plan),
    /// Run an external service, or a proxy that passes calls on to it, until it is killed.
    Service(external::servers::Plan),
    /// Measure the cost of a directory with many agents.
    Agents(agents::Plan),
    /// Measure calls of an external service through the bridge.
    External(external::Plan),
    /// Measure the cost of receivers that are down to the others.
    Fairness(fairness::Plan),
    /// Measure the cost of many queued or running dispatches and event readers.
    Loaded(loaded::Plan),
    /// Measure runs against the commands of git and the dispatches that they consist of.
    Runs(runs::Plan),
    /// Measure signals of the local agent, and dispatches beside them.
    Signals(signals::Plan),
    /// Send at a fixed rate for a long time and report stalls and growth.
    Soak(soak::Plan),
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
pub(crate) fn run() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(Command::Floor(plan)) = &arguments.command {
        return floor::run(plan);
    }
    if let Some(Command::Service(plan)) = &arguments.command {
        return external::servers::run(plan);
    }
    let here = std::env::current_exe()?;
    let bridge = match arguments.bridge {
        Some(bridge) => bridge,
        None => here.with_file_name("forge-bridge"),
    };
    std::fs::create_dir_all(&arguments.folder)?;
    println!("{}", machine::describe(&arguments.folder)?);
    if let Some(Command::Agents(plan)) = &arguments.command {
        return agents::run(plan, &here, &bridge, &arguments.folder);
    }
    if let Some(Command::External(plan)) = &arguments.command {
        return external::run(plan, &here, &bridge, &arguments.folder);
    }
    if let Some(Command::Fairness(plan)) = &arguments.command {
        return fairness::run(plan, &here, &bridge, &arguments.folder);
    }
    if let Some(Command::Loaded(plan)) = &arguments.command {
        return loaded::run(plan, &here, &bridge, &arguments.folder);
    }
    if let Some(Command::Runs(plan)) = &arguments.command {
        return runs::run(plan, &here, &bridge, &arguments.folder);
    }
    if let Some(Command::Signals(plan)) = &arguments.command {
        return signals::run(plan, &here, &bridge, &arguments.folder);
    }
    if let Some(Command::Soak(plan)) = &arguments.command {
        return soak::run(plan, &here, &bridge, &arguments.folder);
    }
    if let Some(server) = &arguments.store {
        let plan = fleet::Plan {
            server,
            nodes: &arguments.nodes,
            rounds: arguments.rounds,
            duration: Duration::from_secs_f64(arguments.seconds),
            concurrencies: &arguments.concurrencies,
            waiting: arguments.waiting,
            delay: arguments
                .delay_ms
                .map(|ms| Duration::from_secs_f64(ms / 1e3)),
            has_snapshot: arguments.snapshot,
        };
        return fleet::run(&plan, &here, &bridge, &arguments.folder);
    }
    let mut samples = Vec::new();
    for round in 0..arguments.rounds {
        // Reverse the order in every second round, so that no kind always follows the same one.
        let mut order = [Kind::Floor, Kind::Sqlite, Kind::Bridge];
        if round % 2 == 1 {
            order.reverse();
        }
        for &concurrency in &arguments.concurrencies {
            for kind in order {
                let target = Target::start(kind, &here, &bridge, &arguments.folder)?;
                let plan = load::Plan {
                    concurrency,
                    duration: Duration::from_secs_f64(arguments.seconds),
                };
                let sample = Sample {
                    kind,
                    concurrency,
                    measured: load::run(&plan, &[&target])?,
                };
                println!("{sample}");
                samples.push(sample);
            }
        }
    }
    println!("\n{}", report::table(&samples));
    Ok(())
}
