//! `client.ts`: typed references to all entries. Names of services and entries stand there as JSON literals only.

use serde_json::{Value, json};

use forge_base::digest::{hex, sha256};

use super::GENERATOR_VERSION;
use crate::catalog::Catalog;
use crate::manifest::EntryKind;

/// Source text; `input` is the digest of the services that it was made from.
pub(super) fn source(catalog: &Catalog, input: &str) -> String {
    let body = body(catalog);
    let content = hex(&sha256(&body));
    format!(
        "// @forge-generated generator={GENERATOR_VERSION} input={input} content={content}\n{body}"
    )
}

fn body(catalog: &Catalog) -> String {
    let names: Vec<String> = catalog
        .services()
        .map(|manifest| manifest.service.name.clone())
        .collect();
    format!(
        r#"import {{ Bridge, type BridgeOptions }} from "@forge-bridge/client";

/** References to the commands and queries of all external services. */
export const api = {{
  external: {{
    services: {{
{services}    }},
    commands: {{
{commands}    }},
    queries: {{
{queries}    }},
  }},
}} as const;

/** Client of the bridge: `client.externalCommand(api.external.commands[…], args)`. */
export function createClient(options: BridgeOptions): Bridge {{
  return new Bridge(options);
}}
"#,
        services = lines(names.iter().map(|name| (name.clone(), json!(name)))),
        commands = lines(references(catalog, EntryKind::Command)),
        queries = lines(references(catalog, EntryKind::Query)),
    )
}

fn references(catalog: &Catalog, kind: EntryKind) -> impl Iterator<Item = (String, Value)> {
    let entries = catalog
        .entries()
        .filter(move |(_, entry)| entry.kind == kind);
    entries.map(move |(manifest, entry)| {
        let reference = json!({
            "service": manifest.service.name,
            "name": entry.name,
            "kind": kind,
        });
        (manifest.qualified(entry), reference)
    })
}

/// Members of an object literal. A computed key, so that no name becomes the prototype.
fn lines(members: impl Iterator<Item = (String, Value)>) -> String {
    let lines = members.map(|(key, value)| format!("      [{}]: {value},\n", json!(key)));
    lines.collect()
}
