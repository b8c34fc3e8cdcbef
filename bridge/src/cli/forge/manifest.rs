//! `forge manifest`: validates, imports and removes manifests, and prints their schema.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use bytes::Bytes;
use clap::{Args, Subcommand};
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::json;
use url::Url;

use super::super::{Context, block_on};
use super::{Report, Workspace};
use forge_external::diagnostic::{Diagnostic, Severity};
use forge_external::manifest::{self, Checked, MANIFEST_BYTES, Manifest, SCHEMA, TransportKind};
use forge_external::registry::{self, Changes, RegistryError};
use forge_net::guard::Guard;
use forge_net::{BodyEnd, Client, Outgoing};

/// Time limit of the download of a manifest.
const DOWNLOAD: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a manifest and report all problems
    Validate { file: String },
    /// Add a service to the registry, or replace its manifest
    Import {
        /// File, or the URL of a manifest, such as http://127.0.0.1:8080/manifest
        #[arg(value_name = "FILE|URL")]
        source: String,
    },
    /// Remove a service from the registry
    Remove { service: String },
    /// Print the JSON Schema of a manifest
    Schema,
}

pub(super) fn run(
    context: &Context,
    root: Option<&Path>,
    arguments: &Arguments,
) -> anyhow::Result<ExitCode> {
    let workspace = || Workspace::open(context, root);
    match &arguments.command {
        Command::Validate { file } => validate(context, file),
        Command::Import { source } => import(context, &workspace()?, source),
        Command::Remove { service } => remove(context, &workspace()?, service),
        Command::Schema => {
            let schema = serde_json::from_str(SCHEMA)?;
            context.screen().value(&schema)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn validate(context: &Context, file: &str) -> anyhow::Result<ExitCode> {
    let checked = read(file);
    let entries = checked
        .manifest
        .as_ref()
        .map_or(0, |manifest| manifest.entries.len());
    Report {
        members: json!({"subcommand": "validate", "path": file}),
        diagnostics: &checked.diagnostics,
        lines: vec![format!("{file} is a valid manifest with {entries} entries")],
    }
    .print(context)
}

fn import(context: &Context, workspace: &Workspace, source: &str) -> anyhow::Result<ExitCode> {
    let root = &workspace.root;
    let checked = match Url::parse(source) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => located(
            source,
            block_on(fetch(context, url)).map(|bytes| manifest::read(&bytes)),
        ),
        Ok(_) | Err(_) => read(source),
    };
    let Checked {
        manifest,
        mut diagnostics,
    } = checked;
    let imported = manifest.and_then(|manifest| match registry::import(root, &manifest) {
        Ok(changes) => Some((manifest, changes)),
        Err(error) => {
            diagnostics.extend(findings(error));
            None
        }
    });
    let path = match &imported {
        Some(_) => registry::path(root).display().to_string(),
        None => source.to_owned(),
    };
    let mut lines = Vec::new();
    if let Some((manifest, changes)) = &imported {
        lines.push(format!("imported {} into {path}", manifest.service.name));
        lines.extend(describe(changes));
        diagnostics.extend(program(manifest));
    }
    let (catalog, found) = workspace.load();
    if imported.is_some() {
        diagnostics.extend(found);
    }
    Report {
        members: json!({
            "subcommand": "import",
            "path": path,
            "imported": imported.is_some(),
            "serviceCount": catalog.services().count(),
            "changes": imported.map(|(_, changes)| changes),
        }),
        diagnostics: &diagnostics,
        lines,
    }
    .print(context)
}

fn remove(context: &Context, workspace: &Workspace, service: &str) -> anyhow::Result<ExitCode> {
    let root = &workspace.root;
    let (changes, diagnostics) = match registry::remove(root, service) {
        Ok(Some(changes)) => (Some(changes), Vec::new()),
        Ok(None) => {
            let message = format!("the registry has no service {service:?}");
            let found = Diagnostic::error("FORGE_EXTERNAL_RUNTIME_NOT_FOUND", message);
            (None, vec![found.suggest("forge inspect external")])
        }
        Err(error) => (None, findings(error)),
    };
    let path = registry::path(root).display().to_string();
    let mut lines = vec![format!("removed {service} from {path}")];
    lines.extend(changes.iter().flat_map(describe));
    Report {
        members: json!({
            "subcommand": "remove",
            "path": path,
            "removed": changes.is_some(),
            "serviceCount": workspace.load().0.services().count(),
        }),
        diagnostics: &diagnostics,
        lines,
    }
    .print(context)
}

fn read(file: &str) -> Checked {
    located(
        file,
        manifest::read_file(Path::new(file)).map_err(anyhow::Error::from),
    )
}

/// Names the source in all findings; a source that cannot be read is one.
fn located(source: &str, checked: anyhow::Result<Checked>) -> Checked {
    let mut checked = checked.unwrap_or_else(|error| {
        let message = format!("cannot be read: {error:#}");
        let found = Diagnostic::error("FORGE_EXTERNAL_MANIFEST_PARSE", message);
        Checked {
            manifest: None,
            diagnostics: vec![found],
        }
    });
    for found in &mut checked.diagnostics {
        found.file = Some(source.to_owned());
    }
    checked
}

/// Downloads a manifest, from the addresses that services may have.
async fn fetch(context: &Context, url: Url) -> anyhow::Result<Vec<u8>> {
    let config = context.sources().load()?.config;
    let guard = Guard::of_setting("external.allow", &config.external.allow)?;
    let outgoing = Outgoing {
        method: Method::GET,
        url,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        timeout: DOWNLOAD,
        answer_bytes: MANIFEST_BYTES,
    };
    let answer = Client::new(&config.net, guard)?.send(outgoing).await?;
    match (answer.status, answer.end) {
        (200, BodyEnd::Complete) => Ok(answer.body),
        (200, BodyEnd::TooLong) => bail!("it is larger than {MANIFEST_BYTES} bytes"),
        (200, BodyEnd::Broken | BodyEnd::TimedOut) => bail!("the answer is incomplete"),
        (status, _) => bail!("the service answered {status}"),
    }
}

fn findings(error: RegistryError) -> Vec<Diagnostic> {
    match error {
        RegistryError::Invalid(found) => found,
        RegistryError::Read { .. } | RegistryError::Write { .. } | RegistryError::Locked(_) => {
            vec![Diagnostic::error(
                "FORGE_EXTERNAL_REGISTRY_OBJECT",
                format!("{:#}", anyhow::Error::from(error)),
            )]
        }
    }
}

fn describe(changes: &Changes) -> Vec<String> {
    let groups = [
        ("adds", &changes.added),
        ("changes", &changes.changed),
        ("removes", &changes.removed),
    ];
    let lines = groups
        .into_iter()
        .filter(|(_, entries)| !entries.is_empty());
    lines
        .map(|(verb, entries)| format!("  {verb} {}", entries.join(", ")))
        .collect()
}

/// The program that a stdio service starts, and the setting that allows it.
fn program(manifest: &Manifest) -> Option<Diagnostic> {
    let service = &manifest.service;
    if service.transport != TransportKind::Stdio {
        return None;
    }
    let words = service.words()?;
    let name = &service.name;
    let message = format!(
        "calls of {name} start the program {words:?}, once the bridge's configuration allows it"
    );
    let mut found = Diagnostic::warning("FORGE_EXTERNAL_PROGRAM", message).hint(format!(
        "To allow it: [external.services.{name:?}] program = true"
    ));
    found.severity = Severity::Info;
    Some(found)
}
