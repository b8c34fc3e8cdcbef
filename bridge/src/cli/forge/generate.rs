//! `forge generate` and `forge inspect external`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::super::Context;
use super::{Report, Workspace};
use forge_external::artifacts::{self, FOLDER};
use forge_external::diagnostic::any_error;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Folder of the generated files; defaults to src/forge/_generated below the root
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn run(
    context: &Context,
    root: Option<&Path>,
    arguments: &Arguments,
) -> anyhow::Result<ExitCode> {
    let workspace = Workspace::open(context, root)?;
    let default = || workspace.root.join(FOLDER);
    let folder = arguments.out.clone().unwrap_or_else(default);
    let (catalog, mut diagnostics) = workspace.load();
    let mut changed = Vec::new();
    if !any_error(&diagnostics) {
        match artifacts::generate(&catalog) {
            Ok(files) => changed = artifacts::write(&folder, &files)?,
            Err(found) => diagnostics.extend(found),
        }
    }
    let changed: Vec<String> = changed
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let count = catalog.services().count();
    let services = if count == 1 { "service" } else { "services" };
    let lines = match changed.as_slice() {
        [] => vec![format!(
            "{} is up to date with {count} {services}",
            folder.display()
        )],
        changed => {
            let mut lines = vec![format!("generated from {count} {services}:")];
            lines.extend(changed.iter().map(|path| format!("  {path}")));
            lines
        }
    };
    Report {
        members: json!({
            "subcommand": "generate",
            "path": folder.display().to_string(),
            "changed": changed,
            "serviceCount": count,
        }),
        diagnostics: &diagnostics,
        lines,
    }
    .print(context)
}

pub(super) fn inspect(
    context: &Context,
    root: Option<&Path>,
    target: &str,
) -> anyhow::Result<ExitCode> {
    let (catalog, diagnostics) = Workspace::open(context, root)?.load();
    if !context.global.json && !any_error(&diagnostics) {
        let heading = [
            "entry",
            "kind",
            "transport",
            "policy",
            "risk",
            "description",
        ];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        for (manifest, entry) in catalog.entries() {
            let shown = |value: Value| value.as_str().unwrap_or("-").to_owned();
            rows.push(vec![
                manifest.qualified(entry),
                entry.kind.as_str().to_owned(),
                shown(json!(manifest.service.transport)),
                entry.policy.clone().unwrap_or_else(|| "public".to_owned()),
                shown(json!(entry.risk)),
                entry.description.clone().unwrap_or_default(),
            ]);
        }
        context.screen().table(&rows)?;
    }
    Report {
        members: json!({"target": target, "data": artifacts::external_services(&catalog)}),
        diagnostics: &diagnostics,
        lines: Vec::new(),
    }
    .print(context)
}
