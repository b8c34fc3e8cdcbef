//! What is asked for on the command line, and the rounds that follow from it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use super::report::Sample;
use super::target::{Kind, Target};
use super::{fairness, floor, load, loaded, machine, report, soak};

#[derive(Parser)]
#[command(about)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// How often each pair of server and concurrency is measured.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each measurement sends.
    #[arg(long, default_value_t = 3.0, value_parser = load::positive)]
    seconds: f64,
    /// Dispatches in flight; repeatable.
    #[arg(short, long = "concurrency", default_values_t = [1, 64])]
    concurrencies: Vec<usize>,
    /// The bridge; by default the one beside this program.
    #[arg(long)]
    bridge: Option<PathBuf>,
    /// Where stores are made: on the disk that is to be measured.
    #[arg(long, default_value = "target")]
    folder: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Serves as the floor until it is killed.
    Floor(floor::Plan),
    /// Measures what one receiver that is down costs the others.
    Fairness(fairness::Plan),
    /// Measures what many that wait, run or read cost.
    Loaded(loaded::Plan),
    /// Sends at a steady pace for long, and looks for stalls and growth.
    Soak(soak::Plan),
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
pub(crate) fn run() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(Command::Floor(plan)) = &arguments.command {
        return floor::run(plan);
    }
    let here = std::env::current_exe()?;
    let bridge = match arguments.bridge {
        Some(bridge) => bridge,
        None => here.with_file_name("forge-bridge"),
    };
    std::fs::create_dir_all(&arguments.folder)?;
    println!("{}", machine::describe(&arguments.folder)?);
    if let Some(Command::Fairness(plan)) = &arguments.command {
        return fairness::run(plan, &here, &bridge, &arguments.folder);
    }
    if let Some(Command::Loaded(plan)) = &arguments.command {
        return loaded::run(plan, &here, &bridge, &arguments.folder);
    }
    if let Some(Command::Soak(plan)) = &arguments.command {
        return soak::run(plan, &here, &bridge, &arguments.folder);
    }
    let mut samples = Vec::new();
    for round in 0..arguments.rounds {
        // In every second round the other way round, so that nobody always comes after the same.
        let mut order = [Kind::Floor, Kind::Sqlite, Kind::Bridge];
        if round % 2 == 1 {
            order.reverse();
        }
        for &concurrency in &arguments.concurrencies {
            for kind in order {
                let target = Target::start(kind, &here, &bridge, &arguments.folder)?;
                let plan = load::Plan {
                    url: target.url.clone(),
                    concurrency,
                    duration: Duration::from_secs_f64(arguments.seconds),
                };
                let sample = Sample {
                    kind,
                    concurrency,
                    measured: load::run(&plan, &target)?,
                };
                println!("{sample}");
                samples.push(sample);
            }
        }
    }
    println!("\n{}", report::table(&samples));
    Ok(())
}
