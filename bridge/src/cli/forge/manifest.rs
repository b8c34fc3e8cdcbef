//! `forge manifest`: validates, imports and removes manifests, and prints their schema.

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;

use super::super::Context;
use super::{Report, chain, load};
use forge_external::diagnostic::{Diagnostic, Severity};
use forge_external::manifest::{self, Checked, Manifest, SCHEMA, TransportKind, command_line};
use forge_external::registry::{self, Changes, RegistryError};

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
    Import { file: String },
    /// Remove a service from the registry
    Remove { service: String },
    /// Print the JSON Schema of a manifest
    Schema,
}

pub(super) fn run(
    context: &Context,
    root: &Path,
    arguments: &Arguments,
) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        Command::Validate { file } => validate(context, file),
        Command::Import { file } => import(context, root, file),
        Command::Remove { service } => remove(context, root, service),
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

fn import(context: &Context, root: &Path, file: &str) -> anyhow::Result<ExitCode> {
    let Checked {
        manifest,
        mut diagnostics,
    } = read(file);
    let imported = manifest.and_then(|manifest| match registry::import(root, &manifest) {
        Ok(changes) => Some((manifest, changes)),
        Err(error) => {
            diagnostics.extend(findings(error));
            None
        }
    });
    let path = match &imported {
        Some(_) => registry::path(root).display().to_string(),
        None => file.to_owned(),
    };
    let mut lines = Vec::new();
    if let Some((manifest, changes)) = &imported {
        lines.push(format!("imported {} into {path}", manifest.service.name));
        lines.extend(describe(changes));
        diagnostics.extend(program(manifest));
    }
    let (catalog, found) = load(root);
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

fn remove(context: &Context, root: &Path, service: &str) -> anyhow::Result<ExitCode> {
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
            "serviceCount": load(root).0.services().count(),
        }),
        diagnostics: &diagnostics,
        lines,
    }
    .print(context)
}

fn read(file: &str) -> Checked {
    let mut checked = match manifest::read_file(Path::new(file)) {
        Ok(checked) => checked,
        Err(error) => Checked {
            manifest: None,
            diagnostics: vec![Diagnostic::error(
                "FORGE_EXTERNAL_MANIFEST_PARSE",
                format!("cannot be read: {error}"),
            )],
        },
    };
    for found in &mut checked.diagnostics {
        found.file = Some(file.to_owned());
    }
    checked
}

fn findings(error: RegistryError) -> Vec<Diagnostic> {
    match error {
        RegistryError::Invalid(found) => found,
        RegistryError::Read { .. } | RegistryError::Write { .. } | RegistryError::Locked { .. } => {
            vec![Diagnostic::error(
                "FORGE_EXTERNAL_REGISTRY_OBJECT",
                chain(&error),
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
    let words = match (&service.command_args, &service.command) {
        (Some(words), _) => words.clone(),
        (None, Some(line)) => command_line::split(line).ok()?,
        (None, None) => return None,
    };
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
