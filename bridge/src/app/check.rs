//! Checks without serving: all problems of a configuration, and the signing secrets.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;

use anyhow::Context as _;
use forge_adapter_api::HealthStatus;
use forge_adapter_api::folder::TempFolder;

use crate::config::Config;
use crate::otlp::Exporter;
use crate::registration::Endpoint;
use forge_base::tasks::Tasks;
use forge_delivery::sign::{self, Described, Signer};
use forge_dispatch::ProgramUsers;
use forge_dispatch::mcp::{self, Servers};
use forge_net as net;
use forge_net::guard::Guard;
use forge_plugin_host::{self as plugin, Registry};
use forge_process::Children;
use forge_server::auth::{self, Auth};
use forge_server::tls::Tls;
use forge_store_postgres::peek::Report;

use super::secrets::open_vault;
use super::users::Users;
use super::{HALT, Options, external, runs, store, temp_dir, users};
use forge_signals::Terms;
use forge_signals::forward::Upstream;

/// Owner of processes started by a check, which belong to no bridge.
const CHECK: &str = "check";

/// Returns the secrets with which receivers verify callbacks. Works while a bridge runs on the same store.
pub async fn signing_secrets(config: &Config) -> anyhow::Result<Vec<Described>> {
    let vault = open_vault(config).await?;
    let sealed = store::peek_sealed(config, sign::STORED).await?;
    let signer = Signer::with_sealed(&config.callback, sealed.as_deref(), &vault)?;
    Ok(signer.describe())
}

/// Findings of a check, one line each.
#[derive(Debug, Default)]
pub struct Findings {
    /// Everything that would prevent a bridge from serving with this configuration.
    pub problems: Vec<String>,
    pub warnings: Vec<String>,
    /// Settings that would be better, also in a configuration without errors.
    pub advice: Vec<String>,
    /// State of the database; `None` if the store is a file, or nothing could be found out.
    pub store: Option<Report>,
}

impl Findings {
    fn note(&mut self, found: anyhow::Result<()>) {
        if let Err(error) = found {
            self.problems.push(format!("{error:#}"));
        }
    }
}

/// Checks the settings and the adapters' files; `load` also loads the adapters and asks each for its health. Settings of
/// the sections in `skipped` are not looked at, because some of them could not be read.
pub async fn findings(
    config: &Config,
    options: &Options,
    load: bool,
    skipped: &BTreeSet<&str>,
) -> anyhow::Result<Findings> {
    let mut findings = settings(config, skipped);
    if !skipped.contains("store") {
        database(config, &mut findings).await;
    }
    if ["plugin", "adapters"]
        .iter()
        .any(|name| skipped.contains(name))
    {
        return Ok(findings);
    }
    let inspection = plugin::inspect(&config.plugin, &config.adapters);
    findings.warnings.extend(inspection.warnings);
    let startable = inspection.settings.is_empty();
    findings.problems.extend(inspection.settings);
    if load && startable {
        adapters(config, options, &mut findings).await?;
        git(config, &mut findings).await?;
    } else {
        let files = inspection.files.iter();
        findings
            .problems
            .extend(files.map(|line| format!("adapter {line}")));
    }
    Ok(findings)
}

fn settings(config: &Config, skipped: &BTreeSet<&str>) -> Findings {
    let mut findings = Findings::default();
    let readable = |sections: &[&str]| !sections.iter().any(|name| skipped.contains(name));
    if readable(&["auth", "listen"]) {
        let auth = Auth::new(&config.auth);
        match auth.and_then(|auth| auth.check_listen(config.listen)) {
            Err(auth::Error::Tokens(errors)) => {
                let lines = errors.iter().map(ToString::to_string);
                findings.problems.extend(lines);
            }
            checked => findings.note(checked.map_err(Into::into)),
        }
    }
    if readable(&["tls"]) {
        findings.note(Tls::open(&config.tls).map(drop).map_err(Into::into));
    }
    if readable(&["callback"]) {
        findings.note(Signer::check(&config.callback).map_err(Into::into));
        // Each entry alone, so that no error hides another.
        for entry in &config.callback.allow {
            let rule = Guard::new(slice::from_ref(entry));
            findings.note(rule.map(drop).map_err(Into::into));
        }
    }
    if readable(&["mcp"]) {
        for (name, server) in &config.mcp.servers {
            let alone = mcp::Config {
                servers: [(name.clone(), server.clone())].into(),
                ..config.mcp.clone()
            };
            findings.note(Servers::check(&alone).map_err(Into::into));
        }
    }
    if readable(&["external", "listen", "net"]) {
        findings.note(external::check(config));
    }
    if readable(&["external"]) {
        external::check_files(config, &mut findings);
    }
    if readable(&["signals"]) {
        findings.note(Terms::read(&config.signals).map(drop).map_err(Into::into));
    }
    if readable(&["signals", "net"]) {
        let upstream = Upstream::open(&config.signals.upstream, &config.net);
        findings.note(upstream.map(drop).map_err(Into::into));
    }
    if readable(&["process", "adapters"]) {
        let children = Children::new(&config.process, CHECK).map_err(anyhow::Error::from);
        let users = children.and_then(|children| Users::find(config, &children));
        if let (Ok(users), true) = (&users, readable(&["runs"])) {
            let reason = runs::closed_to(config, &users::ids(users));
            findings
                .warnings
                .extend(reason.map(|reason| format!("runs are not available: {reason}")));
        }
        if let Ok(users) = &users {
            let ids = users::ids(users);
            let folder = temp_dir::find(config, &ids);
            let checked = folder.map_or(Ok(None), |folder| temp_dir::check(&folder, &ids));
            findings.note(checked.map(drop).context("process.folder"));
        }
        findings.note(users.map(drop));
    }
    if readable(&["runs", "net", "callback"])
        && let Ok(guard) = Guard::new(&config.callback.allow)
    {
        findings.note(runs::remotes(config, &guard).map(drop));
        findings.note(runs::checks(config).map(drop));
    }
    if readable(&["runs", "auth"]) {
        findings.warnings.extend(runs::inert_bounds(config));
    }
    if readable(&["runs", "store"]) {
        findings.advice.extend(runs::advice(config));
    }
    if readable(&["net"]) {
        let client = Guard::new(&[]).map_err(anyhow::Error::from);
        let client = client.and_then(|guard| Ok(net::Client::new(&config.net, guard)?));
        findings.note(client.map(drop));
    }
    if readable(&["registration", "listen", "net"]) {
        let endpoint = Endpoint::open(&config.registration, config.listen, &config.net);
        findings.note(endpoint.map(drop).map_err(Into::into));
    }
    if readable(&["otlp", "net"]) {
        let exporter = Exporter::open(&config.otlp, &config.net, CHECK);
        findings.note(exporter.map(drop).map_err(Into::into));
    }
    findings
}

/// Connects to the database of the store, if it is in one, and reads its state.
async fn database(config: &Config, findings: &mut Findings) {
    match store::report(config).await {
        Ok(report) => {
            let missing = report.iter().flat_map(|report| &report.missing_rights);
            let missing: Vec<_> = missing.map(String::as_str).collect();
            if !missing.is_empty() {
                findings.problems.push(format!(
                    "the user of store.url lacks rights on {}: make it the owner of the database",
                    missing.join(", ")
                ));
            }
            findings.store = report;
        }
        Err(error) => findings.note(Err(error)),
    }
}

/// Starts git once; one that cannot be used is a warning, since all but runs works without it.
async fn git(config: &Config, findings: &mut Findings) -> anyhow::Result<()> {
    let remotes = Guard::new(&config.callback.allow).map_err(anyhow::Error::from);
    let Ok(remotes) = remotes.and_then(|guard| runs::remotes(config, &guard)) else {
        return Ok(());
    };
    let folder = TempFolder::create("bridge")?;
    let children = Children::new(&config.process, CHECK)?;
    let config = Config {
        data_dir: folder.path().to_owned(),
        runs: forge_runs::Config {
            folder: None,
            ..config.runs.clone()
        },
        ..config.clone()
    };
    let users = ProgramUsers::default();
    let found = runs::find_git(&config, remotes, &children, CHECK, &users, &Tasks::here()).await;
    let reason = found.err();
    findings
        .warnings
        .extend(reason.map(|reason| format!("runs are not available: {reason}")));
    Ok(())
}

/// Loads every adapter. One that is not healthy is a warning, with `strict` a problem.
async fn adapters(
    config: &Config,
    options: &Options,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let state = TempFolder::create("bridge")?;
    // Holds the descriptor that the supervisor's command names.
    let children = Children::new(&config.process, CHECK)?;
    let tracker = Tasks::here();
    let started = Registry::start(plugin::Setup {
        config: plugin::Config {
            strict: false,
            ..config.plugin.clone()
        },
        tables: config.adapters.clone(),
        env: options.environment.clone(),
        store_id: CHECK.to_owned(),
        epoch: 0,
        state_dir: state.path().to_owned(),
        temp_dir: None,
        supervisor: children.supervisor().to_vec(),
        relay: Vec::new(),
        user: None,
        users: BTreeMap::new(),
        built_in: None,
        tracker: tracker.clone(),
    });
    let registry = match started.await {
        Ok((registry, _)) => registry,
        Err(plugin::Error::NothingLoadable(lines)) => {
            let lines = lines.iter().map(|line| format!("adapter {line}"));
            findings.problems.extend(lines);
            return Ok(());
        }
        Err(error) => {
            findings.problems.push(error.to_string());
            return Ok(());
        }
    };
    for adapter in registry.adapters() {
        let id = adapter.provider();
        if let Some(error) = adapter.load_error() {
            findings.problems.push(format!("adapter {id}: {error}"));
            continue;
        }
        let health = adapter.health();
        let status = match health.status {
            HealthStatus::Healthy => continue,
            HealthStatus::Degraded => "degraded",
            HealthStatus::Offline => "offline",
        };
        let reason = health
            .message
            .unwrap_or_else(|| "no reason given".to_owned());
        let line = format!("adapter {id} is {status}: {reason}");
        match config.strict {
            true => findings.problems.push(line),
            false => findings.warnings.push(line),
        }
    }
    registry.shutdown(HALT).await;
    Ok(())
}
