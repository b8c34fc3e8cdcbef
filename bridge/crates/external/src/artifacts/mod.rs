//! Files generated from the catalog for clients and agents. Equal catalogs give equal bytes.

mod agents;
mod client;
mod policies;
mod services;

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};
use url::Url;

use crate::catalog::Catalog;
use crate::diagnostic::Diagnostic;
use crate::manifest::{Entry, EntryKind, Manifest, Risk};
use crate::{canonical, files};

/// Folder of the generated files, below the root.
pub const FOLDER: &str = "src/forge/_generated";

const SCHEMA_VERSION: &str = "0.1.0";
const GENERATOR_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub name: &'static str,
    pub content: String,
}

/// Generates all files, or says why a catalog has none.
pub fn generate(catalog: &Catalog) -> Result<Vec<Artifact>, Vec<Diagnostic>> {
    let collisions = agents::collisions(catalog);
    if !collisions.is_empty() {
        return Err(collisions);
    }
    let services = services::external_services(catalog);
    let input = services["inputHash"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let file = |name, value: &Value| Artifact {
        name,
        content: canonical::text(value),
    };
    Ok(vec![
        file("externalServices.json", &services),
        file("api.json", &services::api(catalog)),
        file("agentContract.json", &agents::contract(catalog)),
        file("agentTools.json", &agents::tools(catalog)),
        file("capabilityMap.json", &agents::capabilities(catalog)),
        file("policyRegistry.json", &policies::registry(catalog)),
        Artifact {
            name: "client.ts",
            content: client::source(catalog, &input),
        },
    ])
}

/// Artifact `externalServices.json`: what is known of every service.
pub fn external_services(catalog: &Catalog) -> Value {
    services::external_services(catalog)
}

/// Writes the files into a folder. Returns the paths whose content has changed.
pub fn write(folder: &Path, artifacts: &[Artifact]) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    let mut changed = Vec::new();
    for artifact in artifacts {
        let path = folder.join(artifact.name);
        if files::replace(&path, artifact.content.as_bytes())? {
            changed.push(path);
        }
    }
    Ok(changed)
}

/// Route of the bridge for an entry.
pub fn route(service: &str, kind: EntryKind, entry: &str) -> String {
    let mut url = Url::parse("http://bridge.invalid/").expect("it is a URL");
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.extend(["external", service, kind.plural(), entry]);
    }
    url.path().to_owned()
}

fn http(manifest: &Manifest, entry: &Entry) -> Value {
    json!({
        "method": "POST",
        "path": route(&manifest.service.name, entry.kind, &entry.name),
        "exampleBody": {"args": {}},
    })
}

/// Name of an entry as a tool of an agent.
pub fn tool_name(kind: EntryKind, qualified: &str) -> String {
    let kept = |character: char| match character {
        'A'..='Z' | 'a'..='z' | '0'..='9' | '_' | '$' => character,
        _ => '_',
    };
    let name = qualified.chars().map(kept);
    format!("forge_{}_{}", kind.as_str(), name.collect::<String>())
}

/// True if a tool call has to be approved.
fn needs_approval(entry: &Entry) -> bool {
    match entry.kind {
        EntryKind::Command => entry
            .needs_approval
            .unwrap_or(entry.risk != Some(Risk::Read)),
        EntryKind::Query => false,
    }
}

/// Method of the client that calls entries of this kind.
fn hook(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Command => "externalCommand",
        EntryKind::Query => "externalQuery",
    }
}

fn frontend(kind: EntryKind) -> Value {
    json!({"hook": hook(kind), "routes": [], "components": []})
}

/// Language, framework and transport, which several files repeat for each entry.
fn runtime(manifest: &Manifest) -> Map<String, Value> {
    let mut runtime = Map::new();
    put(&mut runtime, "language", Some(&manifest.language));
    put(&mut runtime, "framework", manifest.framework.as_ref());
    put(&mut runtime, "transport", Some(&manifest.service.transport));
    runtime
}

/// Adds a member unless it is absent.
fn put(members: &mut Map<String, Value>, key: &str, value: Option<&impl Serialize>) {
    if let Some(value) = value {
        let value = serde_json::to_value(value).expect("a manifest serialises");
        members.insert(key.to_owned(), value);
    }
}

fn source(manifest: &Manifest) -> String {
    format!("external:{}", manifest.service.name)
}

#[cfg(test)]
mod tests;
