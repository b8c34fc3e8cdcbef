//! `agentContract.json`, `agentTools.json` and `capabilityMap.json`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{
    GENERATOR_VERSION, SCHEMA_VERSION, frontend, hook, http, needs_approval, put, runtime, source,
    tool_name,
};
use crate::catalog::Catalog;
use crate::diagnostic::Diagnostic;
use crate::manifest::{Entry, EntryKind, Manifest, Transaction};

/// Entries whose tool names are the same.
pub(super) fn collisions(catalog: &Catalog) -> Vec<Diagnostic> {
    let mut named = BTreeMap::<String, String>::new();
    let mut found = Vec::new();
    for (manifest, entry) in catalog.entries() {
        let qualified = manifest.qualified(entry);
        let name = tool_name(entry.kind, &qualified);
        if let Some(other) = named.get(&name) {
            let message = format!("{other} and {qualified} both become the tool {name}");
            let diagnostic = Diagnostic::error("FORGE_EXTERNAL_TOOL_COLLISION", message);
            found.push(diagnostic.hint("Rename one of the two entries."));
        }
        named.insert(name, qualified);
    }
    found
}

pub(super) fn contract(catalog: &Catalog) -> Value {
    let services: Value = catalog
        .services()
        .map(|manifest| service(manifest))
        .collect();
    json!({
        "schemaVersion": SCHEMA_VERSION,
        "externalServices": services,
        "commands": of_kind(catalog, EntryKind::Command, callable),
        "queries": of_kind(catalog, EntryKind::Query, callable),
    })
}

pub(super) fn tools(catalog: &Catalog) -> Value {
    let tools: Value = catalog
        .entries()
        .map(|(manifest, entry)| tool(manifest, entry))
        .collect();
    json!({
        "schemaVersion": SCHEMA_VERSION,
        "generatorVersion": GENERATOR_VERSION,
        "project": "forge-bridge",
        "explicitTools": [],
        "autoTools": tools,
        "agents": [],
    })
}

pub(super) fn capabilities(catalog: &Catalog) -> Value {
    let entries: Value = catalog
        .entries()
        .map(|(manifest, entry)| capability(manifest, entry))
        .collect();
    json!({"schemaVersion": SCHEMA_VERSION, "entries": entries})
}

fn of_kind(catalog: &Catalog, kind: EntryKind, each: fn(&Manifest, &Entry) -> Value) -> Value {
    let entries = catalog.entries().filter(|(_, entry)| entry.kind == kind);
    entries
        .map(|(manifest, entry)| each(manifest, entry))
        .collect()
}

fn service(manifest: &Manifest) -> Value {
    let names = |kind| -> Value {
        let entries = manifest.entries.iter().filter(|entry| entry.kind == kind);
        entries.map(|entry| manifest.qualified(entry)).collect()
    };
    let service = &manifest.service;
    let mut members = runtime(manifest);
    put(&mut members, "name", Some(&service.name));
    put(&mut members, "baseUrl", service.base_url.as_ref());
    put(&mut members, "command", service.command.as_ref());
    put(&mut members, "health", service.health.as_ref());
    members.insert("commands".to_owned(), names(EntryKind::Command));
    members.insert("queries".to_owned(), names(EntryKind::Query));
    members.into()
}

/// Command or query of the contract.
fn callable(manifest: &Manifest, entry: &Entry) -> Value {
    let mut members = effects(manifest, entry);
    put(&mut members, "name", Some(&manifest.qualified(entry)));
    members.extend([
        ("allowedPackages".to_owned(), json!([])),
        ("forbiddenCapabilities".to_owned(), json!([])),
    ]);
    if entry.kind == EntryKind::Query {
        let scoped = entry.tenant_scoped.unwrap_or(false);
        members.extend([
            ("readOnly".to_owned(), json!(true)),
            ("tenantScoped".to_owned(), json!(scoped)),
        ]);
    }
    members.into()
}

fn tool(manifest: &Manifest, entry: &Entry) -> Value {
    let qualified = manifest.qualified(entry);
    let read_only = entry.kind == EntryKind::Query;
    let public = entry
        .policy
        .as_deref()
        .is_none_or(|policy| policy == "public");
    let mut members = effects(manifest, entry);
    put(
        &mut members,
        "name",
        Some(&tool_name(entry.kind, &qualified)),
    );
    put(&mut members, "description", entry.description.as_ref());
    put(&mut members, "inputSchema", entry.input_schema.as_ref());
    let further = json!({
        "sourceKind": entry.kind,
        "sourceName": qualified,
        "dependencies": [],
        "readOnly": read_only,
        "risk": if read_only { "read" } else { "write" },
        "needsApproval": needs_approval(entry),
        "requiresAuth": !public,
        "execution": "external-runtime-endpoint",
    });
    merge(&mut members, further);
    members.into()
}

fn capability(manifest: &Manifest, entry: &Entry) -> Value {
    let qualified = manifest.qualified(entry);
    let (action, kind) = match entry.kind {
        EntryKind::Command => ("Call command", "command"),
        EntryKind::Query => ("Read query", "query"),
    };
    let mut runtime = effects(manifest, entry);
    for key in ["source", "external", "frontend", "file"] {
        runtime.remove(key);
    }
    let further = json!({
        "kind": entry.kind,
        "name": qualified,
        "hook": hook(entry.kind),
        "dependencies": [],
    });
    merge(&mut runtime, further);
    json!({
        "id": format!("runtime:{kind}:{qualified}"),
        "status": "backend-only",
        "userAction": format!("{action} {qualified}"),
        "runtime": runtime,
        "notes": [format!("Called through the bridge; {} runs elsewhere.", manifest.service.name)],
    })
}

/// Members that contract, tools and capabilities have in common: origin, policy, effects and address.
fn effects(manifest: &Manifest, entry: &Entry) -> Map<String, Value> {
    let table = source(manifest);
    let writes =
        entry.kind == EntryKind::Command && entry.transaction != Some(Transaction::ReadOnly);
    let read: &[String] = match entry.kind {
        EntryKind::Command => &[],
        EntryKind::Query => std::slice::from_ref(&table),
    };
    let written: &[String] = match writes {
        true => std::slice::from_ref(&table),
        false => &[],
    };
    let emits = entry.effects.clone().unwrap_or_default();
    let mut external = runtime(manifest);
    put(&mut external, "service", Some(&manifest.service.name));
    put(&mut external, "transaction", entry.transaction.as_ref());
    put(&mut external, "risk", entry.risk.as_ref());
    put(
        &mut external,
        "needsApproval",
        entry.needs_approval.as_ref(),
    );
    put(&mut external, "effects", Some(&emits));
    put(&mut external, "description", entry.description.as_ref());
    let mut members = Map::new();
    put(&mut members, "policy", entry.policy.as_ref());
    let further = json!({
        "file": table,
        "source": "external",
        "external": external,
        "tablesRead": read,
        "tablesWritten": written,
        "emits": emits,
        "http": http(manifest, entry),
        "frontend": frontend(entry.kind),
    });
    merge(&mut members, further);
    members
}

fn merge(members: &mut Map<String, Value>, further: Value) {
    if let Value::Object(further) = further {
        members.extend(further);
    }
}
