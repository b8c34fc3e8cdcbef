//! Checks without serving: all problems of a configuration, and the signing secrets.

use std::collections::BTreeMap;

use forge_adapter_api::HealthStatus;

use crate::config::Config;
use crate::otlp::Exporter;
use crate::registration::Endpoint;
use forge_base::tasks::Tasks;
use forge_delivery::sign::{self, Described, Signer};
use forge_dispatch::mcp::Servers;
use forge_net as net;
use forge_net::guard::Guard;
use forge_plugin_host::{self as plugin, Registry};
use forge_process::Children;
use forge_server::auth::Auth;
use forge_server::tls::Tls;
use forge_store_sqlite::Sqlite;

use super::secrets::open_vault;
use super::users::Users;
use super::{HALT, Options};

/// Store id of processes started by a check, which belong to no store.
const CHECK: &str = "check";

/// Returns the secrets with which receivers verify callbacks. Works while a bridge runs on the same store.
pub async fn signing_secrets(config: &Config) -> anyhow::Result<Vec<Described>> {
    let vault = open_vault(config).await?;
    let folder = config.data_dir.clone();
    let peek = move || Sqlite::peek_sealed(&folder, sign::STORED);
    let sealed = tokio::task::spawn_blocking(peek).await??;
    let signer = Signer::with_sealed(&config.callback, sealed.as_deref(), &vault)?;
    Ok(signer.describe())
}

/// Finds everything that would prevent a bridge from serving with this configuration, one line per problem.
pub async fn problems(config: &Config, options: &Options) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut note = |found: anyhow::Result<()>| {
        if let Err(error) = found {
            problems.push(format!("{error:#}"));
        }
    };
    note(
        Auth::new(&config.auth)
            .map_err(Into::into)
            .and_then(|auth| {
                auth.check_listen(config.listen)?;
                Ok(())
            }),
    );
    note(Tls::open(&config.tls).map(drop).map_err(Into::into));
    note(Signer::check(&config.callback).map_err(Into::into));
    note(Servers::check(&config.mcp).map_err(Into::into));
    note(
        Guard::new(&config.callback.allow)
            .map_err(Into::into)
            .and_then(|guard| {
                net::Client::new(&config.net, guard)?;
                Ok(())
            }),
    );
    let endpoint = Endpoint::open(&config.registration, config.listen, &config.net);
    note(endpoint.map(drop).map_err(Into::into));
    let exporter = Exporter::open(&config.otlp, &config.net, "check");
    note(exporter.map(drop).map_err(Into::into));
    let state = tempfile::tempdir()?;
    let children = Children::new(&config.process, CHECK)?;
    note(Users::find(config, &children).map(drop));
    let tracker = Tasks::here();
    let started = Registry::start(plugin::Setup {
        config: plugin::Config {
            strict: true,
            ..config.plugin.clone()
        },
        tables: config.adapters.clone(),
        env: options.environment.clone(),
        store_id: CHECK.to_owned(),
        epoch: 0,
        state_dir: state.path().to_owned(),
        supervisor: children.supervisor().to_vec(),
        relay: Vec::new(),
        user: None,
        users: BTreeMap::new(),
        tracker: tracker.clone(),
    });
    match started.await {
        Ok((registry, _)) => {
            for adapter in registry.adapters() {
                let health = adapter.health();
                if health.status == HealthStatus::Offline {
                    let reason = health.message.unwrap_or_else(|| "offline".to_owned());
                    problems.push(format!("adapter {}: {reason}", adapter.provider()));
                }
            }
            registry.shutdown(HALT).await;
        }
        Err(plugin::Error::NothingLoadable(lines) | plugin::Error::NotEveryLoadable(lines)) => {
            problems.extend(lines.iter().map(|line| format!("adapter {line}")));
        }
        Err(error) => problems.push(error.to_string()),
    }
    Ok(problems)
}
