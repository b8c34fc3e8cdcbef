//! `forge-bridge conformance`, also called `forg-conformance`: checks of a local agent, of an engine, of an adapter and of
//! the package of an adapter, each against a sentence of the protocol's description.

mod adapter;
mod agent;
mod case;
mod engine;
mod lab;
mod package;
mod report;
mod run;
mod signature;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args};
use forge_base::text::id_complaint;
use url::Url;

use self::report::Report;
use super::{Context, block_on};

/// Longest time that the protocol lets a call take.
const LONGEST_MS: u64 = 3000;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("subject").required(true).args(["endpoint", "engine", "check_package"])))]
pub(super) struct Arguments {
    /// Identifier of the adapter in its records
    #[arg(long, value_name = "ID", required_unless_present_any = ["engine", "check_package"], value_parser = identifier)]
    adapter_id: Option<String>,
    /// Local agent to check; with a command, the address of the agent that the adapter is served (port 0: a free one)
    #[arg(long, value_name = "URL", value_parser = address)]
    endpoint: Option<Url>,
    /// Engine to check, with the token of FORG_TOKEN or --token
    #[arg(long, value_name = "URL", value_parser = address)]
    engine: Option<Url>,
    /// Folder of an adapter that is to be submitted
    #[arg(long, value_name = "DIR")]
    check_package: Option<PathBuf>,
    /// Only this check; can be repeated
    #[arg(long, value_name = "CHECK")]
    only: Vec<String>,
    /// Time limit of the adapter's calls, which it is given as FORG_EMIT_TIMEOUT
    #[arg(long, value_name = "MS", default_value_t = LONGEST_MS, value_parser = clap::value_parser!(u64).range(50..=LONGEST_MS))]
    timeout_ms: u64,
    /// Write the report as JUnit XML too
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Adapter: a program that makes one session with two calls of a model, and exits with 0 unless one is blocked
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["engine", "check_package"])]
    command: Vec<String>,
}

fn address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    match url.scheme() {
        "http" | "https" if url.host().is_some() => Ok(url),
        _ => Err("wanted an address such as http://127.0.0.1:6247".to_owned()),
    }
}

fn identifier(text: &str) -> Result<String, String> {
    match id_complaint(text) {
        None => Ok(text.to_owned()),
        Some(complaint) => Err(complaint.to_owned()),
    }
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut report = Report::new(context, &arguments.only)?;
    block_on(check(context, arguments, &mut report))?;
    report.end(arguments.junit.as_deref())
}

async fn check(
    context: &Context,
    arguments: &Arguments,
    report: &mut Report<'_>,
) -> anyhow::Result<()> {
    let adapter = arguments.adapter_id.as_deref();
    if let Some(folder) = &arguments.check_package {
        return package::check(context, folder, arguments.timeout(), report).await;
    }
    if let Some(url) = &arguments.engine {
        let own = context.environment.get("FORG_TOKEN");
        let token = own.or(context.global.token.as_ref()).cloned();
        let adapter = adapter.unwrap_or("forg-conformance");
        return engine::check(url, token, adapter, report).await;
    }
    let (Some(url), Some(adapter)) = (&arguments.endpoint, adapter) else {
        anyhow::bail!("--endpoint and --adapter-id are required");
    };
    if arguments.command.is_empty() {
        return agent::check(url, adapter, report).await;
    }
    let subject = run::Subject {
        adapter: adapter.to_owned(),
        command: arguments.command.clone(),
        folder: None,
        endpoint: url.clone(),
        timeout: arguments.timeout(),
        environment: context.environment.clone(),
    };
    adapter::check(&subject, report).await
}

impl Arguments {
    fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}
