//! Calls of an external service: directly, through a proxy on the same HTTP stack that only passes bodies on, and
//! through the bridge; and a program under the bridge's supervisor, started here and by the bridge.

mod calls;
mod figures;
pub(crate) mod servers;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::load;
use super::report::say;
use super::target::{Kind, Target};
use calls::{Load, Way};
use figures::{Measurement, Sample};

/// Program of the stdio service: reads the envelope up to its end and answers.
const SCRIPT: &str = "read -r envelope; echo '{\"result\":1}'";
/// Length of a text in the arguments of a call over HTTP.
const TEXT_BYTES: usize = 600;

#[derive(clap::Args)]
pub(crate) struct Plan {
    /// Number of measurements of each way and concurrency.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 3.0, value_parser = load::positive)]
    seconds: f64,
    /// Calls in flight over HTTP; repeatable. Programs are called one after the other.
    #[arg(short, long = "concurrency", default_values_t = [1, 64])]
    concurrencies: Vec<usize>,
}

pub(crate) fn run(plan: &Plan, here: &Path, bridge: &Path, folder: &Path) -> anyhow::Result<()> {
    // The bridge and the processes under it have another working directory.
    let (bridge, folder) = (bridge.canonicalize()?, folder.canonicalize()?);
    let mut samples = Vec::new();
    for round in 0..plan.rounds {
        let setup = Setup::start(here, &bridge, &folder)?;
        for measurement in plan.measurements(round) {
            let (way, body) = setup.way(measurement, &bridge)?;
            let load = Load {
                way,
                body,
                concurrency: measurement.concurrency(),
                duration: Duration::from_secs_f64(plan.seconds),
                servers: &setup.servers(),
            };
            let sample = Sample {
                measurement,
                measured: calls::run(&load)?,
            };
            say(&sample.to_string());
            samples.push(sample);
        }
    }
    say(&format!("\n{}", figures::table(&samples)));
    Ok(())
}

impl Plan {
    /// Measurements of one round. Every second round has the reverse order, so that no way always follows the same one.
    fn measurements(&self, round: usize) -> Vec<Measurement> {
        let over_http = self.concurrencies.iter().flat_map(|&concurrency| {
            [
                Measurement::Direct(concurrency),
                Measurement::PassThrough(concurrency),
                Measurement::Bridge(concurrency),
            ]
        });
        let programs = [Measurement::Supervised, Measurement::Program];
        let mut all: Vec<_> = over_http.chain(programs).collect();
        if round % 2 == 1 {
            all.reverse();
        }
        all
    }
}

/// Servers of one round, which all run while one of them is measured.
struct Setup {
    service: Target,
    pass_through: Target,
    bridge: Target,
    /// Root folder of the bridge's services.
    _root: TempDir,
}

impl Setup {
    fn start(here: &Path, bridge: &Path, folder: &Path) -> anyhow::Result<Self> {
        let service = Target::start(Kind::Service, here, bridge, folder)?;
        let pass_through = Kind::PassThrough(service.listen);
        let root = tempfile::Builder::new()
            .prefix("bench-external-")
            .tempdir_in(folder)?;
        let settings = register(root.path(), &service)?;
        let settings = [("BRIDGE_CONFIG", settings)];
        Ok(Self {
            pass_through: Target::start(pass_through, here, bridge, folder)?,
            bridge: Target::start_with(Kind::Bridge, here, bridge, folder, &settings)?,
            service,
            _root: root,
        })
    }

    fn servers(&self) -> [&Target; 3] {
        [&self.service, &self.pass_through, &self.bridge]
    }

    /// Way and body of the calls. Callers of a service write the envelope, which the bridge otherwise does.
    fn way(&self, measurement: Measurement, bridge: &Path) -> anyhow::Result<(Way, Value)> {
        let text = json!({ "text": "lorem ipsum ".repeat(TEXT_BYTES / 12) });
        let post = |target: &Target, path| Way::Post(target.listen, path);
        Ok(match measurement {
            Measurement::Direct(_) => {
                (post(&self.service, servers::PATH), envelope("bench", &text))
            }
            Measurement::PassThrough(_) => {
                let way = post(&self.pass_through, servers::PATH);
                (way, envelope("bench", &text))
            }
            Measurement::Bridge(_) => {
                let way = post(&self.bridge, "/external/bench/commands/run");
                (way, json!({ "args": text }))
            }
            Measurement::Supervised => {
                let way = Way::supervised(bridge, &command())?;
                (way, envelope("program", &json!({})))
            }
            Measurement::Program => {
                let way = post(&self.bridge, "/external/program/commands/run");
                (way, json!({ "args": {} }))
            }
        })
    }
}

fn command() -> [&'static str; 3] {
    ["/bin/sh", "-c", SCRIPT]
}

/// Body of a call as the bridge sends it to a service.
fn envelope(service: &str, args: &Value) -> Value {
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    json!({
        "args": args, "auth": { "kind": "anonymous" },
        "forge": { "service": service, "entry": "run", "kind": "command", "traceId": trace },
    })
}

/// Writes the registry, and the settings that permit its program; returns the path of the settings.
fn register(root: &Path, service: &Target) -> anyhow::Result<String> {
    let manifest = |service: Value| {
        let entries = json!([{ "name": "run", "kind": "command" }]);
        json!({
            "forgeProtocol": "1.0", "language": "rust", "service": service, "entries": entries,
        })
    };
    let url = format!("http://{}", service.listen);
    let registry = json!({
        "manifests": [
            manifest(json!({ "name": "bench", "transport": "http", "baseUrl": url })),
            manifest(json!({ "name": "program", "transport": "stdio", "commandArgs": command() })),
        ],
        "schemaVersion": "0.1.0",
    });
    fs::create_dir(root.join(".forge"))?;
    fs::write(
        root.join(".forge/external-manifests.json"),
        registry.to_string(),
    )?;
    let settings = root.join("settings.toml");
    let permitted = "[external.services.program]\nprogram = true\n";
    fs::write(
        &settings,
        format!("[external]\nroot = {root:?}\n{permitted}"),
    )?;
    let settings = settings.into_os_string().into_string();
    settings.ok().context("the folder's path is not UTF-8")
}
